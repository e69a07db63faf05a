# SPDX-License-Identifier: Apache-2.0
"""Tests of mininet/inagg_testbed/demo without a testbed.

`test_train_digits` checks the samples of each rank, `test_summary` the figures, plots and the page. The demo on a
testbed is tested in `tests/testbed/test_training.py`.
"""
