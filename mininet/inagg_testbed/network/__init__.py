# SPDX-License-Identifier: Apache-2.0
"""A testbed that is up: hosts, a star or a tree of switches, the controller, and worker processes.

`testbed.open_testbed` puts the parts together and takes them down again. Read `lifecycle` first (what a run creates and
how teardown removes exactly that), then `fabric`, `topology` and `links`, `switches`, `control`, `processes` and
`workers`. `exercise` makes testbeds of the files of P4 exercises, without the controller.
"""
