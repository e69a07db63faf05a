# SPDX-License-Identifier: Apache-2.0
"""Tests of the demo's training and of its report."""
