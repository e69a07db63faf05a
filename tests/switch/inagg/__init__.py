# SPDX-License-Identifier: Apache-2.0
"""Tests of p4/inagg.p4, run in the test's process.

`packets` writes frames and a job's table entries by hand; read it first. `test_slots` has the sums, `test_group` the
results to a job's group, `test_traffic` and `test_guard` the other packets.
"""
