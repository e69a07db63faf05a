# SPDX-License-Identifier: Apache-2.0
"""Tests of the host library, in the rooms of hostlib/inagg; `native` is the C++ core, `backend` what torch sees."""
