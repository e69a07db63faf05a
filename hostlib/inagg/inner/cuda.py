# SPDX-License-Identifier: Apache-2.0
"""Which of torch's groups does the collectives of CUDA tensors that the switch does not: NCCL, or gloo as on the CPU.

NCCL is the faster by far, but refuses two ranks on one GPU. Which GPU a rank will use is not known when its group is
made, and asking CUDA would take memory of one. So NCCL is taken where there are enough for all: every rank is asked
how many GPUs it sees, under which CUDA_VISIBLE_DEVICES, on which machine.
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
    """What a rank sees: machine and CUDA_VISIBLE_DEVICES, how many GPUs, and whether its torch has NCCL.

    wish: its options' `inner_cuda`.
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
    """What all ranks of a group take, from what each sees.

    Raises:
        ConfigurationError: they wish for different things, or for NCCL where it cannot be.
    """
    wishes: dict[InnerCuda, int] = {}
    for rank, seen in enumerate(ranks):
        wishes.setdefault(seen.wish, rank)
    if len(wishes) > 1:
        told = ", ".join(f"{wish} at rank {rank}" for wish, rank in wishes.items())
        raise ConfigurationError(f"inner_cuda must be the same at all ranks of a group; it is {told}")
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
    """`choose`, with all ranks of a group; each calls it."""
    told = ranks.tell_all("gpus", seen_here(wish))
    return choose([Gpus(*seen) for seen in told])


def nccl_group(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """torch's NCCL backend. It connects with the first collective."""
    nccl: Any = dist.ProcessGroupNCCL
    settings = nccl.Options()
    settings._timeout = timeout
    return nccl(store, rank, size, settings)
