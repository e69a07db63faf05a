# SPDX-License-Identifier: Apache-2.0
"""Tests of hostlib/inagg/inner: which process group does the collectives that the switch does not sum.

The rules are tested here without a GPU. Whole groups are tested in `tests/hostlib/backend`.
"""
