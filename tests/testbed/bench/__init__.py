# SPDX-License-Identifier: Apache-2.0
"""Tests of mininet/inagg_testbed/bench without a testbed: the benchmarks' arithmetic.

`test_rows` computes rows from events, `test_pages` makes pages of rows, `test_allreduce_check` checks sums,
`test_suite` and `test_straggler` summarise. `jobs` tests several jobs at the same time, once on a testbed. Other
benchmarks that run on a testbed are tested in `tests/testbed/test_training.py`.
"""
