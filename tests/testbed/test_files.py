# SPDX-License-Identifier: Apache-2.0
"""Under sudo, files that a command makes belong to its caller; other files keep their owner."""

import os
from pathlib import Path

import pytest

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import check_writable, handing_over, make_folder, write_text


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """As under sudo by user 1234, group 5678; the paths whose owner has been changed."""
    changed: set[Path] = set()

    def chown(path: Path, user: int, group: int, *, follow_symlinks: bool) -> None:
        assert (user, group, follow_symlinks) == (1234, 5678, False)
        changed.add(Path(path))

    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "5678")
    monkeypatch.setattr(os, "chown", chown)
    return changed


def test_all_that_is_in_a_new_folder_is_handed_over(tmp_path: Path, handed_over: set[Path]) -> None:
    run = tmp_path / "run"
    with handing_over(run):
        (run / "p4").mkdir(parents=True)
        (run / "p4" / "prog.p4").touch()
        (run / "latest").symlink_to("/etc")
    assert handed_over == {run, run / "p4", run / "p4" / "prog.p4", run / "latest"}


def test_it_is_handed_over_after_an_error_too(tmp_path: Path, handed_over: set[Path]) -> None:
    def fail() -> None:
        with handing_over(tmp_path / "log"):
            (tmp_path / "log").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert handed_over == {tmp_path / "log"}


def test_a_folder_that_was_there_and_what_it_holds_keep_their_owner(
    tmp_path: Path, handed_over: set[Path]
) -> None:
    (tmp_path / "foreign").touch()
    make_folder(tmp_path)
    make_folder(tmp_path / "results" / "demo")
    assert handed_over == {tmp_path / "results", tmp_path / "results" / "demo"}


def test_a_file_that_was_there_keeps_its_owner(tmp_path: Path, handed_over: set[Path]) -> None:
    (tmp_path / "old.json").touch()
    write_text(tmp_path / "old.json", "[]")
    assert handed_over == set()
    write_text(tmp_path / "new.json", "[]")
    assert handed_over == {tmp_path / "new.json"}


def test_without_sudo_nothing_changes_its_owner(
    tmp_path: Path, handed_over: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID")
    make_folder(tmp_path / "results")
    assert handed_over == set()


def test_a_check_leaves_a_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("before")
    check_writable(tmp_path / "rows.json")
    assert (tmp_path / "rows.json").read_text() == "before"
    check_writable(tmp_path / "new" / "rows.json")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    with pytest.raises(ConfigurationError, match=r"cannot make the folder .*/afile/r"):
        check_writable(tmp_path / "afile" / "r" / "rows.json")
    with pytest.raises(ConfigurationError, match=r"cannot write .*: Is a directory"):
        check_writable(tmp_path)
    with pytest.raises(ConfigurationError, match=r"cannot write .*: Is a directory"):
        write_text(tmp_path, "[]")


def test_a_full_disk_is_named_with_the_file() -> None:
    with pytest.raises(ConfigurationError, match="cannot write /dev/full: No space left on device"):
        write_text(Path("/dev/full"), "anything")
