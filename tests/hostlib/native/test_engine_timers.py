# SPDX-License-Identifier: Apache-2.0
"""When a worker asks the switch, and sends again (protocol 6.1, RFC 6298), with times as literals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inagg._core import Engine, RetransmissionPolicy, RttEstimator
from inagg_contract.sizes import way_of
from inagg_simulator import reference
from inagg_simulator.servers import Servers, make_servers
from inagg_simulator.virtual_network import (
    EPOCH,
    JOB,
    Impairment,
    Network,
    all_reduce,
    failure_of,
    make_aggregator,
    make_network,
    make_shape,
    make_workers,
)


def lone_worker(**settings: Any) -> tuple[Engine, list[bytes]]:
    """A job of one worker with one slot and one block to sum; and the packet that it has sent at time 0."""
    (engine,) = make_workers(1, slots=1, words=1, **settings)
    engine.submit(np.ones(64, np.float32))
    return engine, engine.to_send(0.0)


def answer(datagram: bytes, slots: int = 1) -> bytes:
    """The switch's result, for a job of one that has summed all chunks before."""
    switch = make_aggregator(1, slots=slots, words=1, first_chunk=reference.decode(datagram).chunk)
    ((_, result),) = switch.process(0, datagram)
    return result


def query_for(contribution: bytes) -> tuple[int, int]:
    """Kind and chunk of the query for a contribution's result."""
    header = reference.decode(contribution)
    return header.kind | reference.QUERY, header.chunk


def described(packets: list[bytes]) -> list[tuple[int, int]]:
    """Kind and chunk of each packet."""
    return [(header.kind, header.chunk) for header in map(reference.decode, packets)]


def reply(query: bytes, flags: int = 0) -> bytes:
    """The switch's answer that the contribution is held, or to be sent again."""
    header = reference.decode(query)
    return header._replace(kind=header.kind | reference.RESULT).announcing(flags, 0).encode()


def test_the_first_sample_sets_the_estimate() -> None:
    rtt = RttEstimator(rto_max_s=60.0)
    assert rtt.rto_s == 0.1
    rtt.sample(0.2)
    assert (rtt.srtt_s, rtt.rttvar_s) == (0.2, 0.1)
    assert rtt.rto_s == pytest.approx(0.2 + 4 * 0.1)


def test_later_samples_move_it() -> None:
    rtt = RttEstimator(rto_max_s=60.0)
    rtt.sample(0.2)
    rtt.sample(0.4)
    # RTTVAR = 3/4 x 0.1 + 1/4 x |0.2 - 0.4|, with the SRTT before the sample; SRTT = 7/8 x 0.2 + 1/8 x 0.4.
    assert rtt.rttvar_s == pytest.approx(0.125)
    assert rtt.srtt_s == pytest.approx(0.225)
    assert rtt.rto_s == pytest.approx(0.725)
    rtt.sample(0.1)
    assert rtt.rttvar_s == pytest.approx(0.75 * 0.125 + 0.25 * 0.125)
    assert rtt.srtt_s == pytest.approx(0.875 * 0.225 + 0.0125)


@pytest.mark.parametrize(
    ("sample", "rto"),
    [
        pytest.param(0.001, 0.011, id="no closer to the SRTT than the margin"),
        pytest.param(30.0, 1.0, id="no longer than the maximum"),
    ],
)
def test_the_timeout_stays_within_the_policy(sample: float, rto: float) -> None:
    estimator = RttEstimator(rto_min_s=0.01, rto_max_s=1.0)
    estimator.sample(sample)
    assert estimator.rto_s == pytest.approx(rto)


def test_silence_before_a_probe_is_lost_time_only_when_all_ranks_have_begun() -> None:
    engine, (exponents,) = lone_worker()
    (query,) = engine.to_send(0.1)  # after the initial RTO
    assert (engine.stats["probes"], engine.stats["silent_s"]) == (1, 0.0)
    assert described([query]) == [query_for(exponents)]
    engine.receive(answer(exponents), 0.11)
    assert len(engine.to_send(0.11)) == 1  # the lanes, which are lost
    assert len(engine.to_send(0.211)) == 1  # after the RTO
    assert engine.stats["probes"] == 2
    assert engine.stats["silent_s"] == pytest.approx(0.101)


