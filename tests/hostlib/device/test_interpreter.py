# SPDX-License-Identifier: Apache-2.0
"""Runs tests of Triton's kernels in Triton's interpreter: without a GPU, and in processes of their own, because Triton
asks when it is imported whether to interpret."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

PATIENCE_S = 280


@pytest.mark.parametrize("name", ["test_kernels", "test_sums"])
def test_in_the_interpreter(name: str) -> None:
    pytest.importorskip("triton")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/hostlib/device/{name}.py"],
        cwd=ROOT,
        env=environment | {"TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
