# SPDX-License-Identifier: Apache-2.0
"""What a job has of switches and servers, from the plan until all of it is free: a state machine, as a table.

    planned ──install──> installing ──written──> installed
       │  ^                 │    ^───change────────┘ │
       │  └──removed── removing <────────remove──────┘
       └──release──> gone

A job whose place changes has two placements for a while: an old one that is being removed, and a new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from inagg_contract.aggregation import INNER, LEASED, SERVER, SHARED, Summing
from inagg_controller.fabric.tree import Tree
from inagg_controller.jobs.accounts import Owner
from inagg_controller.jobs.effects import Install, Regroup, Remove
from inagg_controller.jobs.leases import Lease
from inagg_controller.jobs.servers import JobKey, ServerShare
from inagg_controller.switch.entries import JobEntries, MulticastGroup


class State(Enum):
    """Where the entries of a placement are.

    planned: in no switch. installing: their insertion or a change of them is under way. installed: all are in the
    switches; without switches, all ranks have registered. removing: some may still be in the switches. gone: what the
    placement had is free.
    """

    PLANNED = "planned"
    INSTALLING = "installing"
    INSTALLED = "installed"
    REMOVING = "removing"
    GONE = "gone"


class Event(Enum):
    """What happens to a placement.

    install, change, remove: the job table has decided so. written: the last insertion or change under way has been
    carried out. removed: the same of a removal. release: the job has ended or has another placement.
    """

    INSTALL = "install"
    CHANGE = "change"
    WRITTEN = "written"
    REMOVE = "remove"
    REMOVED = "removed"
    RELEASE = "release"


# Every other event in a state is a defect of the controller.
TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.PLANNED, Event.INSTALL): State.INSTALLING,
    (State.PLANNED, Event.RELEASE): State.GONE,
    (State.INSTALLING, Event.CHANGE): State.INSTALLING,
    (State.INSTALLING, Event.WRITTEN): State.INSTALLED,
    (State.INSTALLING, Event.REMOVE): State.REMOVING,
    (State.INSTALLED, Event.CHANGE): State.INSTALLING,
    (State.INSTALLED, Event.REMOVE): State.REMOVING,
    (State.REMOVING, Event.REMOVE): State.REMOVING,  # again: a switch has refused, or was lost
    (State.REMOVING, Event.REMOVED): State.PLANNED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a job is summed. colocated: its servers, if it has any, are in its ranks' processes. priority: on shared
    slots. at: the switch of each rank's host; empty on servers alone. roots: of its tree."""

    aggregation: Summing
    colocated: bool
    priority: int
    at: tuple[str, ...]
    roots: int

    def is_worth_leaving(self, other: "Kind") -> bool:
        """Whether a job that was first summed in this way should leave another way for it."""
        same = (self.aggregation, self.colocated) == (other.aggregation, other.colocated)
        return not same or self.roots > other.roots


