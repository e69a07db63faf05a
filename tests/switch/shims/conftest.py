# SPDX-License-Identifier: Apache-2.0
"""The commands, written once for all tests."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands."""
    folder = tmp_path_factory.mktemp("shims")
    subprocess.run([sys.executable, "-m", "inagg_switch.cli", "shims", str(folder)], check=True)
    return folder