def test_a_steady_rtt_leaves_the_margin() -> None:
    rtt = RttEstimator(rto_min_s=0.01)
    for _ in range(200):
        rtt.sample(0.08)
    assert rtt.rto_s == pytest.approx(0.09)


def test_after_the_first_rtt_the_least_of_eight_is_a_sample() -> None:
    rtt = RttEstimator()
    assert rtt.measure(0.2)
    assert [rtt.measure(x) for x in (0.9, 0.5, 0.4, 0.9, 0.9, 0.9, 0.9)] == [False] * 7
    assert rtt.srtt_s == 0.2
    assert rtt.measure(0.9)
    assert rtt.srtt_s == pytest.approx(0.225)
    assert [rtt.measure(0.2) for _ in range(8)] == [False] * 7 + [True]


def test_an_rtt_of_less_than_a_quarter_begins_the_estimate_anew() -> None:
    """As after a first RTT that lasted until a stopped process went on."""
    rtt = RttEstimator()
    assert rtt.measure(1.9)
    assert rtt.rto_s == 1.0
    assert not rtt.measure(0.5)
    assert rtt.measure(0.01)
    assert (rtt.srtt_s, rtt.rttvar_s) == (0.01, 0.005)
    assert [rtt.measure(0.003) for _ in range(8)] == [False] * 7 + [True]


