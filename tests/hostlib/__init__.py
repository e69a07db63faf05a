# SPDX-License-Identifier: Apache-2.0
"""Tests of the host library, in the folders of hostlib/inagg; `native` tests the C++ core (hostlib/native).

`backend` runs whole process groups as torch sees them, on a testbed. Start there, or with the folder of the code that
you change. `inagg_simulator.reference` computes the sums that tests here compare with.
"""
