# SPDX-License-Identifier: Apache-2.0
"""Ranks in one process: each is a session with a real transport to the reference switch on the loopback. Also has
inputs and results of their sums."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from inagg._core import Route, Sockets, Transport
from inagg.device.ways import Way
from inagg.membership.joined import Joined
from inagg.membership.session import Session
from inagg.options import Options, StagedOptions
from inagg.sums.reduction import Reduction
from inagg_simulator.virtual_network import make_aggregator, make_shape
from tests.conformance.loopback_switch import LoopbackSwitch
from tests.hostlib.membership.one_rank import HealthyController, status_of

PLAIN = Options(controller="http://127.0.0.1:9")
STAGED = StagedOptions(controller="http://127.0.0.1:9")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # has to be set before Triton is imported
# Ways to sum a device's tensors that work on CPU tensors in their place.
WAYS: list[Way] = ["triton"] if INTERPRETED else ["host", "torch"]


@contextlib.contextmanager
def one_launch_at_a_time() -> Iterator[None]:
    """Triton's interpreter changes modules during a launch."""
    from inagg.device import by_triton

    lock = threading.Lock()

    def locked(launch: Callable[..., None]) -> Callable[..., None]:
        def inner(*args: Any, **settings: Any) -> None:
            with lock:
                launch(*args, **settings)

        return inner

    with pytest.MonkeyPatch.context() as patched:
        for name in ("scan", "pack", "unpack"):
            patched.setattr(by_triton, name, locked(getattr(by_triton, name)))
        yield


@contextlib.contextmanager
def sessions(workers: int, words: int = 4, loss: float = 0.0) -> Iterator[list[Session]]:
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(
            LoopbackSwitch(make_aggregator(workers, slots=16, words=words), loss=loss)
        )
        ranks = []
        for rank in range(workers):
            transport = Transport(
                make_shape(workers, slots=16, words=words),
                rank=rank,
                route=Route(aggregator=switch.address),
                sockets=Sockets(local=("127.0.0.1", 0)),
            )
            status = status_of(workers).model_copy(update={"words": words})
            ranks.append(Session(Joined(HealthyController("http://127.0.0.1:9"), status, rank, transport)))
            stack.callback(ranks[-1].close)
        yield ranks


def wait_all(reductions: Sequence[Reduction]) -> None:
    for reduction in reductions:
        assert reduction.wait(20.0)
        assert reduction.error is None, reduction.error


def bits(tensor: torch.Tensor) -> list[int]:
    """Bit patterns, with one for every NaN."""
    flat = tensor.detach().clone().view(-1)
    flat[flat.isnan()] = torch.nan
    return flat.view(torch.int32).tolist()


def inputs(workers: int, elements: int, specials: bool) -> list[torch.Tensor]:
    draws = np.random.default_rng(elements)
    scales = np.repeat(draws.integers(-140, 100, elements // 100 + 1), 100)[:elements]
    rows = np.ldexp(draws.standard_normal((workers, elements)), scales).astype(np.float32)
    if specials:
        for value in (np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-149):
            rows[draws.integers(0, workers, 6), draws.integers(0, elements, 6)] = value
        rows[-1, -1] = np.inf  # in a last block that is short
    return [torch.from_numpy(row) for row in rows]


def sums(
    ranks: Sequence[Session], tensors: Sequence[torch.Tensor], staged: Sequence[bool], **settings: Any
) -> list[Reduction]:
    options = [(STAGED if one else PLAIN).model_copy(update=settings.get("options", {})) for one in staged]
    residuals = settings.get("residuals", [None] * len(ranks))
    return [
        rank.sums.submit(
            tensor,
            options=how,
            call="",
            average=settings.get("average", False),
            residual=left,
        )
        for rank, tensor, how, left in zip(ranks, tensors, options, residuals, strict=True)
    ]