def test_each_probe_waits_a_quarter_longer_up_to_the_maximum() -> None:
    rtt = RttEstimator(rto_initial_s=0.64, rto_max_s=1.0)
    assert [rtt.timeout(probes) for probes in (0, 1, 2, 10**6)] == pytest.approx([0.64, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(
    "policy", [{"rto_min_s": 0.0}, {"rto_min_s": 0.2}, {"rto_initial_s": 2.0}, {"rto_max_s": float("inf")}]
)
def test_a_policy_out_of_order_is_refused(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 < rto_min_s <= rto_initial_s <= rto_max_s"):
        RttEstimator(**policy)


def test_a_packet_without_an_answer_is_asked_about() -> None:
    engine, (first,) = lone_worker(rto_initial_s=0.4)
    sent, numbers = [], set()
    now = 0.0
    for _ in range(6):
        deadline = engine.deadline()
        assert deadline is not None
        assert engine.to_send(deadline - 1e-6) == []
        (query,) = engine.to_send(deadline)
        assert described([query]) == [query_for(first)]
        numbers.add(reference.decode(query).checksum)
        sent.append(deadline - now)
        now = deadline
    assert sent == pytest.approx([0.4, 0.5, 0.625, 0.78125, 0.9765625, 1.0])
    assert len(numbers) == 6
    assert (engine.stats["queries"], engine.stats["retransmits"], engine.stats["packets_sent"]) == (6, 0, 7)


def test_what_is_missing_goes_again_byte_for_byte() -> None:
    engine, (first,) = lone_worker()
    (query,) = engine.to_send(0.1)
    engine.receive(reply(query, reference.AGAIN), 0.12)
    assert engine.to_send(0.12) == [first]
    assert (engine.stats["queries"], engine.stats["retransmits"]) == (1, 1)
    # The answer is an RTT of 0.02: RTO 0.02 + 4 x 0.01.
    assert engine.deadline() == pytest.approx(0.18)
    # An answer that comes twice changes nothing.
    engine.receive(reply(query, reference.AGAIN), 0.13)
    assert engine.to_send(0.13) == []
    assert engine.stats["duplicates_received"] == 1


def test_what_is_held_waits() -> None:
    engine, (first,) = lone_worker()
    (query,) = engine.to_send(0.1)
    engine.receive(reply(query), 0.12)
    assert engine.stats["in_flight"] == 1
    # An RTT of 0.02: RTO 0.02 + 4 x 0.01, a quarter longer after the first probe, which was at 0.1.
    assert engine.deadline() == pytest.approx(0.175)
    (query,) = engine.to_send(0.175)
    engine.receive(reply(query), 0.195)
    engine.receive(answer(first), 0.2)
    assert described(engine.to_send(0.2)) == [(reference.DATA, 1)]
    assert engine.stats["retransmits"] == 0


@pytest.mark.parametrize("answered", [0, 1])
def test_an_answer_is_good_for_all_queries_since_the_contribution(answered: int) -> None:
    engine, (first,) = lone_worker()
    early, late = [*engine.to_send(0.1), *engine.to_send(0.225)]
    engine.receive(reply((early, late)[answered], reference.AGAIN), 0.23)
    assert engine.to_send(0.23) == [first]
    # It is an RTT of the query that it answers: RTO R + 4 x R / 2.
    assert engine.deadline() == pytest.approx(0.23 + 3 * (0.13, 0.005)[answered])
    # The answer to the other was made before the contribution came again.
    engine.receive(reply((late, early)[answered], reference.AGAIN), 0.24)
    assert engine.to_send(0.24) == []
    assert (engine.stats["retransmits"], engine.stats["duplicates_received"]) == (1, 1)


def test_answers_count_for_nothing_while_a_packet_of_the_chunk_is_to_leave() -> None:
    engine, (first,) = lone_worker()
    early, late = [*engine.to_send(0.1), *engine.to_send(0.225)]
    deadline = engine.deadline()
    assert deadline is not None
    assert engine.to_send(deadline, limit=0) == []  # the socket is full, and a query waits
    engine.receive(reply(early), deadline)
    (query,) = engine.to_send(deadline)
    assert described([query]) == [query_for(first)]
    engine.receive(reply(query, reference.AGAIN), deadline)
    engine.receive(reply(late), deadline)
    assert engine.to_send(deadline) == [first]
    assert engine.stats["duplicates_received"] == 2


def test_an_answer_made_before_the_contribution_came_again_is_old() -> None:
    engine, (first,) = lone_worker()
    early, late = [*engine.to_send(0.1), *engine.to_send(0.225)]
    engine.receive(reply(late, reference.AGAIN), 0.23)
    assert engine.to_send(0.23) == [first]
    (query,) = engine.to_send(1.0)
    engine.receive(reply(early, reference.AGAIN), 1.0)
    assert engine.to_send(1.0) == []
    engine.receive(reply(query, reference.AGAIN), 1.0)
    assert engine.to_send(1.0) == [first]


def test_an_answer_that_comes_twice_counts_once() -> None:
    engine, _ = lone_worker(rto_max_s=50.0)
    (query,) = engine.to_send(0.1)
    engine.receive(reply(query), 0.12)
    deadline = engine.deadline()
    engine.receive(reply(query), 0.17)
    assert engine.deadline() == deadline
    assert engine.stats["duplicates_received"] == 1


def test_the_answer_to_one_of_the_last_64_queries_counts() -> None:
    engine, (first,) = lone_worker(rto_initial_s=0.01, rto_max_s=0.01)
    queries = [next_query(engine)[0] for _ in range(65)]
    now = 10.0
    engine.receive(reply(queries[0], reference.AGAIN), now)
    assert engine.stats["duplicates_received"] == 1
    engine.receive(reply(queries[1], reference.AGAIN), now)
    assert engine.to_send(now) == [first]


def test_an_answer_for_another_chunk_is_old() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[2], 1.12)
    first, second = engine.to_send(1.136)
    forged = reference.decode(reply(first, reference.AGAIN))._replace(chunk=reference.decode(second).chunk)
    engine.receive(forged.encode(), 1.15)
    assert engine.to_send(1.15) == []
    assert engine.stats["duplicates_received"] == 1


@pytest.mark.parametrize("rtt", [0.6, 3.0])
def test_an_rtt_that_is_far_longer_than_all_before_is_learnt(rtt: float) -> None:
    """If probes did not back off, all answers would be to queries that have been forgotten."""
    engine, _ = lone_worker(rto_initial_s=0.001)
    switch: list[tuple[float, bytes]] = []
    now = 0.0
    while engine.stats["retransmits"] == 0:
        deadline = engine.deadline()
        assert deadline is not None
        arrival = switch[0][0] if switch else deadline
        now = min(arrival, deadline)
        if switch and arrival <= deadline:
            engine.receive(reply(switch.pop(0)[1], reference.AGAIN), now)
        switch += [(now + rtt, packet) for packet in engine.to_send(now)]
        assert now < 10 * rtt


def test_probes_back_off_further_only_while_the_switch_answers() -> None:
    """Each answer says that a rank is late; without one, something is lost or dead."""
    engine, _ = lone_worker(rto_initial_s=0.01, rto_max_s=50.0)
    gaps, now = [], 0.0
    for _ in range(14):
        query, at = next_query(engine)
        gaps.append(at - now)
        now = at
    assert gaps == pytest.approx([0.01 * 1.25 ** min(probe, 9) for probe in range(14)])
    engine.receive(reply(query), now + 1e-6)
    assert engine.deadline() == pytest.approx(now + engine.stats["rto_s"] * 1.25**10)
    # "Again" ends the row, and what it counts.
    query, now = next_query(engine)
    now += 1e-6
    engine.receive(reply(query, reference.AGAIN), now)
    assert len(engine.to_send(now)) == 1
    for probe in range(12):
        _, at = next_query(engine)
        assert at - now == pytest.approx(engine.stats["rto_s"] * 1.25 ** min(probe, 9))
        now = at


@pytest.mark.parametrize("check", [0, reference.AGAIN | 1])
def test_an_answer_with_a_flipped_flag_is_discarded(check: int) -> None:
    engine, _ = lone_worker()
    (query,) = engine.to_send(0.1)
    answered = reference.decode(reply(query, reference.AGAIN))
    engine.receive(answered._replace(flags_check=check).encode(), 0.12)
    assert engine.to_send(0.12) == []
    assert engine.stats["discarded"] == 1


def test_an_answer_stops_the_timer_and_is_a_sample() -> None:
    engine, (exponent,) = lone_worker()
    engine.receive(answer(exponent), 0.01)
    # It was sent before the first result of this collective, so it may have waited for other ranks: no sample.
    assert engine.stats["rtt_samples"] == 0
    (data,) = engine.to_send(0.01)
    assert engine.deadline() == pytest.approx(0.11)
    engine.receive(answer(data), 0.03)
    assert engine.stats["rtt_samples"] == 1
    assert engine.stats["srtt_s"] == pytest.approx(0.02)
    assert engine.stats["least_rtt_s"] == pytest.approx(0.02)
    assert engine.stats["rto_s"] == pytest.approx(0.06)
    assert engine.deadline() is None
    assert engine.to_send(10.0) == []


def test_a_result_that_may_have_left_before_the_query_is_no_sample() -> None:
    engine, (exponent,) = lone_worker()
    engine.receive(answer(exponent), 0.01)
    (data,) = engine.to_send(0.01)
    assert described(engine.to_send(0.11)) == [query_for(data)]
    engine.receive(answer(data), 0.12)
    assert engine.stats["rtt_samples"] == 0
    assert engine.stats["rto_s"] == 0.1


def test_silence_is_answered_by_one_packet_not_by_the_window() -> None:
    (engine,) = make_workers(1, slots=32, words=1)
    engine.submit(np.ones(32 * 64, np.float32))
    first = engine.to_send(0.0)
    assert len(first) == 32
    sent = []
    while (deadline := engine.deadline() or 0.0) < 5.0:
        sent.append((deadline, engine.to_send(deadline)))
    # The oldest chunk, with exponential backoff.
    assert [when for when, _ in sent[:4]] == pytest.approx([0.1, 0.225, 0.38125, 0.5765625])
    assert [described(packets) for _, packets in sent] == [[query_for(first[0])]] * len(sent)
    assert engine.stats["probes"] == engine.stats["queries"] == len(sent)


def test_a_result_ends_the_back_off() -> None:
    engine, (exponent,) = lone_worker()
    assert len(engine.to_send(0.1)) == 1
    engine.receive(answer(exponent), 0.15)
    engine.to_send(0.15)
    assert engine.deadline() == pytest.approx(0.25)


class Pipeline:
    """A job of one worker with four slots and eight blocks. Its first DATA packets leave at 1.00, 1.01, 1.02, 1.03."""

    def __init__(self) -> None:
        (self.engine,) = make_workers(1, slots=4, words=1, rto_initial_s=50.0, rto_max_s=50.0)
        self.engine.submit(np.ones(8 * 64, np.float32))
        exponents = self.engine.to_send(0.0)
        self.data: list[bytes] = []
        for i, exponent in enumerate(exponents):
            self.data += self.answer(exponent, 1.0 + i / 100)
        assert len(self.data) == 4

    def answer(self, datagram: bytes, now: float) -> list[bytes]:
        """The packets that the worker sends after the result."""
        self.engine.receive(answer(datagram, slots=4), now)
        return self.engine.to_send(now)


def test_what_is_overtaken_is_asked_about_before_the_timer_says_so() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    (following,) = pipeline.answer(data[1], 1.11)
    assert following not in data
    # The RTT was 0.1; with a quarter of it for reordering chunk 0 is due 0.125 after it was sent.
    assert engine.deadline() == pytest.approx(1.125)
    assert engine.to_send(1.124) == []
    assert described(engine.to_send(1.126)) == [query_for(data[0])]
    assert (engine.stats["queries"], engine.stats["probes"]) == (1, 0)
    # Packets that were sent later than the answered one are not missing.
    assert engine.to_send(1.4) == []


def test_a_query_that_is_lost_too_is_overtaken_again() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[1], 1.11)
    assert described(engine.to_send(1.126)) == [query_for(data[0])]
    (later,) = pipeline.answer(data[2], 1.13)
    assert query_for(data[0]) not in described(pipeline.answer(later, 1.23))
    assert query_for(data[0]) not in described(engine.to_send(1.25))
    assert query_for(data[0]) in described(engine.to_send(1.252))


def test_a_contribution_sent_again_is_overtaken_by_an_answer() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[2], 1.12)
    first, second = engine.to_send(1.136)
    assert described([first, second]) == [query_for(data[0]), query_for(data[1])]
    engine.receive(reply(first, reference.AGAIN), 1.156)
    assert engine.to_send(1.156) == [data[0]]
    # The answer to the second query left before.
    engine.receive(reply(second), 1.157)
    assert engine.to_send(1.2) == []
    # The second is due 6 of its RTTs, of 0.021, after its query: "again" has come since.
    assert query_for(data[1]) not in described(engine.to_send(1.261))
    (second,) = engine.to_send(1.263)
    engine.receive(reply(second), 1.283)
    # An RTT of 0.02: the contribution was sent more than 0.025 before.
    assert described(engine.to_send(1.283)) == [query_for(data[0])]


