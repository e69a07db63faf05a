# SPDX-License-Identifier: Apache-2.0
"""Megatron-core: layers divided among all ranks (tensor parallelism)."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from training import BACKEND, samples, save


def main() -> None:
    dist.init_process_group(BACKEND)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    config = ModelParallelConfig(
        tensor_model_parallel_size=dist.get_world_size(),
        use_cpu_initialization=True,
        perform_initialization=True,
        gradient_accumulation_fusion=False,
    )
    torch.manual_seed(3)
    settings = {"config": config, "init_method": torch.nn.init.xavier_uniform_, "skip_bias_add": False}
    first = tensor_parallel.ColumnParallelLinear(12, 32, bias=True, gather_output=False, **settings)
    last = tensor_parallel.RowParallelLinear(32, 1, bias=True, input_is_parallel=True, **settings)
    optimiser = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.05)
    inputs, targets = samples()
    for batch, wanted in zip(inputs.split(8), targets.split(8), strict=True):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(last(first(batch)[0].tanh())[0], wanted).backward()
        optimiser.step()
    state = {**first.state_dict(prefix="first."), **last.state_dict(prefix="last.")}
    save({name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
