# SPDX-License-Identifier: Apache-2.0
"""Tests of how ranks join a job, watch one another and leave: agreement, fallback, differing calls."""
