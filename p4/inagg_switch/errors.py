# SPDX-License-Identifier: Apache-2.0
"""Errors of the switch model. Each class says whose fault it is: the program's, the caller's or the machine's."""

from collections.abc import Sequence
from typing import NamedTuple

MAX_ERRORS = 20  # that a file is reported to have, as with p4c


def count_line(count: int) -> list[str]:
    """What follows a list of so many errors, of which the first MAX_ERRORS are shown; nothing follows a single one."""
    if count > MAX_ERRORS:
        return [f"{MAX_ERRORS} errors; there are more"]
    return [f"{count} errors"] if count > 1 else []


class Position(NamedTuple):
    """A place in a source file; line and column count from 1."""

    path: str
    line: int
    column: int


class SwitchError(Exception):
    """Base of every error that inagg_switch raises on purpose."""


class CompileError(SwitchError):
    """The P4 program is wrong, or uses what the compiler does not support.

    The attributes are those of its first error; `errors` lists all that were found, itself the first, at most
    MAX_ERRORS and by their place. str() has for each "file:line:column: error: message", the source line, and a caret
    under the column; then, if there are several, how many.
    """

    def __init__(self, message: str, position: Position, source_line: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.source_line = source_line
        self._others: tuple[CompileError, ...] = ()
        self._there_are_more = False

    def with_others(self, others: Sequence["CompileError"], *, more: bool = False) -> "CompileError":
        """The same error, which tells of those as well; `more`: they are not all."""
        self._others, self._there_are_more = tuple(others), more
        return self

    @property
    def errors(self) -> "tuple[CompileError, ...]":
        """This one and the others."""
        return (self, *self._others)

    @property
    def path(self) -> str:
        """File that the error is in, as it was named on the command line or in an #include."""
        return self.position.path

    @property
    def line(self) -> int:
        """Line of the error, from 1."""
        return self.position.line

    @property
    def column(self) -> int:
        """Column of the error, from 1."""
        return self.position.column

    def __str__(self) -> str:
        count = len(self.errors) + self._there_are_more
        return "\n".join([*(error._text() for error in self.errors), *count_line(count)])

    def _text(self) -> str:
        text = f"{self.path}:{self.line}:{self.column}: error: {self.message}"
        if self.source_line is None:
            return text
        # A tab before the caret keeps it under its column whatever the terminal's tab width.
        lead = "".join("\t" if c == "\t" else " " for c in self.source_line[: self.column - 1])
        return f"{text}\n{self.source_line}\n{lead.ljust(self.column - 1)}^"


class ToolchainError(SwitchError):
    """The system C++ compiler is missing or failed on generated code; not the P4 program's fault."""


class UnknownName(SwitchError):  # noqa: N818 - reads as what it is
    """No table, action, counter, register, field or parameter of that name, or an ambiguous short name."""


class EntryError(SwitchError):
    """A table entry, group, or counter or register access was refused; the program's state is as it was."""
