# SPDX-License-Identifier: Apache-2.0
"""Tests of switch/inagg_switch/compiler: its stages, its diagnostics, P4Info and the cache.

Read `test_stages` first. `test_diagnostics` has programs that are wrong, `test_p4info` compares with p4c's P4Info.
Compiled programs run in `tests/switch/runtime`.
"""
