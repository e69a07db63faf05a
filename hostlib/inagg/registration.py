# SPDX-License-Identifier: Apache-2.0
"""Makes ``backend="inagg"`` known to torch.distributed: the entry point that ``import torch`` calls.

torch calls every entry point of the group ``torch.backends`` at its own import (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``
turns that off; ``import inagg`` registers then), and an error there would be the user's ``import torch`` failing. So
nothing is imported here but torch, and whatever is wrong with the rest of inagg is said by the first
``init_process_group("inagg")``.
"""

import functools
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

_NAME = "inagg"


def _create(backend_options: Any, pg_options: object) -> Any:
    """Called by torch for each new group."""
    from inagg.groups import create

    return create(backend_options, pg_options)


def register() -> None:
    """Tell torch.distributed of the backend, once; without torch.distributed there is nothing to tell.

    When an ``import inagg`` that torch has not been imported before is what imports torch, torch calls this twice.
    """
    import torch.distributed

    if not torch.distributed.is_available() or _NAME.upper() in torch.distributed.Backend._plugins:
        return
    torch.distributed.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    _admit_to_monitored_barrier(torch.distributed, torch.distributed.distributed_c10d)


def _admit_to_monitored_barrier(*modules: ModuleType) -> None:
    """torch's function refuses every backend not named "gloo", before it calls the group's method of the same name. So
    in `modules` stands one that calls the method of an inagg group, and hands all other groups to torch's."""
    torchs = modules[0].monitored_barrier

    @functools.wraps(torchs)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        from torch.distributed import distributed_c10d

        chosen = distributed_c10d._world.default_pg if group is None else group
        ours = sys.modules.get("inagg.process_group")  # without it there is no such group
        if ours is None or not isinstance(chosen, ours.ProcessGroup):
            torchs(group, timeout, wait_all_ranks)
        elif timeout is None:
            chosen.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
            chosen.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)

    for module in modules:
        module.monitored_barrier = monitored_barrier  # type: ignore[attr-defined]


def autoload() -> None:
    """The entry point. Never raises: a program that does not ask for inagg must not notice it."""
    try:
        register()
    except Exception as error:
        print(f"inagg: not registered with torch.distributed: {error!r}", file=sys.stderr)
