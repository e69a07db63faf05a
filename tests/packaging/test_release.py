# SPDX-License-Identifier: Apache-2.0
"""pyproject.toml alone says the version; a release has a note in the changelog, and comes from a clean tree."""

import re
import subprocess
from importlib import metadata

import pytest

from tests import ROOT
from tests.packaging import release
from tests.packaging.installation import CheckError

CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n## 1.3.0 (2030-01-02)\n\nNew: a.\n\n## 1.2.0 (2029-01-02)\n\nNew: b.\n"
)


def test_the_note_of_a_release_is_its_section() -> None:
    assert release.note(CHANGELOG, "1.3.0") == "New: a.\n"
    assert release.note(CHANGELOG, "1.2.0") == "New: b.\n"


@pytest.mark.parametrize("version", ["1.4.0", "1.3", "1.3.00"])
def test_a_release_without_a_section_is_refused(version: str) -> None:
    with pytest.raises(CheckError, match=re.escape(f'no section "## {version} (')):
        release.note(CHANGELOG, version)


def test_an_empty_note_is_refused() -> None:
    with pytest.raises(CheckError, match="no section"):
        release.note("## 1.3.0 (2030-01-02)\n\n## 1.2.0 (2029-01-02)\n\nNew: b.\n", "1.3.0")


def test_a_tree_with_changes_is_refused() -> None:
    release.check_clean("")
    with pytest.raises(CheckError, match=r"changes that no commit has.*\n M README\.md"):
        release.check_clean(" M README.md\n")


def test_the_changelog_has_a_note_for_the_version() -> None:
    assert release.note((ROOT / "CHANGELOG.md").read_text(), release.version())


def test_the_installed_version_is_that_of_pyproject() -> None:
    assert metadata.version("inagg") == release.version()


def test_no_other_file_says_the_version() -> None:
    """A wheel's name, a requirement or an assignment. Other projects may have releases of the same number."""
    said = re.compile(rf'(?i)(?:inagg(?:\[[\w,]+\])?|version)[-"\' =:v]+{re.escape(release.version())}\b')
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {path for path in listed.splitlines() if path not in ("pyproject.toml", "CHANGELOG.md")}
    texts = {path: (ROOT / path).read_bytes().decode(errors="replace") for path in files}
    assert [path for path, text in texts.items() if said.search(text)] == []
    assert said.search((ROOT / "pyproject.toml").read_text())
