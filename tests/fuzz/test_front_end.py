# SPDX-License-Identifier: Apache-2.0
"""Damaged programs give a diagnostic, never a traceback (a short run of `tests.fuzz.front_end`)."""

import pytest

from tests.fuzz.front_end import compile_mutant, mutant
from tests.switch.snippets import v1program

FIRST, COUNT = 1, 150


def test_damaged_programs_give_a_diagnostic_or_compile() -> None:
    results = {seed: compile_mutant(*mutant(seed)) for seed in range(FIRST, FIRST + COUNT)}
    wrong = {seed: r.wrong for seed, r in results.items() if r.wrong}
    assert not wrong, f"{len(wrong)} of {COUNT}, the first: {next(iter(wrong.items()))}"
    assert any(r.accepted for r in results.values())
    assert sum(bool(r.error) for r in results.values()) > COUNT // 2


def test_a_program_cut_off_anywhere_is_refused() -> None:
    text = v1program("if (hdr.h.a == 1) { hdr.h.b = hdr.h.c[7:0] + 8w3; }").rstrip()
    for end in range(0, len(text), 7):
        result = compile_mutant("cut.p4", text[:end])
        assert not result.wrong, text[:end]
        assert result.error, text[:end]


def test_the_same_seed_gives_the_same_program() -> None:
    assert mutant(5) == mutant(5)
    assert len({mutant(seed)[1] for seed in range(20)}) == 20


@pytest.mark.parametrize("text", ["", "\n", "/*", "#", "\0", "@", '"', "#include <core.p4>", "é", "control"])
def test_a_text_that_is_not_a_program_is_refused(text: str) -> None:
    result = compile_mutant("hardly.p4", text)
    assert result.error
    assert not result.wrong


@pytest.mark.parametrize("piece", ["(", "{", "!", "-", "8w1 + (", "true ? "])
def test_deep_nesting_is_refused(piece: str) -> None:
    result = compile_mutant("deep.p4", v1program(f"meta.x = {piece * 20000}1;"))
    assert result.error
    assert not result.wrong
