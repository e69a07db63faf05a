# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 learns handwritten digits (scikit-learn's, 8 x 8 pixels). Its gradients have 45 MB.

inagg run --workers 4 examples/resnet18.py
torchrun --nproc-per-node 2 examples/resnet18.py --backend gloo
"""

import argparse
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 16
TEST_SAMPLES = 360


class Block(nn.Module):
    """Two convolutions and a shortcut past them (He, Zhang, Ren and Sun: Deep residual learning, CVPR 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, inputs, height, width); the result is smaller by the stride in both directions."""
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet18(channels: int = 3, classes: int = 10) -> nn.Module:
    """For small pictures: the first convolution is 3 x 3 and has no stride, and nothing is pooled before the blocks."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for stage, (inputs, outputs) in enumerate(pairwise(widths))
        for block in (Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1))
    ]
    return nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inagg")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    torch.manual_seed(0)  # the same split and the same initial weights on all ranks
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    test, training = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    draw = torch.Generator().manual_seed(1 + dist.get_rank())

    model = DistributedDataParallel(resnet18(channels=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    began = time.perf_counter()
    for step in range(arguments.steps):
        batch = training[torch.randint(len(training), (BATCH,), generator=draw)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            pace = (time.perf_counter() - began) / (step + 1)
            model.eval()
            with torch.no_grad():
                right = (model.module(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
            model.train()
            print(
                f"step {step + 1}: {right:.1%} of the test digits are right, {pace:.1f} s a step", flush=True
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
