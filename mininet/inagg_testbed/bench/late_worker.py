# SPDX-License-Identifier: Apache-2.0
"""One rank of `inagg bench late`: trains the net of examples/digits.py, waiting for the last rank and with a deadline.

Events: "began" with the run; "step" with the run and its number, for each step that the rank computes; at rank 0 "run"
with the seconds and the accuracy after each few steps; "end" with the run's weights, as a digest, and what came late.
"""

import argparse
import hashlib
import json
import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inagg import hooks
from inagg_testbed.bench.convergence_worker import BATCH
from inagg_testbed.bench.plan import BATCHES_SEED, WEIGHTS_SEED
from inagg_testbed.events import EventLog
from inagg_testbed.example_programs import example

EVERY = 5  # steps, the weights are kept


class Run:
    """One training.

    Args:
        number: of the run; runs that are compared have one seed.
        seed: of the batches and the stalls.
        settings: of `LateBench`.
    """

    def __init__(self, log: EventLog, number: int, seed: int, settings: dict[str, Any]) -> None:
        torch.manual_seed(WEIGHTS_SEED)
        names = example("digits")
        self._training, self._test = names["load_data"]()
        self._model: nn.Module = names["make_model"]()
        self._ddp = DistributedDataParallel(self._model)
        self._optimizer = torch.optim.Adam(self._ddp.parameters(), lr=5e-4)
        self._draw = torch.Generator().manual_seed(BATCHES_SEED + 1000 * seed + dist.get_rank())
        self._stalls = random.Random(seed)
        self._log, self._number, self._settings = log, number, settings
        self._kept: list[tuple[float, dict[str, torch.Tensor]]] = []
        self._done = 0
        self._passes = self._stalled = 0
        self._steps: list[float] = []  # seconds

    def train(self, *, waits: bool) -> None:
        """Train; waits: without a deadline."""
        steps: Iterable[int] = range(self._settings["steps"])
        late = None
        if not waits:
            late = hooks.Deadline(self._ddp)
            self._ddp.register_comm_hook(late, hooks.deadline)
            steps = late.keep_up(steps, self._step)
        dist.barrier()
        self._log.write("began", run=self._number)
        self._began = self._last_step = time.monotonic()
        for step in steps:
            self._pass_over()
            self._step()
            self._log.write("step", run=self._number, step=step)
        dist.barrier()
        if dist.get_rank() == 0:
            self._log.write("run", run=self._number, curve=self._curve())
        weights = torch.cat([one.detach().flatten() for one in self._model.parameters()])
        digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
        self._log.write("end", run=self._number, weights=digest, late=0 if late is None else late.late)
        if late is not None:
            late.group.shutdown()

    def _pass_over(self) -> None:
        """A pass takes a step's time, most of which the rank sleeps, as if it computed on a device."""
        began = time.monotonic()
        self._optimizer.zero_grad()
        images, labels = self._training.tensors
        chosen = torch.randint(len(labels), (BATCH,), generator=self._draw)
        loss = nn.functional.cross_entropy(self._ddp(images[chosen]), labels[chosen])
        pause_s = self._settings["step_s"]
        if dist.get_rank() == dist.get_world_size() - 1 and self._draw_stall():
            pause_s += self._settings["stall_steps"] * statistics.median(self._steps or [pause_s])
        time.sleep(max(0.0, began + pause_s - time.monotonic()))
        torch.autograd.backward(loss)

    def _draw_stall(self) -> bool:
        """One pass of each `every` stalls."""
        turn = self._passes % self._settings["every"]
        if turn == 0:
            self._stalled = self._stalls.randrange(self._settings["every"])
        self._passes += 1
        return bool(turn == self._stalled)

    def _step(self) -> None:
        self._optimizer.step()
        self._done += 1
        now = time.monotonic()
        self._steps.append(now - self._last_step)
        self._last_step = now
        if dist.get_rank() == 0 and self._done % EVERY == 0:
            weights = {name: one.clone() for name, one in self._model.state_dict().items()}
            self._kept.append((time.monotonic() - self._began, weights))

    @torch.no_grad()
    def _curve(self) -> list[tuple[float, float]]:
        """Seconds, and the share of the test digits that are right."""
        images, labels = self._test.tensors
        curve = []
        for seconds, weights in self._kept:
            self._model.load_state_dict(weights)
            curve.append((seconds, (self._model(images).argmax(dim=1) == labels).float().mean().item()))
        return curve


def main() -> None:
    """Entry point: python -m inagg_testbed.bench.late_worker SETTINGS EVENTS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    log = EventLog(arguments.events)
    dist.init_process_group("inagg")
    for number in range(2 * arguments.settings["rounds"]):
        Run(log, number, number // 2, arguments.settings).train(waits=number % 2 == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
