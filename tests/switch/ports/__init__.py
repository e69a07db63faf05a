# SPDX-License-Identifier: Apache-2.0
"""Tests of the packet ports (switch/inagg_switch/native/ports): queues, segmentation offloads, running switches.

`hub` is a program without P4, `segments` makes frames; read these first. `test_queue` and most of
`test_segments` run in the test's process, the others between network namespaces.
"""
