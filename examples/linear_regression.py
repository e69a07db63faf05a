# SPDX-License-Identifier: Apache-2.0
"""Linear regression by gradient descent, with different data on each rank: the smallest data-parallel program.

inagg run --workers 4 examples/linear_regression.py
torchrun --nproc-per-node 2 examples/linear_regression.py --backend gloo
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES = 8
SAMPLES = 256
NOISE = 0.01


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inagg")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    weights = torch.linspace(-1, 1, FEATURES)
    draw = torch.Generator().manual_seed(rank)
    inputs = torch.randn(SAMPLES, FEATURES, generator=draw)
    targets = inputs @ weights + 0.5 + NOISE * torch.randn(SAMPLES, generator=draw)

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.6f}", flush=True)
    if rank == 0:
        error = (model.module.weight.detach().squeeze(0) - weights).abs().max().item()
        print(f"the farthest weight is {error:.4f} from the true one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