def test_the_slowest_answers_of_late_say_how_long_to_wait_for_one() -> None:
    """In a tree member 0's queries may be answered by its leaf, or far above."""
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[2], 1.12)
    far, near = engine.to_send(1.136)
    assert described([far, near]) == [query_for(data[0]), query_for(data[1])]
    engine.receive(reply(far), 1.236)
    engine.receive(reply(near), 1.236)
    pipeline.answer(data[3], 1.3)
    queries = {reference.decode(query).chunk: query for query in engine.to_send(1.737)}
    engine.receive(reply(queries[reference.decode(data[1]).chunk]), 1.739)
    assert query_for(data[0]) not in described(engine.to_send(1.737 + 0.117))
    assert query_for(data[0]) in described(engine.to_send(1.737 + 0.118))


def test_what_is_held_is_asked_about_again_only_if_something_has_moved() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[1], 1.11)
    (query,) = engine.to_send(1.126)
    engine.receive(reply(query), 1.146)
    assert query_for(data[0]) not in described(engine.to_send(3.0))
    assert query_for(data[0]) in described(pipeline.answer(data[2], 3.1))


def test_a_result_that_may_have_left_before_overtakes_nothing() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[1], 1.11)
    assert described(engine.to_send(1.126)) == [query_for(data[0])]
    pipeline.answer(data[0], 1.13)
    assert engine.to_send(1.4) == []
    assert engine.stats["queries"] == 1


