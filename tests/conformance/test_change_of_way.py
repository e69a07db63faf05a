# SPDX-License-Identifier: Apache-2.0
"""A job that goes on another way (protocol 6.4) loses no sum: the way dies, or is only suspected, at any packet; ranks
freeze, fill in and go on at different times; packets of each way still arrive on the next. Every result is the exact
sum, bit for bit, at every rank."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg._core import Engine, JobShape
from inagg_simulator.change_of_way import ChangeOfWay, Way, Ways
from inagg_simulator.slot_rules.packets import age
from inagg_simulator.virtual_network import EPOCH, JOB, Impairment, Network, make_aggregator, make_workers
from tests.conformance.examples import (
    WORDS,
    Collective,
    Example,
    check_collectives,
    collectives,
    impairments,
)
from tests.conformance.jobs import P4Jobs, PlainJobs, RoundJobs, ServedJobs
from tests.examples import at_most

examples = st.builds(
    Example,
    workers=st.integers(1, 5),
    slots=st.sampled_from([1, 2, 4, 8]),
    collectives=st.lists(collectives, min_size=1, max_size=3),
    impairment=impairments((0.0, 0.05, 0.2)),
    first_chunk=st.sampled_from([0, 0, 2**31 - 3, 2**32 - 5]),
    seed=st.integers(0, 2**32 - 1),
    lateness=st.sampled_from([0.0, 0.002]),
)
# Of each way but the last: after how many packets ranks freeze, whether it is dead then, how long a step takes at most.
changes = st.lists(
    st.tuples(st.integers(0, 200), st.booleans(), st.sampled_from([0.0, 0.002, 0.2])), min_size=1, max_size=4
)


class Runs:
    """Examples, one after another: each begins on the first kind of way, and goes on on the next ones."""

    def __init__(self) -> None:
        self.p4, self.rounds = P4Jobs(), RoundJobs()
        self._kinds: list[PlainJobs | P4Jobs | ServedJobs | RoundJobs] = [
            PlainJobs(),
            self.p4,
            *map(ServedJobs, (1, 2, 3)),
            self.rounds,
        ]
        self.only_rounds = False  # but for first ways
        self._epochs = count(1)
        self.seen: Counter[str] = Counter()

    def way(self, example: Example, draws: random.Random, next_chunks: list[int], *, first: bool) -> Way:
        """A new way. It knows nothing of the job's chunks so far, but for the first one of a job that begins late, and
        where ranks sum themselves the next ones."""
        jobs = self.rounds if self.only_rounds and not first else draws.choice(self._kinds)
        self.rounds.next_chunks = next_chunks
        if jobs is self.p4:
            self.p4.end()  # it restarts, or another job was on it
        epoch = next(self._epochs)
        first_chunk = example.first_chunk if first else 0
        number = 1 + epoch % 3
        begun = Example(
            example.workers,
            example.slots,
            [],
            example.impairment,
            first_chunk,
            example.seed,
            example.lateness,
        )
        ways = jobs.ways(example) if isinstance(jobs, ServedJobs) else 1
        shape = JobShape(
            number=number,
            epoch=epoch,
            slots=example.slots,
            words=WORDS,
            workers=example.workers,
            first_chunk=first_chunk,
        )
        apart = isinstance(jobs, ServedJobs | RoundJobs)
        home = 0 if isinstance(jobs, RoundJobs) else None
        return Way(jobs.start(number, epoch, begun), shape, epoch, ways, apart, home)

    def run(self, example: Example, faults: list[tuple[int, bool, float]]) -> None:
        draws = random.Random(example.seed)
        begin = example.first_chunk
        chunks = [begin + (slot - begin) % example.slots & 2**32 - 1 for slot in range(example.slots)]
        first = self.way(example, draws, chunks, first=True)
        left = list(faults)

        def suspect(packets: int) -> None:
            if not left or packets != left[0][0]:
                return
            _, dead, longest = left.pop(0)
            if dead:
                ways.kill()
            change = ChangeOfWay(
                network,
                ways,
                lambda: self.way(example, draws, newest(engines), first=False),
                lambda: draws.uniform(0, longest),
                begun[-1] if begun else None,
            )
            change.begin()
            begun.append(change)

        begun: list[ChangeOfWay] = []
        ways = Ways(first, suspect)
        engines = [
            Engine(first.job, rank=rank, ways=first.ways, ways_apart=first.ways_apart, home=first.home)
            for rank in range(example.workers)
        ]
        network = Network(engines, ways, example.impairment, draws)
        try:
            check_collectives(network, example)
        finally:
            self.p4.end()
        self.seen["changes"] += len(begun)
        self.seen["filled"] += sum(change.filled for change in begun)


def newest(engines: list[Engine]) -> list[int]:
    """By slot, the newest of the chunks that frozen ranks complete next."""
    chunks = engines[0].next_chunks()
    for engine in engines:
        chunks = [
            max(pair, key=lambda one: age(one, pair[0]))
            for pair in zip(chunks, engine.next_chunks(), strict=True)
        ]
    return chunks


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    runs.p4.program.close()


def test_a_job_that_changes_its_way_loses_no_sum(runs: Runs) -> None:
    @settings(max_examples=at_most(2000, explored=20000))
    @given(example=examples, faults=changes)
    def run(example: Example, faults: list[tuple[int, bool, float]]) -> None:
        runs.run(example, faults)

    run()
    assert runs.seen["changes"] > 500
    assert runs.seen["filled"] > 50


@pytest.mark.parametrize("at", range(0, 120, 3))
def test_a_way_dies_in_every_phase_of_a_sum(runs: Runs, at: int) -> None:
    """Exponents, data, special blocks, outliers, the last block, and between sums."""
    work = [
        Collective(64 * 6 + 3, 16, True, True),
        Collective(40, 32, False, False),
        Collective(64 * 4, 8, False, True),
    ]
    runs.run(Example(3, 4, work, Impairment(jitter=0.001), 0, seed=at), [(at, True, 0.01)])


@pytest.mark.parametrize("at", range(0, 120, 3))
def test_ranks_sum_themselves_from_every_phase_on(runs: Runs, at: int) -> None:
    """The same work. The rounds end soon after the last sending, and few of them agree on nothing."""
    work = [
        Collective(64 * 6 + 3, 16, True, True),
        Collective(40, 32, False, False),
        Collective(64 * 4, 8, False, True),
    ]
    runs.only_rounds, runs.rounds.made = True, []
    try:
        faults = [(at, True, 0.01), (20, False, 0.01)]
        runs.run(Example(3, 4, work, Impairment(jitter=0.001), 0, seed=at), faults)
    finally:
        runs.only_rounds = False
    made = runs.rounds.made
    assert sum(one.fruitless for one in made) <= sum(one.rounds for one in made) / 2 + 3 * len(made)


def frozen_pair() -> list[Engine]:
    """Two ranks with a sum under way: rank 0 has the result of its first chunk, rank 1 lacks it."""
    engines = make_workers(2, slots=2, words=WORDS)
    switch = make_aggregator(2, slots=2, words=WORDS)
    for rank, engine in enumerate(engines):
        engine.submit(np.full(64, rank + 1, np.float32))
        for datagram in engine.to_send(0.0):
            for to, result in switch.process(rank, datagram):
                if to == 0:
                    engines[0].receive(result, 0.001)
    for engine in engines:
        engine.freeze()
    return engines


def shape(epoch: int = EPOCH + 1, slots: int = 2) -> JobShape:
    return JobShape(number=JOB, epoch=epoch, slots=slots, words=WORDS, workers=2)


def test_a_frozen_engine_neither_sends_nor_takes_results() -> None:
    ahead, behind = frozen_pair()
    assert ahead.next_chunks() == [2, 1]
    assert behind.next_chunks() == [0, 1]
    behind.receive(ahead.kept(0), 0.002)
    assert behind.next_chunks() == [0, 1]
    assert behind.to_send(10.0) == []
    assert behind.deadline() is None
    behind.submit(np.ones(3, np.float32), now=10.0)
    assert behind.to_send(10.0) == []


def test_a_rank_that_is_behind_takes_another_ranks_result_once() -> None:
    ahead, behind = frozen_pair()
    result = ahead.kept(0)
    damaged = result[:-1] + bytes([result[-1] ^ 1])
    assert not behind.fill(damaged, 1.0)
    assert not behind.fill(b"", 1.0)
    assert behind.fill(result, 1.0)
    assert not behind.fill(result, 1.0)
    assert not ahead.fill(result, 1.0)
    assert behind.next_chunks() == ahead.next_chunks()


def test_what_is_outstanding_leaves_again_in_the_new_epoch() -> None:
    ahead, behind = frozen_pair()
    before = [*ahead.next_chunks()]
    behind.fill(ahead.kept(0), 1.0)
    for engine in (ahead, behind):
        engine.go_on(shape(), rank=(ahead, behind).index(engine), now=2.0)
    switch = make_aggregator(2, slots=2, words=WORDS, epoch=EPOCH + 1)
    network = Network([ahead, behind], switch, now=2.0)
    network.run(1, within=3.0)
    assert before == [2, 1]
    assert ahead.failure is behind.failure is None


def test_an_engine_goes_on_only_frozen_and_with_the_same_slots() -> None:
    ahead, _ = frozen_pair()
    with pytest.raises(ValueError, match="same slots"):
        ahead.go_on(shape(slots=4), rank=0)
    with pytest.raises(ValueError, match="same slots"):
        ahead.go_on(shape(), rank=1)
    ahead.go_on(shape(), rank=0)
    with pytest.raises(ValueError, match="only a frozen engine"):
        ahead.go_on(shape(), rank=0)


def test_a_failed_engine_does_not_go_on() -> None:
    ahead, behind = frozen_pair()
    behind.fail("it has left")
    assert not behind.fill(ahead.kept(0), 1.0)
    with pytest.raises(ValueError, match="only a frozen engine"):
        behind.go_on(shape(), rank=1)
