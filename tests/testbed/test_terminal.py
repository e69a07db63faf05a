# SPDX-License-Identifier: Apache-2.0
"""Tables in a narrow terminal, and a program's output above what changes."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from inagg_testbed.terminal import ProgressView, print_table

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


def written(*pieces: str, terminal: bool = True) -> str:
    """What a console shows of a program's output, without escape sequences."""
    console = Console(file=io.StringIO(), width=40, force_terminal=terminal)
    with ProgressView(console) as view:
        for piece in pieces:
            view.write(piece)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    return Text.from_ansi(text).plain if terminal else text


def test_a_terminal_gets_a_programs_output_in_whole_lines() -> None:
    assert written("step 1\nsaved ", "[/tmp/x.pt]", " [red]\n").split("\n")[:2] == [
        "step 1",
        "saved [/tmp/x.pt] [red]",
    ]


def test_a_terminal_gets_a_programs_last_line_without_an_end() -> None:
    assert "saved [/tmp/x.pt]" in written("saved ", "[/tmp/x.pt]").split("\n")


def test_a_terminal_gets_what_a_progress_bar_showed_last() -> None:
    text = written("10%\r20%", "\r100%\r\n")
    assert "100%" in text.split("\n")
    assert "20%" not in text


def test_a_log_gets_a_programs_output_as_it_is() -> None:
    assert written("10%\r20", "%", terminal=False) == "10%\r20%"
