# SPDX-License-Identifier: Apache-2.0
"""The queue of a port keeps frames whole and in order, and refuses frames that do not fit."""

import subprocess
from pathlib import Path

from tests.switch import NATIVE
from tests.switch.ports.segments import SOURCES

HERE = Path(__file__).parent


def test_the_output_queue_agrees_with_a_simple_one(tmp_path: Path) -> None:
    binary = tmp_path / "check"
    sources = [str(HERE / "queue_check.cpp"), *(str(NATIVE / f"{name}.cpp") for name in SOURCES)]
    options = [
        "-std=c++20",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
        f"-I{NATIVE}",
    ]
    subprocess.run(["g++", *options, *sources, "-o", str(binary)], check=True, timeout=240)
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
