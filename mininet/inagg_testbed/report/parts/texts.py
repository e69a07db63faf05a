# SPDX-License-Identifier: Apache-2.0
"""Figures in words."""

from collections.abc import Iterable, Sequence


def listed(texts: Sequence[str]) -> str:
    """a, b and c."""
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


def counts(values: Iterable[int]) -> str:
    """Each value once, as in 2, 4 and 8. Without values: ValueError."""
    return listed([f"{value:,}" for value in dict.fromkeys(values)])


def megabytes(count: float) -> str:
    """Bytes in 10^6, with three digits or all of an integer."""
    value = count / 1e6
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}" if value >= 0.001 else "<0.001"
