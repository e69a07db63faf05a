# SPDX-License-Identifier: Apache-2.0
"""Invariants of the job table under any sequence of events, in virtual time."""

import math
from collections.abc import Callable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inagg_contract.constants import FLOOD_GROUP
from inagg_controller.errors import RequestError, UnavailableError
from inagg_controller.jobs.job import Effect, Install, Regroup
from inagg_controller.switch.entries import Entity, TableEntry
from tests.controller.test_jobs import POLICY, member, new_table

INDEX = st.integers(0, 3)


def entities_of(effect: Effect) -> list[Entity]:
    if isinstance(effect, Regroup):
        return [effect.group]
    return [entity for stage in effect.entries.stages for entity in stage]


def key(entity: Entity) -> object:
    """What the switch knows the entity by."""
    return (entity.table, entity.match) if isinstance(entity, TableEntry) else entity.group


class Life(RuleBasedStateMachine):
    """Requests, time, effects and failures in any order, with a switch that carries out the effects."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.table = new_table(max_members=10, max_ended=3)
        self.entries: set[Entity] = set()
        self.epochs: list[int] = []
        self.endings: dict[int, tuple[str, str | None, dict[int, str]]] = {}

    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 8, 16, 32, 64]))
    def create(self, workers: int, slots: int) -> None:
        before = self.picture()
        try:
            job = self.table.create(workers, slots, "", self.now)
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
        self.act(self.table.register, self.pick(index), member(rank, host), self.now)

    @rule(index=INDEX)
    def register_all(self, index: int) -> None:
        number = self.pick(index)
        for rank in range(4):
            self.act(self.table.register, number, member(rank), self.now)

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
        entities = entities_of(effect)
        if isinstance(effect, Install):
            assert not {key(entity) for entity in entities} & {key(entity) for entity in self.entries}
            self.entries |= set(entities)
        else:
            self.remove(entities)
            self.entries |= set(entities) if isinstance(effect, Regroup) else set()
        self.table.done(effect, self.now)

    def remove(self, entities: Sequence[Entity]) -> None:
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

    @rule(in_flight=st.booleans())
    def restart_switch(self, in_flight: bool) -> None:
        effect = self.table.effects.popleft() if in_flight and self.table.effects else None
        self.table.switch_lost(self.now)
        if effect is not None:
            self.table.done(effect, self.now)
        self.entries.clear()
        assert not any(job.state == "running" for job in self.table.jobs.values())
        self.table.switch_connected()

    def picture(self) -> object:
        table = self.table
        jobs = {
            number: (job.state, dict(job.members), set(job.left), dict(job.lost), job.entries, job.removing)
            for number, job in table.jobs.items()
        }
        return jobs, table.pool.leases, list(table.effects), table.version

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
        held = sorted(
            (job.lease for job in self.table.jobs.values() if job.holds_resources),
            key=lambda lease: lease.base,
        )
        assert self.table.pool.leases == tuple(held)
        for job in self.table.jobs.values():
            assert job.holds_resources or job.ended
            assert job.lease.size == 2 * job.slots

    @invariant()
    def what_is_in_the_switch_belongs_to_a_job_that_still_holds_its_lease(self) -> None:
        mine = {
            entity
            for job in self.table.jobs.values()
            if job.holds_resources and job.entries is not None
            for stage in job.entries.stages
            for entity in stage
        }
        assert self.entries <= mine
        assert FLOOD_GROUP not in {job.group for job in self.table.jobs.values()}

    @invariant()
    def a_running_job_is_complete_and_installed(self) -> None:
        for job in self.table.jobs.values():
            if job.state == "running":
                assert len(job.members) == job.workers
                assert job.entries is not None
                assert {entity for stage in job.entries.stages for entity in stage} <= self.entries

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
        assert self.table.pool.free == 64
        assert self.table.installed() == {}
        self.now += POLICY.keep_s
        self.table.tick(self.now)
        assert self.table.jobs == {}


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=40)
