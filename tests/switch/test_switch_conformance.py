# SPDX-License-Identifier: Apache-2.0
"""Small P4 programs with packet vectors (programs/*), run on the model and, where it is installed, on BMv2.

The expected frames were the same on both when they were written down.
"""

from pathlib import Path

import bmv2
import pytest
from switch_vectors import Vectors, read_vectors, run_bmv2, run_model

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.p4"))


def vectors_of(program: Path) -> Vectors:
    return read_vectors(program.with_suffix(".vectors"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_on_the_model(program: Path) -> None:
    vectors = vectors_of(program)
    for packet, out in zip(vectors.packets, run_model(program, vectors), strict=True):
        assert out == packet.expected, f"{program.stem}.vectors:{packet.line}"


@pytest.mark.bmv2
@pytest.mark.skipif(not bmv2.available(), reason="p4c, simple_switch or libnanomsg is missing")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_on_bmv2(program: Path) -> None:
    vectors = vectors_of(program)
    # Its ports have threads of their own: the order of the copies of one packet is nobody's.
    for packet, out in zip(vectors.packets, run_bmv2(program, vectors), strict=True):
        assert sorted(out) == sorted(packet.expected), f"{program.stem}.vectors:{packet.line}"
