# SPDX-License-Identifier: Apache-2.0
"""inagg: gradients summed in a programmable switch, as a torch.distributed backend.

    torch.distributed.init_process_group("inagg")

needs no import of this package: torch finds the backend by its entry point (`inagg.registration`). The names of this
package are imported at their first use, so that a program that does not use them pays nothing.

Public names: `Options`, `ProcessGroup`, `StepFigures`, `explain`, `stats`, the errors of `inagg.errors`, and
`__version__`. Read `process_group` first; `sums/` does the sums, `membership/` joins and leaves jobs, `inner/` has gloo
and NCCL, `device/` the sums of CUDA tensors.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from contextlib import AbstractContextManager
from importlib import metadata
from typing import TYPE_CHECKING, Any

from inagg.registration import register

if TYPE_CHECKING:
    from inagg.base_errors import InaggError
    from inagg.groups import explain, stats
    from inagg.options import Options
    from inagg.process_group import ProcessGroup
    from inagg.step_figures import StepFigures

    __version__: str

__all__ = ["InaggError", "Options", "ProcessGroup", "StepFigures", "explain", "stats"]

_HOMES = {
    "InaggError": "inagg.base_errors",
    "Options": "inagg.options",
    "ProcessGroup": "inagg.process_group",
    "StepFigures": "inagg.step_figures",
    "explain": "inagg.groups",
    "stats": "inagg.groups",
}
_NEED_TORCH = ("ProcessGroup", "StepFigures", "explain", "stats")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("inagg")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _needs(name):
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _needs(name: str) -> AbstractContextManager[None]:
    """The block that imports a name: one of those that need torch refuses a torch that is too old."""
    if name not in _NEED_TORCH:
        return contextlib.nullcontext()
    from inagg.torch_versions import supported

    return supported()


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


# An aggregation server uses modules that need no torch, which would take seconds and 200 MB.
if not {"torch", "inagg_server"} & sys.modules.keys() and importlib.util.find_spec("torch") is None:
    from inagg_contract.installation import pip_install

    raise ModuleNotFoundError(f"inagg needs torch: {pip_install('worker')}", name="torch")

# A later `import torch` calls the entry point, unless it is told not to.
if "torch" in sys.modules or os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
    register()
