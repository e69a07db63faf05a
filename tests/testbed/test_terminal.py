# SPDX-License-Identifier: Apache-2.0
"""Tables in a narrow terminal."""

import io

import pytest
from rich.console import Console

from inagg_testbed.terminal import print_table

HEADER = ("counter", "port of", "packets", "bytes")
WIDE = ("result_unexpected", "leaf1:101 (spine1:1)", "12,345,678", "13,271,604,112")
SHORT = ("started", "leaf1:1 (h1)", "7", "7,602")


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(console, "", HEADER, [WIDE, SHORT], text_columns=2)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize("width", [80, 66])
def test_counters_of_many_digits_stay_in_one_row(width: int) -> None:
    *heading, rule, wide, short = printed(width)
    assert set(rule) == {"─"}
    assert wide.split() == " ".join(WIDE).split()
    assert short.split() == " ".join(SHORT).split()
    assert max(map(len, (*heading, rule, wide, short))) <= width
