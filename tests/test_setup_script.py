# SPDX-License-Identifier: Apache-2.0
"""scripts/setup and the Makefile say what is wrong and what to do, on machines where they cannot do their work."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUP = ROOT / "scripts" / "setup"


def fake_machine(path: Path, **programs: str) -> dict[str, str]:
    """The environment of a machine where `programs` (name -> shell body) replace the real ones.

    sudo is there only if given: the few real programs that are needed are linked in without it.
    """
    tools = path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "cat", "sha256sum", "cut", "find", "sort", "tail", "make"):
        real = next(Path(p) / name for p in ("/usr/bin", "/bin") if (Path(p) / name).exists())
        (tools / name).symlink_to(real)
    for name, body in programs.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    return {"PATH": str(tools)}


def run_setup(path: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script on such a machine."""
    return run_setup_with({}, path, **programs)


def run_setup_with(
    variables: Mapping[str, str], path: Path, /, **programs: str
) -> subprocess.CompletedProcess[str]:
    """The same with more variables in the environment."""
    environment = fake_machine(path, **programs) | dict(variables)
    (path / "scripts").mkdir()
    script = path / "scripts" / "setup"
    script.write_bytes(SETUP.read_bytes())
    script.chmod(0o755)
    return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=30, check=False)


def run_make(path: Path, *arguments: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile, with a set-up that has nothing to do, on such a machine."""
    environment = fake_machine(path, git="", **programs)
    (path / "scripts").mkdir()
    (path / "scripts" / "setup").symlink_to(environment["PATH"] + "/git")
    command = ["make", "--file", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(
        command, cwd=path, env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_refuses_another_operating_system(tmp_path: Path) -> None:
    run = run_setup(tmp_path, uname="echo Darwin")
    assert run.returncode == 1
    assert "inagg needs Linux" in run.stderr
    assert "Darwin" in run.stderr


def test_names_the_packages_when_there_is_neither_root_nor_sudo(tmp_path: Path) -> None:
    run = run_setup(
        tmp_path, uname="echo Linux", id="echo 1000", **{"dpkg-query": "exit 1", "apt-get": "exit 99"}
    )
    assert run.returncode == 1
    assert "neither root nor sudo" in run.stderr
    assert "apt-get install mininet python3-venv" in run.stderr


def test_uses_sudo_when_not_root(tmp_path: Path) -> None:
    run = run_setup(
        tmp_path,
        uname="echo Linux",
        id="echo 1000",
        sudo='echo "sudo $*" >&2; exit 1',
        **{"dpkg-query": "exit 1", "apt-get": "exit 99"},
    )
    assert run.returncode == 1
    assert "sudo env DEBIAN_FRONTEND=noninteractive apt-get update" in run.stderr


def test_says_which_tool_is_missing_where_there_is_no_apt(tmp_path: Path) -> None:
    run = run_setup(tmp_path, uname="echo Linux", id="echo 0")
    assert run.returncode == 1
    assert "g++ is missing and this is not a Debian system" in run.stderr


# A machine with all packages, but for what `python` says.
INSTALLED = {
    "uname": "echo Linux",
    "id": "echo 0",
    "dpkg-query": "echo installed",
    "g++": "exit 0",
}


def python(path: Path, body: str) -> dict[str, str]:
    """The variable that has setup use an interpreter with this shell body."""
    interpreter = path / "python3"
    interpreter.write_text(f"#!/bin/bash\n{body}\n")
    interpreter.chmod(0o755)
    return {"INAGG_PYTHON": str(interpreter)}


def test_says_which_python_is_too_old(tmp_path: Path) -> None:
    old = python(tmp_path, 'case "$1" in --version) echo Python 3.9.2 ;; *) exit 1 ;; esac')
    run = run_setup_with(old, tmp_path, **INSTALLED, **{"apt-get": "exit 99"})
    assert run.returncode == 1
    assert f"inagg needs Python 3.11 or later, and {tmp_path}/python3 is Python 3.9.2" in run.stderr


IMPORT = 'case "$*" in *mininet.node*) {} ;; *) exit 0 ;; esac'
NO_DISTUTILS = "echo Traceback; echo \"ModuleNotFoundError: No module named 'distutils'\"; exit 1"


def test_installs_setuptools_where_mininet_lacks_distutils(tmp_path: Path) -> None:
    without = python(tmp_path, IMPORT.format(NO_DISTUTILS))
    apt_get = 'echo "apt-get $*" >&2'
    run = run_setup_with(without, tmp_path, **INSTALLED, **{"apt-get": apt_get})
    assert run.returncode == 1
    assert "--no-install-recommends python3-setuptools" in run.stderr
    assert (
        f"{tmp_path}/python3 cannot import Mininet: ModuleNotFoundError: No module named 'distutils'"
        in run.stderr
    )
    assert "needs python3-setuptools" in run.stderr


def test_does_not_install_setuptools_for_another_problem_of_mininet(tmp_path: Path) -> None:
    broken = python(
        tmp_path, IMPORT.format("echo ModuleNotFoundError: No module named \"'mininet'\"; exit 1")
    )
    run = run_setup_with(broken, tmp_path, **INSTALLED, **{"apt-get": "exit 99"})
    assert run.returncode == 1
    assert "cannot import Mininet: ModuleNotFoundError: No module named 'mininet'" in run.stderr
    assert "installing" not in run.stderr


def test_makes_the_environment_again_after_an_upgrade_of_python(tmp_path: Path) -> None:
    """The environment has packages for another Python than its interpreter now is."""
    newer = python(tmp_path, 'case "$*" in *venv*) echo "python3 $*" >&2; exit 1 ;; *) exit 0 ;; esac')
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "lib" / "python3.1" / "site-packages").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    run = run_setup_with(newer, tmp_path, **INSTALLED, **{"apt-get": "exit 99"})
    assert run.returncode == 1
    assert "creating .venv" in run.stderr
    assert "python3 -m venv --clear --system-site-packages .venv" in run.stderr


@pytest.mark.parametrize("target", ["demo", "bench"])
def test_make_says_that_it_needs_root_before_it_installs_anything(tmp_path: Path, target: str) -> None:
    run = run_make(tmp_path, target, id="echo 1000")
    assert run.returncode != 0
    assert f"make {target} makes network namespaces, which needs root" in run.stderr
    assert "install sudo" in run.stderr


def test_make_test_runs_without_root_where_there_is_no_sudo(tmp_path: Path) -> None:
    run = run_make(tmp_path, "--just-print", "test", id="echo 1000")
    assert run.returncode == 0
    assert ".venv/bin/python -m pytest" in run.stdout
    assert "sudo" not in run.stdout


def test_make_uses_sudo_where_there_is_one(tmp_path: Path) -> None:
    run = run_make(tmp_path, "--just-print", "demo", id="echo 1000", sudo="exit 1")
    assert run.returncode == 0
    assert "sudo -E env PATH=" in run.stdout
    assert ".venv/bin/inagg demo" in run.stdout


@pytest.mark.skipif(not (ROOT / ".venv" / ".native").exists(), reason="needs a finished installation")
def test_a_second_run_finds_nothing_to_do() -> None:
    run = subprocess.run(
        [SETUP], env=dict(os.environ), capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0
    assert run.stderr == ""
