# SPDX-License-Identifier: Apache-2.0
"""One job: its ranks, its state, and what sums for it."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inagg_contract.addresses import format_ip
from inagg_contract.documents import ENDED_STATES, RankTraffic
from inagg_contract.ranks import name_job, name_ranks, place
from inagg_controller.jobs.accounts import Owner
from inagg_controller.jobs.calls import Comparison, Mismatch, Wait
from inagg_controller.jobs.change import Change
from inagg_controller.jobs.liveness import Liveness
from inagg_controller.jobs.placement import Kind, Placement
from inagg_controller.jobs.servers import Summed, Worker
from inagg_controller.jobs.way_back import WayBack
from inagg_controller.switch.entries import Member
from inagg_controller.tokens import new_secret

LEFT = "left"
_MOST_WAYS = 50

# A worker that has registered, in a job on switches or on servers alone.
Registered = Member | Worker


class Way(NamedTuple):
    """What has summed for a job from a time on. reason: why it left the way before; empty for its first. taken_s: since
    it had lost that one."""

    since: float
    title: str
    aggregation: str
    reason: str = ""
    taken_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Job:
    """One job.

    owner: whose it is. on_path_loss: what it
    may try when its way is lost. placements: the last one sums for it, unless the job has lost it; an earlier one is
    being removed. change: since it has lost one, until all ranks have gone on. changes: how often they have,
    resumed_at: when last, found_by: by which of `on_path_loss`, and lost_why: for which reason. second_round: ways that
    did not last have used up `on_path_loss` once. first: how it was summed before it lost its first way; None: it has
    lost none. way_back: there. ways: the last ones since the controller's start. comparison, mismatch, waits: of the
    collectives that its ranks call. traffic: of its ranks, as they last reported it. secret: permits requests about it.
    key: of the request that created it, by which a repeated one finds it; empty without one. wanted: how many such
    requests have not been given up.
    """

    id: int
    name: str
    workers: int
    slots: int
    created_at: float
    owner: Owner
    placements: list[Placement]
    comparison: Comparison
    on_path_loss: Sequence[str] = ()
    change: Change | None = None
    changes: int = 0
    resumed_at: float = 0.0
    found_by: str = ""
    lost_why: str = ""
    second_round: bool = False
    first: Kind | None = None
    way_back: WayBack = field(default_factory=WayBack)
    mismatch: Mismatch | None = None
    waits: dict[int, Wait] = field(default_factory=dict)
    traffic: dict[int, RankTraffic] = field(default_factory=dict)
    ways: deque[Way] = field(default_factory=lambda: deque(maxlen=_MOST_WAYS))
    state: str = "joining"
    reason: str | None = None
    ended_at: float | None = None
    members: dict[int, Registered] = field(default_factory=dict)
    liveness: Liveness = field(default_factory=Liveness)
    left: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    secret: str = field(default_factory=new_secret, repr=False)
    key: str = field(default="", repr=False)
    wanted: int = 0

    @property
    def placement(self) -> Placement:
        """What sums for it."""
        return self.placements[-1]

    def uses(self, placement: Placement) -> bool:
        """Whether a placement sums for it, or is about to."""
        lost = self.change is not None and self.change.lost == placement.epoch
        return placement is self.placement and not self.ended and not lost

    @property
    def active(self) -> bool:
        """True if it has begun to run and has not ended: its ranks must live."""
        return self.state in ("running", "changing")

    @property
    def title(self) -> str:
        """Its number and name, for messages."""
        return name_job(self.id, self.name)

    def titles(self, ranks: Sequence[int]) -> str:
        """Ranks with their hosts and addresses, as far as they have registered, for messages."""
        there = {rank: self.members[rank] for rank in ranks if rank in self.members}
        places = {rank: place(member.host, format_ip(member.ip)) for rank, member in there.items()}
        return name_ranks(ranks, places)

    @property
    def ended(self) -> bool:
        """True if the job is failed or finished, which are final states."""
        return self.state in ENDED_STATES

    @property
    def holds_resources(self) -> bool:
        """True while anything of a switch or server is not free for others because of this job, or soon will not be."""
        return self.change is not None or any(not placement.freed for placement in self.placements)

    @property
    def summed(self) -> Summed | None:
        """What its servers have summed; None without servers."""
        return None if self.placement.servers is None else self.placement.servers.summed

    @property
    def complete(self) -> bool:
        """True if all ranks have registered."""
        return len(self.members) == self.workers

    @property
    def missing(self) -> list[int]:
        """The ranks that have not registered."""
        return sorted(set(range(self.workers)) - set(self.members))

    @property
    def gone(self) -> dict[int, str]:
        """Rank -> why it is gone, for the workers that remain; ranks that have left included."""
        if self.state == "finished":
            return {}
        return {**dict.fromkeys(sorted(self.left), LEFT), **self.lost}


def holding(jobs: Iterable[Job]) -> list[Placement]:
    """The placements of jobs that hold anything."""
    return [placement for job in jobs for placement in job.placements if not placement.freed]
