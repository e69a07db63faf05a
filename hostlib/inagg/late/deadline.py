# SPDX-License-Identifier: Apache-2.0
"""The communication hook that does not wait for late gradients, and its state."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from inagg.errors import ConfigurationError
from inagg.groups import inagg_group
from inagg.late.arrivals import Arrivals
from inagg.late.roll_call import RollCall
from inagg.late.stand_in import StandIn
from inagg.late.sums import BucketSums
from inagg.late.turns import Bucket
from inagg.residuals import Residuals

_log = logging.getLogger(__name__)

Batch = TypeVar("Batch")


class Deadline:
    """The state of `deadline`: this rank's part in sums that do not wait for late gradients.

    All ranks of the model's group make it together, because the sums get a group to themselves, with a job of its own.

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
        self.least = max(1, outer.size() // 2) if least is None else least
        if not 1 <= self.least <= outer.size() or not 0 < quantile <= 1 or factor < 1 or most_behind < 1:
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
        self.group = inagg_group(
            dist.new_group(
                dist.get_process_group_ranks(outer),
                backend=dist.get_backend(outer),
                pg_options=outer.options,
                use_local_synchronization=True,
                group_desc="late gradients",
            )
        )
        self._sums = BucketSums(self.group, self._residuals, Arrivals(quantile, factor))
        if self.group.size() > 1:
            roll_call = RollCall(self.group.get_group_store())
            stand_in = StandIn(self._sums, roll_call, least=self.least, most_behind=most_behind)
            self.group.before_leaving.append(stand_in.close)

    @property
    def late(self) -> int:
        """How many of this rank's buckets have come too late."""
        return self._sums.late

    def keep_up(self, batches: Iterable[Batch], step: Callable[[], object]) -> Iterator[Batch]:
        """The batches of a training loop, without those of steps that the other ranks have done without this one.

        For such a step the parameters get the gradients of the others, then `step` is called. So a rank that was late
        for several steps computes no gradients that come too late anyway. Without `keep_up` it computes them all.

        Args:
            batches: what each step needs; with gradient accumulation all micro-batches of a step.
            step: what the loop calls after the backward pass: clips gradients, and steps the optimizer and schedules.

        The loop must not call collectives of its own, because a rank skips them with the batch.

        Raises:
            ConfigurationError: DDP itself calls collectives in the forward or backward pass of each step.
        """
        if remedies := _remedies_for_collectives(self._model):
            raise ConfigurationError(
                f"keep_up skips passes, and with them collectives of DDP: make DistributedDataParallel with {remedies}"
            )
        for batch in batches:
            if missed := self._sums.missed_step():
                for one in missed:
                    _set_gradients(one.bucket, one.mean.wait())
                step()
            else:
                yield batch

    def flush(self) -> bool:
        """Sum what came too late and has not left yet. All ranks call it, between two steps or after the last one.

        Returns:
            True: the parameters' gradients are what the ranks owed, summed and divided by the number of ranks; the
            program steps the optimizer once more, or lets them go. False: no rank owed anything, gradients are as they
            were. All ranks return the same.

        Raises:
            InaggError: the job has failed.
        """
        owes = torch.tensor([float(self._sums.owes)])
        self.group.allreduce([owes]).wait()
        if owes.item() == 0:
            return False
        for bucket, owed in self._sums.take_owed():
            self.group.allreduce([owed]).wait()
            _set_gradients(bucket, owed.div_(self.group.size()).to(bucket.dtype))
        return True

    def rescale(self, factor: float) -> None:
        """Multiply what this rank owes, after the scale of the loss has changed by `factor`."""
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


def _set_gradients(bucket: Bucket, flat: torch.Tensor) -> None:
    for parameter, gradient in zip(bucket.parameters, bucket.gradients(flat), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter, memory_format=torch.preserve_format)
        parameter.grad.copy_(gradient)
