# SPDX-License-Identifier: Apache-2.0
"""Parameter servers that hold the weights: asynchronous and stale-synchronous ones."""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from inagg_baselines.errors import LostRankError
from inagg_baselines.messages import Messages
from inagg_baselines.shard import Shard
from inagg_baselines.vector import Vector

_FAREWELL_S = 5.0  # how long threads may take to end after a rank has been lost
_PUSH, _ANSWER = 1, 2  # tags: a rank's process is at both ends of each
# The last element of a push, and that of an answer, in which another number is the rank that has been lost.
_TRAINS, _LEAVES = 0.0, 1.0
_FINE = -1.0


class _Part:
    """A shard's part of the weights, as a worker sees it. push, answer: messages, one element longer than the part."""

    def __init__(self, weights: torch.Tensor, change: torch.Tensor) -> None:
        """Both of shape (elements,). weights: those of the last answer. change: of a step."""
        self.weights, self._change = weights, change
        self.push, self.answer = (torch.empty(weights.numel() + 1) for _ in range(2))

    def fill(self, last: float) -> None:
        """Write a push."""
        self.push[:-1] = self._change
        self.push[-1] = last

    def take(self) -> None:
        """Read an answer. Raises LostRankError."""
        if (lost := self.answer[-1].item()) != _FINE:
            raise LostRankError(int(lost))
        self.weights.copy_(self.answer[:-1])


class ServerExchange:
    """A parameter server with shards at the first ranks, whose processes train as well.

    After each step a rank sends the change of its weights to the shards, which add 1/N of it and answer with their
    weights (Shard has the rules and their sources). So with a bound of 0 and SGD, also with momentum and weight decay,
    training equals synchronous training up to rounding: these steps are linear in the gradients, and all ranks take
    them from the same weights. A shard has a thread for each other rank. An asynchronous or stale-synchronous rank may
    take fewer steps than others: its shards serve until all ranks are done.
    """

    def __init__(self, group: Any, shards: int, bound: int | None) -> None:
        """group: torch's gloo group, of all ranks. bound: how many steps a rank may be ahead; None: any number."""
        self._group, self._shards, self._bound = group, shards, bound
        self._messages = Messages(group)
        self._farewell: list[torch.Tensor] = []

    def start(self, parameters: Sequence[torch.Tensor]) -> None:
        """See Exchange."""
        self._vector = Vector(parameters, self._group)
        self._weights = self._vector.flat.clone()  # of the last answers
        parts = zip(
            self._weights.tensor_split(self._shards),
            self._vector.flat.tensor_split(self._shards),
            strict=True,
        )
        self._parts = {
            rank: _Part(weights, change)
            for rank, (weights, change) in enumerate(parts)
            if weights.numel() > 0
        }
        self._threads = []
        if (own := self._parts.get(self._messages.rank)) is not None:
            self._shard = Shard(own.weights.clone(), self._messages.ranks, self._bound)
            for rank in self._messages.others:
                # Daemons: in a program that ends with an error, they may still wait.
                thread = threading.Thread(target=self._serve, args=(rank, own.weights.numel()), daemon=True)
                thread.start()
                self._threads.append(thread)

    def after_step(self) -> None:
        """See Exchange."""
        self._exchange(_TRAINS)

    def finish(self) -> None:
        """See Exchange."""
        self._exchange(_LEAVES)
        for thread in self._threads:
            thread.join()

    def _exchange(self, last: float) -> None:
        """Push, and take the answers. Raises LostRankError."""
        try:
            self._push(last)
        except LostRankError as error:
            self.give_up(error.rank)
            raise

    def give_up(self, lost: int) -> None:
        """A rank has been lost: have the threads end, here and at the others that live.

        A thread that wakes up while the interpreter ends would abort the process.
        """
        if self._messages.rank in self._parts:
            self._shard.lose(lost)
        for rank in self._messages.others:
            if rank in self._parts:
                leaving = torch.full_like(self._parts[rank].push, _LEAVES)
                answer = torch.empty_like(leaving)
                self._farewell += [leaving, answer]  # gloo needs them until the end
                with contextlib.suppress(LostRankError):
                    self._messages.receive(answer, rank, _ANSWER)
                    self._messages.send(leaving, rank, _PUSH)
        end = time.monotonic() + _FAREWELL_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _push(self, last: float) -> None:
        self._vector.read().sub_(self._weights)
        waits = []
        for part in self._parts.values():
            part.fill(last)
        for rank in self._messages.others:
            if rank in self._parts:
                waits.append(self._messages.receive(self._parts[rank].answer, rank, _ANSWER))
                waits.append(self._messages.send(self._parts[rank].push, rank, _PUSH))
        if (own := self._parts.get(self._messages.rank)) is not None:
            self._respond(self._messages.rank, own.push, own.answer)
            own.take()
        for wait in waits:
            wait()
        for part in self._parts.values():
            part.take()
        self._vector.flat.copy_(self._weights)
        self._vector.write()

    def _serve(self, rank: int, size: int) -> None:
        """A thread: answer a rank until it leaves."""
        push, answer = torch.empty(size + 1), torch.empty(size + 1)
        push[-1], answer[-1] = _TRAINS, _FINE
        try:
            while push[-1].item() == _TRAINS and answer[-1].item() == _FINE:
                self._messages.receive(push, rank, _PUSH)()
                self._respond(rank, push, answer)
                self._messages.send(answer, rank, _ANSWER)()
        except LostRankError as error:
            self._shard.lose(error.rank)

    def _respond(self, rank: int, push: torch.Tensor, answer: torch.Tensor) -> None:
        answer[-1] = _FINE
        try:
            if push[-1].item() == _TRAINS:
                self._shard.push(rank, push[:-1], answer[:-1])
            else:
                self._shard.leave(rank, answer[:-1])
        except LostRankError as error:
            answer[-1] = error.rank
