# SPDX-License-Identifier: Apache-2.0
"""When a worker sends again (protocol 6.1, RFC 6298): literal times."""

from typing import Any

import numpy as np
import pytest
from virtual_network import Impairment, failure_of, make_aggregator, make_network, make_workers

from inagg._core import Engine, RttEstimator


def lone_worker(**settings: Any) -> tuple[Engine, list[bytes]]:
    """A worker alone with one slot and one block to sum, and the packet it has sent at time 0."""
    (engine,) = make_workers(1, slots=1, words=1, **settings)
    engine.submit(np.ones(64, np.float32))
    return engine, engine.to_send(0.0)


def answer(datagram: bytes, slots: int = 1) -> bytes:
    """The switch's result, for a job of one."""
    ((_, result),) = make_aggregator(1, slots=slots, words=1).process(0, datagram)
    return result


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


def test_each_resend_doubles_the_wait_up_to_the_maximum() -> None:
    rtt = RttEstimator(rto_initial_s=0.1, rto_max_s=1.0)
    assert [rtt.timeout(resends) for resends in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize(
    "policy", [{"rto_min_s": 0.0}, {"rto_min_s": 0.2}, {"rto_initial_s": 2.0}, {"rto_max_s": float("inf")}]
)
def test_a_policy_out_of_order_is_refused(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 < rto_min_s <= rto_initial_s <= rto_max_s"):
        RttEstimator(**policy)


def test_a_packet_without_an_answer_goes_again_byte_for_byte() -> None:
    engine, first = lone_worker()
    sent = []
    now = 0.0
    for _ in range(5):
        deadline = engine.deadline()
        assert deadline is not None
        assert engine.to_send(deadline - 1e-6) == []
        assert engine.to_send(deadline) == first
        sent.append(deadline - now)
        now = deadline
    assert sent == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert engine.stats["retransmits"] == 5
    assert engine.stats["packets_sent"] == 6


def test_an_answer_stops_the_timer_and_is_a_sample() -> None:
    engine, (exponent,) = lone_worker()
    engine.receive(answer(exponent), 0.02)
    assert engine.stats["rtt_samples"] == 1
    assert engine.stats["srtt_s"] == 0.02
    assert engine.stats["rto_s"] == pytest.approx(0.06)
    (data,) = engine.to_send(0.02)
    assert engine.deadline() == pytest.approx(0.08)
    engine.receive(answer(data), 0.04)
    assert engine.deadline() is None
    assert engine.to_send(10.0) == []


def test_the_answer_to_a_packet_sent_twice_is_no_sample() -> None:
    engine, (exponent,) = lone_worker()
    assert engine.to_send(0.1) == [exponent]
    engine.receive(answer(exponent), 0.11)
    assert engine.stats["rtt_samples"] == 0
    assert engine.stats["rto_s"] == 0.1


def test_a_sign_of_life_between_resends_ends_the_back_off() -> None:
    (engine,) = make_workers(1, slots=2, words=1)
    engine.submit(np.ones(128, np.float32))
    first, second = engine.to_send(0.0)
    assert engine.to_send(0.1) == [first, second]
    engine.receive(answer(second, slots=2), 0.15)
    engine.to_send(0.15)
    # 0.2 after its first resend; and no longer after its second, since something was received in between.
    assert first not in engine.to_send(0.299)
    assert first in engine.to_send(0.3001)
    assert first not in engine.to_send(0.499)
    assert first in engine.to_send(0.5002)


def test_while_no_rtt_is_measured_first_sendings_wait_as_long_as_that_lasts() -> None:
    engine, (exponent,) = lone_worker(rto_initial_s=0.125)
    assert engine.to_send(0.125) == [exponent]
    engine.receive(answer(exponent), 0.5)
    (data,) = engine.to_send(0.5)
    # Nothing has been measured since 0.
    assert engine.deadline() == 1.0
    engine.receive(answer(data), 0.8)
    assert engine.stats["rtt_samples"] == 1
    engine.submit(np.ones(64, np.float32), now=1.0)
    engine.to_send(1.0)
    # SRTT 0.3, RTTVAR 0.15; and idleness does not count.
    assert engine.deadline() == pytest.approx(1.0 + 0.9)


def test_a_sample_ends_the_longer_wait_of_what_was_sent_before() -> None:
    (engine,) = make_workers(1, slots=2, words=1, rto_initial_s=0.125)
    engine.submit(np.ones(128, np.float32))
    first, second = engine.to_send(0.0)
    assert engine.to_send(0.125) == [first, second]
    engine.receive(answer(first, slots=2), 0.5)
    engine.receive(answer(second, slots=2), 0.5)
    first, second = engine.to_send(0.5)
    assert engine.deadline() == 1.0
    engine.receive(answer(first, slots=2), 0.51)
    # RTO is 0.01 + 4 x 0.005, and the second chunk has been sent once.
    assert engine.deadline() == pytest.approx(0.53)
    assert engine.to_send(0.54) == [second]


def test_an_rtt_above_the_first_timeout_does_not_resend_for_ever() -> None:
    network = make_network(2, slots=4, words=1, impairment=Impairment(delay=0.05), rto_initial_s=0.01)
    for engine in network.engines:
        engine.submit(np.ones(64 * 200, np.float32))
    network.run(1, within=60.0)
    assert network.engines[0].stats["retransmits"] < 40
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
    assert "job 7, rank 0, collective 1, chunk 0: nothing was received for 3" in str(failure)
    assert engine.deadline() is None
    assert engine.to_send(10.0) == []


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