def test_an_answer_overtakes_what_was_sent_once_two_rtts_ago() -> None:
    pipeline = Pipeline()
    engine, data = pipeline.engine, pipeline.data
    pipeline.answer(data[1], 1.11)
    (query,) = engine.to_send(1.126)
    engine.receive(reply(query, reference.AGAIN), 1.14)
    assert engine.to_send(1.14) == [data[0]]
    # 2 and 3 were sent at 1.02 and 1.03; the last chunk that was sent once took 0.1.
    assert engine.to_send(1.219) == []
    assert described(engine.to_send(1.221)) == [query_for(data[2])]
    assert described(engine.to_send(1.231)) == [query_for(data[3])]


def waiting_for_a_rank(before: int) -> Engine:
    """A worker that has sent so many packets without loss, and then four that another rank delays."""
    (engine,) = make_workers(1, slots=4, words=1, rto_max_s=50.0)
    engine.submit(np.ones(64 * (before + 8), np.float32))
    now = 0.0
    packets = engine.to_send(now)
    switch = make_aggregator(1, slots=4, words=1)
    while engine.stats["packets_sent"] < before:
        now += 0.01
        for packet in packets:
            ((_, result),) = switch.process(0, packet)
            engine.receive(result, now)
        packets = engine.to_send(now)
    return engine


