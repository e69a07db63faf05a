# SPDX-License-Identifier: Apache-2.0
"""Small P4 programs with packet vectors (programs/*), run on the model and, where it is installed, on BMv2.

The expected frames were the same on both when they were written down.
"""

import shutil
from pathlib import Path

import pytest
from switch_vectors import Vectors, read_vectors, run_bmv2, run_model

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.p4"))
PORTS = range(1, 9)


def vectors_of(program: Path) -> Vectors:
    return read_vectors(program.with_suffix(".vectors"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_on_the_model(program: Path) -> None:
    vectors = vectors_of(program)
    for packet, out in zip(vectors.packets, run_model(program, vectors), strict=True):
        assert out == packet.expected, f"{program.stem}.vectors:{packet.line}"


@pytest.mark.bmv2
@pytest.mark.skipif(shutil.which("simple_switch") is None, reason="simple_switch is not on PATH")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_on_bmv2(program: Path) -> None:
    vectors = vectors_of(program)
    expected: dict[int, list[bytes]] = {port: [] for port in PORTS}
    for packet in vectors.packets:
        for port, frame in packet.expected:
            if port in PORTS:
                expected[port].append(frame)
    # Which frames leave which port; their order varies from run to run when they are put in all at once.
    seen = run_bmv2(program, vectors, PORTS)
    assert {port: sorted(frames) for port, frames in seen.items()} == {
        port: sorted(frames) for port, frames in expected.items()
    }
