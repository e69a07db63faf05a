# SPDX-License-Identifier: Apache-2.0
"""One rank of test_frameworks.py: trains two steps in every way, and saves the weights.

Arguments: the backend, where to save (with -RANK.pt behind it), the cases. The cases use only the
backend's name, so what holds for "gloo" must hold for "inagg".
"""

import contextlib
import os
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

Weights = dict[str, torch.Tensor]
CASES: dict[str, Callable[[str], Weights]] = {}


def case(function: Callable[[str], Weights]) -> Callable[[str], Weights]:
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    """A small model; without `deep` half of it is unused."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(12, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, inputs: torch.Tensor, deep: bool = True) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        output: torch.Tensor = self.last(torch.tanh(self.second(hidden)) if deep else hidden)
        return output


def batches(steps: int = 2, rank: int | None = None) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(40 + (dist.get_rank() if rank is None else rank))
    return [torch.randn(6, 12, generator=generator) for _ in range(steps)]


def weights(model: nn.Module) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.state_dict().items()}


def train(model: nn.Module, inputs: list[torch.Tensor], deep: bool = True) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in inputs:
        optimiser.zero_grad()
        model(batch, deep).square().mean().backward()
        optimiser.step()


@case
def ddp(_: str) -> Weights:
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
    train(model, batches())
    return weights(model.module)


def hooked(state: object, hook: Callable[..., torch.futures.Future[torch.Tensor]], steps: int = 2) -> Weights:
    """Train with one bucket: with several, hooks that call collectives in callbacks call them in different orders."""
    model = DistributedDataParallel(Net(), bucket_cap_mb=1)
    model.register_comm_hook(state, hook)
    train(model, batches(steps))
    return weights(model.module)


def named(runs: dict[str, Weights]) -> Weights:
    return {f"{run}: {name}": tensor for run, found in runs.items() for name, tensor in found.items()}


@case
def ddp_hooks_of_float32(_: str) -> Weights:
    model = DistributedDataParallel(Net())
    model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
    train(model, batches())
    return named(
        {
            "built in": weights(model.module),
            "allreduce": hooked(None, default_hooks.allreduce_hook),
            "in a group": hooked(dist.new_group(), default_hooks.allreduce_hook),
        }
    )


def low_rank() -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)


@case
def ddp_hooks_of_low_rank(_: str) -> Weights:
    return hooked(low_rank(), powerSGD_hook.powerSGD_hook, steps=5)


@case
def ddp_hooks_of_half_floats(_: str) -> Weights:
    allreduce = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    power_sgd = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    return named(
        {
            "inside": hooked(None, default_hooks.fp16_compress_hook),
            "around": hooked(None, allreduce),
            "around low rank": hooked(low_rank(), power_sgd, steps=5),
        }
    )


@case
def ddp_hooks_of_local_steps_and_model_averagers(_: str) -> Weights:
    """All ranks average for two steps, then each pair of ranks does, then all ranks average the model."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # warns of torch.jit, which it uses

    everyone = dist.get_world_size()
    pair = dist.new_subgroups(2)[0]
    averagers = {
        "periodic": PeriodicModelAverager(period=2, warmup_steps=2),
        "hierarchical": HierarchicalModelAverager(
            period_group_size_dict=OrderedDict([(2, everyone)]), warmup_steps=2
        ),
    }
    runs = {}
    for name, averager in averagers.items():
        model = DistributedDataParallel(Net())
        state = post_localSGD_hook.PostLocalSGDState(None, pair, start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimiser = PostLocalSGDOptimizer(inner, averager)
        for batch in batches(5):
            optimiser.zero_grad()
            model(batch).square().mean().backward()
            optimiser.step()
        runs[name] = weights(model.module)
    return named(runs)


@case
def ddp_static_graph(_: str) -> Weights:
    model = DistributedDataParallel(Net(), static_graph=True)
    train(model, batches())
    return weights(model.module)


@case
def ddp_find_unused_parameters(_: str) -> Weights:
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    train(model, batches(), deep=dist.get_rank() > 0)
    return weights(model.module)


@case
def ddp_gradients_as_bucket_views_and_no_sync(_: str) -> Weights:
    model = DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches(4)):
        with model.no_sync() if number % 2 == 0 else contextlib.nullcontext():
            model(batch).square().mean().backward()
        if number % 2:
            optimiser.step()
            optimiser.zero_grad()
    return weights(model.module)


