# SPDX-License-Identifier: Apache-2.0
"""Exactly once on shared slots: engines of workers, compiled P4 programs and servers, two jobs that collide, on one
switch and on trees, on a network that loses, doubles, reorders and delays packets. Every result is the exact sum, bit
for bit, at every rank."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg._core import Engine
from inagg_contract.constants import ECN_CAPABLE, ECN_CONGESTED, FLAG_CONGESTED, INAGG_PORT
from inagg_contract.sizes import way_of
from inagg_controller.jobs.epochs import KEY_BYTES, Epochs
from inagg_simulator import p4_switch, reference
from inagg_simulator.p4_switch import Station, headers
from inagg_simulator.shared_fabric import Pool, SharedFabric, SharedJob, unwrap
from inagg_simulator.virtual_network import Impairment, Network, make_workers
from inagg_switch.switch import Switch
from tests.conformance.examples import (
    BOUND,
    Collective,
    check_idle,
    check_sum,
    collectives,
    impairments,
    make_inputs,
)
from tests.switch.inagg.packets import with_tos

WORDS = 1
SLOT_VERSIONS = 128


@dataclass(frozen=True)
class Example:
    """above, servers: as of SharedFabric. seed: of the network, and of the workers' data."""

    jobs: tuple[SharedJob, ...]
    collectives: tuple[Collective, ...]
    impairment: Impairment
    pool: Pool
    seed: int
    above: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    lateness: float = 0.0


# The switch above each but the first: one switch, two leaves, three, and one below another below another.
NETWORKS = ((), (), (0, 0), (0, 0, 0), (0, 1))


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """One or two jobs, whose chunks meet in the same slots."""
    above = draw(st.sampled_from(NETWORKS))
    switch = st.integers(0, len(above))
    jobs = st.builds(
        SharedJob,
        at=st.lists(switch, min_size=1, max_size=5).map(tuple),
        slots=st.sampled_from([4, 8]),
        colocated=st.booleans(),
        priority=st.sampled_from([0, 0, 1]),
        first_chunk=st.sampled_from([0, 0, 2**32 - 8]),
    )
    return Example(
        jobs=tuple(draw(st.lists(jobs, min_size=1, max_size=2))),
        collectives=tuple(
            draw(st.lists(collectives.map(lambda one: replace(one, devices=0)), min_size=1, max_size=3))
        ),
        # A packet and its answer cross four links of a star, and up to eight of a tree.
        impairment=draw(impairments([0.0, 0.01, 0.05, 0.1 if above else 0.2])),
        pool=Pool(
            size=draw(st.sampled_from([1, 2, 4, 64])),
            slot_versions=SLOT_VERSIONS,
            expiry_us=draw(st.sampled_from([0, 500, 20_000, 2**40])),
        ),
        seed=draw(st.integers(0, 2**32 - 1)),
        above=above,
        servers=tuple(draw(st.lists(switch, max_size=4))),
        lateness=draw(st.sampled_from([0.0, 0.0, 0.002, 0.05])),
    )


@dataclass
class Sharing:
    """Runs examples on the same programs, one after another: each finds the slots as the last one left them."""

    programs: list[Switch] = field(default_factory=list)
    epochs: Epochs = field(default_factory=lambda: Epochs(bytes(KEY_BYTES)))

    def start(self, example: Example) -> SharedFabric:
        """The switches with the jobs' entries."""
        while len(self.programs) <= len(example.above):
            self.programs.append(p4_switch.load(WORDS, SLOT_VERSIONS))
        return SharedFabric(
            self.programs,
            example.above,
            example.jobs,
            example.pool,
            servers=example.servers,
            epochs=self.epochs,
        )

    def run(self, example: Example) -> SharedFabric:
        fabric = self.start(example)
        try:
            run_jobs(fabric, example)
        finally:
            fabric.remove()
        return fabric

    def close(self) -> None:
        for program in self.programs:
            program.close()


