# SPDX-License-Identifier: Apache-2.0
"""Tests of the commands with p4c's and BMv2's names (switch/inagg_switch/shims) and of the switch's console."""
