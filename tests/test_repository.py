# SPDX-License-Identifier: Apache-2.0
"""What the documentation names exists: links, files, functions. Every source says under which licence it is."""

import re
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "p4" / "README.md", ROOT / "switch" / "README.md"]
PAGES += sorted((ROOT / "docs" / "course").rglob("README.md"))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = (
    "contract",
    "wire",
    "hostlib",
    "p4",
    "p4runtime",
    "switch",
    "controller",
    "mininet",
    "baselines",
    "simulator",
)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(line) for line in listed.splitlines()]


def ends_with(path: Path, named: Path) -> bool:
    return path.parts[-len(named.parts) :] == named.parts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_files_that_the_architecture_names_exist() -> None:
    files = tracked()
    folders = {parent for path in files for parent in path.parents}
    named = re.findall(r"`([\w./-]+\.(?:py|cpp|hpp|p4|h|md)|[\w./-]+/)`", ARCHITECTURE)
    absent = {"p4/__init__.py", "mininet/__init__.py"}  # named because they must not exist
    for name in sorted({*named} - absent):
        path = Path(name)
        assert any(ends_with(one, path) for one in (folders if name.endswith("/") else files)), name


def test_functions_that_the_architecture_names_exist() -> None:
    text = "\n".join(
        (ROOT / path).read_text()
        for path in tracked()
        if path.parts[0] in SOURCES and path.suffix in (".py", ".cpp", ".hpp", ".h")
    )
    for owner, member in re.findall(r"`(\w+)(?:::|\.)(\w+)`", ARCHITECTURE):
        if owner[0].isupper():
            assert re.search(rf"\b{owner}\b", text), owner
            assert re.search(rf"\b{member}\b", text), f"{owner}.{member}"


def test_every_source_names_its_licence() -> None:
    kinds = {".py", ".pyi", ".cpp", ".hpp", ".h", ".p4"}
    for path in tracked():
        if path.suffix in kinds:
            assert "SPDX-License-Identifier: Apache-2.0" in (ROOT / path).read_text()[:200], path


def test_no_test_file_imports_another() -> None:
    """What tests share is in modules of their own."""
    imports = re.compile(
        r"^\s*(?:from|import) tests[\w.]*\.test_\w+|^\s*from tests[\w.]* import .*\btest_", re.MULTILINE
    )
    for path in tracked():
        if path.parts[0] == "tests" and path.suffix == ".py":
            assert imports.search((ROOT / path).read_text()) is None, path


def test_no_package_imports_the_tests() -> None:
    """A wheel has none."""
    for path in tracked():
        if path.parts[0] in (*SOURCES, "commands", "examples") and path.suffix == ".py":
            assert (
                re.search(r"^\s*(?:from|import) tests\b", (ROOT / path).read_text(), re.MULTILINE) is None
            ), path
