# SPDX-License-Identifier: Apache-2.0
"""`inagg report`, on folders that hold records."""

from pathlib import Path

import pytest

from inagg_testbed.report.record import Kind, Record, write_record
from tests.testbed.bench.measured_rows import ROWS
from tests.testbed.commands import inagg

FIGURES = {"rows": ROWS, "settings": {"switch": "model"}, "wrong": []}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Two runs of a benchmark, a and b."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, Record("allreduce", FIGURES))
    return tmp_path


def test_the_page_of_one_run_is_in_its_folder(folder: Path) -> None:
    done = inagg("report", str(folder / "a"))
    assert done.returncode == 0, done.stderr
    assert f"report: {folder / 'a' / 'report.html'}" in done.stdout
    assert "inagg:16 is fastest" in (folder / "a" / "report.html").read_text()


def test_the_page_of_several_runs_is_in_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = inagg("report", "a", "b")
    assert done.returncode == 0, done.stderr
    assert "b: With 4 workers" in (folder / "report.html").read_text()
    assert not (folder / "a" / "report.html").exists()


def test_the_page_goes_where_the_user_says(folder: Path) -> None:
    done = inagg("report", str(folder / "a"), "--output", str(folder / "new" / "page.html"))
    assert done.returncode == 0, done.stderr
    assert (folder / "new" / "page.html").is_file()
    assert not (folder / "a" / "report.html").exists()


def test_a_folder_without_figures_is_refused_and_nothing_is_written(folder: Path) -> None:
    done = inagg("report", str(folder), "--output", str(folder / "page.html"))
    assert done.returncode != 0
    assert "no report.json" in " ".join(done.stderr.split())
    assert "the folder has a, b" in " ".join(done.stderr.split())
    assert not (folder / "page.html").exists()


@pytest.mark.parametrize("kind", ["demo", "allreduce", "suite", "compare"])
def test_figures_of_another_kind_are_refused(tmp_path: Path, kind: Kind) -> None:
    write_record(tmp_path, Record(kind, {"other": 1}))
    done = inagg("report", str(tmp_path))
    assert done.returncode == 1
    assert "not the figures of" in " ".join(done.stderr.split())
