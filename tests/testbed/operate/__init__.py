# SPDX-License-Identifier: Apache-2.0
"""Tests of commands on a testbed that is up."""