def next_query(engine: Engine) -> tuple[bytes, float]:
    """The next probe, and its time."""
    deadline = engine.deadline()
    assert deadline is not None
    (query,) = engine.to_send(deadline)
    return query, deadline


@pytest.mark.parametrize("before", [0, 1100])
def test_a_late_rank_makes_whole_windows_doubtful_only_where_packets_get_lost(before: int) -> None:
    engine = waiting_for_a_rank(before)
    query, now = next_query(engine)
    engine.receive(reply(query), now + 0.01)
    assert len(engine.to_send(now + 0.012)) == (0 if before else 3)


def test_every_second_probe_asks_about_what_is_held() -> None:
    """Its result may have been lost since."""
    engine = waiting_for_a_rank(1100)
    asked = []
    for _ in range(4):
        query, now = next_query(engine)
        engine.receive(reply(query), now + 0.001)
        asked.append(reference.decode(query).chunk)
    first = asked[0]
    assert asked == [first, first, first + 1, first]


def test_a_long_silence_is_answered_by_one_query_to_each_server() -> None:
    (engine,) = make_workers(1, slots=32, words=1, ways=4, ways_apart=True)
    engine.submit(np.ones(32 * 64, np.float32))
    sent = {reference.decode(packet).chunk for packet in engine.to_send(0.0)}
    oldest = {way: min(chunk for chunk in sent if way_of(chunk, 32, 4) == way) for way in range(4)}
    for probe in range(12):
        deadline = engine.deadline()
        assert deadline is not None
        asked = [reference.decode(packet).chunk for packet in engine.to_send(deadline)]
        assert sorted(asked) == ([oldest[0]] if probe < 9 else sorted(oldest.values()))


@pytest.mark.parametrize("servers", [1, 4, 16])
def test_an_outage_costs_little_more_than_it_lasts(servers: int) -> None:
    """However many servers there are, all of which have lost packets of all ranks."""
    workers, slots = 4, 128
    made = make_servers(servers, job=JOB, epoch=EPOCH, slots=slots, words=1, workers=workers)
    fabric = Servers(made, slots, workers)
    engines = make_workers(workers, slots=slots, words=1, ways=servers, ways_apart=servers > 1)
    link = Impairment(delay=0.005, jitter=0.0005)
    network = Network(engines, fabric, link)
    tensors = np.ones((workers, 70 * 64), np.float32)
    all_reduce(network, tensors)
    network.impairment = replace(link, loss=1.0)
    mended = network.now + 2.0

    def mend(_: Engine) -> None:
        network.impairment = link

    network.plan(mended, 0, mend)
    for output in all_reduce(network, tensors):
        assert np.all(output == workers)
    assert network.now - mended < 0.5


