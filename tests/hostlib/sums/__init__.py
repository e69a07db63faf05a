# SPDX-License-Identifier: Apache-2.0
"""Tests of sums under way: sessions, pending sums, what torch sees of one."""
