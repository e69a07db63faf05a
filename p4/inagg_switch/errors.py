"""Errors of the switch model. Each class says whose fault it is: the program's, the caller's or the machine's."""

from typing import NamedTuple


class Position(NamedTuple):
    """A place in a source file; line and column count from 1."""

    path: str
    line: int
    column: int


class SwitchError(Exception):
    """Base of every error that inagg_switch raises on purpose."""


class CompileError(SwitchError):
    """The P4 program is wrong, or uses what the compiler does not support.

    str() is "file:line:column: error: message", the source line, and a caret under the column.
    """

    def __init__(self, message: str, position: Position, source_line: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.source_line = source_line

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
