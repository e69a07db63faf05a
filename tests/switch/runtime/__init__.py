# SPDX-License-Identifier: Apache-2.0
"""Tests of compiled programs: results, tables, externs, other CPUs."""
