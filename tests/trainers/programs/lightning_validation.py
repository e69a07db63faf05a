# SPDX-License-Identifier: Apache-2.0
"""Lightning: a Trainer with the default strategy for several processes, validation with sync_dist, and a checkpoint."""

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset
from training import BACKEND, network, samples, save


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.model(batch[0]), batch[1]), sync_dist=True)
        self.log("val_count", torch.tensor(3 + index), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    lightning.seed_everything(1)
    loader = DataLoader(TensorDataset(*samples()), batch_size=4)
    module, out = Module(), os.environ["TRAINER_OUT"]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp" if BACKEND == "gloo" else DDPStrategy(process_group_backend=BACKEND),
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath=out, monitor="val_loss")],
        default_root_dir=out,
    )
    trainer.fit(module, loader, loader)
    trainer.validate(module, loader, ckpt_path="best")
    save(module.model.state_dict())


if __name__ == "__main__":
    main()
