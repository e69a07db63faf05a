# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run of `inagg bench convergence`: trains a model of examples/ with lanes of any width.

Events: "step" with the rank's loss, for each step; "end" with the loss on held-out data.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inagg.options import LaneBits, Options
from inagg_testbed.bench.plan import BATCHES_SEED, WEIGHTS_SEED
from inagg_testbed.events import EventLog
from inagg_testbed.example_programs import example

BATCH = 16


@dataclass(frozen=True)
class Task:
    """A training task. losses: yields this rank's loss on batch after batch; held_out: the loss on held-out data."""

    model: nn.Module
    losses: Callable[[nn.Module], Iterator[torch.Tensor]]
    held_out: Callable[[nn.Module], float]


def gpt(rank: int) -> Task:
    """The small GPT of examples/gpt.py, on the Python language reference."""
    names = example("gpt")
    training, held_out = names["load_text"]()
    draw = torch.Generator().manual_seed(BATCHES_SEED + rank)

    def losses(model: nn.Module) -> Iterator[torch.Tensor]:
        while True:
            yield names["loss_of"](model, training, draw)

    return Task(names["GPT"](), losses, lambda model: names["validation_loss"](model, held_out))


def digits(rank: int) -> Task:
    """The small convolutional net of examples/digits.py, on handwritten digits."""
    names = example("digits")
    training, test = names["load_data"]()
    images, labels = training.tensors
    draw = torch.Generator().manual_seed(BATCHES_SEED + rank)

    def losses(model: nn.Module) -> Iterator[torch.Tensor]:
        while True:
            chosen = torch.randint(len(labels), (BATCH,), generator=draw)
            yield nn.functional.cross_entropy(model(images[chosen]), labels[chosen])

    def held_out(model: nn.Module) -> float:
        with torch.no_grad():
            return nn.functional.cross_entropy(model(test.tensors[0]), test.tensors[1]).item()

    return Task(names["make_model"](), losses, held_out)


def narrow(
    model: DistributedDataParallel, lane_bits: LaneBits, *, feedback: bool, warm_up_steps: int
) -> None:
    """Sum gradients in lanes of this width."""
    from inagg import hooks

    state = hooks.NarrowLanes(
        model.module, lane_bits=lane_bits, feedback=feedback, warm_up_steps=warm_up_steps
    )
    model.register_comm_hook(state, hooks.narrow_lanes)


def sum_in_bfloat16(
    _: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stub lacks it
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook. It is torch's bf16_compress_hook, which DDP refuses on CPUs."""
    gradients: torch.Tensor = bucket.buffer()
    rounded = (gradients / dist.get_world_size()).to(torch.bfloat16)
    work = dist.all_reduce(rounded, async_op=True)
    assert work is not None
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda _: gradients.copy_(rounded))
    return future


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["gpt", "digits"])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lane-bits", type=int, choices=[32, 16, 8], help="By default gloo sums.")
    parser.add_argument("--bfloat16", action="store_true", help="Round gradients to bfloat16, and sum these.")
    parser.add_argument("--feedback", action="store_true")
    parser.add_argument("--warm-up-steps", type=int, default=0)
    parser.add_argument("--events", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(WEIGHTS_SEED)
    log = EventLog(arguments.events)

    if arguments.lane_bits is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("inagg", pg_options=Options(half_lane_bits=arguments.lane_bits))
    task = {"gpt": gpt, "digits": digits}[arguments.task](dist.get_rank())
    model = DistributedDataParallel(task.model)
    if arguments.bfloat16:
        model.register_comm_hook(None, sum_in_bfloat16)
    elif arguments.lane_bits is not None:
        narrow(
            model,
            arguments.lane_bits,
            feedback=arguments.feedback,
            warm_up_steps=arguments.warm_up_steps,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=arguments.steps)
    for step, loss in enumerate(itertools.islice(task.losses(model), arguments.steps)):
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        log.write("step", step=step, loss=loss.item())
    log.write("end", held_out=task.held_out(model.module))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
