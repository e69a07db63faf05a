# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of single parts. They print their settings, report medians, and never pass or fail."""
