# SPDX-License-Identifier: Apache-2.0
"""Each list of requirements in pyproject.toml is what the packages it is for import, no more and no less."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.packaging.imports import PARTS, distributions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(text) for text in texts] for extra, texts in PROJECT["optional-dependencies"].items()
}


def names(requirements: list[Requirement]) -> list[str]:
    return [canonicalize_name(one.name) for one in requirements if one.name != PROJECT["name"]]


def test_the_base_is_what_the_contract_imports() -> None:
    assert set(names(BASE)) == distributions("base")


@pytest.mark.parametrize("extra", ["worker", "switch", "server", "controller", "wire"])
def test_an_extra_is_what_its_packages_import(extra: str) -> None:
    assert set(names(EXTRAS[extra])) == distributions(extra) - set(names(BASE))


@pytest.mark.parametrize(
    ("extra", "below"),
    [
        ("testbed", {"worker", "switch", "server", "controller", "wire"}),
        ("simulator", {"worker", "switch", "controller", "wire"}),
    ],
)
def test_an_extra_includes_others_and_adds_what_its_package_imports_itself(
    extra: str, below: set[str]
) -> None:
    (included,) = (one.extras for one in EXTRAS[extra] if one.name == PROJECT["name"])
    assert included == below
    others = {name for extra in included for name in names(EXTRAS[extra])} | set(names(BASE))
    assert set(names(EXTRAS[extra])) == distributions(extra) - others


def test_triton_is_all_that_its_extra_adds_to_a_worker() -> None:
    assert set(names(EXTRAS["triton"])) == distributions("triton") - distributions("worker")


def test_the_commands_start_with_the_standard_library() -> None:
    assert distributions("commands") == set()


@pytest.mark.parametrize("part", ["base", *EXTRAS])
def test_no_requirement_stands_twice(part: str) -> None:
    listed = names(BASE if part == "base" else EXTRAS[part])
    assert len(listed) == len(set(listed))


def test_the_version_of_torch_that_is_tested_lies_in_the_range() -> None:
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    (pinned,) = (next(iter(one.specifier)).version for one in pins if one.name == "torch")
    (torch,) = (one for one in EXTRAS["worker"] if one.name == "torch")
    assert torch.specifier.contains(pinned)
    assert {each.operator for each in torch.specifier} == {">=", "<"}


def test_every_package_tells_type_checkers_that_it_has_types() -> None:
    for folder in {ROOT / name for part in PARTS.values() for name in part if not name.endswith(".py")}:
        assert (folder / "py.typed").is_file(), folder
