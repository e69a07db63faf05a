# SPDX-License-Identifier: Apache-2.0
"""deploy/: the units are what systemd understands, start inagg's commands and confine them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

UNITS = sorted((ROOT / "deploy").glob("*.service"))
INSTALLED = "/opt/inagg/bin"
# The most that `systemd-analyze security` may say, of 10: a switch needs the network's devices.
EXPOSURE = {"inagg-controller": 1.5, "inagg-server": 1.5, "inagg-switch": 2.5}

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH (Debian: systemd)"
)


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_command_that_serves_has_a_unit() -> None:
    assert {path.stem for path in UNITS} == set(EXPOSURE)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_a_unit_and_finds_its_command(unit: Path, tmp_path: Path) -> None:
    here = str(Path(sys.executable).parent)
    text = unit.read_text()
    assert text.count(f"{INSTALLED}/") == 1
    copy = tmp_path / unit.name
    copy.write_text(text.replace(INSTALLED, here))
    done = analyze("verify", "--man=no", "--recursive-errors=no", copy)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_unit_gets_the_secrets_of_another() -> None:
    given = {
        unit.stem: re.findall(r"^LoadCredential=(.*)$", unit.read_text(), re.MULTILINE) for unit in UNITS
    }
    assert given == {
        f"inagg-{part}": [f"secrets:/etc/inagg/{part}"] for part in ("controller", "server", "switch")
    }


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_confines_its_command(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={round(10 * EXPOSURE[unit.stem])}", unit)
    assert re.search(r"Overall exposure level for \S+: [\d.]+ OK", done.stdout), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