def run_jobs(fabric: SharedFabric, example: Example) -> None:
    engines = []
    for made, one in zip(fabric.jobs, example.jobs, strict=True):
        assert made.placement.servers is not None
        engines += make_workers(
            one.workers,
            slots=one.slots,
            words=WORDS,
            job=made.id,
            epoch=made.placement.epoch,
            members=[made.placement.tree.number_of(rank) for rank in range(one.workers)],
            first_chunk=one.first_chunk,
            ways=made.placement.servers.count,
            homes=made.placement.homes,
        )
    network = Network(engines, fabric, example.impairment, random.Random(example.seed))
    fabric.clock = lambda: network.now
    draws = np.random.default_rng(example.seed)
    inputs: list[list[NDArray[np.float32]]] = []  # by job and collective
    outputs: list[list[NDArray[np.float32]]] = []

    def submit(job: int, index: int, rank: int, engine: Engine) -> None:
        how = example.collectives[index]
        array = outputs[job][index][rank]
        engine.submit(array, lane_bits=how.lane_bits, average=how.average, now=network.now)

    first = 0
    for job, one in enumerate(example.jobs):
        inputs.append([make_inputs(how, one.workers, draws) for how in example.collectives])
        outputs.append([array.copy() for array in inputs[job]])
        for rank in range(one.workers):
            times = network.now + np.cumsum(draws.uniform(0, example.lateness, len(example.collectives)))
            for index, time in enumerate(times):
                network.plan(time, first + rank, partial(submit, job, index, rank))
        first += one.workers
    network.run(len(example.collectives), within=BOUND)
    network.drain()
    for job in range(len(example.jobs)):
        for how, array, output in zip(example.collectives, inputs[job], outputs[job], strict=True):
            check_sum(how, array, output)
        # Each chunk has been counted once, whatever came twice or went on early.
        assert fabric.chunks(job).total() == sum(of == job for of, _ in fabric.summed)
    check_idle(network)


@pytest.fixture(scope="module")
def sharing() -> Iterator[Sharing]:
    made = Sharing()
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[Sharing]:
    """Switches with empty slots."""
    made = Sharing()
    yield made
    made.close()


@settings(max_examples=150)
@given(example=examples())
def test_every_sum_is_exact_at_every_rank(sharing: Sharing, example: Example) -> None:
    sharing.run(example)


ONE_JOB = SharedJob(at=(0,) * 4, slots=64)
LARGE = (Collective(64 * 200, 32, False, False),)
SLOW = Impairment(jitter=0.0005, rate=12.5e6)


def pool(size: int, expiry_us: int = 20_000) -> Pool:
    return Pool(size=size, slot_versions=SLOT_VERSIONS, expiry_us=expiry_us)


def test_with_room_for_a_window_the_switch_sums_everything(fresh: Sharing) -> None:
    fabric = fresh.run(Example((ONE_JOB,), LARGE, Impairment(), pool(64), seed=1))
    assert fabric.counter("slot_taken") == fabric.counter("slot_combined") == 200
    assert fabric.counter("slot_added") == 200
    # The servers get each sum once, and the contribution of the rank at home; and each exponent four times.
    counts = fabric.counts(0)
    assert (counts["started"], counts["added"], counts["completed"]) == (264, 200 + 3 * 64, 264)
    assert fabric.chunks(0) == {"switches": 200}


def test_a_rank_and_the_server_in_its_process_send_and_get_each_chunk_once(fresh: Sharing) -> None:
    """So a sum costs each link as much as in leased slots."""
    fabric = fresh.run(Example((ONE_JOB,), LARGE, Impairment(), pool(64), seed=1))
    for rank, server in zip(range(4), range(4, 8), strict=True):
        own = [chunk for chunk in range(64 + 200) if way_of(chunk, 64, 4) == rank]
        exponents = sum(chunk < 64 for chunk in own)
        assert fabric.packets[rank, True] == 264 - len(own)
        assert fabric.packets[server, True] == len(own)
        # Of an exponent the switch combines nothing.
        assert fabric.packets[server, False] == len(own) + 2 * exponents
        assert fabric.counter_at("result_sent", port=rank + 1) == 264 - len(own)
        assert fabric.counter_at("result_at_home", port=rank + 1) == len(own)