@case
def ddp_uneven_inputs_with_join(_: str) -> Weights:
    model = DistributedDataParallel(Net())
    with Join([model]):
        train(model, batches(2 + dist.get_rank()))
    return weights(model.module)


@case
def compiled_model_and_collectives(backend: str) -> Weights:
    """Compiled over inagg; over gloo as written, so that what is compiled is compared with what is not."""
    compilers = ("eager", "aot_eager", "inductor")
    if backend == "gloo":
        return named(dict.fromkeys(compilers, model_and_collectives(lambda function, **_: function)))
    return named({name: model_and_collectives(partial(torch.compile, backend=name)) for name in compilers})


def model_and_collectives(compiled: Callable[..., Any]) -> Weights:
    torch.compiler.reset()
    model = DistributedDataParallel(Net())
    train(compiled(model), batches())

    def combine(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        work = dist.all_reduce(doubled, async_op=True)
        dist.broadcast(tensor, 1)
        assert work is not None
        work.wait()
        return doubled + tensor

    def in_one_graph(tensor: torch.Tensor) -> torch.Tensor:
        assert dist.group.WORLD is not None
        total: torch.Tensor = all_reduce(tensor, "sum", dist.group.WORLD)
        return total + all_gather_tensor(tensor + 1, 0, dist.group.WORLD)[: len(tensor)]

    mine = torch.full((3,), float(dist.get_rank()))
    return {
        **weights(model.module),
        "combined": compiled(combine)(mine.clone()),
        "in one graph": compiled(in_one_graph, fullgraph=True)(mine),
    }


@case
def zero_redundancy_optimizer(_: str) -> Weights:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit, which it uses

    model = DistributedDataParallel(Net())
    optimiser = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for batch in batches():
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()
    return weights(model.module)


@case
def grad_scaler_skips_the_step_on_all_ranks_for_an_infinity_on_one(_: str) -> Weights:
    model = DistributedDataParallel(Net())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, batch in enumerate(batches(3)):
        if number == 1 and dist.get_rank() == dist.get_world_size() - 1:
            batch[0, 0] = float("inf")
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    return {**weights(model.module), "scale": torch.tensor(scaler.get_scale())}


@case
def fsdp2(_: str) -> Weights:
    model = Net()
    for layer in (model.first, model.second, model.last, model):
        fully_shard(layer)
    train(model, batches())
    return {name: parameter.full_tensor() for name, parameter in model.state_dict().items()}


@case
def fsdp2_with_gradients_in_bfloat16(_: str) -> Weights:
    """Layers that are large enough for lanes of 16 bits."""
    model = Net(width=128)
    for layer in (model.first, model.second, model.last, model):
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    train(model, batches())
    return {name: parameter.full_tensor() for name, parameter in model.state_dict().items()}


@case
def fsdp1_with_sharded_state(_: str) -> Weights:
    """A second model goes on from the first one's sharded state; with small layers, some ranks have no part of them."""

    def wrapped() -> tuple[FullyShardedDataParallel, torch.optim.Optimizer]:
        net = nn.Sequential(nn.Linear(12, 2), nn.Tanh(), nn.Linear(2, 7))
        model = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def sharded(model: nn.Module) -> contextlib.AbstractContextManager[object]:
        return FullyShardedDataParallel.state_dict_type(
            model,
            StateDictType.SHARDED_STATE_DICT,
            ShardedStateDictConfig(),
            ShardedOptimStateDictConfig(),
        )

    def step(model: nn.Module, optimiser: torch.optim.Optimizer, batch: torch.Tensor) -> None:
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()

    weights: Weights = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its own functions
        torch.manual_seed(3)
        first, second = wrapped(), wrapped()
        step(*first, batches(1)[0])
        with sharded(first[0]):
            state, moments = first[0].state_dict(), FullyShardedDataParallel.optim_state_dict(*first)
        with sharded(second[0]):
            second[0].load_state_dict(state)
            second[1].load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(*second, moments))
        step(*second, batches(2)[1])
        for name, tensor in state.items():
            whole = torch.empty(tensor.size()) if dist.get_rank() == 0 else None
            tensor.gather(0, whole)
            weights[f"gathered {name}"] = torch.zeros(1) if whole is None else whole.sum().reshape(1)
            dist.broadcast(weights[f"gathered {name}"], 0)
        with FullyShardedDataParallel.summon_full_params(second[0]):
            weights |= {name: tensor.detach().clone() for name, tensor in second[0].named_parameters()}
    return weights


