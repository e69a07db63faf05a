# SPDX-License-Identifier: Apache-2.0
"""Tests of the C++ core (hostlib/native): the wire format, numerics, the engine in virtual time, the UDP transport.

Read `test_wire_header`, `test_numerics_blocks` and `test_engine_sums` first. `test_engine_NAME` tests one concern of
the engine, against the reference switch of `inagg_simulator`.
"""
