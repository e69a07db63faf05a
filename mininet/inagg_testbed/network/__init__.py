# SPDX-License-Identifier: Apache-2.0
"""A testbed that is up: the star of hosts, the switch in its middle, the controller, and worker processes.

`testbed.open_testbed` puts the parts together and takes them down again. Read `lifecycle` first (what a run creates and
how teardown removes exactly that), then `topology` and `links`, `switches`, `control`, `processes` and `workers`.
"""
