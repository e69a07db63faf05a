# SPDX-License-Identifier: Apache-2.0
"""One rank of test_late_gradients.py: trains while ranks stall, and reports the gradients that it got in each step.

Rank r's gradient is 1 in element r of each parameter, and 0 in the others. So the mean of a step shows who took part,
and with how many gradients: its elements times the number of those that are not zero.

Arguments: the file for events, and the names of cases.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inagg.hooks
from inagg.errors import MismatchError
from inagg_testbed.events import EventLog

PACE_S = 0.02  # of a step
STALL_S = 1.0
FACTOR = 5.0  # so that a busy machine makes few other ranks late
STEPS = 60
STALLED = 12  # the step in which ranks stall

Stalls = Callable[[int, int], float]  # rank, step -> seconds


class Marks(torch.nn.Module):
    """Two parameters, each in a bucket by itself."""

    def __init__(self, ranks: int, *, optional: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(ranks))
        self.second = torch.nn.Parameter(torch.zeros(300, ranks))
        self.optional = torch.nn.Parameter(torch.zeros(7)) if optional else None

    def forward(self, rank: int, scale: float = 1.0, *, with_optional: bool = False) -> torch.Tensor:
        loss = scale * self.first[rank] + scale * self.second[-1, rank]
        if with_optional and self.optional is not None:
            loss = loss + self.optional.sum()
        return loss


class Training:
    """A model under the hook, with what it records: the gradients and the duration of each step."""

    def __init__(
        self,
        *,
        optional: bool = False,
        static: bool = False,
        dtype: torch.dtype = torch.float32,
        **settings: Any,
    ) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.model = Marks(self.ranks, optional=optional).to(dtype)
        self.ddp = DistributedDataParallel(
            self.model,
            bucket_cap_mb=0.0001,
            find_unused_parameters=optional and not static,
            static_graph=static,
            gradient_as_bucket_view=optional,
        )
        self.state = inagg.hooks.Deadline(self.ddp, **{"factor": FACTOR, "most_behind": 1000, **settings})
        self.ddp.register_comm_hook(self.state, inagg.hooks.deadline)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1.0, momentum=0.5)
        self.got: list[list[list[float]]] = []
        self.seconds: list[float] = []
        self.computed = 0
        self._since = time.monotonic()

    def pass_over(self, stall_s: float = 0.0, scale: float = 1.0, **arguments: Any) -> None:
        """Forward and backward pass. A stall is in the middle of the backward pass."""
        time.sleep(PACE_S)
        self.optimizer.zero_grad()
        loss = self.ddp(self.rank, scale, **arguments)
        if stall_s:
            loss.register_hook(lambda _: time.sleep(stall_s))
        loss.backward()
        self.computed += 1

    def step(self) -> None:
        self.note()
        self.optimizer.step()

    def note(self) -> None:
        """Record the gradients, and the time since the step before."""
        first, second = self.model.first.grad, self.model.second.grad
        assert first is not None
        assert second is not None
        self.got.append([first.tolist(), second[-1].tolist()])
        now = time.monotonic()
        self.seconds.append(now - self._since)
        self._since = now

    def report(self, **more: Any) -> dict[str, Any]:
        weights = torch.cat([one.detach().flatten().float() for one in self.model.parameters()])
        left = {place: part.tolist() for place, part in self.state.state_dict()["left"].items()}
        dist.barrier()  # all have come to the end
        self.state.group.shutdown()
        return {
            "got": self.got,
            "seconds": self.seconds,
            "weights": weights.tolist(),
            "late": self.state.late,
            "computed": self.computed,
            "left": left,
            **more,
        }


def stalls_once(late: int) -> Stalls:
    return lambda rank, step: STALL_S if rank == late and step == STALLED else 0.0


def plain(stalls: Stalls, **settings: Any) -> dict[str, Any]:
    training = Training(**settings)
    for step in range(STEPS):
        training.pass_over(stalls(training.rank, step))
        training.step()
    return training.report()


def keeps_up() -> dict[str, Any]:
    """Long enough that ranks which compute at the same pace would never catch up."""
    training = Training()
    stalls = stalls_once(1)
    for step in training.state.keep_up(range(2 * STEPS), training.step):
        training.pass_over(stalls(training.rank, step))
        training.step()
    return training.report()


def all_pause() -> dict[str, Any]:
    """All ranks evaluate for a while, and exchange a figure in the world's group."""
    training = Training()
    for step in range(STEPS):
        if step == STALLED:
            time.sleep(STALL_S)
            dist.all_reduce(torch.ones(1))
        training.pass_over()
        training.step()
    return training.report()


def other_input() -> dict[str, Any]:
    """A parameter that most steps do not use."""
    training = Training(optional=True)
    for step in range(STEPS):
        training.pass_over(stalls_once(1)(training.rank, step), with_optional=step % 4 == 0)
        training.step()
    return training.report()


def late_at_the_rebuild() -> dict[str, Any]:
    """The second step has other buckets than the first."""
    return plain(lambda rank, step: STALL_S if rank == 1 and step == 1 else 0.0)


def another_model() -> dict[str, Any]:
    """Two models in turn, each with its deadline; a rank is late with the second."""
    one, other = Training(factor=2), Training(factor=2)
    for step in range(STEPS):
        one.pass_over()
        one.step()
        other.pass_over(stalls_once(0)(other.rank, step))
        other.step()
    report = other.report()
    one.report()
    return report


def accumulates() -> dict[str, Any]:
    training = Training()
    for step in range(STEPS):
        time.sleep(PACE_S)
        training.optimizer.zero_grad()
        with training.ddp.no_sync():
            training.ddp(training.rank).backward()
        if training.rank == 1 and step == STALLED:
            time.sleep(STALL_S)
        training.ddp(training.rank).backward()
        training.computed += 1
        training.step()
    return training.report()


