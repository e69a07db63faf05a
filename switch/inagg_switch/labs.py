# SPDX-License-Identifier: Apache-2.0
"""The labs of docs/course, and the starter and solution of a lab from its one program.

In lab N the program labN.p4 is the solution. Lines that begin with `//@` tell starter and solution apart:

    //@ task 2              the solution of task 2 begins
    //@| // TODO 2: ...     a line of the starter in its place
    ...                     lines of the solution
    //@ end

A wheel has a copy of docs/course inside this package (the root CMakeLists.txt puts it there). A clone has the folder
itself, where an editable installation finds it too.
"""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from inagg_switch.errors import SwitchError

LABS = range(1, 6)

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "course"
_MARK = re.compile(r"(?P<indent> *)//@(?: (?P<command>task (?P<task>\d+)|end)|\| ?(?P<starter>.*))")


class LabError(SwitchError):
    """A lab cannot be copied, or its program has wrong marks."""


def course_folder() -> Path:
    """The folder with the labs, and with what they share."""
    return _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1] / "docs" / "course"


def tasks_of(source: str) -> list[int]:
    """The numbers of the tasks in a program with marks, in order. Raises LabError if marks are wrong."""
    return sorted({task for task, _, _ in _parts(source) if task})


def render(source: str, solved: Collection[int]) -> str:
    """The program with the solutions of some tasks, and the starter's lines in place of the others.

    Raises LabError if marks are wrong.
    """
    kept = (text for task, is_starter, text in _parts(source) if not task or is_starter != (task in solved))
    return "".join(f"{text}\n" for text in kept)


def _parts(source: str) -> list[tuple[int, bool, str]]:
    """(task or 0, whether the starter has it, text) of each line without the marks."""
    parts: list[tuple[int, bool, str]] = []
    task = 0
    for number, line in enumerate(source.splitlines(), 1):
        mark = _MARK.fullmatch(line)
        if mark is None:
            if line.lstrip().startswith("//@"):
                raise LabError(f"line {number}: unknown mark {line.strip()}")
            parts.append((task, False, line))
        elif mark["starter"] is not None:
            if not task:
                raise LabError(f"line {number}: a line of the starter outside a task")
            parts.append((task, True, (mark["indent"] + mark["starter"]).rstrip()))
        elif (mark["task"] is None) == (task == 0):
            raise LabError(f"line {number}: {mark['command']} inside a task or without one")
        else:
            task = int(mark["task"] or 0)
    if task:
        raise LabError(f"task {task} has no end")
    return parts


def copy_lab(number: int, folder: Path, *, solution: bool = False) -> list[Path]:
    """Copy a lab into a folder, which is made if necessary; returns the files, relative to the folder.

    solution: also the solution, as solution/labN.p4. Raises LabError, without a change, if there is no such lab, or if
    the folder has one of the files.
    """
    if number not in LABS:
        raise LabError(f"there is no lab {number}; there are {LABS[0]} to {LABS[-1]}")
    course = course_folder()
    lab = course / f"lab{number}"
    program = Path(f"lab{number}.p4")
    source = (lab / program).read_text(encoding="utf-8")
    texts = {program: render(source, ())}
    if solution:
        texts[Path("solution") / program] = render(source, tasks_of(source))
    copies = {path.relative_to(lab): path for path in sorted(lab.rglob("*")) if path.is_file()}
    del copies[program]
    copies[Path("worker.py")] = course / "worker.py"
    files = sorted({*texts, *copies})
    for path in files:
        if (folder / path).exists():
            raise LabError(f"{folder / path} is there already: choose an empty folder")
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path in texts:
            (folder / path).write_text(texts[path], encoding="utf-8")
        else:
            shutil.copyfile(copies[path], folder / path)
    return files
