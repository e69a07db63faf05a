# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice of a process group for what the switch does not sum."""
