# SPDX-License-Identifier: Apache-2.0
"""Tests of the labs (docs/course) and of the command that copies them (switch/inagg_switch/labs.py)."""
