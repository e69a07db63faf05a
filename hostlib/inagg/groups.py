# SPDX-License-Identifier: Apache-2.0
"""Groups as torch makes them, and what a program may ask of one."""

from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from inagg._stats import Stats
from inagg._store import agree_on_members
from inagg.errors import ConfigurationError
from inagg.options import Options
from inagg.process_group import ProcessGroup


def create(backend_options: Any, pg_options: object) -> ProcessGroup:
    """A new group, as `inagg.registration` has torch ask for it."""
    if pg_options is not None and not isinstance(pg_options, Options):
        raise ConfigurationError(f"pg_options must be inagg.Options, not {type(pg_options).__name__}")
    store = backend_options.store
    if members := list(backend_options.global_ranks_in_group):  # empty for the world
        agree_on_members(store, members[backend_options.group_rank], members, backend_options.timeout)
        store = PrefixStore(",".join(map(str, members)), store)
    return ProcessGroup(
        store,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        Options.resolve(pg_options),
    )


def inagg_group(group: dist.ProcessGroup | None) -> ProcessGroup:
    """The group itself, the world for None.

    Raises:
        ConfigurationError: it is not an inagg group.
    """
    chosen = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(chosen, ProcessGroup):
        raise ConfigurationError(f"not an inagg process group: {type(chosen).__name__}")
    return chosen


def stats(group: dist.ProcessGroup | None = None) -> Stats:
    """What an inagg group (by default the world) did so far; ``with inagg.stats() as figures:`` what it does within.

    - ``path``: ``"switch"``, or ``"inner"`` when it fell back, with the ``reason``.
    - ``switch_reductions``: calls of all_reduce, reduce and reduce_scatter that went through the switch;
      ``inner_reductions``: those that gloo did.
    - ``calls``: by kind (``"broadcast"``...) ``count``, ``bytes`` of its tensors, and of those whose end this rank has
      noticed ``ended``, ``ended_bytes``, ``seconds`` from the call until then, ``goodput`` in bytes a second.
    - On the switch: job, rank, packets, bytes, retransmits, window (packets), RTT and RTO in seconds, ``waited_s`` for
      other ranks to begin a sum.
    - ``waits``: the same of all ranks, as of their last heartbeats. ``straggler``: from that, the ``rank`` that the
      others wait for and how late it is on average (``late_s``); None while that is not known.

    Raises:
        ConfigurationError: the group is not an inagg group.
    """
    return Stats(inagg_group(group).stats)
