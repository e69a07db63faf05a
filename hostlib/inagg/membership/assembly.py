# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group while they make it: whatever ends that at one of them ends it at all, at once.

A rank that fails says so through the store that they share. One whose process dies says nothing, and is seen to have
ended (`watch`).
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import Store

from inagg.errors import InaggError, JobError, PeerLostError
from inagg.membership.store import tell_all, wait_for
from inagg.membership.watch import Watch

_LONGEST_REASON = 600  # characters: of what ranks tell, each piece is to fit into a small packet
CLOSING_S = 0.5  # that a kernel takes to close all connections of a process
_READING_S = 1.0  # that others take to read why the group has not been made
_LOOK_S = 0.01


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
        # No way is left to make the group: what any method raised is why, and there is nothing to agree on.
        self.over = False
        # Ends gloo's connections, so that other ranks notice.
        self.break_off: Callable[[], None] = lambda: None
        self._watch: Watch | None = None
        self._store_is_gone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._fail(error)
        finally:
            if self._watch is not None:
                self._watch.close()

    def _fail(self, error: BaseException) -> None:
        lost = error.lost_ranks if isinstance(error, PeerLostError) else ()
        with contextlib.suppress(Exception), self._use_of_store():
            if self.store.add("failures", 1) == 1:  # what others raise follows from the first
                self.store.set("failed", json.dumps([self.rank, describe(error), lost]))
        self.break_off()
        with contextlib.suppress(Exception), self._use_of_store():
            left, end = self.store.add("left", 1), time.monotonic() + _READING_S
            # It often has the store in its process, with which that would end.
            while self.rank == 0 and left < self.size - len(lost) and time.monotonic() < end:
                time.sleep(_LOOK_S)
                left = self.store.add("left", 0)

    def watch(self, ip: str) -> None:
        """See from here on which processes end, and let the others see whether this one does.

        ip: this host's address, at which they reach it.
        """
        with self._use_of_store():
            self._watch = Watch(self.store, self.rank, self.size, ip)
            self._watch.look_out()

    def tell_all(self, name: str, mine: Any, timeout: timedelta | None = None) -> list[Any]:
        """What each rank gave as `mine`, by rank; each calls it once with this name.

        mine: what JSON can hold; tuples arrive as lists.

        Raises:
            JobError: a rank has failed or died.
            DistStoreError: ranks have not come in time.
        """
        ranks = range(self.size)
        with self._use_of_store():
            return tell_all(self.store, name, self.rank, ranks, mine, timeout or self.timeout, self._check)

    def tell(self, name: str, what: Any) -> None:
        """Tell all others, who ask for it with `told`."""
        with self._use_of_store():
            self.store.set(name, json.dumps(what))

    def told(self, name: str, by: int, timeout: timedelta) -> Any:
        """What rank `by` tells. Raises as `tell_all`."""
        with self._use_of_store():
            return json.loads(wait_for(self.store, [name], [by], timeout, self._check)[0])

    def bytes_at(self, key: str, timeout: timedelta) -> bytes:
        """What some rank sets this key to. Raises as `tell_all`, but names no rank that has not come in time."""
        with self._use_of_store():
            return wait_for(self.store, [key], range(self.size), timeout, self._check)[0]

    def count(self, name: str) -> int:
        """How many ranks have called this with this name so far, this one included."""
        with self._use_of_store():
            return int(self.store.add(name, 1))

    def told_so_far(self, name: str) -> Any:
        """What a rank has told under this name; None if none has."""
        with self._use_of_store():
            return json.loads(self.store.get(name)) if self.store.check([name]) else None

    def check(self, patience_s: float = 0.0) -> None:
        """Raise if a rank has failed or died. To be called now and then by whoever waits for another rank.

        patience_s: that this may take, for whoever does not go on waiting.

        Raises:
            JobError: it names the rank.
        """
        end = time.monotonic() + patience_s
        with self._use_of_store():
            self._check()
            while time.monotonic() < end:
                time.sleep(_LOOK_S)
                self._check()

    def _check(self) -> None:
        self._check_store()
        if self._watch is not None:
            self._watch.look_out()
        if ranks := self._ended():
            self._check_store()  # one that fails says why before it ends
            raise self._lost(ranks)

    def _check_store(self) -> None:
        if not self.store.check(["failed"]):
            return
        rank, reason, lost = json.loads(self.store.get("failed"))
        self.over = True
        if lost and self.rank not in lost:
            raise self._lost(lost)
        raise JobError(f"rank {rank} could not make the group: {reason}", rank=self.rank)

    def _ended(self) -> tuple[int, ...]:
        return () if self._watch is None else self._watch.ended()

    def _cut_off(self) -> dict[int, str]:
        return {} if self._watch is None else self._watch.cut_off()

    def _lost(self, ranks: Sequence[int]) -> PeerLostError:
        self.over = True
        cut_off = self._cut_off()
        if cut_off.keys() >= set(ranks):
            silent = ", ".join(cut_off[rank] for rank in ranks)
            reason = f"no answer from {silent}: the host, the network or the switch has ended"
        else:
            reason = "its process has ended, or its connection, while the group was made"
        return PeerLostError(ranks, reason=reason, rank=self.rank)

    @contextlib.contextmanager
    def _use_of_store(self) -> Iterator[None]:
        """Where the store fails in the block, name the rank that has died with it. It is not used again."""
        if self._store_is_gone:
            raise self._without_store()
        # The store is cut off with rank 0, and would take its time to say so.
        if self.rank != 0 and (cut_off := self._cut_off()):
            raise self._lost(tuple(cut_off))
        try:
            yield
        except DistNetworkError:
            self._store_is_gone = True
            raise self._without_store() from None

    def _without_store(self) -> JobError:
        end = time.monotonic() + CLOSING_S
        while not (ranks := self._ended()) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        if ranks:
            return self._lost(ranks)
        self.over = True
        return JobError(
            "torch's store does not answer: the process that serves it, rank 0's or torchrun's, has ended or is "
            "stopped, or the network to it is broken. Restart the job.",
            rank=self.rank,
        )


def describe(error: BaseException) -> str:
    """As other ranks read it, in one line."""
    kind = "" if isinstance(error, InaggError) else f"{type(error).__name__}: "
    return shorten(f"{kind}{error}".partition("\n")[0].removesuffix(": "))


def shorten(text: str) -> str:
    """As much of it as other ranks are told."""
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
