# SPDX-License-Identifier: Apache-2.0
"""A state machine of hypothesis: the life of jobs in leased slots, on switches that come and go."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inagg_contract.constants import FLOOD_GROUP
from inagg_contract.documents import DEFAULT_JOB_CLASS
from inagg_controller.errors import RequestError, UnavailableError
from inagg_controller.jobs.job import Effect, Install, Registered, Regroup
from inagg_controller.switch.entries import Entity, JobEntries, TableEntry
from tests.controller.serving import STAR
from tests.controller.tables import POLICY, member, new_table

INDEX = st.integers(0, 3)
Placed = tuple[str, Entity]  # a switch and what is in it


def entities_of(effect: Effect) -> list[Placed]:
    """What an effect inserts or removes, in the order of insertion."""
    if isinstance(effect, Regroup):
        return list(effect.groups.items())
    return in_stages(effect.entries)


def in_stages(entries: Mapping[str, JobEntries]) -> list[Placed]:
    """A job's entities, in the order of their insertion."""
    return [(name, entity) for name, each in entries.items() for stage in each.stages for entity in stage]


def key(placed: Placed) -> object:
    """What its switch knows an entity by."""
    name, entity = placed
    return name, (entity.table, entity.match) if isinstance(entity, TableEntry) else entity.group


