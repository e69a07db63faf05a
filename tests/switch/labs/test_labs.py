# SPDX-License-Identifier: Apache-2.0
"""The tests of each lab grade what a student has, and a lab is copied whole."""

import json
import subprocess
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.labs import LABS, LabError, copy_lab, course_folder, render, tasks_of
from inagg_switch.vectors.format import read_vectors
from inagg_switch.vectors.run import failures
from tests.switch.labs.stages import MISTAKES, STAGES, Mistake, source


def grade(folder: Path, lab: int, program: str) -> dict[str, list[str]]:
    """What fails, by file of tests."""
    path = folder / f"lab{lab}.p4"
    path.write_text(program)
    found = {}
    for vectors in sorted((course_folder() / f"lab{lab}" / "tests").iterdir()):
        with Switch.from_p4(path) as switch:
            found[vectors.stem] = list(failures(switch, read_vectors(vectors)))
    return found


@pytest.mark.parametrize(("lab", "solved"), STAGES)
def test_a_program_passes_the_tests_of_the_tasks_that_are_solved(
    tmp_path: Path, lab: int, solved: int
) -> None:
    tasks = tasks_of(source(lab))
    found = grade(tmp_path, lab, render(source(lab), tasks[:solved]))
    assert list(found) == [f"task{task}" for task in tasks]
    assert [name for name, failed in found.items() if not failed] == [f"task{n}" for n in tasks[:solved]]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: f"{one.lab} {one.name}")
def test_a_mistake_has_its_hint(tmp_path: Path, mistake: Mistake) -> None:
    found = grade(tmp_path, mistake.lab, mistake.program)
    wrong = {name: failed[0] for name, failed in found.items() if failed}
    assert next(iter(wrong)) == mistake.file
    assert f"\n    hint: {mistake.hint}" in wrong[mistake.file]


@pytest.mark.parametrize("lab", LABS)
def test_every_packet_of_the_tests_has_a_hint(lab: int) -> None:
    for path in (course_folder() / f"lab{lab}" / "tests").iterdir():
        assert all(packet.hint for packet in read_vectors(path).packets), path


@pytest.mark.parametrize("lab", LABS)
def test_starters_have_gaps_and_solutions_have_none(lab: int) -> None:
    for task in tasks_of(source(lab)):
        assert f"// TODO {task}" in render(source(lab), ())
    solution = render(source(lab), tasks_of(source(lab)))
    assert "TODO" not in solution
    assert "//@" not in solution
    assert max(map(len, solution.splitlines())) <= 120


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_is_copied_whole(tmp_path: Path, lab: int) -> None:
    folder = tmp_path / "new" / "lab"
    files = copy_lab(lab, folder)
    assert sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()) == files
    assert {Path("README.md"), Path("topology.json"), Path("worker.py"), Path(f"lab{lab}.p4")} <= set(files)
    assert (folder / f"lab{lab}.p4").read_text() == render(source(lab), ())
    for switch in json.loads((folder / "topology.json").read_text())["switches"].values():
        assert Path(switch["runtime_json"]) in files


@pytest.mark.parametrize("lab", LABS)
def test_a_starter_has_the_tables_of_the_testbeds_entries(tmp_path: Path, lab: int) -> None:
    copy_lab(lab, tmp_path)
    info = Switch.from_p4(tmp_path / f"lab{lab}.p4").p4info
    tables = {table.preamble.name for table in info.tables}
    for path in tmp_path.glob("s*-runtime.json"):
        assert {entry["table"] for entry in json.loads(path.read_text()).get("table_entries", [])} <= tables


def test_the_solution_is_for_those_who_ask(tmp_path: Path) -> None:
    assert Path("solution/lab1.p4") not in copy_lab(1, tmp_path / "student")
    assert Path("solution/lab1.p4") in copy_lab(1, tmp_path / "teacher", solution=True)
    assert "TODO" not in (tmp_path / "teacher/solution/lab1.p4").read_text()


def test_work_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "lab2.p4").write_text("mine")
    with pytest.raises(LabError, match=r"lab2\.p4 is there already"):
        copy_lab(2, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lab2.p4"]
    assert (tmp_path / "lab2.p4").read_text() == "mine"


def test_an_unknown_lab_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="there is no lab 6; there are 1 to 5"):
        copy_lab(6, tmp_path)


def test_a_student_copies_a_lab_and_tests_the_program(switch_command: list[str], tmp_path: Path) -> None:
    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*switch_command, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=120,
        )

    assert run("lab", "1", "sum", "--solution").stdout.endswith("start with sum/README.md\n")
    assert run("lab", "1", "sum").returncode == 2
    assert run("lab", "1", "sum/README.md").stderr == "inagg-switch: sum/README.md: File exists\n"
    tests = [f"sum/tests/task{n}.vectors" for n in (1, 2, 3)]
    done = run("test", "sum/solution/lab1.p4", *tests)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "3 of 3 files pass")
    done = run("test", "sum/lab1.p4", *tests)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "0 of 3 files pass")
    assert "    hint: The third contribution is the result" in done.stdout


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("//@ end", "line 1: end inside a task or without one"),
        ("//@ task 1\n//@ task 2\n//@ end", "line 2: task 2 inside a task or without one"),
        ("//@| TODO", "line 1: a line of the starter outside a task"),
        ("x\n  //@ tsak 1", "line 2: unknown mark //@ tsak 1"),
        ("//@ task 3\nx", "task 3 has no end"),
    ],
)
def test_wrong_marks_are_refused(text: str, fault: str) -> None:
    with pytest.raises(LabError) as caught:
        render(text, ())
    assert str(caught.value) == fault


def test_the_starter_has_its_lines_in_place_of_the_solutions() -> None:
    text = "a\n  //@ task 1\n  //@| // TODO 1\n  //@|\n  //@|   x = 0;\n  x = 1;\n  //@ end\nb\n"
    assert render(text, ()) == "a\n  // TODO 1\n\n    x = 0;\nb\n"
    assert render(text, [1]) == "a\n  x = 1;\nb\n"
