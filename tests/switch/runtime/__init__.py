# SPDX-License-Identifier: Apache-2.0
"""Tests of compiled programs and their native runtime (switch/inagg_switch/native/runtime).

`test_conformance` runs tests/switch/programs with their packet vectors; read it first. The other files have one kind of
object each, such as tables or externs.
"""