@dataclass(slots=True, kw_only=True, eq=False)
class Placement:
    """What sums for a job.

    epoch: that no earlier placement had. first_chunk: the first of its chunk fields. owner: of the job. tree, leases,
    group: the switches, the slots that each of them leases, and the multicast group there; servers: what it has of
    servers. On servers alone there are no switches and no group; on shared slots there are switches, but no leases;
    where the ranks themselves sum there are neither switches nor servers. priority: of its packets, for shared slots.
    results_ip: the multicast address of its results; None: each worker gets them at its own. entries: by switch, what
    is in the switches or is being inserted or removed. generation: how often it has lost a switch: the outcome of an
    effect of an earlier generation is void. retry_at: when to repeat a removal.
    """

    job: int
    epoch: int
    first_chunk: int
    slots: int
    owner: Owner
    tree: Tree
    leases: Mapping[str, Lease]
    group: int | None
    results_ip: int | None
    servers: ServerShare | None
    priority: int
    state: State = State.PLANNED
    entries: Mapping[str, JobEntries] = field(default_factory=dict)
    generation: int = 0
    retry_at: float | None = None
    _writes: int = 0  # insertions and changes under way

    @property
    def key(self) -> JobKey:
        """Its name at servers."""
        return JobKey(self.job, self.epoch)

    @property
    def aggregation(self) -> Summing:
        """What sums: derived from what it has."""
        if self.servers is None:
            return LEASED if self.tree.switches else INNER
        return SHARED if self.tree.switches else SERVER

    @property
    def kind(self) -> Kind:
        """How it sums."""
        leaf_of = self.tree.leaf_of
        return Kind(
            aggregation=self.aggregation,
            colocated=self.servers is None or not self.servers.registered,
            priority=self.priority,
            at=tuple(leaf_of[rank].name for rank in range(len(leaf_of))),
            roots=self.tree.roots,
        )

    @property
    def title(self) -> str:
        """What sums, for the log."""
        switches = ", ".join(self.tree.by_name)
        if self.servers is None:
            return switches or "the inner group"
        shared = f"shared slots of {switches} and " if switches else ""
        return (
            f"{shared}{self.servers.count} {'registered' if self.servers.registered else 'colocated'} servers"
        )

    @property
    def homes(self) -> tuple[int, ...]:
        """The ranks that send to the servers in their own processes past the switch, by index of the server.

        Those of a job on shared slots of one switch (docs/protocol.md, 5.7), once the servers' seats are known.
        """
        if self.servers is None or len(self.tree.switches) != 1:
            return ()
        return tuple(seat.rank for seat in self.servers.seats if seat.rank is not None)

    def served_by(self, rank: int) -> bool:
        """Whether the server in a rank's process serves it, if it is to."""
        return self.servers is None or not self.servers.serves(rank) or rank in self.servers.serving

    @property
    def freed(self) -> bool:
        """Whether what it had is free."""
        return self.state is State.GONE

    @property
    def in_use(self) -> bool:
        """Whether its switches or servers may have it: a rank that leaves now cannot be replaced."""
        served = self.servers is not None and bool(self.servers.seats)
        return self.state in (State.INSTALLING, State.INSTALLED, State.REMOVING) or (
            served and not self.freed
        )

    @property
    def ready(self) -> bool:
        """Whether its switches have its entries, and its servers serve it."""
        return self.state is State.INSTALLED and (self.servers is None or self.servers.complete)

    def install(self, entries: Mapping[str, JobEntries]) -> Install | None:
        """Have entries inserted. None without switches, where there are none: it is installed."""
        self._change(Event.INSTALL)
        self.entries = entries
        if not entries:
            self._change(Event.WRITTEN)
            return None
        self._writes = 1
        return Install(*self._name, entries)

    def regroup(self, groups: Mapping[str, MulticastGroup]) -> Regroup:
        """Have the copies of results changed."""
        self._change(Event.CHANGE)
        self._writes += 1
        return Regroup(*self._name, groups)

    def written(self, effect: Install | Regroup) -> None:
        """An insertion or a change has been carried out. It is installed once no other one is under way.

        Before the last change a rank would get results at an address at which another has said that it does not.
        """
        if isinstance(effect, Regroup):
            self.entries = {
                name: replace(each, group=effect.groups[name]) for name, each in self.entries.items()
            }
        self._writes -= 1
        if self.state is State.INSTALLING and self._writes == 0:
            self._change(Event.WRITTEN)

    def remove(self) -> Remove | None:
        """Have its entries removed, also a second time. None if there are none: they are removed."""
        self._change(Event.REMOVE)
        self.retry_at = None
        if self.entries:
            return Remove(*self._name, self.entries)
        self.removed()
        return None

    def removed(self) -> None:
        """No switch has entries of it."""
        self._change(Event.REMOVED)
        self.entries = {}

    def lose(self, switch: str) -> None:
        """A switch is lost with its entries: effects under way are void, and entries elsewhere are to be removed."""
        self.generation += 1
        self._writes = 0
        self.retry_at = None
        self.entries = {name: each for name, each in self.entries.items() if name != switch}

    def release(self) -> None:
        """What it had is free."""
        self._change(Event.RELEASE)

    @property
    def _name(self) -> tuple[int, int, int]:
        return self.job, self.epoch, self.generation

    def _change(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
