# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group while they make it. If one rank fails, all ranks fail at once.

A rank that fails says so through the store that the ranks share. If its process dies, the others see that (`watch`).
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import PrefixStore, Store

from inagg.errors import InaggError, JobError, PeerLostError
from inagg.membership.generation import Generation
from inagg.membership.store import NEW_GROUP, exchange, value_of, wait_for
from inagg.membership.watch import Watch, address_of_server, listener_of
from inagg_contract.ranks import name_ranks, place

ABORTED = "aborted the group"  # the reason of a rank that calls `abort`

_LONGEST_REASON = 600  # characters: each value in the store must fit into a small packet
CLOSING_S = 0.5  # a kernel takes this long to close all connections of a process
_READING_S = 1.0  # other ranks take this long to read why the group was not made
_BEATING_S = 1.5  # a process that lives beats within this time
_LOOK_S = 0.01


class Assembly:
    """A context in which a rank makes a group with others. An exception that leaves it ends it at the other ranks too.

    `store` and `inner_store` have keys that no earlier group had. `store` is for this class, `inner_store` for the
    inner group and its users.

    Args:
        store: keys that only the ranks of this group share, and of earlier groups of theirs.
        rank, size: this process's rank, and the number of ranks.
        timeout: how long to wait for the other ranks.
        host: the name of this host, for messages.
        advice: what to do if ranks do not come, for the error.
        aborted: set when this rank shall give up.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        host: str = "",
        advice: str = NEW_GROUP,
        aborted: threading.Event | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._host = host
        self._here = {rank: host}
        self._advice = advice
        self._aborted = aborted or threading.Event()
        # Set when a method has raised the reason why the group cannot be made. After that, exchange nothing.
        self.over = False
        # Ends gloo's connections, so that other ranks notice.
        self.break_off: Callable[[], None] = lambda: None
        self._watch: Watch | None = None
        # None while the store can be used; then the ranks that are lost with it, as far as this one knows.
        self._lost_with_store: tuple[int, ...] | None = None
        self._server_of_store = address_of_server(store)
        with self._use_of_store():
            self._generation = Generation(store, rank, size)
        self.store: Store = PrefixStore("inagg", self._generation.store)
        self.inner_store: Store = PrefixStore("inner", self._generation.store)

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
        lost: tuple[int, ...] = ()
        reason, places = describe(error), dict[int, str]()
        if isinstance(error, PeerLostError):
            lost, reason, places = error.lost_ranks, error.reason, error.places
        with contextlib.suppress(Exception), self._use_of_store():
            if self.store.add("failures", 1) == 1:  # the first failure causes those of other ranks
                self.store.set(
                    "failed", json.dumps([self.rank, reason, lost, [*(places | self._here).items()]])
                )
        self.break_off()
        with contextlib.suppress(Exception), self._use_of_store():
            left, end = self.store.add("left", 1), time.monotonic() + _READING_S
            # Rank 0 waits for the others: the store is often in its process, and ends with it.
            while self.rank == 0 and left < self.size - len(lost) and time.monotonic() < end:
                time.sleep(_LOOK_S)
                left = self.store.add("left", 0)

    def watch(self, ip: str) -> None:
        """Watch from now on which processes end, and let the other ranks watch this one. Waits for rank 0 to do so.

        ip: this host's address, at which the other ranks reach it. Raises as `exchange`.
        """
        with self._use_of_store():
            self._here = {self.rank: place(self._host, ip)}
            self._watch = Watch(self.store, self.rank, self.size, ip, self._host)
            # If rank 0's process, which often serves the store, stops after this, the other ranks can name it.
            self._wait_for(listener_of(0), [0], self.timeout)
            self._watch.look_out()

    def exchange(self, name: str, mine: Any, timeout: timedelta | None = None) -> list[Any]:
        """Wait until each rank has called this with this name. Returns the values of `mine`, by rank.

        A rank may use a name once. mine: a value that JSON can hold; tuples arrive as lists.

        Raises:
            JobError: a rank has failed or died, or this one was aborted.
            DistStoreError: ranks have not called it in time.
        """
        ranks = range(self.size)
        with self._use_of_store():
            limit = timeout or self.timeout
            values = exchange(self.store, name, self.rank, ranks, mine, limit, self._check, self._advice)
            if self._watch is not None:
                self._watch.look_out()
        return values

    def publish(self, name: str, value: Any) -> None:
        """Set a value for the other ranks, which read it with `receive` or `peek`. value: what JSON can hold."""
        with self._use_of_store():
            self.store.set(name, json.dumps(value))

    def receive(self, name: str, publisher: int, timeout: timedelta) -> Any:
        """Wait for what rank `publisher` publishes under this name. Raises as `exchange`."""
        with self._use_of_store():
            return json.loads(self._wait_for(name, [publisher], timeout))

    def bytes_at(self, key: str, timeout: timedelta) -> bytes:
        """Wait for the value of this key, which any rank may set.

        Raises as `exchange`. But a DistStoreError does not know which rank is late.
        """
        with self._use_of_store():
            return self._wait_for(key, range(self.size), timeout)

    def _wait_for(self, key: str, setters: Sequence[int], timeout: timedelta) -> bytes:
        return wait_for(self.store, [key], setters, timeout, self._check, self._advice)[0]

    def count(self, name: str) -> int:
        """How many ranks have called this with this name so far, including this one."""
        with self._use_of_store():
            return int(self.store.add(name, 1))

    def peek(self, name: str) -> Any:
        """What a rank has published under this name; None if no rank has."""
        with self._use_of_store():
            return json.loads(value_of(self.store, name)) if self.store.check([name]) else None

    def check(self, patience_s: float = 0.0) -> None:
        """Raise if a rank has failed or died, or this one was aborted. Call it repeatedly while waiting for another.

        patience_s: how long to look. 0 looks once; give more if this is the last call.

        Raises:
            JobError: it names the rank.
        """
        end = time.monotonic() + patience_s
        with self._use_of_store():
            self._check()
            while time.monotonic() < end:
                time.sleep(_LOOK_S)
                self._check()

    def check_aborted(self) -> None:
        """Raise JobError if this rank shall give up. The other methods do so while they wait."""
        if self._aborted.is_set():
            self.over = True
            raise JobError(ABORTED, rank=self.rank)

    def check_lives(self) -> None:
        """Raise if the process of a rank that this one watches is stopped. Takes a moment. Does not use the store.

        Raises:
            JobError: it names the rank, or says that the store has failed.
        """
        if self._lost_with_store is not None:
            raise self._without_store(self._lost_with_store)
        if self._watch is not None and (ranks := self._watch.unheard(_BEATING_S)):
            raise self._lost(ranks)

    def _check(self) -> None:
        self.check_aborted()
        self._check_store()
        if self._watch is not None:
            self._watch.look_out()
        if ranks := self._ended():
            self._check_store()  # a rank that fails says why before its process ends
            raise self._lost(ranks)
        if self._watch is not None and (ranks := self._watch.stopped()):
            raise self._lost(ranks)
        if self._generation.superseded():
            self.over = True
            raise JobError(
                "another rank has begun to make this group again: it was restarted, or it has failed to make the group "
                "that this rank still makes. Make the group again on this rank too.",
                rank=self.rank,
            )

    def _check_store(self) -> None:
        if not self.store.check(["failed"]):
            return
        rank, reason, lost, places = json.loads(value_of(self.store, "failed"))
        self.over = True
        if self.rank in lost:
            raise JobError(
                f"{name_ranks([rank], dict(places))} has given this rank up: {reason}", rank=self.rank
            )
        if lost:
            raise PeerLostError(lost, reason=reason, places=dict(places), rank=self.rank)
        raise JobError(
            f"{name_ranks([rank], dict(places))} could not make the group: {reason}", rank=self.rank
        )

    def _ended(self) -> tuple[int, ...]:
        return () if self._watch is None else self._watch.ended()

    def _cut_off(self) -> dict[int, str]:
        return {} if self._watch is None else self._watch.cut_off()

    def _lost(self, ranks: Sequence[int]) -> PeerLostError:
        self.over = True
        cut_off = self._cut_off()
        if cut_off.keys() >= set(ranks):
            silent = ", ".join(cut_off[rank] for rank in ranks)
            reason = f"no answer from {silent}: the host, the network or the switch is down"
        elif set(self._ended()) >= set(ranks):
            reason = "its process or its connection has ended while the group was made"
        else:
            reason = "it has not made the group: its process is stopped, and its host answers"
            if self.rank != 0:  # rank 0, whose process often serves the store
                self._lost_with_store = tuple(ranks)
        places = {} if self._watch is None else self._watch.places
        return PeerLostError(ranks, reason=reason, places=places, rank=self.rank)

    @contextlib.contextmanager
    def _use_of_store(self) -> Iterator[None]:
        """If the store fails in the block, raise an error that names the rank that died with it.

        After that the store is not used again.
        """
        if self._lost_with_store is not None:
            raise self._without_store(self._lost_with_store)
        # If rank 0 is cut off, the store probably is too, and its client would take long to notice.
        if self.rank != 0 and (cut_off := self._cut_off()):
            raise self._lost(tuple(cut_off))
        try:
            yield
        except DistNetworkError:
            self._lost_with_store = self._find_lost()
            raise self._without_store(self._lost_with_store) from None

    def _find_lost(self) -> tuple[int, ...]:
        """The ranks whose processes have ended or are stopped, looked for without the store."""
        end = time.monotonic() + CLOSING_S
        while not (ranks := self._ended()) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return ranks or (() if self._watch is None else self._watch.unheard(_BEATING_S))

    def _without_store(self, lost: tuple[int, ...]) -> JobError:
        if lost:
            return self._lost(lost)
        self.over = True
        where = f" at {self._server_of_store}" if self._server_of_store else ""
        return JobError(
            f"torch's store{where} does not answer: the process that serves it, rank 0's or "
            "torchrun's, has ended or is stopped, or the network to it is broken. Restart the job.",
            rank=self.rank,
        )


def describe(error: BaseException) -> str:
    """An error as other ranks read it: one line."""
    kind = "" if isinstance(error, InaggError) else f"{type(error).__name__}: "
    return shorten(f"{kind}{error}".partition("\n")[0].removesuffix(": "))


def shorten(text: str) -> str:
    """As much of a text as other ranks get."""
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
