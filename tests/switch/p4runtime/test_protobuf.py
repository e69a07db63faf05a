# SPDX-License-Identifier: Apache-2.0
"""Switch, controller and p4runtime-shell with a protobuf that is newer than p4runtime-shell's requirements allow, as
other packages install it. Their tests run again, in a process with that protobuf."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

VERSION = "7.36.2"  # the newest version that was tested
TESTS = (
    "tests/switch/p4runtime/test_cells.py",
    "tests/switch/p4runtime/test_shell.py",
    "tests/switch/p4runtime/test_server.py",
    "tests/controller/test_switch.py",
    "tests/testbed/operate/test_switch_reader.py",
)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A folder with VERSION of protobuf."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    done = subprocess.run([*install, f"protobuf=={VERSION}"], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        pytest.skip(f"protobuf {VERSION} cannot be installed here: {done.stderr[-200:]}")
    return tmp_path


@pytest.mark.long
def test_switch_controller_and_shell_work_beside_a_newer_protobuf(newer: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(newer)}
    code = "import google.protobuf; print(google.protobuf.__version__)"
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert said.stdout.strip() == VERSION
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-3000:]
