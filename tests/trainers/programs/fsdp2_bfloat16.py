# SPDX-License-Identifier: Apache-2.0
"""FSDP2 that computes and sums gradients in bfloat16, of layers that are large enough for lanes of 16 bits."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from training import BACKEND, samples, save


def main() -> None:
    dist.init_process_group(BACKEND)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 512), nn.Tanh(), nn.Linear(512, 1))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in (model[0], model):
        fully_shard(layer, mp_policy=half)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in samples())
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(inputs).float(), targets).backward()
        optimiser.step()
    save({name: parameter.full_tensor() for name, parameter in model.state_dict().items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
