# SPDX-License-Identifier: Apache-2.0
"""`inagg doctor` tells of packages that are not what inagg, or what it needs, asks for."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app
from inagg_testbed.cli.packages import broken_requirements


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts the metadata of a package in front of what is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(name: str, version: str, *requires: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return make


def test_what_packages_of_packages_ask_for_is_told_once_each(install):
    install("outer", "1.0", "inner>=2", "missing<3", 'other; extra == "all"', 'never; python_version < "3"')
    install("inner", "1.5", "leaf!=4.*", "outer")
    install("leaf", "4.2")
    assert sorted(map(str, broken_requirements("outer"))) == [
        'inner asks for leaf!=4.*: 4.2 is installed; pip install "leaf!=4.*"',
        'outer asks for inner>=2: 1.5 is installed; pip install "inner>=2"',
        'outer asks for missing<3: it is not installed; pip install "missing<3"',
    ]


def test_what_extras_ask_for_is_told_too(install):
    install("outer", "1.0", 'outer[plots]; extra == "testbed"', 'inner[fast]; extra == "plots"')
    install("inner", "1.5", 'leaf>=4; extra == "fast"', 'other; extra == "slow"')
    install("leaf", "3.2")
    assert [str(each) for each in broken_requirements("outer", "testbed")] == [
        'inner asks for leaf>=4: 3.2 is installed; pip install "leaf>=4"',
    ]
    assert list(broken_requirements("outer", "slow")) == []


@pytest.mark.parametrize(("version", "works"), [("7.36.2", True), ("3.14.0", False)])
def test_doctor_tells_of_a_protobuf_that_p4runtime_shell_does_not_ask_for(install, version: str, works: bool):
    install("protobuf", version)
    said = CliRunner().invoke(app, ["doctor"]).output
    (line,) = [line for line in said.splitlines() if "p4runtime-shell asks for protobuf" in line]
    assert f"{version} is installed" in line
    assert line.startswith("-" if works else "✗")
    assert ("inagg works with it" in line) == works
