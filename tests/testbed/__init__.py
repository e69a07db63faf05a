# SPDX-License-Identifier: Apache-2.0
"""Tests of the testbed and of whole jobs on it."""
