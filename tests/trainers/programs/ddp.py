# SPDX-License-Identifier: Apache-2.0
"""A plain script: DDP with its backend in the source, and a checkpoint by torch's own process."""

import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save
from torch.nn.parallel import DistributedDataParallel
from training import BACKEND, network, samples, save


def main() -> None:
    dist.init_process_group(BACKEND)
    model = DistributedDataParallel(network())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, targets = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in samples())
    for _ in range(5):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimiser.step()
    state = {"model": model.module.state_dict()}
    folder = f"{os.environ['TRAINER_OUT']}/checkpoint"
    async_save(state, checkpoint_id=folder, async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
    read = {"model": network().state_dict()}
    load(read, checkpoint_id=folder)
    save(read["model"])
    # A DDP model that outlives a gloo group waits for gloo's threads with the GIL held, which they may need: torch 2.13
    # then hangs.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