def test_answers_alone_do_not_change_the_window() -> None:
    (engine,) = make_workers(1, slots=128, words=1)
    engine.submit(np.ones(128 * 64, np.float32))
    assert len(engine.to_send(0.0)) == 64
    query, _ = engine.to_send(0.1)  # and a chunk in the place of the doubtful one
    engine.receive(reply(query), 0.12)
    assert engine.stats["window"] == 64


def test_an_rtt_above_the_first_timeout_does_not_resend_for_ever() -> None:
    network = make_network(2, slots=4, words=1, impairment=Impairment(delay=0.05), rto_initial_s=0.01)
    for engine in network.engines:
        engine.submit(np.ones(64 * 200, np.float32))
    network.run(1, within=60.0)
    assert network.engines[0].stats["queries"] < 40
    assert network.engines[0].stats["retransmits"] == 0
    assert network.engines[0].stats["rto_s"] > 0.1


def test_a_silent_network_is_given_up() -> None:
    engine, _ = lone_worker(give_up_s=3.0)
    now = 0.0
    while engine.failure is None:
        now = engine.deadline() or now
        engine.to_send(now)
    assert now == 3.0
    failure = failure_of(engine)
    assert failure.code == "give_up"
    assert (failure.job, failure.rank, failure.collective, failure.chunk) == (7, 0, 1, 0)
    assert "job 7, rank 0, collective 1, chunk 0: no result was received for 3" in str(failure)
    assert engine.deadline() is None
    assert engine.to_send(10.0) == []


def test_a_switch_that_answers_queries_no_more_is_given_up() -> None:
    engine, (exponent,) = lone_worker(silent_s=8.0, rto_max_s=0.5)
    engine.receive(answer(exponent), 1.0)
    now, asked_at = 1.0, []
    while engine.failure is None:
        asked_at += [now] * len(engine.to_send(now)[0:1])
        now = engine.deadline() or now
        assert now < 20.0
    first_query = asked_at[1]  # after the data
    assert first_query + 8.0 <= now <= first_query + 8.5
    failure = failure_of(engine)
    assert (failure.code, failure.chunk) == ("silent", 1)


def test_a_switch_that_holds_a_chunk_for_long_is_not_silent() -> None:
    engine, (exponent,) = lone_worker(silent_s=8.0, rto_max_s=0.5)
    engine.receive(answer(exponent), 1.0)
    now = 1.0
    while now < 60.0:
        for packet in engine.to_send(now):
            if reference.decode(packet).kind & reference.QUERY:
                engine.receive(reply(packet), now + 0.001)
        now = max(engine.deadline() or now, now + 0.001)
    assert engine.failure is None


def test_a_switch_that_has_never_answered_is_given_up_only_after_the_give_up_time() -> None:
    engine, _ = lone_worker(silent_s=8.0, give_up_s=30.0)
    now = 0.0
    while engine.failure is None:
        now = engine.deadline() or now
        engine.to_send(now)
    assert (failure_of(engine).code, now) == ("give_up", 30.0)


def test_a_way_to_which_the_job_has_gone_on_is_silent_if_it_never_answers() -> None:
    """That it is there has been said, so nobody waits for the give-up time."""
    engine, (exponent,) = lone_worker(silent_s=8.0, rto_max_s=0.5)
    engine.receive(answer(exponent), 1.0)
    engine.freeze()
    policy = RetransmissionPolicy(silent_s=8.0, rto_max_s=0.5)
    engine.go_on(make_shape(1, slots=1, words=1, epoch=EPOCH + 1), rank=0, policy=policy, now=2.0)
    now = 2.0
    while engine.failure is None:
        engine.to_send(now)
        now = engine.deadline() or now
        assert now < 20.0
    assert (failure_of(engine).code, failure_of(engine).chunk) == ("silent", 1)


