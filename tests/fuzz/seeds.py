# SPDX-License-Identifier: Apache-2.0
"""The seeds that a fuzzer's command line names."""


def seeds_of(text: str) -> range:
    """The seeds of "N" or "FIRST..LAST". Raises ValueError."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)
