# SPDX-License-Identifier: Apache-2.0
"""Creates groups for torch, and gives their statistics to the program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from inagg import tracing
from inagg.at_exit import living
from inagg.counters import Stats
from inagg.errors import ConfigurationError
from inagg.explanation import Explanation, explain_figures
from inagg.lone_training import TrainingWatch
from inagg.membership.store import agree_on_members, forget_members
from inagg.options import Options
from inagg.process_group import ProcessGroup
from inagg.torch_versions import keep_flight_recorder_from, waits_for_reconfigure


@dataclass(frozen=True)
class TakenOver:
    """A group that the program makes under another backend's name. `inagg.takeover` passes it as ``pg_options``.

    named: what the program names, such as ``"gloo"``, ``"cpu:gloo,cuda:nccl"``, or ``"undefined"`` for nothing.
    backend: the group's own name for its backend, ``"gloo"`` or ``"nccl"``.
    options: the program's ``pg_options`` if they are inagg's.
    without_job: why the group needs no job; empty if it needs one.
    """

    named: str
    backend: str
    options: object
    without_job: str

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `ProcessGroup`."""
        return {"taken_over": self.named, "backend": self.backend, "without_job": self.without_job}


def create(backend_options: Any, pg_options: object) -> ProcessGroup:
    """Create a group; torch calls this through `inagg.registration`. Raises InaggError."""
    taken = pg_options if isinstance(pg_options, TakenOver) else None
    if taken is not None:
        pg_options = taken.options
    if pg_options is not None and not isinstance(pg_options, Options):
        raise ConfigurationError(f"pg_options must be inagg.Options, not {type(pg_options).__name__}")
    store, own = backend_options.store, backend_options.store
    members = ranks = list(backend_options.global_ranks_in_group)  # empty for the world
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
        formed=not waits_for_reconfigure(backend_options),
        **({} if taken is None else taken.settings),
    )
    tracing.start(ranks[group.rank()] if ranks else group.rank(), group.size(), None if ranks else own)
    if members:
        forget_members(store, members[backend_options.group_rank])
    if not members and group.size() > 1:
        group.training = TrainingWatch(group.rank(), group.size(), _calls_of_all, _has_no_other)
    return group


def _calls_of_all() -> list[dict[str, dict[str, float]]]:
    return [group.tally.snapshot() for group in living if isinstance(group, ProcessGroup)]


def _has_no_other() -> bool:
    """Whether all groups of torch in this process are inagg's."""
    return all(isinstance(group, ProcessGroup) for group in dist.distributed_c10d._world.pg_map)


def split(
    parent: ProcessGroup,
    split_ranks: Sequence[Sequence[int]] | None,
    timeout: timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: object = None,
) -> dist.ProcessGroup | None:
    """``torch.distributed.split_group`` of an inagg group. All ranks of `parent` call it.

    Args:
        split_ranks: for each new group its ranks in `parent`, in any order.
        timeout, pg_options: by default those of `parent`.
        group_desc: a name for logs.
        backend: has no effect: an inagg group serves all devices.

    Returns:
        The new group of this rank; None if no list has this rank.

    Raises:
        ValueError: a list is empty, names a rank twice, or one that `parent` does not have.
        InaggError: as `ProcessGroup`.
    """
    c10d: Any = dist.distributed_c10d
    if not split_ranks:
        raise ValueError("split_ranks must be a list of lists of ranks, and is empty")
    for ranks in split_ranks:
        if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(parent.size())):
            raise ValueError(
                f"split_ranks: {list(ranks)} must be different ranks of 0 to {parent.size() - 1}"
            )
    number = parent.splits = parent.splits + 1
    mine = next((sorted(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return None
    members = [dist.get_global_rank(parent, rank) for rank in mine]
    group, _ = c10d._new_process_group_helper(
        len(mine),
        mine.index(parent.rank()),
        members,
        c10d._world.pg_map[parent][0],
        c10d._world.pg_map[c10d._get_default_group()][1],
        f"{parent.group_name}:split:{number}:{mine[0]}",
        backend_options=parent.options if pg_options is None else pg_options,
        timeout=timedelta(seconds=parent.timeout_s) if timeout is None else timeout,
        group_desc=group_desc or f"{parent.group_desc}:split:{number}",
    )
    c10d._world.pg_group_ranks[group] = {member: rank for rank, member in enumerate(members)}
    made: dist.ProcessGroup = group
    return made


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

    Without `figures` it waits for the last figures of the other ranks, up to eight heartbeat intervals.

    Args:
        figures: figures of `stats`, for example of a ``with`` block; by default those of `group` since it was made.
        group: by default the world.

    Raises:
        ConfigurationError: the group is not an inagg group.
    """
    if figures is None:
        inagg_group(group).catch_up()
        figures = stats(group)
    return explain_figures(figures)


keep_flight_recorder_from(ProcessGroup)
