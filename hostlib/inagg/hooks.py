# SPDX-License-Identifier: Apache-2.0
"""DDP communication hooks: gradients in narrow lanes, with error feedback; sums that do not wait for late gradients.

    state = inagg.hooks.NarrowLanes(model, lane_bits=8, warm_up_steps=100)
    model.register_comm_hook(state, inagg.hooks.narrow_lanes)

Each rank keeps the residual of its gradient, the rounding error of its lanes, and adds it to its gradient of the next
step. So nothing is lost, only delayed (Seide, Fu, Droppo, Li and Yu: 1-bit stochastic gradient descent and its
application to data-parallel distributed training of speech DNNs, Interspeech 2014; Karimireddy, Rebjock, Stich and
Jaggi: Error feedback fixes SignSGD and other gradient compression schemes, ICML 2019). Residuals have the scale of the
gradients: if a GradScaler changes the scale, call `NarrowLanes.rescale`.

    state = inagg.hooks.Deadline(ddp_model)
    ddp_model.register_comm_hook(state, inagg.hooks.deadline)

Here the residual of a rank is the gradients that came too late (`inagg.late`).
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist

from inagg.errors import ConfigurationError
from inagg.groups import inagg_group
from inagg.late import Deadline, deadline
from inagg.options import LaneBits
from inagg.residuals import Residuals
from inagg.sums.elements import is_contiguous_float32
from inagg_contract.lanes import LANE_WIDTHS


class NarrowLanes:
    """The state of `narrow_lanes`: settings, and this rank's residuals.

    Args:
        model: the module, or its parameters; a checkpoint needs the same order of parameters.
        group: the inagg group that DDP uses; by default the world.
        lane_bits: lane width after the warm-up.
        rounding: rounding of elements to lanes after the warm-up.
        feedback: whether residuals are added to the next gradient.
        warm_up_steps: number of first steps with 32-bit lanes, rounded to nearest.

    Raises:
        ConfigurationError: the group is not an inagg group, or a setting is wrong.
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[torch.nn.Parameter],
        group: dist.ProcessGroup | None = None,
        *,
        lane_bits: LaneBits = 8,
        rounding: Literal["nearest", "stochastic"] = "nearest",
        feedback: bool = True,
        warm_up_steps: int = 0,
    ) -> None:
        self.group = inagg_group(group)
        if lane_bits not in LANE_WIDTHS or rounding not in ("nearest", "stochastic") or warm_up_steps < 0:
            raise ConfigurationError(
                "lane_bits is 8, 16 or 32, rounding nearest or stochastic, warm_up_steps not negative; got "
                f"{lane_bits!r}, {rounding!r}, {warm_up_steps!r}"
            )
        parameters = model.parameters() if isinstance(model, torch.nn.Module) else model
        self.lane_bits = lane_bits
        self.rounding = rounding
        self.feedback = feedback
        self.warm_up_steps = warm_up_steps
        self.step = 0
        self.residuals = Residuals(parameters)

    def rescale(self, factor: float) -> None:
        """Multiply the residuals, after the scale of the loss has changed by `factor`."""
        self.residuals.scale(factor)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint of this rank; each rank needs its own."""
        return {"step": self.step, "left": self.residuals.snapshot()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint of the same rank and model.

        Raises:
            ConfigurationError: the checkpoint is of another model; nothing has changed.
        """
        self.residuals.restore(state["left"])
        self.step = state["step"]


def narrow_lanes(
    state: NarrowLanes,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stub lacks it
) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket's gradients over the ranks, summed in lanes of `state.lane_bits`.

    Buckets that are not float32 on the CPU or a CUDA device are averaged as without a hook, and so are all buckets of a
    group that has fallen back to gloo.
    """
    buffer = bucket.buffer()
    warming_up = state.step < state.warm_up_steps
    if bucket.is_last():
        state.step += 1
    if state.group.path == "inner" or not is_contiguous_float32(buffer):
        work = state.group.allreduce([buffer], dist.ReduceOp.AVG)
    elif warming_up:
        work = state.group.sum_lanes(buffer, lane_bits=32, average=True)
    else:
        left = state.residuals.of(bucket.parameters()) if state.feedback else None
        if left is not None:
            buffer.add_(left)
        work = state.group.sum_lanes(
            buffer, lane_bits=state.lane_bits, average=True, rounding=state.rounding, residual=left
        )
    future: Any = work.get_future()
    mean: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
    return mean


__all__ = ["Deadline", "NarrowLanes", "deadline", "narrow_lanes"]
