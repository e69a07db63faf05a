# SPDX-License-Identifier: Apache-2.0
"""The queue of a port keeps frames whole and in order, and refuses frames that do not fit."""

import subprocess
from pathlib import Path

from tests.switch.ports.sanitized import build
from tests.switch.ports.segments import SOURCES


def test_the_output_queue_agrees_with_a_simple_one(tmp_path: Path) -> None:
    binary = build(tmp_path, "queue_check.cpp", SOURCES)
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