def scaled(growth_interval: int, late_scale: float = 1.0, *, unscale: bool = False) -> dict[str, Any]:
    """Under a GradScaler. late_scale: multiplies the gradient that comes too late. unscale: before it is noted."""
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=growth_interval)
    scales = []

    def step_scaled() -> None:
        if unscale:
            scaler.unscale_(training.optimizer)
        training.note()
        scaler.step(training.optimizer)
        before = scaler.get_scale()
        scaler.update()
        training.state.rescale(scaler.get_scale() / before)
        scales.append(scaler.get_scale())

    for step in training.state.keep_up(range(2 * STEPS), step_scaled):
        time.sleep(PACE_S)
        training.optimizer.zero_grad()
        late = training.rank == 1 and step == STALLED
        if late:
            time.sleep(STALL_S)
        loss: Any = scaler.scale(training.ddp(training.rank, late_scale if late else 1.0))
        loss.backward()
        training.computed += 1
        step_scaled()
    training.state.rescale(1 / scaler.get_scale())  # so that the report has no scale
    return training.report(scales=scales)


def keeps_up_and_zeroes_last() -> dict[str, Any]:
    """The loop's order is pass, step, zero_grad."""
    training = Training()
    for step in training.state.keep_up(range(2 * STEPS), training.step):
        time.sleep(PACE_S + stalls_once(1)(training.rank, step))
        training.ddp(training.rank).backward()
        training.computed += 1
        training.step()
        training.optimizer.zero_grad()
    return training.report()


def skips_a_step() -> dict[str, Any]:
    """Rank 1 makes one step fewer than the others."""
    training = Training()
    for step in range(STEPS):
        if training.rank == 1 and step == STALLED:
            time.sleep(STALL_S)
            continue
        training.pass_over()
        training.step()
    error = ""
    try:
        training.state.flush()
    except MismatchError as caught:
        error = str(caught)
    return training.report(error=error)


def formed_again() -> dict[str, Any]:
    """The model's group is formed again while a rank owes gradients."""
    training = Training()
    world: Any = dist.group.WORLD
    for step in range(STEPS):
        if step == STEPS // 2:
            handles: list[Any] = [None] * training.ranks
            dist.all_gather_object(handles, world.get_reconfigure_handle())
            limit = timedelta(seconds=30)
            world.reconfigure(SimpleNamespace(uuid=1, handles=handles, timeout=limit)).wait()
        training.pass_over(stalls_once(2)(training.rank, step))
        training.step()
    return training.report()


def late_at_the_end() -> dict[str, Any]:
    training = Training()
    for step in range(STEPS):
        training.pass_over(STALL_S if training.rank == 0 and step == STEPS - 1 else 0.0)
        training.step()
    owed = training.state.state_dict()["left"]
    flushed = training.state.flush()
    if flushed:
        training.step()
    again = training.state.flush()
    return training.report(
        flushed=flushed, again=again, owed={place: part.tolist() for place, part in owed.items()}
    )


def restores() -> dict[str, Any]:
    """What a rank owes is in its checkpoint."""
    training = Training()
    for step in range(STEPS):
        training.pass_over(STALL_S if training.rank == 0 and step == STEPS - 1 else 0.0)
        training.step()
    checkpoint = training.state.state_dict()
    training.report()
    resumed = Training()
    resumed.state.load_state_dict(checkpoint)
    resumed.state.flush()  # changes nothing before the first step
    resumed.pass_over()
    resumed.step()
    return resumed.report()


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "late once": lambda: plain(stalls_once(2)),
    "late in a row": lambda: plain(
        lambda rank, step: STALL_S / 2 if rank == 2 and STALLED <= step < STALLED + 3 else 0.0
    ),
    "keeps up": keeps_up,
    "too many late": lambda: plain(
        lambda rank, step: STALL_S if rank > 0 and step == STALLED else 0.0, least=2
    ),
    "far behind": lambda: plain(stalls_once(2), most_behind=2),
    "all pause": all_pause,
    "other input": other_input,
    "static graph": lambda: plain(stalls_once(2), optional=True, static=True),
    "late at the rebuild": late_at_the_rebuild,
    "another model": another_model,
    "accumulates": accumulates,
    "bfloat16": lambda: plain(stalls_once(2), dtype=torch.bfloat16),
    "float16": lambda: plain(stalls_once(2), dtype=torch.float16),
    "overflow": lambda: scaled(1000, float("inf")),
    "scale grows": lambda: scaled(20, unscale=True),
    "zeroes last": keeps_up_and_zeroes_last,
    "skips a step": skips_a_step,
    "formed again": formed_again,
    "late at the end": late_at_the_end,
    "restores": restores,
}


def dies_late(log: EventLog) -> None:
    """Rank 1 is killed while it is late."""
    training = Training()
    try:
        for step in range(1000):
            if training.rank == 1 and step == STALLED:
                time.sleep(STALL_S)
                os.kill(os.getpid(), signal.SIGKILL)
            training.pass_over()
            training.step()
    except RuntimeError as error:
        log.write("failed", error=str(error), steps=len(training.got))


def ends_late(log: EventLog) -> None:
    """Rank 0 is late at the last step. No rank destroys its groups."""
    training = Training()
    for step in range(STEPS):
        training.pass_over(STALL_S if training.rank == 0 and step == STEPS - 1 else 0.0)
        training.step()
    log.write("ended", late=training.state.late)


def main() -> None:
    log = EventLog(Path(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("inagg")
    for name in sys.argv[2:]:
        if name == "dies late":
            dies_late(log)
        elif name == "ends late":
            ends_late(log)
        else:
            log.write("trained", case=name, **CASES[name]())


if __name__ == "__main__":
    main()
