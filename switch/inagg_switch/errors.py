# SPDX-License-Identifier: Apache-2.0
"""Errors of the switch model. Each class says whose fault it is: the program's, the caller's or the machine's."""

from collections.abc import Sequence
from typing import NamedTuple

MAX_ERRORS = 20  # reported for a file, as in p4c


def count_line(count: int) -> list[str]:
    """The line after a list of `count` errors, of which the first MAX_ERRORS are shown; none after a single error."""
    if count > MAX_ERRORS:
        return [f"{MAX_ERRORS} errors; there are more"]
    return [f"{count} errors"] if count > 1 else []


class Position(NamedTuple):
    """A place in a source file; lines and columns are counted from 1."""

    path: str
    line: int
    column: int


class SwitchError(Exception):
    """Base of all exceptions of inagg_switch."""


class CompileError(SwitchError):
    """The P4 program is wrong, or uses a feature that the compiler does not support.

    The attributes are those of the program's first error. `errors` has all errors, this one first, at most MAX_ERRORS,
    sorted by place. str() has for each "file:line:column: error: message", the source line and a caret under the
    column, and at the end the number of errors if there are several.
    """

    def __init__(self, message: str, position: Position, source_line: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.source_line = source_line
        self._others: tuple[CompileError, ...] = ()
        self._there_are_more = False

    def with_others(self, others: Sequence["CompileError"], *, more: bool = False) -> "CompileError":
        """Add other errors and return self. more: there are errors beyond them."""
        self._others, self._there_are_more = tuple(others), more
        return self

    @property
    def errors(self) -> "tuple[CompileError, ...]":
        """This error and the others."""
        return (self, *self._others)

    @property
    def path(self) -> str:
        """The file of the error, as named on the command line or in an #include."""
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
        # Tabs before the caret keep it under its column for every tab width.
        lead = "".join("\t" if c == "\t" else " " for c in self.source_line[: self.column - 1])
        return f"{text}\n{self.source_line}\n{lead.ljust(self.column - 1)}^"


class ToolchainError(SwitchError):
    """The C++ compiler is missing, or failed on generated code; the P4 program is not at fault."""


class UnknownName(SwitchError):  # noqa: N818 - the name states the error
    """No table, action, counter, register, field or parameter has this name, or a short name is ambiguous."""


class EntryError(SwitchError):
    """An entry, a group or an access to a counter or register was refused; nothing has changed."""
