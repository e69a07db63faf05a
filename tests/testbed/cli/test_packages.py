# SPDX-License-Identifier: Apache-2.0
"""`inagg doctor` reports packages whose version is not one that inagg, or a package that it needs, asks for."""

import sys
from pathlib import Path
from typing import Protocol

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app
from inagg_testbed.cli.packages import broken_requirements


class Install(Protocol):
    def __call__(self, name: str, version: str, *requires: str) -> None: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes the metadata of a package. Python finds it before that of an installed package."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(name: str, version: str, *requires: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return make


def test_each_broken_requirement_of_a_package_s_packages_is_reported_once(install: Install) -> None:
    install("outer", "1.0", "inner>=2", "missing<3", 'other; extra == "all"', 'never; python_version < "3"')
    install("inner", "1.5", "leaf!=4.*", "outer")
    install("leaf", "4.2")
    assert sorted(map(str, broken_requirements("outer"))) == [
        'inner asks for leaf!=4.*: 4.2 is installed; pip install "leaf!=4.*"',
        'outer asks for inner>=2: 1.5 is installed; pip install "inner>=2"',
        'outer asks for missing<3: it is not installed; pip install "missing<3"',
    ]


def test_broken_requirements_of_extras_are_reported(install: Install) -> None:
    install("outer", "1.0", 'outer[plots]; extra == "testbed"', 'inner[fast]; extra == "plots"')
    install("inner", "1.5", 'leaf>=4; extra == "fast"', 'other; extra == "slow"')
    install("leaf", "3.2")
    assert [str(each) for each in broken_requirements("outer", "testbed")] == [
        'inner asks for leaf>=4: 3.2 is installed; pip install "leaf>=4"',
    ]
    assert list(broken_requirements("outer", "slow")) == []


@pytest.mark.parametrize(("version", "works"), [("7.36.2", True), ("3.14.0", False)])
def test_doctor_reports_a_protobuf_that_p4runtime_shell_does_not_ask_for(
    install: Install, version: str, works: bool
) -> None:
    install("protobuf", version)
    said = CliRunner().invoke(app, ["doctor"]).output
    (line,) = [line for line in said.splitlines() if "p4runtime-shell asks for protobuf" in line]
    assert f"{version} is installed" in line
    assert line.startswith("-" if works else "✗")
    assert ("inagg works with it" in line) == works
