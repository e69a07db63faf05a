# SPDX-License-Identifier: Apache-2.0
"""Lightning Fabric: DDP, and the mean of integers over all ranks."""

import os

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset
from training import BACKEND, network, samples, save


def main() -> None:
    strategy = "ddp" if BACKEND == "gloo" else DDPStrategy(process_group_backend=BACKEND)
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy)
    fabric.launch()
    fabric.seed_everything(1)
    model = network()
    model, optimiser = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(*samples()), batch_size=4))
    for inputs, targets in loader:
        optimiser.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimiser.step()
    fabric.all_reduce(torch.tensor(fabric.global_rank + 5), reduce_op="mean")
    fabric.barrier()
    save(model.module.state_dict())


if __name__ == "__main__":
    main()
