# SPDX-License-Identifier: Apache-2.0
"""Errors of one stage: collected up to a limit, so that a program is told of more than its first mistake."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from inagg_switch.errors import MAX_ERRORS, CompileError, Position


class FollowUpError(CompileError):
    """Refers to something whose own error is reported already."""

    def __init__(self) -> None:
        super().__init__("this follows from another error", Position("", 0, 0))


class _EnoughError(Exception):
    """There are more errors than are reported."""


class Errors:
    """Those that a stage has found so far."""

    def __init__(self) -> None:
        self._found: list[CompileError] = []
        self._more = False

    def __len__(self) -> int:
        return len(self._found)

    def report(self, error: CompileError) -> None:
        """Notes an error, but for one that follows from another or is known. Ends the stage when there are too many."""
        if isinstance(error, FollowUpError) or any(_same(error, known) for known in self._found):
            return
        if len(self._found) == MAX_ERRORS:
            self._more = True
            raise _EnoughError
        self._found.append(error)

    @contextmanager
    def of_stage(self) -> Iterator[None]:
        """Raises all errors at the end of the stage: the first of a file first, files in the order of their errors."""
        try:
            yield
        except CompileError as error:
            with suppress(_EnoughError):
                self.report(error)
        except _EnoughError:
            pass
        if self._found:
            paths = list(dict.fromkeys(error.path for error in self._found))
            first, *others = sorted(self._found, key=lambda e: (paths.index(e.path), e.line, e.column))
            raise first.with_others(others, more=self._more) from None


def _same(one: CompileError, other: CompileError) -> bool:
    return (one.position, one.message) == (other.position, other.message)
