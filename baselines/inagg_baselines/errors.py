# SPDX-License-Identifier: Apache-2.0
"""The errors of ranks that exchange messages."""


class LostRankError(RuntimeError):
    """A rank has ended, has raised an error, or has not answered within the time-out of its group.

    rank: which, in the default group.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"rank {rank} has ended, or has not answered in time: read its output, and start all ranks again"
        )
        self.rank = rank
