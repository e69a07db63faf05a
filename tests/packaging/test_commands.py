# SPDX-License-Identifier: Apache-2.0
"""What works without the extras, and what the commands say then. Modules of the extras are blocked in processes of
their own."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from inagg_contract.installation import pip_install
from tests import INAGG_P4
from tests.packaging.imports import foreign_modules


@cache
def blocked() -> list[str]:
    """What the extras need and a worker does not."""
    of_extras = {
        name for extra in ("switch", "server", "controller", "testbed") for name in foreign_modules(extra)
    }
    return sorted(of_extras - foreign_modules("base") - foreign_modules("worker"))


@cache
def of_workers() -> list[str]:
    """What a worker needs, and not every part."""
    return sorted(foreign_modules("worker") - foreign_modules("base"))


BLOCK = """
import sys
from importlib.machinery import PathFinder

finders = [*sys.meta_path]
hidden = set(sys.argv.pop(1).split(","))

class Hide:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            return None
        return next((spec for each in finders if (spec := each.find_spec(name, path, target))), None)

sys.meta_path[:] = [Hide]
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
    assert {"fastapi", "grpc", "matplotlib", "p4runtime_sh", "sklearn"} <= set(blocked())
    done = run_without(blocked(), IMPORT_ALL)
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
    done = run_without(blocked(), START, command, "--help")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command} needs the extra {extra}: {pip_install(extra)} (")
    assert ("; `inagg launch` needs the extra worker only" in line) == (command == "inagg")


def test_launch_needs_the_extra_of_workers_only() -> None:
    launch = ["inagg", "launch", "--set", "lane_bits=7", "true"]
    done = run_without(blocked(), START, *launch)
    assert done.returncode == 1
    assert done.stderr.startswith("inagg: inagg options: lane_bits: ")
    done = run_without(of_workers(), START, *launch)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == f"inagg launch needs the extra worker: {pip_install('worker')} (there is no module torch)"


@pytest.mark.parametrize("command", ["inagg-switch", "inagg-controller", "inagg-server"])
def test_the_commands_of_other_machines_need_no_torch(command: str) -> None:
    done = run_without(sorted({*of_workers()} - {"httpx"}), START, command, "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("names", ["import inagg", "from inagg import Options", "import inagg.process_group"])
def test_the_host_library_without_torch_says_what_to_install(names: str) -> None:
    done = run_without(["torch"], names)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: inagg needs torch: {pip_install('worker')}"


def test_a_module_that_only_one_subcommand_needs_is_explained_too() -> None:
    done = run_without(["grpc"], START, "inagg-switch", "run", "--port", "1@lo")
    assert done.returncode == 1
    assert done.stderr == (
        f"inagg-switch needs the extra switch: {pip_install('switch')} (there is no module grpc)\n"
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


@pytest.mark.parametrize(
    "arguments", [("inagg", "--help"), ("inagg-switch", "explain"), ("inagg-controller", "--version")]
)
def test_a_full_disk_behind_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    command = [str(Path(sys.executable).with_name(arguments[0])), *arguments[1:]]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    assert done.returncode == 1
    assert done.stderr == f"{arguments[0]}: standard output: No space left on device\n"
