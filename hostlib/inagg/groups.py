# SPDX-License-Identifier: Apache-2.0
"""Creates groups for torch, and gives their statistics to the program."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from inagg.counters import Stats
from inagg.errors import ConfigurationError
from inagg.explanation import Explanation, explain_figures
from inagg.membership.store import agree_on_members, forget_members
from inagg.options import Options
from inagg.process_group import ProcessGroup
from inagg.torch_versions import keep_flight_recorder_from


def create(backend_options: Any, pg_options: object) -> ProcessGroup:
    """Create a group; torch calls this through `inagg.registration`. Raises InaggError."""
    if pg_options is not None and not isinstance(pg_options, Options):
        raise ConfigurationError(f"pg_options must be inagg.Options, not {type(pg_options).__name__}")
    store, own = backend_options.store, backend_options.store
    members = list(backend_options.global_ranks_in_group)  # empty for the world
    if backend_options.group_size == 1:
        members = []  # nobody to agree with; the process that serves the store may have ended
    if members:
        agree_on_members(store, members[backend_options.group_rank], members, backend_options.timeout)
        own = PrefixStore(",".join(map(str, members)), store)
    group = ProcessGroup(
        own,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        Options.resolve(pg_options, ranks=backend_options.group_size),
    )
    if members:
        forget_members(store, members[backend_options.group_rank])
    return group


def inagg_group(group: dist.ProcessGroup | None) -> ProcessGroup:
    """The group as an inagg group; None: the world.

    Raises:
        ConfigurationError: it is not an inagg group.
    """
    chosen = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(chosen, ProcessGroup):
        raise ConfigurationError(f"not an inagg process group: {type(chosen).__name__}")
    return chosen


def stats(group: dist.ProcessGroup | None = None) -> Stats:
    """Figures of an inagg group (by default the world) since it was made.

    ``with inagg.stats() as figures:`` gives the figures of the block. docs/performance.md has all keys.

    Raises:
        ConfigurationError: the group is not an inagg group.
    """
    return Stats(inagg_group(group).stats)


def explain(
    figures: Mapping[str, Any] | None = None, *, group: dist.ProcessGroup | None = None
) -> Explanation:
    """Explain where a group's time went. ``print(inagg.explain())`` prints a report.

    Args:
        figures: figures of `stats`, for example of a ``with`` block; by default those of `group` since it was made.
        group: by default the world.

    Raises:
        ConfigurationError: the group is not an inagg group.
    """
    return explain_figures(stats(group) if figures is None else figures)


keep_flight_recorder_from(ProcessGroup)
