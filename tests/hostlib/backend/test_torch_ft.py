# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own fault-tolerance tests: `make torch-ft`, or with torch 2.14 and TORCH_TESTS, a checkout of PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostlib.backend.torch_ft import missing

WHY_NOT = missing(os.environ.get("TORCH_TESTS"))


@pytest.mark.netns
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("aggregation", ["leased", "shared", "server"])
def test_torchs_own_fault_tolerance_tests_pass(tmp_path: Path, aggregation: str) -> None:
    command = [sys.executable, "-m", "tests.hostlib.backend.torch_ft", os.environ["TORCH_TESTS"]]
    command += ["--aggregation", aggregation, "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].startswith("12 passed, 1 skipped by torch, 0 not as expected")
