# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of architectures: does the job that the command line names, and prints what comes of it."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from inagg_baselines import catalog, collectives, exchanges, servers
from inagg_baselines.attachment import attach
from inagg_baselines.shard import Shard
from tests.waiting import wait_until

digits: Any = import_module("examples.digits")  # which mypy does not check
STORE = Path(os.environ["STORE"])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LONG_S = 60


class Odd(nn.Module):
    """60 parameters that train, of several shapes, one of them empty; a layer that is frozen; and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(7, 5), nn.BatchNorm1d(5, affine=False), nn.Tanh(), nn.Linear(5, 3)
        )
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shift = nn.Parameter(torch.zeros(2, 1).t()[:, :1])
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
        nn.init.eye_(self.frozen.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.frozen(self.body(inputs)) * self.scale + self.shift + self.empty.sum()
        return outputs

    def weights(self) -> list[float]:
        """Those that train."""
        found = torch.cat([one.detach().reshape(-1) for one in self.parameters() if one.requires_grad])
        weights: list[float] = found.tolist()
        return weights


class Training:
    """Odd on data of each rank, with two optimizers and two backward passes a step."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.odd = Odd()
        self.model: nn.Module = self.odd
        self.optimizers = [
            torch.optim.SGD(self.odd.body.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2),
            torch.optim.SGD([self.odd.scale, self.odd.shift, self.odd.empty], lr=0.05),
        ]
        self._draws = torch.Generator().manual_seed(100 + RANK)

    def backward(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for _ in range(2):
            inputs = torch.randn(11, 7, generator=self._draws)
            nn.functional.mse_loss(self.model(inputs), inputs[:, :3].sin()).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.backward()
        for optimizer in self.optimizers:
            optimizer.step()


def counts(name: str) -> torch.Tensor:
    """A number for each rank, 0 at first, that all ranks see."""
    return torch.from_file(str(STORE / name), shared=True, size=RANKS, dtype=torch.int64)


def sum_gradients(architecture: str, steps: int) -> list[float]:
    """Synchronous training."""
    training = Training(seed=0)
    sum_up = collectives.make(catalog.parse(architecture), dist.group.WORLD, [range(RANKS)])
    for _ in range(steps):
        training.backward()
        for parameter in training.odd.parameters():
            if parameter.grad is not None:
                sum_up(parameter.grad)
                parameter.grad /= RANKS
        for optimizer in training.optimizers:
            optimizer.step()
    return training.odd.weights()


def exchange_weights(
    architecture: str, steps: int, ddp: bool, racks: Sequence[list[int]] = ()
) -> list[float]:
    """Training from different weights at each rank, or in DDP."""
    training = Training(seed=RANK)
    if ddp:
        training.model = DistributedDataParallel(training.odd)
    exchange = exchanges.make(catalog.parse(architecture), racks)
    attached = attach(exchange, training.model, *training.optimizers)
    for _ in range(steps):
        training.step()
    attached.finish()
    return training.odd.weights()


def learn_digits(architecture: str, epochs: int, racks: Sequence[list[int]] = ()) -> float:
    """The share of the test digits of examples/digits.py that a linear model has right after training."""
    chosen = catalog.parse(architecture)
    torch.manual_seed(0)
    training, test = digits.load_data()
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    if chosen.kind == "weights":
        attached = attach(exchanges.make(chosen, racks), model, optimizer)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(training)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(training, batch_size=digits.BATCH, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        slower.step()
    if chosen.kind == "weights":
        attached.finish()
    images, labels = test.tensors
    with torch.no_grad():
        right: float = (model(images).argmax(dim=1) == labels).float().mean().item()
    return right


def mix(architecture: str, steps: int, racks: list[list[int]]) -> list[list[float]]:
    """What becomes of weights that differ, without training: before and after each exchange, and at the end."""
    weights = torch.zeros(5)
    exchange = exchanges.make(catalog.parse(architecture), racks)
    exchange.start([weights])
    weights.normal_(generator=torch.Generator().manual_seed(RANK))
    seen = [weights.tolist()]
    for _ in range(steps):
        exchange.after_step()
        seen.append(weights.tolist())
    exchange.finish()
    return [*seen, weights.tolist()]


def attach_normalisation(architecture: str) -> dict[str, list[float]]:
    """What a batch normalisation has after a step in which the rank adds its number to all that it has."""
    model = nn.BatchNorm1d(1)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attached = attach(exchanges.make(catalog.parse(architecture)), model, optimizer)
    with torch.no_grad():
        for one in (model.weight, model.bias, model.running_mean):
            assert one is not None
            one += RANK
    optimizer.step()
    attached.finish()
    if RANK == 0:
        optimizer.step()  # without an exchange, for which this rank would wait in vain
    return {name: one.tolist() for name, one in model.state_dict().items() if one.dim() > 0}


def few(architecture: str) -> list[float]:
    """One training step of a single weight, which has more ranks than elements: each rank adds its number."""
    weight = torch.full((1,), float(RANK))
    exchange = exchanges.make(catalog.parse(architecture))
    exchange.start([weight])
    weight += RANK
    exchange.after_step()
    exchange.finish()
    return weight.tolist()


def follow_the_bound(bound: int, steps: int, stops: list[list[int]]) -> dict[str, int]:
    """Steps, some of which wait until all other ranks are as far ahead as the bound lets them be.

    stops: rank and step of each, at most steps - bound. Returns how often this rank stopped, and the most steps that a
    rank was ahead of the slowest when a shard of this process let it go on.
    """
    begun = counts("begun")
    leads = []

    class Observed(Shard):
        """Counts each push before the shard does."""

        def __init__(self, weights: torch.Tensor, ranks: int, bound: int | None) -> None:
            super().__init__(weights, ranks, bound)
            self._pushes = [0] * ranks

        def push(self, rank: int, change: torch.Tensor, weights: torch.Tensor) -> None:
            self._pushes[rank] += 1
            super().push(rank, change, weights)
            leads.append(self._pushes[rank] - min(self._pushes))

    others = [rank for rank in range(RANKS) if rank != RANK]
    stopped = 0

    def others_are_in(step: int) -> bool:
        return bool((begun[others] >= step).all())

    exchange = exchanges.make(catalog.parse(f"server:ssp={bound}"), timeout=timedelta(seconds=LONG_S))
    with patch.object(servers, "Shard", Observed):
        exchange.start([torch.zeros(RANKS)])
    for step in range(1, steps + 1):
        if [RANK, step] in stops:
            wait_until(partial(others_are_in, step + bound), "all other ranks are as far ahead", LONG_S)
            stopped += 1
        begun[RANK] = step
        exchange.after_step()
    exchange.finish()
    return {"stopped": stopped, "lead": max(leads)}


def stand_still(architecture: str, steps: int, racks: Sequence[list[int]] = ()) -> int:
    """The last rank stands still, with DDP and buffers, until all others have done their steps. Returns its step."""
    done = counts("done")
    training = Training(seed=0)
    training.model = DistributedDataParallel(training.odd)
    exchange = exchanges.make(catalog.parse(architecture), racks, timeout=timedelta(seconds=LONG_S))
    attached = attach(exchange, training.model, *training.optimizers)
    for step in range(steps):
        if RANK == RANKS - 1 and step == 0:
            wait_until(lambda: bool((done[:-1] == steps).all()), "the others have done all steps", LONG_S)
        training.step()
        done[RANK] = step + 1
    attached.finish()
    return int(done[-1])


def lose(architecture: str, signal_number: int, timeout_s: float, racks: Sequence[list[int]] = ()) -> str:
    """The last rank ends, or stops, in its fourth step. Returns the error of another rank."""
    weights = torch.zeros(100)
    exchange = exchanges.make(catalog.parse(architecture), racks, timeout=timedelta(seconds=timeout_s))
    exchange.start([weights])
    try:
        for step in range(1_000_000):
            if RANK == RANKS - 1 and step == 3:
                os.kill(os.getpid(), signal_number)
            weights += 1
            exchange.after_step()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refuse(elements: list[int], dtype: str) -> str:
    """What an exchange says to parameters, one for each of `elements`, whose number may depend on the rank."""
    exchange = exchanges.make(catalog.parse("local:1"))
    try:
        exchange.start([torch.zeros(size, dtype=getattr(torch, dtype)) for size in elements[RANK:]])
    except ValueError as error:
        return str(error)
    return "no error"


def make(architecture: str, weights: bool) -> str:
    """What is said to the wrong kind of architecture, and to too many shards."""
    chosen = catalog.parse(architecture)
    try:
        if weights:
            exchanges.make(chosen)
        else:
            collectives.make(chosen, dist.group.WORLD, [range(RANKS)])
    except ValueError as error:
        return str(error)
    return "no error"


JOBS: Mapping[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (
        *(sum_gradients, exchange_weights, learn_digits, mix, few, attach_normalisation),
        *(follow_the_bound, stand_still, lose, refuse, make),
    )
}

if __name__ == "__main__":
    _, name, settings = sys.argv
    dist.init_process_group("gloo", init_method=f"file://{STORE}/ranks", rank=RANK, world_size=RANKS)
    came = JOBS[name](**json.loads(settings))
    print(json.dumps(came), flush=True)
    dist.destroy_process_group()