def test_a_process_that_was_stopped_itself_takes_nobody_for_silent() -> None:
    engine, (exponent,) = lone_worker(silent_s=8.0)
    engine.receive(answer(exponent), 1.0)
    engine.to_send(1.0)
    engine.to_send(1.5)  # a query
    engine.to_send(60.0)
    assert engine.failure is None


def test_one_of_two_servers_that_answers_no_more_is_given_up() -> None:
    (engine,) = make_workers(1, slots=2, words=1, ways=2, ways_apart=True, silent_s=8.0, rto_max_s=0.5)
    engine.submit(np.ones(64 * 40, np.float32))
    now, dead = 0.0, None
    while engine.failure is None:
        packets = engine.to_send(now)
        for packet in packets:
            header = reference.decode(packet)
            if now >= 0.01 and header.chunk % 2 == 1:
                dead = now if dead is None else dead
            elif header.kind & reference.QUERY:
                engine.receive(reply(packet), now + 0.001)
            else:
                engine.receive(answer(packet, slots=2), now + 0.001)
        now = now + 0.001 if packets else engine.deadline() or now
        assert now < 30.0
    failure = failure_of(engine)
    assert failure.chunk is not None
    assert dead is not None
    assert (failure.code, failure.chunk % 2) == ("silent", 1)
    assert dead + 8.0 < now < dead + 9.5


def test_anything_received_puts_giving_up_off() -> None:
    engine, (exponent,) = lone_worker(give_up_s=1.5)
    result = answer(exponent)
    engine.receive(result, 1.0)
    engine.to_send(1.0)
    engine.receive(result, 2.0)  # a duplicate
    engine.to_send(2.4)
    assert engine.failure is None
    engine.to_send(3.5)
    assert failure_of(engine).chunk == 1


def test_an_idle_worker_waits_for_ever() -> None:
    engine, (exponent,) = lone_worker(give_up_s=1.0)
    engine.receive(answer(exponent), 0.01)
    (data,) = engine.to_send(0.01)
    engine.receive(answer(data), 0.02)
    assert engine.to_send(1000.0) == []
    engine.submit(np.ones(3, np.float32), now=1000.0)
    engine.to_send(1000.0)
    engine.to_send(1000.9)
    assert engine.failure is None


def test_the_time_that_a_rank_waits_for_others_to_begin_is_told() -> None:
    network = make_network(2, slots=4, words=1)
    for _ in range(3):
        all_reduce(network, np.ones((2, 300), np.float32))
    before = [engine.stats["waited_s"] for engine in network.engines]
    assert max(before) < 0.01
    late = network.now + 0.5
    network.plan(network.now, 0, lambda engine: engine.submit(np.ones(300, np.float32), now=network.now))
    network.plan(late, 1, lambda engine: engine.submit(np.ones(300, np.float32), now=late))
    network.run(4, within=late + 5)
    waited = [engine.stats["waited_s"] - was for engine, was in zip(network.engines, before, strict=True)]
    assert waited[0] == pytest.approx(0.5, abs=0.02)
    assert waited[1] < 0.02


def test_the_longest_wait_is_told_with_its_collective_but_not_that_of_one_without_context() -> None:
    network = make_network(2, slots=4, words=1)
    for late_s, context in ((0.9, 0), (0.5, 77), (0.2, 78)):

        def submit(engine: Engine, context: int = context) -> None:
            engine.submit(np.ones(300, np.float32), now=network.now, context=context)

        start = network.now
        network.plan(start, 0, submit)
        network.plan(start + late_s, 1, submit)
        done = network.engines[0].stats["collectives_completed"]
        network.run(done + 1, within=start + late_s + 5)
    one, other = (engine.stats for engine in network.engines)
    assert one["longest_wait_context"] == 77
    assert one["longest_wait_s"] == pytest.approx(0.5, abs=0.02)
    assert other["longest_wait_s"] < 0.02
