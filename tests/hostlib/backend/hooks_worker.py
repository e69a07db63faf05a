# SPDX-License-Identifier: Apache-2.0
"""One rank of test_hooks.py: the same training through several hooks; writes one JSON line a run.

A parameter with a loud gradient that teaches nothing shares its blocks with a regression's quiet ones, which 8-bit
lanes round to zero unless what they leave out is kept.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inagg.hooks

STEPS = 120
RUNS: dict[str, dict[str, Any] | None] = {
    "float32 over gloo": None,
    "8 bits": {"lane_bits": 8, "feedback": False},
    "8 bits, feedback": {"lane_bits": 8},
    "8 bits, feedback, stochastic": {"lane_bits": 8, "rounding": "stochastic"},
    "16 bits": {"lane_bits": 16, "feedback": False},
    "16 bits, feedback": {"lane_bits": 16},
    "8 bits after a warm-up": {"lane_bits": 8, "feedback": False, "warm_up_steps": STEPS},
}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loud = torch.nn.Parameter(torch.zeros(8))
        self.quiet = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, inputs: torch.Tensor, sign: float) -> tuple[torch.Tensor, torch.Tensor]:
        # The loud parameter does not change the loss. Its gradient is 4 or -4 in turn.
        return self.quiet(inputs).squeeze(1), 4 * sign * (self.loud - self.loud.detach()).sum()


def train(settings: dict[str, Any] | None, gloo: dist.ProcessGroup | None) -> dict[str, Any]:
    torch.manual_seed(3)
    model = Model()
    # Small buckets, so that DDP rebuilds them after the first step.
    ddp = DistributedDataParallel(
        model, process_group=gloo if settings is None else None, bucket_cap_mb=0.0005
    )
    state = None if settings is None else inagg.hooks.NarrowLanes(model, **settings)
    if state is not None:
        ddp.register_comm_hook(state, inagg.hooks.narrow_lanes)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    target = torch.randn(20, generator=torch.Generator().manual_seed(5)) / 5
    inputs = torch.randn(200, 20, generator=data)
    wanted = torch.tanh(inputs @ target)
    curve = []
    for step in range(STEPS):
        optimiser.zero_grad()
        outputs, noise = ddp(inputs, (-1.0) ** step)
        loss = (outputs - wanted).square().mean()
        (loss + noise).backward()
        optimiser.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        curve.append(mean.item())
    weights = torch.cat([parameter.detach().flatten() for parameter in model.quiet.parameters()])
    row: dict[str, Any] = {"curve": curve, "weights": weights.tolist()}
    if state is not None:
        row["left"] = {place: part.tolist() for place, part in state.state_dict()["left"].items()}
        row["step"] = state.step
    return row


def main() -> None:
    dist.init_process_group("inagg")
    gloo = dist.new_group(backend="gloo")
    with Path(sys.argv[1]).open("a") as results:
        for name, settings in RUNS.items():
            results.write(json.dumps({"run": name, **train(settings, gloo)}) + "\n")
            results.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
