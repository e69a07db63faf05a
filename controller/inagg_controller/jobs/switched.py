# SPDX-License-Identifier: Apache-2.0
"""What happens to switches and links, and what is to be done to them. It decides and does no I/O."""

from collections import deque
from collections.abc import Mapping

from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.fabric.topology import Link, Topology
from inagg_controller.jobs.effects import Effect, Regroup, Remove
from inagg_controller.jobs.installation import unicast_groups_of
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.leases import LeasePool
from inagg_controller.jobs.placement import Placement, State
from inagg_controller.jobs.resources import Resources
from inagg_controller.jobs.states import JobStates
from inagg_controller.switch.entries import JobEntries

SWITCH_LOST = "switch {} was lost: the sums in its slots are gone"
ENTRIES_LOST = "switch {} has lost entries of this job while the controller did not run"
SWITCH_TAKEN = "another controller has taken switch {} over: its tables and slots are no longer this job's"

# Seconds after which a removal that the switch refused is tried again.
_RETRY_S = 1.0


class SwitchedJobs:
    """The switches of the topology and their jobs."""

    def __init__(self, states: JobStates, resources: Resources) -> None:
        self._states = states
        self._resources = resources

    @property
    def pools(self) -> Mapping[str, LeasePool]:
        """The slots of each switch."""
        return self._resources.pools

    @property
    def effects(self) -> deque[Effect]:
        """The effects that no driver has taken yet."""
        return self._states.effects

    def away(self, placement: Placement) -> list[str]:
        """The switches of a placement that are not connected."""
        return self._resources.away(placement.tree)

    def placement_of(self, effect: Effect) -> Placement | None:
        """The placement that an effect is about. None if a switch of it has been lost since: the effect is void."""
        found = self._states.placement(effect.job, effect.epoch)
        return found[1] if found is not None and found[1].generation == effect.generation else None

    def done(self, effect: Effect, now: float, error: str | None = None) -> None:
        """Record that the driver has carried out an effect; error: the switch's message if it refused."""
        job, placement = self._states.placement(effect.job, effect.epoch) or (None, None)
        if job is None or placement is None or placement.generation != effect.generation:
            return
        self._states.note_change(job)
        if isinstance(effect, Remove):
            if error is not None:
                placement.retry_at = now + _RETRY_S
            else:
                placement.removed()
                self._states.release(job, placement)
                self._states.place_if_complete(job)  # a switch was lost while it joined, or it has moved
        elif error is None:
            placement.written(effect)
            self._states.begin_if_ready(job, now)
        elif job.uses(placement):
            # Sums without the copies would need a retransmission for every result.
            what = "to copy results to each worker" if isinstance(effect, Regroup) else "the job's entries"
            self._states.lose_way(job, f"the switch refused {what}: {error}", now, move_on=True)

    def connected(self, name: str) -> None:
        """Record that a switch has a fresh pipeline: install complete jobs that waited for it."""
        self._resources.connected.add(name)
        self._states.note_change()
        for job in self._states.jobs.values():
            self._states.place_if_complete(job)

    def lost(self, name: str, now: float, reason: str = SWITCH_LOST) -> None:
        """Record that a switch, its entries and its sums are lost: running jobs on it change their way or fail; joining
        jobs wait for it.

        reason: with {} for the switch's name.
        """
        self._resources.connected.discard(name)
        self._states.note_change()
        concerned = [
            (job, placement)
            for job in self._states.jobs.values()
            for placement in job.placements
            if not placement.freed and name in placement.tree.by_name
        ]
        void = {placement.key for _, placement in concerned}
        kept = [effect for effect in self.effects if (effect.job, effect.epoch) not in void]
        self.effects.clear()
        self.effects.extend(kept)
        for job, placement in concerned:
            placement.lose(name)
            if job.active and job.uses(placement):
                self._states.lose_way(job, reason.format(name), now)
            elif placement.state is not State.PLANNED:
                self._states.remove(job, placement)

    def lose_entries(self, number: int, name: str, now: float) -> None:
        """Record that a switch that went on while the controller did not run has lost entries of a job."""
        job = self._states.jobs.get(number)
        if job is not None and job.active and job.uses(job.placement):
            self._states.lose_way(job, ENTRIES_LOST.format(name), now)

    def link_down(self, link: Link, now: float, reason: str) -> None:
        """Record that a link passes no packets: jobs whose tree uses it change their way or fail, and later ones avoid
        it."""
        self._resources.down.add(link)
        self._states.note_change()
        for job in list(self._states.jobs.values()):
            if job.uses(job.placement) and link in job.placement.tree.links.values():
                self._states.lose_way(job, f"the link {link} is down: {reason}", now)

    def link_up(self, link: Link) -> None:
        """Record that a link passes packets (again)."""
        self._resources.down.discard(link)
        self._states.note_change()

    @property
    def ordinary(self) -> OrdinaryTree:
        """The links that ordinary traffic uses."""
        return self._resources.ordinary

    def reroute(self) -> None:
        """Have ordinary traffic go around what is not there now."""
        if links := self._resources.reroute():
            what = "link" if len(links) == 1 else "links"
            self._states.notices.append(
                f"ordinary traffic uses the {what} {', '.join(map(str, links))} from now on"
            )
            self._states.note_change()

    def installed(self) -> Mapping[int, Mapping[str, JobEntries]]:
        """Entries that are in the switches after every effect has been carried out, by job and switch."""
        return {
            job.id: job.placement.entries
            for job in self._states.jobs.values()
            if job.placement.entries and job.placement.state is not State.REMOVING
        }

    def unicast(self, job: Job, topology: Topology) -> None:
        """Send a job's results to each worker's own address from now on."""
        placement = job.placement
        placement.results_ip = None
        self._states.note_change(job)
        if placement.state in (State.INSTALLING, State.INSTALLED):
            self.effects.append(placement.regroup(unicast_groups_of(job, topology)))

    def retry(self, job: Job, now: float) -> None:
        """Repeat the removals of a job that were refused."""
        for placement in list(job.placements):
            if placement.retry_at is not None and now >= placement.retry_at:
                self._states.remove(job, placement)
