# SPDX-License-Identifier: Apache-2.0
"""Terminal output: progress bars and what changes below them on a terminal, lines elsewhere, tables on both."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.ansi import AnsiDecoder
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

_WIDEST = 1000  # columns of a table


class ProgressView:
    """Stages and counted tasks: live on a terminal; in a log one line a stage and one every quarter of a task, or, of a
    task whose end is not known, whenever it has doubled.

    below: shown below the tasks on a terminal; None: nothing.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.below: RenderableType | None = None
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._parts: dict[
            str, tuple[bool, int]
        ] = {}  # the last that has a line: whether the end is known, which
        self._screen = Live(console=console, get_renderable=self._shown, refresh_per_second=4)
        self._ansi = AnsiDecoder()
        self._begun = ""  # a line of a program's output, as far as it is known

    def _shown(self) -> RenderableType:
        parts = [self._progress] if self._tasks else []
        return Group(*parts, *([] if self.below is None else [self.below]))

    def __enter__(self) -> Self:
        if self._live:
            self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write("\n" if self._begun else "")
        self.below = None  # the tasks stay on the screen
        if self._live:
            self._screen.stop()

    def stage(self, text: str) -> None:
        """Print the stage that begins."""
        self.console.print(f"[dim]·[/dim] {text}", highlight=False)

    def write(self, text: str) -> None:
        """Pass a program's output on. On a terminal it appears above the tasks, line by line."""
        if not self._live:
            self.console.file.write(text)
            self.console.file.flush()
            return
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self.console.print(self._ansi.decode_line(line.rstrip("\r")), highlight=False, soft_wrap=True)

    def update(self, task: str, done: int, total: int, note: str = "") -> None:
        """Show that a task is at `done` of `total`. total: 0 if it is not known."""
        if self._live:
            if task not in self._tasks:
                self._tasks[task] = self._progress.add_task(task, total=None, note="")
            self._progress.update(self._tasks[task], completed=done, total=total or None, note=note)
            return
        part = (True, 4 * done // total) if total else (False, done.bit_length())
        if part > self._parts.get(task, (False, -1)):
            self._parts[task] = part
            amount = f"{done} of {total}" if total else str(done)
            self.console.print(f"  {task}: {amount} {note}".rstrip(), highlight=False, markup=False)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> Table:
    """A table without side borders: `text_columns` columns of text, then columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(header):
        numeric = number >= text_columns
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, vertical="bottom")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_table(
    console: Console,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: int = 1,
) -> None:
    """Print a table: `text_columns` columns of text, then numbers under headings of one word a line.

    The columns lose their padding if the table is wider than the terminal. If it is still wider, lines wrap: no figure
    is cut off.
    """
    table = plain_table([name.replace(" ", "\n") for name in header], rows, text_columns=text_columns)
    for column in table.columns[:text_columns]:
        column.no_wrap = True
    console.print(title, highlight=False, soft_wrap=True)
    unbounded = console.options.update(max_width=_WIDEST)
    if console.measure(table, options=unbounded).maximum > console.width:
        table.padding = 0
    table.width = console.measure(table, options=unbounded).maximum
    console.print(table, crop=False)
