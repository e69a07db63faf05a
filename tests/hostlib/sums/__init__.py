# SPDX-License-Identifier: Apache-2.0
"""Tests of hostlib/inagg/sums that need neither a switch nor other ranks.

`test_elements` converts dtypes, `test_calls` describes collectives, `test_pending` finds sums under way, and
`test_work` tests the Work that torch gets. `tests/hostlib/membership/test_session.py` submits sums to a real transport.
"""
