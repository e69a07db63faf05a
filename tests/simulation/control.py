# SPDX-License-Identifier: Apache-2.0
"""The controller of a world: the job table, what outlasts it, and its driver of the switches."""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from inagg_contract.aggregation import SERVER
from inagg_contract.documents import ResultDocument, WayChange
from inagg_controller.errors import UnavailableError
from inagg_controller.fabric.topology import Link
from inagg_controller.jobs.effects import Effect, Install, Regroup
from inagg_controller.jobs.epochs import KEY_BYTES, Epochs
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.record import Saved
from inagg_controller.jobs.servers import Worker
from inagg_controller.jobs.switched import ENTRIES_LOST, SWITCH_LOST
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import Entity, JobEntries, Member
from tests.simulation.scenario import Scenario
from tests.simulation.switches import SHARED_SLOTS, SLOT_VERSIONS, SwitchBox
from tests.simulation.ways import way_of_rank
from tests.simulation.wires import SERVER_PORT, WORKER_PORT, Wires

MULTICAST = 0xEFC0_0000
ON_PATH_LOSS = ("same", "other", "servers", "fail")
# A link that passes no beacon for so long is down.
_LINK_TIMEOUT_S = 5.0


class Control:
    """The controller. instance: of its starts; 0: it is dead. losses: why it has taken ways for lost."""

    def __init__(self, scenario: Scenario, wires: Wires, tell: Callable[[str], None]) -> None:
        self._scenario, self._wires, self._tell = scenario, wires, tell
        self._saved = Saved()
        self._starts = 1
        self.instance = 1
        self.losses: set[str] = set()
        self._down: set[Link] = set()
        self._passed_at = dict.fromkeys(wires.topology.links, 0.0)
        self._under_way: dict[
            int, list[tuple[Effect, list[str]]]
        ] = {}  # by job: effects, where they are to do
        self.table = self._fresh(0.0)
        for name in wires.boxes:
            self.table.switches.connected(name)
        self.jobs: list[Job] = []

    def _fresh(self, now: float) -> JobTable:
        return JobTable(
            self._wires.topology,
            Limits(slot_versions=SLOT_VERSIONS, shared_slots=SHARED_SLOTS, host_share=1.0),
            Policy(return_after_s=1.0),
            epochs=Epochs(bytes(KEY_BYTES)),
            now=now,
            words=1,
            multicast=MULTICAST,
        )

    def create_jobs(self) -> None:
        """The jobs, with all ranks."""
        scenario, first = self._scenario, 0
        for workers in scenario.workers:
            hosts = self._wires.topology.hosts[first : first + workers]
            request = JobRequest(
                aggregation=scenario.kind,
                workers=workers,
                slots=scenario.slots,
                at=None if scenario.kind == SERVER else [host.place.switch for host in hosts],
                colocated=scenario.colocated,
                on_path_loss=ON_PATH_LOSS,
                exact=True,
            )
            try:
                job = self.table.create(request, 0.0)
            except UnavailableError:  # no switch of the job has a registered server
                job = self.table.create(replace(request, colocated=True), 0.0)
            self._wires.ranks.add(job.id, first, workers)
            for rank in range(workers):
                self.table.register(job.id, self._member(first, rank), 0.0)
                self.table.attend(job.id, rank, 0.0)
            self.jobs.append(job)
            first += workers

    def _member(self, first: int, rank: int) -> Registered:
        host = self._wires.topology.hosts[first + rank]
        if self._scenario.kind == SERVER:
            return Worker(rank=rank, ip=host.ip, udp_port=WORKER_PORT, server_udp_port=SERVER_PORT)
        assert host.mac is not None
        return Member(
            rank=rank,
            ip=host.ip,
            mac=host.mac,
            udp_port=WORKER_PORT,
            port=host.place.port,
            server_udp_port=SERVER_PORT,
        )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.instance > 0

    def die(self) -> None:
        """It ends at once. What it has saved stays."""
        self.instance = 0
        self._under_way.clear()

    def start(self, now: float) -> None:
        """It starts again, and compares what it has saved with what the switches have."""
        self._starts += 1
        self.instance = self._starts
        self.table = self._fresh(now)
        self.table.restore(self._saved, now)
        self.jobs = [self.table.job(job.id) for job in self.jobs]
        expected = self.table.switches.installed()
        for name, box in self._wires.boxes.items():
            if box.alive:
                self._reconcile(box, {job: each[name] for job, each in expected.items() if name in each}, now)
                self.table.switches.connected(name)
            else:
                self.lose_switch(name, now)
        self._down.clear()
        for link in self._wires.topology.links:
            if not self._wires.passes(link):
                self._lose_link(link, now)
            self._passed_at[link] = now
        self.table.changing.begin_anew(now)
        self.save()

    def _reconcile(self, box: SwitchBox, expected: Mapping[int, JobEntries], now: float) -> None:
        """Remove from a switch what is not to be there, and find out which jobs lack something."""
        wanted = {job: set(_entities(entries)) for job, entries in expected.items()}
        box.remove(box.entities - set(chain(*wanted.values())))
        for job, entities in wanted.items():
            if not entities <= box.entities:
                self.losses.add(ENTRIES_LOST.format(box.name))
                self.table.switches.lose_entries(job, box.name, now)

    def save(self) -> None:
        """Keep what a controller keeps, before anybody learns of it; see `StateFile`."""
        changes = self.table.changes()
        jobs = {**self._saved.jobs, **changes.jobs}
        members = {**self._saved.members, **changes.members}
        self._saved = replace(changes, jobs=jobs, members=members)
        for notice in self.table.take_notices():
            self._tell(f"controller: {notice}")
        for box in self._wires.boxes.values():
            box.forward(self.table.switches.ordinary)

    # --- switches and the links between them

    def lose_switch(self, name: str, now: float) -> None:
        """It learns that a switch is lost."""
        self.losses.add(SWITCH_LOST.format(name))
        self.table.switches.lost(name, now)

    def watch_links(self, now: float) -> None:
        """It learns which links pass beacons."""
        for link, passed_at in self._passed_at.items():
            if not self._wires.passes(link):
                if link not in self._down and now - passed_at >= _LINK_TIMEOUT_S:
                    self._lose_link(link, now)
                continue
            self._passed_at[link] = now
            if link in self._down:
                self._down.discard(link)
                self.table.switches.link_up(link)
                self.table.changing.advance_all(now)

    def _lose_link(self, link: Link, now: float) -> None:
        reason = f"no beacon for {_LINK_TIMEOUT_S:g} s"
        self._down.add(link)
        self.losses.add(f"the link {link} is down: {reason}")
        self.table.switches.link_down(link, now, reason)

    def next_write(self) -> tuple[Effect, str] | None:
        """Where something is to be written next, if it can be; the effects of a job are carried out in order."""
        switches = self.table.switches
        while switches.effects:
            effect = switches.effects.popleft()
            names = list(effect.groups if isinstance(effect, Regroup) else effect.entries)
            if not isinstance(effect, Install | Regroup):
                names.reverse()
            self._under_way.setdefault(effect.job, []).append((effect, names))
        for queue in self._under_way.values():
            while queue and switches.placement_of(queue[0][0]) is None:  # void: a switch was lost
                queue.pop(0)
            if queue and self._wires.boxes[queue[0][1][0]].works:
                return queue[0][0], queue[0][1][0]
        return None

    def write(self, effect: Effect, name: str, now: float) -> None:
        """Write to a switch. After the last one of an effect it is done."""
        box = self._wires.boxes[name]
        if isinstance(effect, Install):
            box.insert(_entities(effect.entries[name]))
        elif isinstance(effect, Regroup):
            raise AssertionError("no rank asks for unicast")
        else:
            box.remove(reversed(list(_entities(effect.entries[name]))))
        queue = self._under_way[effect.job]
        queue[0][1].pop(0)
        if not queue[0][1]:
            queue.pop(0)
            self.table.switches.done(effect, now)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be written."""
        return not self.table.switches.effects and not any(self._under_way.values())

    # --- what ranks ask, as `Service` and `http` have it

    def leave(self, job: int, rank: int, now: float, error: str | None = None) -> None:
        """See Service.leave."""
        self.table.leave(job, rank, now, error)

    def report_loss(self, number: int, rank: int, now: float, epoch: int, reason: str) -> None:
        """See Service.lose_way."""
        self.losses.add(reason)
        self.table.changing.report_loss(self.table.member_of(number, rank), epoch, reason, now)

    def frozen(
        self, number: int, rank: int, now: float, lost: int, packed: bytes, port: int | None, _: object
    ) -> WayChange:
        """See Service.freeze."""
        job = self.table.member_of(number, rank)
        chunks = array("I", packed)
        chunks.byteswap()
        if job.change is not None and job.change.lost == lost:
            self.table.changing.publish(job, rank, lost, chunks, port, now)
        return self._answer(job, rank)

    def exchange(
        self,
        number: int,
        rank: int,
        now: float,
        lost: int,
        given: Sequence[tuple[int, bytes]],
        wanted: Collection[int],
    ) -> WayChange:
        """See Service.exchange."""
        job = self.table.member_of(number, rank)
        if job.change is not None and job.change.lost == lost and job.change.frozen:
            self.table.changing.give(job, rank, lost, dict(given))
        return self._answer(job, rank, wanted)

    def serving(self, number: int, rank: int, now: float) -> None:
        """See Service.serve."""
        self.table.serve(number, rank, now)

    def lost_way(self, number: int, rank: int, now: float, epoch: int, reason: str) -> None:
        """See Service.lose_way."""
        self.report_loss(number, rank, now, epoch, reason)

    def resumed(self, number: int, rank: int, now: float, epoch: int) -> None:
        """See Service.resume."""
        self.table.changing.resume(self.table.member_of(number, rank), rank, epoch, now)

    def _answer(self, job: Job, rank: int, wanted: Collection[int] = ()) -> WayChange:
        change = job.change
        if change is None:
            return WayChange.model_construct(state=job.state, reason=job.reason)
        ready = self.table.changing.ready(job)
        asked = ready or not job.placement.served_by(rank)
        return WayChange.model_construct(
            state=job.state,
            reason=job.reason,
            lost=change.lost,
            frozen=change.frozen,
            lacks=tuple(change.lacks(rank)),
            gives=tuple(change.gives(rank)),
            results=tuple(
                ResultDocument.model_construct(chunk=chunk, datagram=change.results[chunk])
                for chunk in wanted
                if chunk in change.results
            ),
            way=way_of_rank(job, rank, self._wires.topology) if asked else None,
            ready=ready,
        )


def _entities(entries: JobEntries) -> Iterable[Entity]:
    return chain(*entries.stages)
