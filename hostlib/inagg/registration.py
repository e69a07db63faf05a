"""Makes ``backend="inagg"`` known to torch.distributed: the entry point that ``import torch`` calls.

torch calls every entry point of the group ``torch.backends`` at its own import (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``
turns that off; ``import inagg`` registers then), and an error there would be the user's ``import torch`` failing. So
nothing is imported here but torch, and whatever is wrong with the rest of inagg is said by the first
``init_process_group("inagg")``.
"""

import sys
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


def autoload() -> None:
    """The entry point. Never raises: a program that does not ask for inagg must not notice it."""
    try:
        register()
    except Exception as error:
        print(f"inagg: not registered with torch.distributed: {error!r}", file=sys.stderr)
