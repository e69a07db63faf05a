# SPDX-License-Identifier: Apache-2.0
"""Recognises processes that a rank has started, such as torch.distributed.checkpoint's or workers of a data loader.

While a rank has a group, its environment carries its process id, and every process that it starts inherits that. Such a
process trains nothing: a group that it makes under the name of another backend needs no job.
"""

import os

_VARIABLE = "INAGG_RANK_PROCESS"


class RankMark:
    """Marks this process as a rank until `remove`. Several marks of a process may overlap.

    In a process that a rank has started it does nothing.
    """

    _marks = 0

    def __init__(self) -> None:
        self._placed_by = os.getpid()
        self._there = not started_by_rank()
        if self._there:
            RankMark._marks += 1
            os.environ[_VARIABLE] = str(os.getpid())

    def remove(self) -> None:
        """Remove the mark. The environment is clean after the last one. In a forked child this does nothing."""
        if not self._there or self._placed_by != os.getpid():
            return
        self._there = False
        RankMark._marks -= 1
        if RankMark._marks == 0:
            os.environ.pop(_VARIABLE, None)


def started_by_rank() -> bool:
    """Whether a process that was a rank at that time has started or forked this one."""
    rank = os.environ.get(_VARIABLE)
    return rank is not None and rank != str(os.getpid())
