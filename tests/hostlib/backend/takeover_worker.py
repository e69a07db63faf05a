# SPDX-License-Identifier: Apache-2.0
"""One rank of test_takeover.py: a program that names other backends than inagg.

Arguments: the backend of the world ("" for none), a folder for RANK.json, the cases. They use torch only; `inagg` looks
at what was made.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

import inagg

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def described(group: Any) -> list[Any]:
    """The program's name, the group's own name, how it sums (None: not inagg's), and a sum of ranks in it."""
    path = inagg.stats(group)["path"] if isinstance(group, inagg.ProcessGroup) else None
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=group)
    return [dist.get_backend(group), group._get_backend_name(), path, tensor.item()]


@case
def world() -> Any:
    group = dist.group.WORLD
    assert group is not None
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank())
    dist.barrier()
    return {
        "described": described(group),
        "objects": objects,
        "configuration": dist.get_backend_config(),
        "device": group._get_backend(torch.device("cpu")).name(),
        "explained": str(inagg.explain()).splitlines()[0],
        "options": inagg.stats()["lane_bits"],
    }


@case
def sub_groups() -> Any:
    half = [[0, 1], [2, 3]][dist.get_rank() // 2]
    halves = [dist.new_group([0, 1], backend="GLOO"), dist.new_group([2, 3])]
    local = dist.new_group(half, use_local_synchronization=True)
    pair, _ = dist.new_subgroups(2)
    return [described(group) for group in (halves[dist.get_rank() // 2], local, pair)]


@case
def beside_nccl() -> Any:
    return [described(dist.new_group()), described(dist.new_group(backend="gloo"))]


@case
def mesh() -> Any:
    # The mesh makes the world too.
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return [
        described(dist.group.WORLD),
        *(described(both.get_group(name)) for name in ("replicas", "shards")),
    ]


@case
def split() -> Any:
    first = dist.split_group(split_ranks=[[3, 1]])
    second = dist.split_group(split_ranks=[[2, 0], [1, 3]])
    assert second is not None
    third = dist.split_group(second, [[1, 0]])
    assert third is not None
    ranks = [dist.get_process_group_ranks(group) for group in (second, third)]
    return [None if first is None else described(first), described(second), described(third), *ranks]


@case
def names_that_stay() -> Any:
    fake = dist.new_group(backend="fake")
    store = PrefixStore("own", dist.distributed_c10d._get_default_store())
    made_directly = dist.ProcessGroupGloo(
        store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=30)
    )
    return [dist.get_backend(fake), type(fake).__name__, made_directly.name()]


@case
def options_of_gloo() -> Any:
    gloo: Any = dist.ProcessGroupGloo  # torch's stub lacks its options
    group = dist.new_group(pg_options=gloo._Options())
    own = dist.new_group(backend="gloo", pg_options=inagg.Options(lane_bits=16))
    return [described(group), inagg.stats(own)["lane_bits"]]


@case
def calls_that_know_gloo() -> Any:
    dist.monitored_barrier()
    summed = all_reduce(torch.ones(3), "sum", dist.distributed_c10d._get_default_group())
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    return [summed.tolist(), model._get_ddp_logging_data()["backend_name"], dist.get_pg_count()]


@case
def lone_training() -> Any:
    """Each rank trains a model of its own, as with a library that does not wrap it. A metric is averaged at the end."""
    model = torch.nn.Linear(8, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimiser.step()
    return described(dist.group.WORLD)


@case
def one_rank() -> Any:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return described(groups[dist.get_rank()])[3]


@case
def side_processes() -> Any:
    """A checkpoint by torch's own process, and a process that makes a world of its own. Neither takes a job."""
    before = inagg.stats(dist.new_group())["job"]
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    state = {"weight": torch.full((3,), float(dist.get_rank()))}
    future = async_save(
        state, checkpoint_id=f"{folder[0]}/saved", async_checkpointer_type=AsyncCheckpointerType.PROCESS
    )
    future.result()  # type: ignore[union-attr]
    dist.barrier()
    results = get_context("spawn").Queue()
    child = get_context("spawn").Process(target=_world_of_child, args=(f"{folder[0]}/store", results))
    child.start()
    world_of_children = results.get(timeout=60)
    child.join()
    after = inagg.stats(dist.new_group())["job"]
    return {
        "jobs": after - before,
        "saved": Path(f"{folder[0]}/saved/.metadata").is_file(),
        "child": world_of_children,
    }


def _world_of_child(path: str, results: Any) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    results.put([described(dist.group.WORLD), described(dist.new_group())])
    dist.destroy_process_group()


def main() -> None:
    named, folder, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    if "mesh" not in cases:
        dist.init_process_group(named or None)
    seen = {name: CASES[name]() for name in cases}
    rank = dist.get_rank()
    dist.destroy_process_group()
    seen["marks left"] = [name for name in os.environ if name == "INAGG_RANK_PROCESS"]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
