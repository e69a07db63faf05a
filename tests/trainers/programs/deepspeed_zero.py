# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO on CPUs. Argument: the stage, 1 to 3."""

import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from training import BACKEND, network, samples, save


def main() -> None:
    stage = int(sys.argv[1])
    deepspeed.init_distributed(BACKEND)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    model = network()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    inputs, targets = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in samples())
    for batch, wanted in zip(inputs.split(4), targets.split(4), strict=True):
        loss = torch.nn.functional.mse_loss(engine(batch), wanted)
        engine.backward(loss)
        engine.step()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        save(engine.module.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    main()
