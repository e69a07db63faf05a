# SPDX-License-Identifier: Apache-2.0
"""Exactly once on shared slots: engines of workers, the compiled P4 program and servers, two jobs that collide, on a
network that loses, doubles, reorders and delays packets. Every result is the exact sum, bit for bit, at every rank."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg._core import Engine
from inagg_switch.switch import Switch
from tests.conformance import p4_switch, reference
from tests.conformance.p4_shared import P4SharedSwitch
from tests.conformance.shared_fabric import SharedFabric, SharedJob
from tests.conformance.test_network import (
    BOUND,
    Collective,
    check_idle,
    check_sum,
    collectives,
    impairments,
    make_inputs,
)
from tests.conformance.virtual_network import Impairment, Network, make_workers

WORDS = 1
SLOT_VERSIONS = 128


@dataclass(frozen=True)
class Example:
    """size: of the shared slots. seed: of the network, and of the workers' data."""

    jobs: tuple[SharedJob, ...]
    collectives: tuple[Collective, ...]
    impairment: Impairment
    size: int
    expiry_us: int
    seed: int
    lateness: float = 0.0


@st.composite
def jobs(draw: st.DrawFn) -> tuple[SharedJob, ...]:
    """One or two jobs, whose chunks meet in the same slots."""
    made = []
    for number in range(draw(st.integers(1, 2))):
        servers = draw(st.sampled_from([1, 1, 2, 4]))
        made.append(
            SharedJob(
                job=number + 1,
                epoch=1,
                workers=draw(st.integers(1, 4)),
                slots=draw(st.sampled_from([4, 8])),
                servers=servers,
                priority=draw(st.sampled_from([0, 0, 1])),
                offset=draw(st.integers(0, 3)),
                first_chunk=draw(st.sampled_from([0, 0, 2**32 - 8])),
            )
        )
    return tuple(made)


examples = st.builds(
    Example,
    jobs=jobs(),
    collectives=st.lists(collectives.map(lambda one: replace(one, devices=0)), min_size=1, max_size=3).map(
        tuple
    ),
    impairment=impairments,
    size=st.sampled_from([1, 2, 4, 64]),
    expiry_us=st.sampled_from([0, 500, 20_000, 2**40]),
    seed=st.integers(0, 2**32 - 1),
    lateness=st.sampled_from([0.0, 0.0, 0.002, 0.05]),
)


@dataclass
class Sharing:
    """Runs examples on one program, one after another: each finds the slots as the last one left them."""

    program: Switch
    epochs: Iterator[int] = field(default_factory=lambda: count(1))

    def run(self, example: Example) -> tuple[SharedFabric, P4SharedSwitch]:
        made = tuple(replace(one, epoch=next(self.epochs)) for one in example.jobs)
        switch = P4SharedSwitch(self.program, made, 0, example.size, example.expiry_us)
        fabric = SharedFabric(switch, made, WORDS)
        try:
            run_jobs(fabric, switch, example, made)
        finally:
            switch.remove()
        return fabric, switch


def run_jobs(
    fabric: SharedFabric, switch: P4SharedSwitch, example: Example, made: tuple[SharedJob, ...]
) -> None:
    engines = [
        engine
        for one in made
        for engine in make_workers(
            one.workers,
            slots=one.slots,
            words=WORDS,
            job=one.job,
            epoch=one.epoch,
            first_chunk=one.first_chunk,
            ways=one.servers,
        )
    ]
    network = Network(engines, fabric, example.impairment, random.Random(example.seed))
    switch.clock = lambda: network.now
    draws = np.random.default_rng(example.seed)
    inputs: list[list[NDArray[np.float32]]] = []  # by job and collective
    outputs: list[list[NDArray[np.float32]]] = []

    def submit(job: int, index: int, rank: int, engine: Engine) -> None:
        how = example.collectives[index]
        array = outputs[job][index][rank]
        engine.submit(array, lane_bits=how.lane_bits, average=how.average, now=network.now)

    first = 0
    for job, one in enumerate(made):
        inputs.append([make_inputs(how, one.workers, draws) for how in example.collectives])
        outputs.append([array.copy() for array in inputs[job]])
        for rank in range(one.workers):
            times = network.now + np.cumsum(draws.uniform(0, example.lateness, len(example.collectives)))
            for index, time in enumerate(times):
                network.plan(time, first + rank, partial(submit, job, index, rank))
        first += one.workers
    network.run(len(example.collectives), within=BOUND)
    network.drain()
    for job in range(len(made)):
        for how, array, output in zip(example.collectives, inputs[job], outputs[job], strict=True):
            check_sum(how, array, output)
    check_idle(network)


