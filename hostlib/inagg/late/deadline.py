# SPDX-License-Identifier: Apache-2.0
"""The communication hook that does not wait for late gradients, and its state."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from inagg.errors import ConfigurationError, InaggError, MismatchError
from inagg.groups import inagg_group
from inagg.late.arrivals import Arrivals
from inagg.late.roll_call import RollCall
from inagg.late.stand_in import StandIn
from inagg.late.sums import BucketSums
from inagg.late.turns import Bucket
from inagg.process_group import ProcessGroup
from inagg.residuals import Residuals

_log = logging.getLogger(__name__)

Batch = TypeVar("Batch")


class Deadline:
    """The state of `deadline`: this rank's part in sums that do not wait for late gradients.

    All ranks of the model's group make it together, because the sums get a group to themselves, with a job of its own.
    That group ends with the model's group. If `reconfigure` forms the model's group again, the next backward pass makes
    another one; a rank that is new there makes its Deadline.

    Attributes:
        group: of the sums.
        least: see below.

    Args:
        model: in DistributedDataParallel, over an inagg group. A checkpoint needs the same order of parameters.
        least: how many ranks' programs take part in each sum at least; by default half of them, rounded down.
        quantile, factor: a gradient is late after `factor` times this quantile of the arrivals in the last 64 steps.
        most_behind: how many steps a program may be behind the others before they wait for it. A rank holds the
            gradients of so many steps.

    Raises:
        ConfigurationError: the group is not an inagg group, or a setting is wrong.
        InaggError: the group for the sums could not be made.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        *,
        least: int | None = None,
        quantile: float = 0.9,
        factor: float = 1.5,
        most_behind: int = 16,
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise ConfigurationError(
                f"Deadline takes the model in DistributedDataParallel, not {type(model).__name__}"
            )
        outer = inagg_group(model.process_group)
        self._outer, self._least = outer, least
        self._quantile, self._factor, self._most_behind = quantile, factor, most_behind
        fits = least is None or 1 <= least <= outer.size()
        if not fits or not 0 < quantile <= 1 or factor < 1 or most_behind < 1:
            raise ConfigurationError(
                f"least is 1 to {outer.size()}, the number of ranks; quantile more than 0 and at most 1; factor and "
                f"most_behind at least 1; got {least!r}, {quantile!r}, {factor!r}, {most_behind!r}"
            )
        if remedies := _remedies_for_collectives(model):
            _log.warning(
                "inagg: rank %d: DDP itself waits for all ranks in each step, so no deadline helps; make "
                "DistributedDataParallel with %s",
                outer.rank(),
                remedies,
            )
        self._model = model
        self._residuals = Residuals(model.module.parameters())
        self._late_before = 0  # in earlier groups
        self._form()

    @property
    def late(self) -> int:
        """How many of this rank's buckets have come too late."""
        return self._late_before + self._sums.late

    @property
    def least(self) -> int:
        """How many ranks' programs take part in each sum at least."""
        size = self._outer.size()
        return max(1, size // 2) if self._least is None else min(self._least, size)

    def _form(self) -> None:
        """Make the group of the sums, of the ranks that the model's group has now."""
        outer = self._outer
        formed_in = outer.get_reconfigure_handle()
        group = outer.split_group(range(outer.size()), group_desc="late gradients")
        assert group is not None  # this rank is in it
        self.group: ProcessGroup = group
        outer.before_leaving.append(partial(_leave, self.group))
        self._sums = BucketSums(self.group, self._residuals, Arrivals(self._quantile, self._factor))
        if self.group.size() > 1:
            roll_call = RollCall(self.group.get_group_store())
            stand_in = StandIn(self._sums, roll_call, least=self.least, most_behind=self._most_behind)
            self.group.before_leaving.append(lambda *_: stand_in.close())
        self._formed_in = formed_in

    @property
    def _outdated(self) -> bool:
        """Whether the model's group has been formed again since `_form`."""
        return self._formed_in != self._outer.get_reconfigure_handle()

    def _form_again_if_outdated(self) -> None:
        if self._outdated:
            before = self._sums
            self._form()
            self._sums.take_over(before)
            self._late_before += before.late

    def keep_up(self, batches: Iterable[Batch], step: Callable[[], object]) -> Iterator[Batch]:
        """The batches of a training loop, without those of steps that the other ranks have done without this one.

        For such a step the parameters get the gradients of the others, then `step` is called. So a rank that was late
        for several steps computes no gradients that come too late anyway. Without `keep_up` it computes them all.

        Args:
            batches: what each step needs; with gradient accumulation all micro-batches of a step.
            step: what the loop calls after the backward pass: clips gradients, and steps the optimizer and schedules.

        After `step` the parameters have no gradients, so the next pass adds to nothing, whether the loop calls
        `zero_grad` before its pass or after its step. All ranks need the same number of batches. The loop must not call
        collectives of its own, because a rank skips them with the batch.

        Raises:
            ConfigurationError: DDP itself calls collectives in the forward or backward pass of each step.
        """
        if remedies := _remedies_for_collectives(self._model):
            raise ConfigurationError(
                f"keep_up skips passes, and with them collectives of DDP: make DistributedDataParallel with {remedies}"
            )
        for batch in batches:
            if missed := [] if self._outdated else self._sums.missed_step():
                for one in missed:
                    _set_gradients(one.bucket, one.mean.wait())
                step()
                for one in missed:
                    for parameter in one.bucket.parameters:
                        parameter.grad = None
            else:
                yield batch

    def flush(self) -> bool:
        """Sum what came too late and has not left yet. All ranks call it, between two steps or after the last one.

        Returns:
            True: the parameters' gradients are what the ranks owed, summed and divided by the number of ranks; the
            program steps the optimizer once more, or lets them go. False: no rank owed anything, or none has made a
            step since the state was made, and what a checkpoint brought leaves with the first steps; gradients are as
            they were. All ranks return the same.

        Raises:
            MismatchError: the ranks have made different numbers of steps, so their weights differ. All ranks raise.
            InaggError: the job has failed.
        """
        self._form_again_if_outdated()
        steps, owes = self._exchange(self._sums.steps, int(self._sums.owes))
        if len(set(steps)) > 1:
            raise _different_steps(self.group.rank(), steps)
        if steps[0] == 0 or not any(owes):
            return False
        for bucket, owed in self._sums.take_owed():
            self.group.allreduce([owed]).wait()
            _set_gradients(bucket, owed.div_(self.group.size()).to(bucket.dtype))
        return True

    def _exchange(self, steps: int, owes: int) -> tuple[list[int], list[int]]:
        """Both of each rank. In the model's group: in the other one a rank with fewer steps still sums gradients."""
        ours = torch.tensor([steps, owes])
        all_ranks = [torch.empty_like(ours) for _ in range(self._outer.size())]
        self._outer.allgather([all_ranks], [ours]).wait()
        every_steps, every_owes = torch.stack(all_ranks).T.tolist()
        return every_steps, every_owes

    def rescale(self, factor: float) -> None:
        """Multiply what this rank owes, after the scale of the loss has changed by `factor`; 1 if it has not changed.

        A program with a GradScaler calls it after each update of the scale, from the first step on. From then on what
        came too late leaves with the program's next gradient that is not late, and never with the thread's zeros.
        """
        self._sums.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint of this rank; each rank needs its own."""
        return {"left": self._sums.snapshot()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint of the same rank and model.

        Raises:
            ConfigurationError: the checkpoint is of another model; nothing has changed.
        """
        self._sums.restore(state["left"])

    def sum(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stub lacks it
    ) -> torch.futures.Future[torch.Tensor]:
        """See `deadline`."""
        self._form_again_if_outdated()
        parameters = tuple(bucket.parameters())
        gradient = bucket.buffer()
        described = Bucket(
            parameters,
            self._residuals.places(parameters),
            tuple(part.stride() for part in bucket.gradients()),
            gradient.dtype,
            gradient.device,
            bucket.is_last(),
        )
        return self._sums.hand_in(described, gradient)


def deadline(
    state: Deadline,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stub lacks it
) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket's gradients over the ranks that take part in time.

    A rank that is late takes part with nothing; its gradient is added to its next one. The mean is the same at all
    ranks. Which ranks take part depends on time, so two runs do not have the same bits.
    """
    return state.sum(bucket)


def _remedies_for_collectives(model: DistributedDataParallel) -> str:
    """The settings with which DDP calls no collectives of its own in each step; empty if it calls none."""
    buffers: bool = model.will_sync_module_buffers()  # type: ignore[no-untyped-call]
    remedies = ["forward_sync_buffers=False (older releases of torch: broadcast_buffers=False)"] * buffers
    remedies += ["find_unused_parameters=False, or static_graph=True"] * model.find_unused_parameters
    return ", and with ".join(remedies)


def _leave(group: ProcessGroup, cause: str | None, since: float) -> None:
    try:
        group.leave(cause, since)
    except InaggError as error:  # the model's group has to leave its job, too
        _log.warning(
            "inagg: rank %d: the group of late gradients did not leave its job: %s", group.rank(), error
        )


def _different_steps(rank: int, steps: list[int]) -> MismatchError:
    calls = {other: f"{number} steps" for other, number in enumerate(steps)}
    few, many = min(steps), max(steps)
    return MismatchError(
        rank=rank,
        detail=f"the ranks have made different numbers of steps (rank {steps.index(few)} {few}, rank "
        f"{steps.index(many)} {many}), so their weights differ. Give each rank the same number of batches, and let a "
        "rank skip a step only if all do",
        calls=calls,
    )


def _set_gradients(bucket: Bucket, flat: torch.Tensor) -> None:
    for parameter, gradient in zip(bucket.parameters, bucket.gradients(flat), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter, memory_format=torch.preserve_format)
        parameter.grad.copy_(gradient)
