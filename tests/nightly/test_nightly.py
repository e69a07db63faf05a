# SPDX-License-Identifier: Apache-2.0
"""`make nightly`: parts that pass are kept, those that fail run again, and the table names what did not run."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests import ROOT
from tests.nightly import __main__ as nightly
from tests.nightly.outcomes import FAILED, PASSED, SKIPPED, Outcomes, run
from tests.nightly.parts import PARTS, Part


def part(name: str, script: str, missing: str = "") -> Part:
    return Part(
        name=name,
        promise=f"{name} holds",
        command=("sh", "-c", script),
        minutes=1,
        missing=lambda: missing,
    )


def night(monkeypatch: pytest.MonkeyPatch, folder: Path, *parts: Part, state: str = "s") -> tuple[int, str]:
    """Run a night of these parts. Returns its exit status and output."""
    app = typer.Typer()
    app.command()(nightly.main)
    monkeypatch.setattr(nightly, "PARTS", parts)
    monkeypatch.setattr(nightly, "state_of_tree", lambda: state)
    result = CliRunner().invoke(app, ["--results", str(folder)])
    return result.exit_code, result.output


def test_a_night_goes_on_where_it_was_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = tmp_path / "count"
    first = part("first", f"echo >>{count}")
    broken = part("broken", "echo the reason; exit 3")
    status, shown = night(monkeypatch, tmp_path, first, broken)
    assert status == 1
    assert "the reason" in shown
    assert "exit status 3" in re.sub(r"\s+", " ", shown)
    mended = part("broken", "true")
    status, shown = night(monkeypatch, tmp_path, first, mended)
    assert status == 0
    assert "first: passed already" in shown
    assert len(count.read_text().splitlines()) == 1


def test_a_part_runs_again_once_the_tree_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = tmp_path / "count"
    first = part("first", f"echo >>{count}")
    night(monkeypatch, tmp_path, first, state="s")
    night(monkeypatch, tmp_path, first, state="t")
    assert len(count.read_text().splitlines()) == 2


def test_a_part_that_cannot_run_here_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, shown = night(monkeypatch, tmp_path, part("bmv2", "false", missing="p4c is not on PATH"))
    assert status == 0
    assert re.search(r"bmv2 .* skipped .* p4c is not on PATH", shown)


def test_outcomes_of_other_states_do_not_count(tmp_path: Path) -> None:
    outcome = run(part("first", "true"), tmp_path / "first.log")
    assert outcome.verdict == PASSED
    Outcomes(tmp_path, "s").keep("first", outcome)
    assert Outcomes(tmp_path, "s").of("first") == outcome
    assert Outcomes(tmp_path, "t").of("first") is None
    assert run(part("first", "exit 2"), tmp_path / "first.log").verdict == FAILED
    assert run(part("first", "true", "no"), tmp_path / "first.log").verdict == SKIPPED


@pytest.mark.parametrize("each", PARTS, ids=lambda each: each.name)
def test_a_part_calls_a_target_that_the_makefile_has(each: Part) -> None:
    if each.command[0] == "make":
        assert re.search(rf"^{each.command[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
