# SPDX-License-Identifier: Apache-2.0
"""Tests of the compiler: its stages, its diagnostics, P4Info."""
