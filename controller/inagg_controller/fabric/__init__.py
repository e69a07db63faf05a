# SPDX-License-Identifier: Apache-2.0
"""The switches that the controller manages, the links between them, and the trees over them that jobs get.

`topology` defines the values, `file` reads them from TOML, `tree` plans the tree of a job, `links` finds out by beacons
which links are there, `drawing` draws the topology.
"""
