# SPDX-License-Identifier: Apache-2.0
"""Tests of the C++ core (hostlib/native): the wire format, numerics, the engine in virtual time, the UDP transport."""
