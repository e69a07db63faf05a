# SPDX-License-Identifier: Apache-2.0
"""What differs between the releases of torch that the backend runs with.

No other module compares versions of torch or asks whether torch has a name. docs/backend.md says with which releases
the tests were run.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from inagg.base_errors import ConfigurationError

_log = logging.getLogger(__name__)

# The first and the last release that the tests were run with; `dependencies` of pyproject.toml says the same. In older
# releases the C++ of torch drops the Python part of a Work, so a program cannot wait for it.
OLDEST, NEWEST = (2, 7), (2, 15)

# Methods of process groups, by the newer name. torch has used it beside the older name since 2.13.
_OLDER_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
_NEWER_NAMES = {older: newer for newer, older in _OLDER_NAMES.items()}


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version such as "2.13.0+cpu"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


# Until 2.8, the collectives of a gloo group have the timeout that it was made with, whatever it is set to later.
GLOO_KEEPS_ITS_TIMEOUT = release(torch.__version__) < (2, 9)

# Until 2.8, gloo's reduce_scatter sums, whatever the operation.
GLOO_REDUCE_SCATTER_ONLY_SUMS = release(torch.__version__) < (2, 9)

# In 2.7, gloo has reduce_scatter of one tensor only, not of lists.
GLOO_LACKS_REDUCE_SCATTER = release(torch.__version__) < (2, 8)

# Until 2.11, gloo has all_to_all of one tensor only, not of lists.
GLOO_LACKS_ALL_TO_ALL = release(torch.__version__) < (2, 12)


def refuse_too_old(version: str = torch.__version__) -> None:
    """Raise ConfigurationError if the release is older than `OLDEST`."""
    if release(version) < OLDEST:
        raise ConfigurationError(
            f"torch {version} is too old for inagg, which needs {_text(OLDEST)} or later (up to {_text(NEWEST)} was "
            "tried): it loses what a process group written in Python returns. Install a newer torch."
        )


@contextlib.contextmanager
def supported(version: str = torch.__version__) -> Iterator[None]:
    """A block that needs torch in one of the releases that the backend runs with.

    With a release newer than `NEWEST`, log a warning once. Errors in the block that such a release is likely to have
    caused name the version.

    Raises:
        ConfigurationError: the release is too old; or it is newer than `NEWEST`, and the block used something that it
            does not have, or not as it was.
    """
    refuse_too_old(version)
    if release(version) > NEWEST:
        _warn_of_newer(version)
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        if release(version) <= NEWEST:
            raise
        raise ConfigurationError(
            f"inagg does not work with torch {version}, which is newer than {_text(NEWEST)}, the newest release that "
            f"it was tried with: {type(error).__name__}: {error}. Install an older torch."
        ) from error


@functools.cache
def _warn_of_newer(version: str) -> None:
    _log.warning(
        "inagg: torch %s is newer than %s, the newest release that inagg was tried with",
        version,
        _text(NEWEST),
    )


@functools.cache
def method_name(name: str) -> str:
    """The name that this torch has for a method of process groups: `name`, or its newer or older name."""
    if hasattr(dist.ProcessGroup, name):
        return name
    return _OLDER_NAMES.get(name) or _NEWER_NAMES.get(name, name)


def connecting_at_once() -> dict[str, bool]:
    """Keywords for gloo's devices, which then connect their ranks when a group is made.

    With TORCH_GLOO_LAZY_INIT=1 ranks would connect at their first collective. The releases that have no such keyword do
    not know the variable either.
    """
    gloo: Any = dist.ProcessGroupGloo
    return {"lazy_init": False} if "lazy_init" in (gloo.create_device.__doc__ or "") else {}


def waits_for_reconfigure(backend_options: Any) -> bool:
    """Whether the program makes a group that `reconfigure` is to form: ``init_process_group(enable_reconfigure=True)``.

    Releases before 2.14 do not have this argument.
    """
    return bool(getattr(backend_options, "enable_reconfigure", False))


def keep_flight_recorder_from(kind: type[dist.ProcessGroup]) -> None:
    """Keep torch's flight recorder away from groups of a class that is written in Python.

    Since 2.15 torch attaches it to every group that names its devices. It asks the group's C++ part for the default
    backend, which such a group does not have, and raises. It could record nothing: its hooks are in torch's dispatcher,
    and methods written in Python are called without it.
    """
    original = getattr(distributed_c10d, "_maybe_attach_flight_recorder", None)
    if original is None:
        return

    @functools.wraps(original)
    def attach(group: dist.ProcessGroup, *arguments: Any, **settings: Any) -> None:
        if not isinstance(group, kind):
            original(group, *arguments, **settings)

    distributed_c10d._maybe_attach_flight_recorder = attach  # type: ignore[attr-defined]
