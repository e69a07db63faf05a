# SPDX-License-Identifier: Apache-2.0
"""Ray Train: a TorchTrainer, which makes the world itself. Runs once, not once a rank."""

import os
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from training import BACKEND, network, samples, save

RANKS = 2


def train() -> None:
    os.environ["RANK"] = str(dist.get_rank())
    model = prepare_model(network())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in samples())
    for batch, wanted in zip(inputs.split(4), targets.split(4), strict=True):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(batch), wanted).backward()
        optimiser.step()
    save(model.module.state_dict())


def main() -> None:
    ray.init(
        num_cpus=RANKS + 1,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parent)}},
    )
    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig(storage_path=os.environ["TRAINER_OUT"], name="run"),
        torch_config=TorchConfig(backend=None if BACKEND == "gloo" else BACKEND),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
