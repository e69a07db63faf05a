# SPDX-License-Identifier: Apache-2.0
"""Inputs of the training programs, and where they save their weights."""

import os
from pathlib import Path

import torch
from torch import nn

BACKEND = os.environ.get("TRAINER_BACKEND", "gloo")


def network() -> nn.Sequential:
    """The same small model in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))


def samples(count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of shape (count, 12) and targets of shape (count, 1): all ranks' samples together."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, 12, generator=generator)
    return inputs, inputs.sum(dim=1, keepdim=True)


def save(weights: dict[str, torch.Tensor]) -> None:
    """Save this rank's weights."""
    path = Path(os.environ["TRAINER_OUT"]) / f"{os.environ['RANK']}.pt"
    torch.save({name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}, path)
