# SPDX-License-Identifier: Apache-2.0
"""The models of `inagg compare --model`, and their training loop. The run's seed gives each rank its own batches."""

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from inagg_testbed.compare.plan import Quality
from inagg_testbed.compare.probe import Probe
from inagg_testbed.demo import train_digits
from inagg_testbed.events import EventLog
from inagg_testbed.example_programs import example

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Training:
    """losses: yields this rank's loss on batch after batch. quality: of the model, on data that it is not trained with:
    an accuracy or a loss."""

    model: nn.Module
    losses: Callable[[nn.Module], Iterator[torch.Tensor]]
    quality: Callable[[nn.Module], float]
    optimizer: Callable[[nn.Module], Optimizer]


def _sgd(rate: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def linear(seed: int, rank: int, _world: int) -> Training:
    """Linear regression of 64 features; the loss is that of the true weights plus noise at best, 0.01."""
    features, samples, noise = 64, 256, 0.1
    weights = torch.linspace(-1, 1, features)

    def drawn(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(number)
        inputs = torch.randn(samples, features, generator=draw)
        return inputs, inputs @ weights + 0.5 + noise * torch.randn(samples, generator=draw)

    inputs, targets = drawn(1000 * seed + rank + 1)
    held_out = drawn(1000 * seed)

    def loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(inputs).squeeze(1), targets)

    def losses(model: nn.Module) -> Iterator[torch.Tensor]:
        while True:
            yield loss(model, inputs, targets)

    return Training(
        nn.Linear(features, 1), losses, lambda model: float(loss(model, *held_out)), _sgd(rate=0.02)
    )


def _classifier(model: nn.Module, seed: int, rank: int, world: int, batch: int, rate: float) -> Training:
    """Learns the handwritten digits of scikit-learn."""
    training, test = train_digits.load_data(seed)

    def losses(model: nn.Module) -> Iterator[torch.Tensor]:
        data: Batches = train_digits.batches(training, batch, seed, 1 << 62, rank=rank, world=world)
        for images, labels in data:
            yield nn.functional.cross_entropy(model(images), labels)

    return Training(model, losses, lambda model: train_digits.accuracy(model, test), _sgd(rate))


def digits_cnn(seed: int, rank: int, world: int) -> Training:
    """The demo's convolutional net of a million parameters."""
    return _classifier(train_digits.make_model(), seed, rank, world, batch=32, rate=0.02)


def resnet18(seed: int, rank: int, world: int) -> Training:
    """ResNet-18 of 11 million parameters, on the same digits."""
    names = example("resnet18")
    return _classifier(names["resnet18"](channels=1, classes=10), seed, rank, world, batch=16, rate=0.02)


def gpt(seed: int, rank: int, _world: int) -> Training:
    """The small GPT of examples/gpt.py, on the Python language reference. Its loss is in nats a byte."""
    names = example("gpt")
    training, held_out = names["load_text"]()
    draw = torch.Generator().manual_seed(1000 * seed + rank + 1)

    def losses(model: nn.Module) -> Iterator[torch.Tensor]:
        while True:
            yield names["loss_of"](model, training, draw)

    return Training(
        names["GPT"](),
        losses,
        lambda model: names["validation_loss"](model, held_out),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    )


_MAKERS: Mapping[str, Callable[[int, int, int], Training]] = {
    "linear": linear,
    "digits-cnn": digits_cnn,
    "gpt": gpt,
    "resnet18": resnet18,
}


class Judge:
    """Says after some steps how good the model is, and whether the training may end.

    Rank 0 judges. Ranks that train in lockstep wait for its answer, so that all end after the same step; of the others
    each ends when it has heard the answer.
    """

    def __init__(self, log: EventLog, quality: Quality, target: float | None, lockstep: bool) -> None:
        self._log, self._quality, self._target = log, quality, target
        self._lockstep = lockstep
        self._store = dist.distributed_c10d._get_default_store()
        self._number = 0

    def is_enough(self, step: int, judge: Callable[[], float]) -> bool:
        """Whether the target is reached. step: the number of steps done."""
        self._number += 1
        key = f"inagg-compare/{self._number}"
        if dist.get_rank() == 0:
            value = judge()
            enough = self._target is not None and self._quality.reached(value, self._target)
            self._log.write("judged", steps=step, value=value)
            self._store.set(key, str(int(enough)))
            if enough:
                self._store.set("inagg-compare/enough", "1")
            return enough
        if self._lockstep:
            return bool(int(self._store.get(key)))
        return self._store.check(["inagg-compare/enough"])


def train(arguments: argparse.Namespace, probe: Probe, log: EventLog, lockstep: bool) -> None:
    """Train a model to the end, in a program like any other. arguments: of `rank`."""
    dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    training = _MAKERS[arguments.model](arguments.seed, dist.get_rank(), dist.get_world_size())
    model = DistributedDataParallel(training.model)
    optimizer = training.optimizer(model)
    quality = Quality.of_model(arguments.model)
    judge = Judge(log, quality, arguments.target, lockstep)

    def value() -> float:
        model.module.eval()
        found = training.quality(model.module)
        model.module.train()
        return found

    for step, loss in enumerate(itertools.islice(training.losses(model), arguments.steps), 1):
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % arguments.judge_every == 0:
            with probe.paused() if lockstep else contextlib.nullcontext():  # else other ranks train on
                if judge.is_enough(step, value):
                    break
    probe.finish()
    log.write("quality", value=value())
    dist.barrier()
