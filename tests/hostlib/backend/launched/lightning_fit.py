# SPDX-License-Identifier: Apache-2.0
"""A Lightning script for several nodes, as in its documentation except for the backend's name."""

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(12, 4)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="inagg"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    samples: Any = torch.ones(32, 12)  # DataLoader takes any sequence; its annotation says Dataset
    trainer.fit(module, torch.utils.data.DataLoader(samples, batch_size=4))
    weight = module.net.weight.detach()
    everyones = module.all_gather(weight)
    assert isinstance(everyones, torch.Tensor)
    same = all(torch.equal(one, weight) for one in everyones)
    backend = torch.distributed.get_backend()
    print(f"rank {trainer.global_rank} of {trainer.world_size} on {backend}, weights the same: {same}")


if __name__ == "__main__":
    main()