@pytest.fixture(scope="module")
def sharing() -> Iterator[Sharing]:
    with p4_switch.load(WORDS, SLOT_VERSIONS) as program:
        yield Sharing(program)


@pytest.fixture
def fresh() -> Iterator[Sharing]:
    """A switch with empty slots."""
    with p4_switch.load(WORDS, SLOT_VERSIONS) as program:
        yield Sharing(program)


@settings(max_examples=150)
@given(example=examples)
def test_every_sum_is_exact_at_every_rank(sharing: Sharing, example: Example) -> None:
    sharing.run(example)


ONE_JOB = (SharedJob(job=1, epoch=1, workers=4, slots=64, servers=4),)
LARGE = (Collective(64 * 200, 32, False, False),)


def test_with_room_for_a_window_the_switch_sums_everything(fresh: Sharing) -> None:
    fabric, switch = fresh.run(Example(ONE_JOB, LARGE, Impairment(), 64, 20_000, seed=1))
    assert switch.counters["slot_taken"] == switch.counters["slot_combined"] == 200
    assert switch.counters["slot_added"] == 2 * 200
    # The servers get each sum once, as the result's only contribution, and each exponent four times.
    counts = fabric.counts(0)
    assert (counts["started"], counts["added"], counts["completed"]) == (264, 3 * 64, 264)


def test_two_jobs_in_a_pool_for_one_are_right_and_partly_combined(fresh: Sharing) -> None:
    two = tuple(replace(ONE_JOB[0], job=number) for number in (1, 2))
    fabric, switch = fresh.run(
        Example(two, LARGE, Impairment(jitter=0.0005, rate=12.5e6), 32, 20_000, seed=1)
    )
    assert switch.counters["slot_collided"] > 0
    assert switch.counters["slot_combined"] > 40
    assert all(fabric.counts(job)["completed"] == 264 for job in (0, 1))


def test_a_job_of_a_higher_priority_gets_its_slots(fresh: Sharing) -> None:
    low, high = replace(ONE_JOB[0], job=1), replace(ONE_JOB[0], job=2, priority=1)
    example = Example((low, high), LARGE, Impairment(jitter=0.0005, rate=12.5e6), 16, 2**40, seed=1)
    fabric, switch = fresh.run(example)
    assert switch.counters["slot_evicted"] > 0
    added = [fabric.counts(job)["added"] for job in (0, 1)]
    assert added[1] < added[0]


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.2])
def test_loss_each_way_is_made_good_in_bounded_time(fresh: Sharing, loss: float) -> None:
    work = (Collective(64 * 40, 32, False, False), Collective(1000, 16, True, True))
    fresh.run(Example(ONE_JOB, work, Impairment(loss=loss, jitter=0.0005), 16, 20_000, seed=1))


def test_a_late_rank_makes_nobody_send_twice(fresh: Sharing) -> None:
    """Exponents wait for it at the servers, which say so."""
    fabric, switch = fresh.run(Example(ONE_JOB, LARGE, Impairment(), 64, 20_000, seed=2, lateness=0.2))
    assert switch.counters["slot_flushed"] == 0
    assert fabric.counts(0)["duplicate_pending"] == 0


def test_an_answer_does_not_pass_the_switch(fresh: Sharing) -> None:
    switch = P4SharedSwitch(fresh.program, ONE_JOB)
    answer = reference.Header(
        version=reference.VERSION,
        kind=reference.DATA | reference.QUERY | reference.RESULT,
        rank=0,
        job=1,
        flags=reference.AGAIN,
        exponent=0,
        flags_check=reference.AGAIN,
        exponent_check=341,
        epoch=1,
        chunk=0,
        checksum=7,
    )
    assert switch.down(0, 0, answer.encode()) == []
    assert switch.counters == {"answer_unexpected": 1}
