# SPDX-License-Identifier: Apache-2.0
"""The numerics compiled for aarch64 (NEON) give the same bits. Needs qemu and a cross compiler on PATH."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

NATIVE = Path(__file__).parents[3] / "hostlib" / "native"
SOURCES = [
    Path(__file__).parent / "numerics_digest.cpp",
    NATIVE / "numerics" / "numerics.cpp",
    NATIVE / "numerics" / "kernels.cpp",
]
FLAGS = ["-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-static"]


def digest(compiler: str, folder: Path, runner: list[str]) -> str:
    program = folder / compiler
    command = [compiler, *FLAGS, "-DINAGG_KERNELS=baseline", f"-I{NATIVE}", f"-I{folder}"]
    subprocess.run([*command, "-o", program, *SOURCES], check=True)
    return subprocess.run([*runner, program], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")),
    reason="aarch64-linux-gnu-g++ and qemu-aarch64 are not on PATH",
)
def test_aarch64_has_the_same_bits(tmp_path: Path) -> None:
    generate, constants = (
        ROOT / "contract" / "generate_constants.py",
        ROOT / "p4/include/constants.p4",
    )
    subprocess.run(["python3", generate, constants, tmp_path / "constants.hpp"], check=True)
    assert digest("aarch64-linux-gnu-g++", tmp_path, ["qemu-aarch64"]) == digest("g++", tmp_path, [])
