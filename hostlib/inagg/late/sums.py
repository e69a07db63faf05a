# SPDX-License-Identifier: Apache-2.0
"""The sums of a model's buckets, which the program begins, or in its place the thread of `inagg.late.stand_in`."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from inagg.errors import MismatchError
from inagg.late.arrivals import Arrivals
from inagg.late.turns import Bucket, Turn, Turns
from inagg.process_group import ProcessGroup
from inagg.residuals import Residuals


@dataclass
class BucketSum:
    """A sum that this rank has contributed to.

    mean: of those who took part. arrived_s: when the rank contributed, in seconds since the end of the step before;
    0 if it has not seen that end. said: whether the rank has said that its program is there.
    """

    turn: Turn
    bucket: Bucket
    arrived_s: float
    said: bool = False
    mean: torch.futures.Future[torch.Tensor] = field(init=False)


class BucketSums:
    """The sums of one rank. Any thread may call it.

    Attributes:
        changed: guards what follows, and is notified when it changes.
        turns: whose turn it is.
        arrivals: when gradients are late.
        open: sums that the program has contributed to, and that are not done.
        begun: the step that may be under way, and when the one before ended.
        incomplete: whether a program was missing in the last sum.
        ended: whether a sum has failed.
        late: how many gradients of this rank came too late.

    Args:
        group: does these sums and nothing else, so that a thread can begin one in place of the program.
        residuals: receive gradients that come too late.
    """

    def __init__(self, group: ProcessGroup, residuals: Residuals, arrivals: Arrivals) -> None:
        self.group = group
        self.changed = threading.Condition()
        self.turns = Turns()
        self.arrivals = arrivals
        self.open: dict[Turn, BucketSum] = {}
        self.begun: tuple[int, float] | None = None
        self.incomplete = False
        self.ended = False
        self.late = 0
        self._residuals = residuals
        self._scaled = False  # whether the scale of the gradients changes
        self._owed: set[int] = set()  # the places of parameters whose residual is not zero
        self._unclaimed: dict[Turn, BucketSum] = {}  # begun in place of the program, which has not come yet

    def hand_in(self, bucket: Bucket, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Contribute the program's gradient, or keep it for later if the sum has begun without it.

        Returns the mean of the gradients of those who take part. Raises InaggError if the job has failed.
        """
        with self.changed:
            if self.turns.program == self.turns.group:
                begun = self._begin(bucket, gradient)
                self.turns.hand_in(bucket)
                return begun.mean
            begun = self._unclaimed[self.turns.program]
            if begun.bucket.digest != bucket.digest:
                raise MismatchError(
                    rank=self.group.rank(),
                    detail=f"in step {begun.turn.step} DDP has other buckets here than at the other ranks",
                )
            del self._unclaimed[self.turns.hand_in(bucket)]
            self._residuals.of(bucket.parameters).add_(gradient)
            self._owed.update(bucket.places)
            self.late += 1
            return begun.mean

    def stand_in(self, turn: Turn) -> None:
        """Contribute what the rank owes, or zeros, if the program has not come meanwhile."""
        with self.changed:
            bucket = self.turns.expected
            if self.turns.group == turn and bucket is not None and not self.ended:
                self._unclaimed[turn] = self._begin(bucket, None)

    def missed_step(self) -> list[BucketSum]:
        """The sums of the program's step, if all have begun without it; the program's next turn is in the next step."""
        with self.changed:
            step = self.turns.program.step
            if self.turns.program.position > 0 or self.turns.behind == 0:
                return []
            missed = [self._unclaimed.pop(turn) for turn in sorted(self._unclaimed) if turn.step == step]
            for one in missed:
                self.turns.hand_in(one.bucket)
            return missed

    @property
    def steps(self) -> int:
        """How many steps the program has made."""
        with self.changed:
            return self.turns.program.step

    @property
    def unclaimed_steps(self) -> int:
        """How many steps have begun without the program, which has not come yet; 0 after a failure."""
        with self.changed:
            return 0 if self.ended else len({turn.step for turn in self._unclaimed})

    def take_owed(self) -> list[tuple[Bucket, torch.Tensor]]:
        """What the rank owes, zeros included, by the buckets of the last step. It owes nothing afterwards.

        There has been a step.
        """
        with self.changed:
            owed = []
            for bucket in self.turns.last_step:
                left = self._residuals.of(bucket.parameters)
                owed.append((bucket, left.clone()))
                left.zero_()
            self._owed.clear()
            return owed

    @property
    def owes(self) -> bool:
        """Whether gradients of this rank have come too late and not left yet."""
        with self.changed:
            return bool(self._owed)

    def scale(self, factor: float) -> None:
        """Multiply what the rank owes. From now on only the program contributes it.

        The thread does not know the scale of a step that the program has not come to.
        """
        with self.changed:
            self._scaled = True
            self._residuals.scale(factor)

    def snapshot(self) -> dict[int, torch.Tensor]:
        """A copy of what the rank owes, by the index of the parameter."""
        with self.changed:
            return {place: part for place, part in self._residuals.snapshot().items() if place in self._owed}

    def restore(self, snapshot: Mapping[int, torch.Tensor]) -> None:
        """The rank owes this. Raises ConfigurationError if it is of other parameters; nothing has changed then."""
        with self.changed:
            self._residuals.restore(snapshot)
            self._owed = set(snapshot)

    def take_over(self, before: "BucketSums") -> None:
        """The rank owes what it owed before, in sums that have ended."""
        with before.changed, self.changed:
            self._owed, self._scaled = set(before._owed), before._scaled

    def _begin(self, bucket: Bucket, gradient: torch.Tensor | None) -> BucketSum:
        expected = self.turns.expected
        if expected is None or expected.digest != bucket.digest:
            self.arrivals.forget(self.turns.group.position)
        owes = not self._owed.isdisjoint(bucket.places) and (gradient is not None or not self._scaled)
        values = self._contribution(bucket, gradient, owes)
        begun = BucketSum(self.turns.group, bucket, self._since_last_step())
        takes_part = gradient is not None or owes
        works = [self.group.allreduce([values]), self.group.allreduce([_tally(begun, gradient, takes_part)])]
        if gradient is not None:
            self.open[begun.turn] = begun
        self.turns.begin(bucket)
        both = torch.futures.collect_all([work.get_future() for work in works])
        begun.mean = both.then(lambda done: self._end(begun, done))
        self.changed.notify_all()
        return begun

    def _contribution(self, bucket: Bucket, gradient: torch.Tensor | None, owes: bool) -> torch.Tensor:
        if not owes:
            if gradient is not None:
                return gradient
            return torch.zeros(bucket.elements, dtype=bucket.dtype, device=bucket.device)
        left = self._residuals.of(bucket.parameters)
        total = left.to(bucket.dtype, copy=True) if gradient is None else gradient.copy_(left + gradient)
        left.zero_()  # after what may fail, so that nothing is lost
        self._owed.difference_update(bucket.places)
        return total

    def _since_last_step(self) -> float:
        known = self.begun is not None and self.begun[0] == self.turns.group.step
        return time.monotonic() - self.begun[1] if self.begun is not None and known else 0.0

    def _end(self, begun: BucketSum, done: torch.futures.Future[list[Any]]) -> torch.Tensor:
        with self.changed:
            try:
                (values,), (tally,) = (one.value() for one in done.value())
            except BaseException:
                self.ended = True
                raise
            finally:
                self.open.pop(begun.turn, None)
                self.changed.notify_all()
            took_part, programs, arrivals_us = tally.tolist()
            if self.begun is not None:
                self.arrivals.note(begun.turn.position, arrivals_us / 1e6 / programs)
            self.incomplete = programs < self.group.size()
            if begun.bucket.last:
                self.begun = (begun.turn.step + 1, time.monotonic())
        mean: torch.Tensor = values.div_(took_part)
        return mean


def _tally(begun: BucketSum, gradient: torch.Tensor | None, takes_part: bool) -> torch.Tensor:
    """For the sums over the ranks: who takes part, whose program has come, and microseconds until then.

    Integers, because their sums are exact whatever the lanes of floats.
    """
    program = gradient is not None
    return torch.tensor([int(takes_part), int(program), int(begun.arrived_s * 1e6) if program else 0])