class Life(RuleBasedStateMachine):
    """Requests, time, effects and failures in any order, with switches that carry out the effects.

    The ranks are at the first two switches of the topology in turns; with one, all are there. creator, job_class: of
    the jobs that are created.
    """

    topology = STAR
    limits: ClassVar[Mapping[str, Any]] = {}
    creator: str | None = None
    job_class = DEFAULT_JOB_CLASS

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.names = list(self.topology.by_name)
        self.table = new_table(
            topology=self.topology, max_members=10, max_ended=3, max_server_jobs=6, **self.limits
        )
        self.entries: set[Placed] = set()
        self.epochs: list[int] = []
        self.endings: dict[int, tuple[str, str | None, dict[int, str]]] = {}

    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 8, 16, 32, 64]))
    def create(self, workers: int, slots: int) -> None:
        before = self.picture()
        try:
            leaves = self.names[:2]
            at = [leaves[rank % len(leaves)] for rank in range(workers)]
            job = self.table.create(workers, slots, "", self.now, self.creator, at, job_class=self.job_class)
        except UnavailableError:
            assert self.picture() == before
        else:
            self.epochs.append(job.epoch)
            assert job.slots <= slots
            assert job.slots == 1 << int(math.log2(job.slots))

    @rule(workers=st.integers(1, 3))
    def create_complete(self, workers: int) -> None:
        self.create(workers, 2)
        self.register_all(0)

    def act(self, method: Callable[..., object], *arguments: object) -> None:
        """Make a request. A refused one must change nothing."""
        before = self.picture()
        try:
            method(*arguments)
        except RequestError:
            assert self.picture() == before

    def pick(self, index: int) -> int:
        """The number of a job, 0 for the newest; sometimes of none."""
        numbers = [*self.table.jobs][::-1]
        return numbers[index] if index < len(numbers) else 9999

    @rule(index=INDEX, rank=st.integers(-1, 4), host=st.integers(1, 4))
    def register(self, index: int, rank: int, host: int) -> None:
        number = self.pick(index)
        self.act(self.table.register, number, self.worker(number, rank, host), self.now)

    @rule(index=INDEX)
    def register_all(self, index: int) -> None:
        number = self.pick(index)
        for rank in range(4):
            self.act(self.table.register, number, self.worker(number, rank, rank + 1), self.now)

    def worker(self, number: int, rank: int, host: int) -> Registered:
        """A worker as it registers in a job, from one of the hosts."""
        return member(rank, host)

    @rule(index=INDEX, rank=st.integers(0, 4))
    def beat(self, index: int, rank: int) -> None:
        self.act(self.table.heartbeat, self.pick(index), rank, self.now)

    @rule(index=INDEX, rank=st.integers(0, 4))
    def attend(self, index: int, rank: int) -> None:
        self.act(self.table.attend, self.pick(index), rank, self.now)

    @rule(index=INDEX, rank=st.integers(0, 4))
    def vanish(self, index: int, rank: int) -> None:
        number = self.pick(index)
        self.act(self.table.vanish, number, member(rank), self.now)  # not a rank of this job for the table
        known = self.table.jobs[number].members.get(rank) if number in self.table.jobs else None
        if known is not None:
            self.table.vanish(number, known, self.now)

    @rule(index=INDEX, rank=st.integers(0, 4), error=st.sampled_from([None, None, "broken"]))
    def leave(self, index: int, rank: int, error: str | None) -> None:
        self.act(self.table.leave, self.pick(index), rank, self.now, error)

    @rule(index=INDEX)
    def unicast(self, index: int) -> None:
        self.act(self.table.unicast, self.pick(index))

    @rule(index=INDEX)
    def leave_all(self, index: int) -> None:
        number = self.pick(index)
        for rank in range(4):
            self.act(self.table.leave, number, rank, self.now)

    @rule(index=INDEX)
    def end(self, index: int) -> None:
        self.act(self.table.end, self.pick(index), self.now)

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 0.7, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table.tick(self.now)

    @precondition(lambda self: self.table.effects)
    @rule()
    def carry_out(self) -> None:
        effect = self.table.effects.popleft()
        self.perform(effect)
        self.table.done(effect, self.now)

    def perform(self, effect: Effect) -> None:
        entities = entities_of(effect)
        if isinstance(effect, Install):
            assert not {key(entity) for entity in entities} & {key(entity) for entity in self.entries}
            self.entries |= set(entities)
        else:
            self.remove(entities)
            self.entries |= set(entities) if isinstance(effect, Regroup) else set()

    def remove(self, entities: Sequence[Placed]) -> None:
        gone = {key(entity) for entity in entities}
        self.entries = {entity for entity in self.entries if key(entity) not in gone}

    @precondition(lambda self: self.table.effects)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        effect = self.table.effects.popleft()
        entities = entities_of(effect)
        done = data.draw(st.integers(0, len(entities)))
        if isinstance(effect, Install):
            self.entries |= set(entities[:done])
        elif not isinstance(effect, Regroup):
            self.remove(entities[done:])
        self.table.done(effect, self.now, "refused")

    @rule(in_flight=st.booleans(), data=st.data())
    def restart_switch(self, in_flight: bool, data: st.DataObject) -> None:
        """Restart a switch, perhaps while an effect is carried out."""
        name = data.draw(st.sampled_from(self.names))
        effect = self.table.effects.popleft() if in_flight and self.table.effects else None
        concerned = effect is not None and name in dict(entities_of(effect))
        if effect is not None and not concerned:
            self.perform(effect)
        elif isinstance(effect, Install):
            entities = entities_of(effect)
            self.entries |= set(entities[: data.draw(st.integers(0, len(entities)))])
        self.table.switch_lost(name, self.now)
        if effect is not None:
            self.table.done(effect, self.now)
        self.entries = {placed for placed in self.entries if placed[0] != name}
        assert not any(
            job.state == "running" and name in job.tree.by_name for job in self.table.jobs.values()
        )
        self.table.switch_connected(name)

    @precondition(lambda self: self.topology.links)
    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(self.topology.links))
        self.table.link_down(link, self.now, "cut")
        assert not any(not job.ended and link in job.tree.links.values() for job in self.table.jobs.values())
        self.table.link_up(link)

    def picture(self) -> object:
        table = self.table
        jobs = {
            number: (job.state, dict(job.members), set(job.left), dict(job.lost), job.entries, job.removing)
            for number, job in table.jobs.items()
        }
        leases = {name: pool.leases for name, pool in table.pools.items()}
        servers = [
            (server.instance, dict(server.leases), server.serving) for server in table.servers.values()
        ]
        return jobs, leases, list(table.effects), servers, table.version

    @invariant()
    def epochs_grow(self) -> None:
        assert self.epochs == sorted(set(self.epochs))

    @invariant()
    def an_ended_job_stays_as_it_ended(self) -> None:
        for number, job in self.table.jobs.items():
            if number in self.endings or job.ended:
                ending = (job.state, job.reason, dict(job.lost))
                assert self.endings.setdefault(number, ending) == ending

    @invariant()
    def a_job_that_everybody_has_left_does_not_run(self) -> None:
        assert not any(
            job.state == "running" and len(job.left) == job.workers for job in self.table.jobs.values()
        )

    @invariant()
    def leases_belong_to_jobs_that_hold_them_and_to_nobody_else(self) -> None:
        for name, pool in self.table.pools.items():
            held = [
                job.leases[name]
                for job in self.table.jobs.values()
                if job.holds_resources and name in job.leases
            ]
            assert pool.leases == tuple(sorted(held, key=lambda lease: lease.base))
        for job in self.table.jobs.values():
            assert job.holds_resources or job.ended
            assert job.leases.keys() == (job.tree.by_name.keys() if job.servers is None else set())
            assert all(lease.size == 2 * job.slots for lease in job.leases.values())

    @invariant()
    def what_is_in_a_switch_belongs_to_a_job_that_still_holds_its_lease(self) -> None:
        mine = {
            placed
            for job in self.table.jobs.values()
            if job.holds_resources and job.entries is not None
            for placed in in_stages(job.entries)
        }
        assert self.entries <= mine
        assert FLOOD_GROUP not in {job.group for job in self.table.jobs.values()}

    @invariant()
    def a_running_job_is_complete_and_installed(self) -> None:
        for job in self.table.jobs.values():
            if job.state == "running" and job.tree.switches:
                assert len(job.members) == job.workers
                assert job.entries is not None
                assert job.entries.keys() == job.tree.by_name.keys()
                assert set(in_stages(job.entries)) <= self.entries

    @invariant()
    def the_number_of_remembered_jobs_is_bounded_after_a_tick(self) -> None:
        self.table.tick(self.now)
        assert sum(not job.holds_resources for job in self.table.jobs.values()) <= 3

    def teardown(self) -> None:
        """Once every job has ended and the switch has carried out all effects, nothing is left."""
        for number in list(self.table.jobs):
            self.table.end(number, self.now)
        for _ in range(3):
            while self.table.effects:
                self.carry_out()
            self.now += 1.0
            self.table.tick(self.now)
        assert self.entries == set()
        assert all(pool.free == pool.size for pool in self.table.pools.values())
        assert self.table.installed() == {}
        self.now += POLICY.keep_s
        self.table.tick(self.now)
        assert self.table.jobs == {}
