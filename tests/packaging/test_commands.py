# SPDX-License-Identifier: Apache-2.0
"""What works without the extras, and what the commands say then. Modules of the extras are blocked in processes of
their own."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests import INAGG_P4
from tests.packaging.imports import foreign_modules

BLOCKED = sorted(
    {name for extra in ("switch", "server", "controller", "testbed") for name in foreign_modules(extra)}
    - foreign_modules("base")
)
BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Block())
"""
IMPORT_ALL = """
import importlib, pkgutil
import inagg, inagg_contract

for package in (inagg, inagg_contract):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
        print(module.name)
"""
START = """
from importlib.metadata import entry_points
from pathlib import Path

name = sys.argv[0] = sys.argv.pop(1)
(command,) = entry_points(group="console_scripts", name=name)
command.load()()
"""


def run_without(modules: Sequence[str], source: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", BLOCK + source, ",".join(modules), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_worker_imports_nothing_of_the_extras() -> None:
    assert {"fastapi", "grpc", "matplotlib", "p4runtime_sh", "sklearn"} <= set(BLOCKED)
    done = run_without(BLOCKED, IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert {"inagg._core", "inagg.process_group", "inagg_contract.documents"} <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("inagg", "testbed"),
        ("inagg-switch", "switch"),
        ("inagg-server", "server"),
        ("inagg-controller", "controller"),
    ],
)
def test_a_command_without_its_extra_names_it(command: str, extra: str) -> None:
    done = run_without(BLOCKED, START, command, "--help")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command} needs the extra {extra}: pip install 'inagg[{extra}]' (")


def test_launch_needs_no_extra() -> None:
    done = run_without(BLOCKED, START, "inagg", "launch", "--set", "lane_bits=7", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("inagg: inagg options: lane_bits: ")


def test_a_module_that_only_one_subcommand_needs_is_explained_too() -> None:
    done = run_without(["grpc"], START, "inagg-switch", "run", "--port", "1@lo")
    assert done.returncode == 1
    assert done.stderr == (
        "inagg-switch needs the extra switch: pip install 'inagg[switch]' (there is no module grpc)\n"
    )


def test_a_missing_module_of_inagg_is_not_blamed_on_an_extra() -> None:
    done = run_without(["inagg_switch"], START, "inagg-switch", "--help")
    assert "needs the extra" not in done.stderr
    assert "No module named 'inagg_switch'" in done.stderr


def test_the_distribution_has_these_commands() -> None:
    ours = {each.name for each in entry_points(group="console_scripts") if each.value.startswith("inagg")}
    assert ours == {"inagg", "inagg-switch", "inagg-server", "inagg-controller"}


def test_the_program_of_the_switch_is_found_in_any_folder(tmp_path: Path) -> None:
    source = "from inagg_contract.program import inagg_p4; print(inagg_p4())"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = Path(done.stdout.rstrip("\n"))
    assert found.read_text() == INAGG_P4.read_text()
    assert (found.parent / "include" / "constants.p4").is_file()


@pytest.mark.parametrize("command", [("explain",), ("compile", "-o", "out")])
def test_the_switch_takes_its_own_program_where_none_is_named(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inagg_switch.cli", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "InaggParser" in done.stdout or (tmp_path / "out" / "inagg.p4").is_file()
