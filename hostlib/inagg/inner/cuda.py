# SPDX-License-Identifier: Apache-2.0
"""Chooses the backend for collectives of CUDA tensors that the switch does not do: NCCL, or gloo as on the CPU.

NCCL is far faster, but refuses two ranks on one GPU. When a group is made it is not known which GPU a rank will use,
and asking CUDA would take memory of a GPU. So each rank publishes the number of GPUs that it sees, its
CUDA_VISIBLE_DEVICES and its machine. The group uses NCCL if there are enough GPUs for all ranks.
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from inagg.errors import ConfigurationError
from inagg.membership.assembly import Assembly

InnerCuda = Literal["auto", "nccl", "gloo"]


class Gpus(NamedTuple):
    """The GPUs that a rank sees, and its option.

    machine: its boot id. visible: CUDA_VISIBLE_DEVICES. gpus: their number. nccl: whether its torch has NCCL. wish: its
    `Options.inner_cuda`.
    """

    machine: str
    visible: str
    gpus: int
    nccl: bool
    wish: InnerCuda


def seen_here(wish: InnerCuda) -> Gpus:
    return Gpus(
        machine=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        gpus=torch.cuda.device_count(),  # asks the driver's management library, and makes no context
        nccl=dist.is_nccl_available(),
        wish=wish,
    )


def choose(ranks: Sequence[Gpus]) -> Literal["nccl", "gloo"]:
    """Choose for all ranks of a group, from what each sees.

    Raises:
        ConfigurationError: their wishes differ, or they wish for NCCL and a rank cannot use it.
    """
    wishes: dict[InnerCuda, int] = {}
    for rank, seen in enumerate(ranks):
        wishes.setdefault(seen.wish, rank)
    if len(wishes) > 1:
        listed = ", ".join(f"{wish} at rank {rank}" for wish, rank in wishes.items())
        raise ConfigurationError(f"inner_cuda must be the same at all ranks of a group; it is {listed}")
    (wish,) = wishes
    missing = next((rank for rank, seen in enumerate(ranks) if not (seen.nccl and seen.gpus)), None)
    if wish == "nccl" and missing is not None:
        seen = ranks[missing]
        raise ConfigurationError(
            f"inner_cuda is nccl, but rank {missing} sees {seen.gpus} GPUs and its torch has "
            f"{'' if seen.nccl else 'no '}NCCL; use auto or gloo"
        )
    if wish != "auto":
        return wish
    sharing = Counter((seen.machine, seen.visible) for seen in ranks)
    enough = all(sharing[seen.machine, seen.visible] <= seen.gpus for seen in ranks)
    return "nccl" if missing is None and enough else "gloo"


def agree(ranks: Assembly, wish: InnerCuda) -> Literal["nccl", "gloo"]:
    """Exchange what each rank sees, and `choose`. All ranks of a group call it."""
    return choose([Gpus(*seen) for seen in ranks.exchange("gpus", seen_here(wish))])


def nccl_group(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """torch's NCCL backend. It connects at the first collective."""
    nccl: Any = dist.ProcessGroupNCCL
    settings = nccl.Options()
    settings._timeout = timeout
    return nccl(store, rank, size, settings)
