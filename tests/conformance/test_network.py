# SPDX-License-Identifier: Apache-2.0
"""Exactly once: real engines around a switch, on a network that loses, doubles, reorders and delays packets at will,
and still holds packets of the job before. Every result is the exact sum, bit for bit, at every rank.

The tests run with the reference switch, with the P4 program and with aggregation servers. One switch serves all
examples. Each example is a new job on the same slots, so it finds the state that the last job left.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_simulator import p4_switch, reference
from inagg_simulator.fabric import Switch
from inagg_simulator.recovery import measure
from inagg_simulator.virtual_network import Impairment, Network, make_workers
from tests.conformance.examples import (
    WORDS,
    Collective,
    Example,
    check_collectives,
    collectives,
    impairments,
    without_loss,
)
from tests.conformance.jobs import P4Jobs, PlainJobs, ServedJobs
from tests.examples import at_most

examples = st.builds(
    Example,
    workers=st.integers(1, 8),
    slots=st.sampled_from([1, 2, 4, 8]),
    collectives=st.lists(collectives, min_size=1, max_size=4),
    impairment=impairments(),
    first_chunk=st.sampled_from([0, 0, 2**31 - 3, 2**32 - 5]),
    seed=st.integers(0, 2**32 - 1),
    lateness=st.sampled_from([0.0, 0.0, 0.002, 0.05]),
)


@dataclass
class LateMail:
    """Delivers packets of the job before, from any rank, between those of this one. Checks that a contribution that is
    sent again is the same packet."""

    switch: Switch
    draws: random.Random
    old: list[tuple[int, bytes]]
    workers: int
    seen: list[tuple[int, bytes]] = field(default_factory=list)
    first: dict[tuple[int, int], bytes] = field(default_factory=dict)  # by rank and chunk

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        self.seen.append((rank, datagram))
        header = reference.decode(datagram)
        if not header.kind & reference.QUERY:
            assert self.first.setdefault((rank, header.chunk), datagram) == datagram
        if self.old and self.draws.random() < 0.3:
            late_rank, late = self.draws.choice(self.old)
            if late_rank < self.workers:
                assert self.switch.process(late_rank, late) == []
        return self.switch.process(rank, datagram)


@dataclass
class Succession:
    """Runs examples as one job after another. Each job also gets packets of the one before."""

    jobs: PlainJobs | P4Jobs | ServedJobs
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    old: list[tuple[int, bytes]] = field(default_factory=list)

    def run(self, example: Example) -> None:
        number = next(self.numbers)
        job, epoch = 1 + number % 2, number
        draws = random.Random(example.seed)
        switch = LateMail(self.jobs.start(job, epoch, example), draws, self.old, example.workers)
        try:
            engines = make_workers(
                example.workers,
                slots=example.slots,
                words=WORDS,
                job=job,
                epoch=epoch,
                first_chunk=example.first_chunk,
                ways=self.jobs.ways(example) if isinstance(self.jobs, ServedJobs) else 1,
                ways_apart=isinstance(self.jobs, ServedJobs),
            )
            check_collectives(Network(engines, switch, example.impairment, draws), example)
        finally:
            self.jobs.end()
            self.old = switch.seen[-200:]


@pytest.fixture(
    scope="module",
    params=[
        PlainJobs,
        P4Jobs,
        partial(P4Jobs, multicast=True),
        *(partial(ServedJobs, k) for k in (1, 2, 3, 8)),
    ],
    ids=["reference", "P4 program", "P4 program, to the group", *(f"{k} servers" for k in (1, 2, 3, 8))],
)
def succession(request: pytest.FixtureRequest) -> Iterator[Succession]:
    jobs = request.param()
    yield Succession(jobs)
    if isinstance(jobs, P4Jobs):
        jobs.program.close()


def test_every_sum_is_exact_at_every_rank(succession: Succession) -> None:
    # The program takes 20 times as long as what it is compared with, which tells as much of the engines. That it does
    # the same is what test_vectors.py and tests/fuzz are for.
    most = at_most(50 if isinstance(succession.jobs, P4Jobs) else 200, explored=1000)

    @settings(max_examples=most)
    @given(example=examples)
    def run(example: Example) -> None:
        succession.run(example)

    run()


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.2])
def test_loss_each_way_is_made_good_in_bounded_time(succession: Succession, loss: float) -> None:
    work = [Collective(64 * 100, 32, False, False), Collective(1000, 16, True, True, devices=0b0110)]
    succession.run(Example(4, 8, work, Impairment(loss=loss, jitter=0.0005), 0, seed=1))


def test_sixty_four_workers(succession: Succession) -> None:
    work = [Collective(200, 16, False, True), Collective(100, 32, True, False)]
    succession.run(Example(64, 2, work, Impairment(loss=0.01, jitter=0.001), 2**32 - 5, seed=1))


def test_the_p4_program_counts_every_packet() -> None:
    jobs = P4Jobs()
    outcomes = p4_switch.OUTCOMES
    with jobs.program:
        work = [Collective(64 * 20, 32, False, False)]
        Succession(jobs).run(Example(4, 4, work, Impairment(), 0, seed=1))
        totals = {
            name: sum(jobs.program.counter(name)[rank + 1][0] for rank in range(4)) for name in outcomes
        }
    # 4 EXPONENT and 20 DATA chunks from four workers.
    assert totals == dict.fromkeys(outcomes, 0) | {"started": 24, "added": 72, "completed": 24}


# All of them with 2,000 blocks, which takes minutes for 64 workers: python -m inagg_simulator.recovery.
@pytest.mark.parametrize(("workers", "blocks"), [("8", 2000), ("16", 1000), ("64", 50)])
def test_losses_cost_little_with_many_workers(workers: str, blocks: int) -> None:
    lossless = without_loss(workers, blocks)
    assert (lossless.contributions, lossless.queries) == (1, 0)
    lossy = measure(workers, 0.05, blocks)
    # A sum of few blocks ends with the round trips that repair the last one.
    assert lossy.seconds < max(2 * lossless.seconds, 0.1)
    # A packet lost in either direction costs a sending.
    assert lossy.contributions < 1 / 0.95**2 + 0.05
    assert lossy.contributions + lossy.queries < 1 / 0.95**2 + 1.5
    assert lossy.sent_bytes < 1.2 * lossless.sent_bytes


@pytest.mark.parametrize("workers", ["8", "16"])
def test_a_fifth_lost_each_way_is_made_good(workers: str) -> None:
    lossless, lossy = without_loss(workers, 500), measure(workers, 0.2, 500)
    assert lossy.seconds < 6 * lossless.seconds
    assert lossy.contributions < 1 / 0.8**2 + 0.1
    assert lossy.sent_bytes < 1.75 * lossless.sent_bytes