RACKS = SharedJob(at=(1, 1, 1, 2, 2, 2), slots=64)


@pytest.mark.parametrize("colocated", [True, False], ids=["colocated", "at the root"])
def test_every_switch_on_the_way_combines(fresh: Sharing, colocated: bool) -> None:
    job = replace(RACKS, colocated=colocated)
    example = Example((job,), LARGE, Impairment(), pool(64), seed=1, above=(0, 0), servers=(0, 0))
    fabric = fresh.run(example)
    for leaf in (1, 2):
        assert fabric.counter("slot_taken", leaf) == fabric.counter("slot_combined", leaf) == 200
    assert fabric.counter("slot_taken", 0) == fabric.counter("slot_combined", 0) == 200
    assert fabric.counter("slot_added", 0) == 0
    counts = fabric.counts(0)
    assert (counts["started"], counts["added"], counts["completed"]) == (264, 5 * 64, 264)
    assert fabric.chunks(0) == {"switches": 200}


def test_a_link_between_switches_carries_each_sum_once(fresh: Sharing) -> None:
    """And each result, and what the servers of the leaf get and send."""
    job = SharedJob(at=(1, 1, 2, 2), slots=64)
    fabric = fresh.run(Example((job,), LARGE, Impairment(), pool(64), seed=1, above=(0, 0)))
    for leaf, cable in enumerate((8, 9)):  # behind four workers and four servers
        own = [chunk for chunk in range(64 + 200) if way_of(chunk, 64, 4) // 2 == leaf]
        # Of an exponent no switch combines anything. Their chunks are the first.
        assert fabric.packets[cable, True] == 200 + 2 * 64 + len(own)
        assert fabric.packets[cable, False] == 200 + 64 + sum(4 if chunk < 64 else 1 for chunk in own)


def test_two_jobs_in_a_pool_for_one_are_right_and_partly_combined(fresh: Sharing) -> None:
    fabric = fresh.run(Example((ONE_JOB, ONE_JOB), LARGE, SLOW, pool(32), seed=1))
    assert fabric.counter("slot_collided") > 0
    assert fabric.counter("slot_combined") > 40
    assert all(fabric.counts(job)["completed"] == 264 for job in (0, 1))
    chunks = fabric.chunks(0) + fabric.chunks(1)
    assert chunks.total() == 400
    assert chunks["switches"] == fabric.counter("slot_combined")


def test_two_jobs_in_a_pool_for_one_on_a_tree(fresh: Sharing) -> None:
    fabric = fresh.run(Example((RACKS, RACKS), LARGE, SLOW, pool(32), seed=1, above=(0, 0)))
    for switch in range(3):
        assert fabric.counter("slot_collided", switch) > 0
        assert fabric.counter("slot_combined", switch) > 40
    assert all(fabric.counts(job)["completed"] == 264 for job in (0, 1))
    chunks = fabric.chunks(0) + fabric.chunks(1)
    assert chunks.total() == 400
    assert 0 < chunks["switches"] <= fabric.counter("slot_combined", 0)
    assert chunks["both"] > 0


def test_a_job_of_a_higher_priority_gets_its_slots(fresh: Sharing) -> None:
    high = replace(ONE_JOB, priority=1)
    fabric = fresh.run(Example((ONE_JOB, high), LARGE, SLOW, pool(16, 2**40), seed=1))
    assert fabric.counter("slot_evicted") > 0
    assert +fabric.displaced == {(0, 0, False): fabric.counter("slot_evicted")}
    assert fabric.chunks(0)["both"] > 0
    assert fabric.chunks(1)["switches"] > fabric.chunks(0)["switches"]
    added = [fabric.counts(job)["added"] for job in (0, 1)]
    assert added[1] < added[0]


def test_what_expires_is_counted_for_the_job_that_had_the_slot_at_each_switch(fresh: Sharing) -> None:
    impairment = replace(SLOW, loss=0.1)
    fabric = fresh.run(Example((RACKS, RACKS), LARGE, impairment, pool(16, 2_000), seed=1, above=(0, 0)))
    for switch in range(3):
        expired = [fabric.displaced[job, switch, True] for job in (0, 1)]
        assert sum(expired) == fabric.counter("slot_expired", switch)
        assert all(expired)
        assert not any(fabric.displaced[job, switch, False] for job in (0, 1))


@pytest.mark.parametrize("job", [ONE_JOB, RACKS], ids=["star", "tree"])
@pytest.mark.parametrize("loss", [0.01, 0.05, 0.2])
def test_loss_each_way_is_made_good_in_bounded_time(fresh: Sharing, job: SharedJob, loss: float) -> None:
    work = (Collective(64 * 40, 32, False, False), Collective(1000, 16, True, True))
    impairment = Impairment(loss=loss, jitter=0.0005)
    fresh.run(Example((job,), work, impairment, pool(16), seed=1, above=(0, 0)))


@pytest.mark.parametrize("job", [ONE_JOB, RACKS], ids=["star", "tree"])
def test_a_late_rank_makes_nobody_send_twice(fresh: Sharing, job: SharedJob) -> None:
    """Exponents wait for it at the servers, which say so."""
    fabric = fresh.run(Example((job,), LARGE, Impairment(), pool(64), seed=2, above=(0, 0), lateness=0.2))
    assert [fabric.counter("slot_flushed", switch) for switch in range(3)] == [0, 0, 0]
    assert fabric.counts(0)["duplicate_pending"] == 0


def first_epochs() -> tuple[int, int]:
    """Those of the first two jobs of a fresh `Sharing`."""
    epochs = Sharing().epochs
    return epochs.take(), epochs.take()


EPOCH, NEXT_EPOCH = first_epochs()


def header(kind: int, rank: int = 0, flags: int = 0, job: int = 1, epoch: int = EPOCH) -> bytes:
    made = reference.contribution(
        kind=kind, rank=rank, job=job, epoch=epoch, chunk=0, flags=flags, checksum=7
    )
    return made.encode()


@pytest.mark.parametrize(("at", "above"), [((0, 0), ()), ((1, 2), (0, 0))], ids=["star", "tree"])
def test_an_answer_does_not_pass_the_switch(
    fresh: Sharing, at: tuple[int, ...], above: tuple[int, ...]
) -> None:
    fabric = fresh.start(
        Example((SharedJob(at=at, slots=4),), (), Impairment(), pool(4), seed=1, above=above)
    )
    answer = header(reference.DATA | reference.QUERY | reference.RESULT, flags=reference.AGAIN)
    assert [hop for hop in fabric.from_server(0, answer) if hop.link < 2] == []
    assert fabric.counter("answer_unexpected") == 1


WORD = bytes(256)
DATA, EXPONENT, QUERY = reference.DATA, reference.EXPONENT, reference.QUERY


def bitmap(*ranks: int) -> bytes:
    return sum(1 << rank for rank in ranks).to_bytes(8, "big")


CLAIMS = [
    (header(DATA) + bitmap(0) + WORD, "slot_taken"),
    (header(DATA) + bitmap(1) + WORD, "not_admitted"),
    (header(DATA) + bitmap(0, 1) + WORD, "not_admitted"),
    (header(DATA) + bitmap() + WORD, "not_admitted"),
    (header(DATA) + bitmap(63) + WORD, "not_admitted"),
    (header(EXPONENT) + bitmap(0), "passed"),
    (header(EXPONENT) + bitmap(1), "not_admitted"),
    (header(EXPONENT) + bitmap(0, 1), "not_admitted"),
    (header(DATA | QUERY) + bitmap(0) + bitmap(), "query_forwarded"),
    (header(DATA | QUERY) + bitmap(1) + bitmap(), "not_admitted"),
    (header(DATA | QUERY) + bitmap(0), "malformed"),
    (header(DATA) + bitmap(0), "malformed"),
    (header(DATA) + bitmap(0) + bitmap(0), "malformed"),
    (header(DATA) + bitmap(0) + bitmap(0) + WORD, "malformed"),
    (header(EXPONENT) + bitmap(0) + bitmap(0), "malformed"),
    (header(EXPONENT) + bitmap(0) + WORD, "malformed"),
    (header(DATA | reference.RESULT) + bitmap(0) + WORD, "malformed"),
    (header(DATA | reference.RESULT | QUERY) + bitmap(0) + bitmap(0), "malformed"),
]


@pytest.mark.parametrize(("datagram", "counter"), CLAIMS, ids=[str(number) for number in range(len(CLAIMS))])
def test_a_worker_speaks_for_itself_only(fresh: Sharing, datagram: bytes, counter: str) -> None:
    job = SharedJob(at=(0, 0), slots=4, colocated=False)
    fabric = fresh.start(Example((job,), (), Impairment(), pool(4), seed=1, servers=(0,)))
    fabric.up(0, datagram)
    assert fabric.counter(counter) == 1


@pytest.mark.parametrize(("at", "above"), [((0, 0, 0), ()), ((1, 1, 2), (0, 0))], ids=["star", "tree"])
def test_the_mark_of_a_contribution_becomes_a_flag_of_the_sum(
    fresh: Sharing, at: tuple[int, ...], above: tuple[int, ...]
) -> None:
    """Congestion marks (protocol 6.2)."""
    job = SharedJob(at=at, slots=4, colocated=False)
    fabric = fresh.start(Example((job,), (), Impairment(), pool(4), seed=1, above=above, servers=(0,)))
    partials = []
    for rank, marked in enumerate((False, True, False)):
        datagram = header(DATA, rank=fabric.jobs[0].placement.tree.number_of(rank)) + WORD
        tos = ECN_CONGESTED if marked else ECN_CAPABLE
        hops = fabric.arrive(rank, with_tos(fabric.frame(rank, datagram), tos))
        for hop in hops:
            if hop.up:
                hops += fabric.up(hop.link, hop.datagram)
            else:
                partials.append(unwrap(hop.datagram).payload)
    (partial,) = partials
    found = reference.decode(partial)
    assert (found.flags, found.flags_check) == (FLAG_CONGESTED, FLAG_CONGESTED)
    assert partial[20:28] == bitmap(0, 1, 2)


@pytest.mark.parametrize("why", ["priority", "age"])
def test_what_evicts_does_not_choose_the_source_of_what_leaves(fresh: Sharing, why: str) -> None:
    """A worker's packet to port INAGG_PORT may have any destination."""
    victim = SharedJob(at=(0, 0), slots=4, colocated=False)
    other = replace(victim, priority=1 if why == "priority" else 0)
    expiry_us = 2**40 if why == "priority" else 0
    fabric = fresh.start(Example((victim, other), (), Impairment(), pool(1, expiry_us), seed=1, servers=(0,)))
    assert fabric.up(0, header(DATA) + WORD) == []
    fabric.clock = lambda: 1.0
    forged = Station("02:00:00:00:00:99", "10.9.9.9", INAGG_PORT)
    datagram = header(DATA, job=2, epoch=NEXT_EPOCH) + WORD
    frame = headers(fabric.station(2), forged, len(datagram)) + datagram
    (left,) = fabric.arrive(2, frame)
    assert fabric.down(left.link, left.datagram) == []  # it checks the source
    assert fabric.counts(0) == {"started": 1}
