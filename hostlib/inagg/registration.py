# SPDX-License-Identifier: Apache-2.0
"""Registers ``backend="inagg"`` with torch.distributed: the entry point that ``import torch`` calls.

torch calls every entry point of the group ``torch.backends`` during its own import.
(``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns that off; ``import inagg`` registers then.) An error there would break the
user's ``import torch``. So this module imports only torch, and problems with the rest of inagg appear at the first
``init_process_group("inagg")``.
"""

import functools
import os
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

_NAME = "inagg"


def _create(backend_options: Any, pg_options: object) -> Any:
    """Called by torch for each new group."""
    import torch

    from inagg.torch_versions import supported

    with supported():
        from inagg.groups import create

        # Whether there is a GPU is asked here: the question starts CUDA, which an import of torch must not do.
        torch.distributed.Backend.backend_capability[_NAME] = _devices(torch.cuda.is_available())
        return create(backend_options, pg_options)


def _devices(cuda: bool) -> list[str]:
    """The device types of the backend. torch makes tensors for collectives on any of them that is not "cpu"."""
    return ["cpu", "cuda"] if cuda else ["cpu"]


def register() -> None:
    """Register the backend, once. Without torch.distributed, do nothing.

    This may be called twice: by torch, and by an ``import inagg`` that finds torch imported.
    """
    import torch.distributed

    if not torch.distributed.is_available() or _NAME.upper() in torch.distributed.Backend._plugins:
        return
    devices = _devices(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]
    torch.distributed.Backend.register_backend(_NAME, _create, extended_api=True, devices=devices)
    modules = torch.distributed, torch.distributed.distributed_c10d
    _admit_to_monitored_barrier(*modules)
    _admit_to_split_group(*modules)
    if any(variable.startswith("INAGG_TA") for variable in os.environ):
        _take_over()


def _take_over() -> None:
    from inagg import takeover

    if takeover.is_asked_for(os.environ):
        takeover.install()


def _admit_to_monitored_barrier(*modules: ModuleType) -> None:
    """Replace ``monitored_barrier`` in `modules` by a function that calls the method of an inagg group.

    torch's function refuses every backend not named "gloo". The replacement calls it for all other groups.
    """
    original = modules[0].monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        from torch.distributed import distributed_c10d

        chosen: Any = distributed_c10d._world.default_pg if group is None else group
        if not _is_ours(chosen):
            original(group, timeout, wait_all_ranks)
        elif timeout is None:
            chosen.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
            chosen.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)

    for module in modules:
        module.monitored_barrier = monitored_barrier  # type: ignore[attr-defined]


def _admit_to_split_group(*modules: ModuleType) -> None:
    """Replace ``split_group`` in `modules` by a function that makes inagg groups from an inagg group.

    torch's function refuses groups written in Python. The replacement calls it for all other groups.
    """
    original = modules[0].split_group

    @functools.wraps(original)
    def split_group(parent_pg: Any = None, split_ranks: Any = None, *arguments: Any, **settings: Any) -> Any:
        from torch.distributed import distributed_c10d

        parent: Any = parent_pg or distributed_c10d._world.default_pg
        if not _is_ours(parent):
            return original(parent_pg, split_ranks, *arguments, **settings)
        from inagg.groups import split

        return split(parent, split_ranks, *arguments, **settings)

    for module in modules:
        module.split_group = split_group  # type: ignore[attr-defined]


def _is_ours(group: Any) -> bool:
    ours = sys.modules.get("inagg.process_group")  # None: there is no inagg group
    return ours is not None and isinstance(group, ours.ProcessGroup)


def autoload() -> None:
    """The entry point. Never raises, because programs that do not use inagg must not be affected."""
    try:
        register()
    except Exception as error:
        print(f"inagg: not registered with torch.distributed: {error!r}", file=sys.stderr)
        _refuse_takeover(error)


def _refuse_takeover(cause: Exception) -> None:
    """If the user wants programs to be taken over, they must not run over gloo instead."""
    try:
        from inagg import takeover

        if takeover.is_asked_for(os.environ):
            takeover.refuse(f"it is not registered with torch.distributed ({cause!r})")
    except Exception as error:
        print(f"inagg: programs are not taken over: {error!r}", file=sys.stderr)