@case
def two_dimensions_of_groups(_: str) -> Weights:
    """Data parallel along one dimension of a mesh, sharded along the other: four jobs at once with four ranks."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = Net()
    fully_shard(model, mesh=mesh)  # in place
    train(model, batches())
    return {name: parameter.full_tensor() for name, parameter in model.state_dict().items()}


@case
def groups_made_again_and_again(_: str) -> Weights:
    total = torch.zeros(5)
    for size in (5, 3, 4):
        group = dist.new_group()
        tensor = torch.full((size,), float(dist.get_rank() + size))
        dist.all_reduce(tensor, group=group)
        total[:size] += tensor
        dist.destroy_process_group(group)
    return {"total": total}


@case
def sync_batch_norm(_: str) -> Weights:
    """PyTorch supports it on accelerators only."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(12)))
    with pytest.raises(ValueError, match=r"GPU|cuda"):
        model(batches(1)[0])
    return weights(model)


@case
def accelerate(backend: str) -> Weights:
    """Accelerate uses the group that exists. On CPUs it would make a gloo group and refuse other backends."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import InitProcessGroupKwargs

    if backend == "inagg":
        with pytest.raises(ValueError, match="Your assigned backend inagg is not available, please use gloo"):
            Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="inagg")])
        AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == dist.get_world_size()
    torch.manual_seed(3)
    model = Net()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimiser = accelerator.prepare(model, optimiser)
    for batch in batches():
        optimiser.zero_grad()
        accelerator.backward(prepared(batch).square().mean())
        optimiser.step()
    return weights(accelerator.unwrap_model(prepared))


@case
def trainer(backend: str) -> Weights:
    """Hugging Face's Trainer trains a GPT-2 with random weights. It makes groups as Accelerate does."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    def arguments(**settings: Any) -> TrainingArguments:
        return TrainingArguments(
            output_dir=tempfile.gettempdir(),  # nothing is written there
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            optim="sgd",  # Adam would amplify differences of gradients near zero
            learning_rate=0.1,
            lr_scheduler_type="constant",
            per_device_train_batch_size=2,
            max_steps=2,
            **settings,
        )

    if backend == "inagg":
        with pytest.raises(ValueError, match="Your assigned backend inagg is not available, please use gloo"):
            arguments(ddp_backend="inagg")
    torch.manual_seed(3)
    small = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(small)
    texts = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(5))
    fitted = Trainer(
        model=model,
        args=arguments(ddp_find_unused_parameters=False),
        train_dataset=[{"input_ids": text, "labels": text} for text in texts],
    )
    fitted.train()
    assert dist.get_backend() == backend
    return weights(model)


@case
def lightning(backend: str) -> Weights:
    """Lightning makes the group itself, so this is the last case."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rank, ranks = dist.get_rank(), dist.get_world_size()
    # DataLoader takes any sequence; its annotation says Dataset.
    samples: Any = torch.stack([batch for other in range(ranks) for batch in batches(2, other)])
    dist.barrier()
    dist.destroy_process_group()
    # Objects of earlier cases may keep the group's store, and thus its port, until a garbage collection.
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1000)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=ranks,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(samples, batch_size=None, num_workers=0))
    assert dist.get_backend() == backend
    assert trainer.global_rank == rank
    return weights(module.net)


def main() -> None:
    backend, results, wanted = (
        sys.argv[1],
        Path(f"{sys.argv[2]}-{os.environ['RANK']}.pt"),
        sys.argv[3].split(","),
    )
    warnings.filterwarnings("ignore")
    dist.init_process_group(backend)
    done = {}
    for name in wanted:
        done[name] = CASES[name](backend)
        torch.save(done, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
