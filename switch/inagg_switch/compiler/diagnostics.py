# SPDX-License-Identifier: Apache-2.0
"""Collects the errors of one stage, up to a limit, so that a message shows more than the first mistake."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from inagg_switch.errors import MAX_ERRORS, CompileError, Position


class FollowUpError(CompileError):
    """The code refers to a declaration whose error is already reported."""

    def __init__(self) -> None:
        super().__init__("this follows from another error", Position("", 0, 0))


class _LimitError(Exception):
    """The stage found more than MAX_ERRORS errors."""


class Errors:
    """The errors that a stage has found so far."""

    def __init__(self) -> None:
        self._found: list[CompileError] = []
        self._more = False

    def __len__(self) -> int:
        return len(self._found)

    def report(self, error: CompileError) -> None:
        """Adds an error, unless it follows from another or is already there. Ends the stage after MAX_ERRORS errors."""
        if isinstance(error, FollowUpError) or any(_same(error, known) for known in self._found):
            return
        if len(self._found) == MAX_ERRORS:
            self._more = True
            raise _LimitError
        self._found.append(error)

    @contextmanager
    def of_stage(self) -> Iterator[None]:
        """Raises all errors at the end of the stage: file by file in the order of their first errors, then by place."""
        try:
            yield
        except CompileError as error:
            with suppress(_LimitError):
                self.report(error)
        except _LimitError:
            pass
        if self._found:
            paths = list(dict.fromkeys(error.path for error in self._found))
            first, *others = sorted(self._found, key=lambda e: (paths.index(e.path), e.line, e.column))
            raise first.with_others(others, more=self._more) from None


def _same(one: CompileError, other: CompileError) -> bool:
    return (one.position, one.message) == (other.position, other.message)
