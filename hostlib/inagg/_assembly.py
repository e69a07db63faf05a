# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group while they make it: whatever ends that at one of them ends it at all, at once.

A rank that fails says so through the store that they share. One whose process dies says nothing, but its kernel closes
its connections: those of gloo, which join every two ranks, are watched from when there are any.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import Store

from inagg._store import tell_all, wait_for
from inagg.errors import InaggError, JobError, PeerLostError, name_ranks

_LONGEST_REASON = 600  # characters: of what ranks tell, each piece is to fit into a small packet
_CLOSING_S = 0.5  # that a kernel takes to close all connections of a process
_READING_S = 1.0  # that others take to read why the group has not been made
_LOOK_S = 0.01


class Connections(Protocol):
    """Those between the ranks."""

    def ended(self) -> tuple[int, ...]:
        """The ranks of which one was at the other end of a connection that is broken; none: all are there."""

    def break_off(self) -> None:
        """End them, so that the other ranks notice."""

    def unwatch(self) -> None:
        """The group has been made, or will not be."""


class Assembly:
    """A context in which a rank makes a group with others. An exception that leaves it reaches the other ranks.

    Args:
        store: keys that the group's ranks share, and only they.
        rank, size: this process in the group.
        timeout: that the others have to come.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.connections: Connections | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._fail(error)
        if self.connections is not None:
            self.connections.unwatch()

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):  # the store may be gone, and with it those who would read it
            if self.store.add("failures", 1) == 1:  # what others raise follows from the first
                self.store.set("failed", json.dumps([self.rank, describe(error)]))
        if self.connections is not None:
            self.connections.break_off()
        with contextlib.suppress(Exception):
            left, end = self.store.add("left", 1), time.monotonic() + _READING_S
            # It often has the store in its process, with which that would end.
            while self.rank == 0 and left < self.size and time.monotonic() < end:
                time.sleep(_LOOK_S)
                left = self.store.add("left", 0)

    def tell_all(self, name: str, mine: Any, timeout: timedelta | None = None) -> list[Any]:
        """What each rank gave as `mine`, by rank; each calls it once with this name.

        mine: what JSON can hold; tuples arrive as lists.

        Raises:
            JobError: a rank has failed or died.
            DistStoreError: ranks have not come in time.
        """
        ranks = range(self.size)
        with self._store_of_the_living():
            return tell_all(self.store, name, self.rank, ranks, mine, timeout or self.timeout, self._check)

    def tell(self, name: str, what: Any) -> None:
        """Tell all others, who ask for it with `told`."""
        with self._store_of_the_living():
            self.store.set(name, json.dumps(what))

    def told(self, name: str, by: int, timeout: timedelta) -> Any:
        """What rank `by` tells. Raises as `tell_all`."""
        with self._store_of_the_living():
            return json.loads(wait_for(self.store, [name], [by], timeout, self._check)[0])

    def told_so_far(self, name: str) -> Any:
        """What a rank has told under this name; None if none has."""
        with self._store_of_the_living():
            return json.loads(self.store.get(name)) if self.store.check([name]) else None

    def check(self) -> None:
        """Raise if a rank has failed or died. To be called now and then by whoever waits for another rank.

        Raises:
            JobError: it names the rank.
        """
        with self._store_of_the_living():
            self._check()

    def _check(self) -> None:
        self._check_store()
        if ranks := self._ended():
            self._check_store()  # one that fails says why before it breaks its connections off
            raise _lost(ranks, self.rank)

    def _ended(self) -> tuple[int, ...]:
        return () if self.connections is None else self.connections.ended()

    @contextlib.contextmanager
    def _store_of_the_living(self) -> Iterator[None]:
        """Where the store fails in the block because its server was in the process of a rank that has died, name it."""
        try:
            yield
        except DistNetworkError as error:
            end = time.monotonic() + _CLOSING_S
            while not (ranks := self._ended()) and time.monotonic() < end:
                time.sleep(_LOOK_S)
            if not ranks:
                raise
            raise _lost(ranks, self.rank) from error

    def _check_store(self) -> None:
        if self.store.check(["failed"]):
            rank, reason = json.loads(self.store.get("failed"))
            raise JobError(f"rank {rank} could not make the group: {reason}", rank=self.rank)


def describe(error: BaseException) -> str:
    """As other ranks read it, in one line."""
    kind = "" if isinstance(error, InaggError) else f"{type(error).__name__}: "
    return shorten(f"{kind}{error}".partition("\n")[0].removesuffix(": "))


def shorten(text: str) -> str:
    """As much of it as other ranks are told."""
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _lost(ranks: Sequence[int], rank: int) -> JobError:
    if len(ranks) == 1:
        return PeerLostError(
            ranks, reason="its process has ended, or its connection, while the group was made", rank=rank
        )
    return JobError(
        f"lost one of the {name_ranks(ranks)}, which are on one host: its process has ended, or its connection, while "
        "the group was made. Restart the job.",
        rank=rank,
    )
