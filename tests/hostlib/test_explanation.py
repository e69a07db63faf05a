# SPDX-License-Identifier: Apache-2.0
"""How `inagg.explain` divides time: literal figures, and shares computed by hand."""

from typing import Any

import pytest

from inagg.causes import OF_GROUP
from inagg.explanation import explain_figures

MB = 1_000_000


def figures(**given: Any) -> dict[str, Any]:
    """The figures of ten seconds, zero except for the given ones."""
    return {
        "path": "switch",
        "job": 3,
        "job_name": "train.py",
        "rank": 0,
        "places": {0: "h1, 10.0.0.1", 1: "h2, 10.0.0.2"},
        "elapsed_s": 10.0,
        "calls": {"all_reduce": {"count": 10, "bytes": 40 * MB, "seconds": 8.0}},
        "inner_reductions": 0,
        "lane_bits": 32,
        "narrowest_lane_bits": 32,
        "link_rate": 100e6,
        "collectives_completed": 10,
        "packet_threads": 1,
        "packets_sent": 1000,
        "packets_received": 1000,
        "bytes_received": 1000 * 1044,
        "retransmits": 0,
        "queries": 0,
        "probes": 0,
        "window": 128,
        "window_limit": 128,
        "least_rtt_s": 0.001,
        "srtt_s": 0.001,
        "receive_buffer_bytes": 1 << 20,
        "receive_buffer_wanted_bytes": 1 << 20,
        "peak_rate": 12.5e6,
        "straggler": None,
        "longest_wait": None,
        **dict.fromkeys(("waited_s", "silent_s", "beginning_s", "window_s", "answers_s", "device_s"), 0.0),
        **dict.fromkeys(("processor_s", "processor_wait_s"), 0.0),
        **given,
    }


def report_of(**given: Any) -> str:
    """The report in one line, without the breaks that fit it to a terminal."""
    text = str(explain_figures(figures(**given)))
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def shares(**given: Any) -> dict[str, float]:
    found = explain_figures(figures(**given))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.verdict in found.causes
    assert found.shares[found.verdict] == max(found.shares.values())
    return {cause: round(share, 6) for cause, share in found.shares.items() if share > 1e-9}


def test_time_without_a_sum_is_the_programs_and_gloos() -> None:
    calls = {"broadcast": {"count": 1, "bytes": 8, "seconds": 2.0}}
    assert shares(calls=calls) == {"program": 0.8, "gloo": 0.2}


def test_waiting_for_ranks_is_less_one_round_trip_a_sum() -> None:
    assert shares(beginning_s=5.0, waited_s=5.0) == {"program": 0.5, "ranks": 0.499, "latency": 0.001}


def test_a_full_link_takes_what_the_bytes_need_at_its_rate() -> None:
    full = {"window_s": 10.0, "bytes_received": 100 * MB - 42 * 1000, "srtt_s": 0.005, "window": 64}
    assert shares(**full) == {"link": 0.8, "switch": 0.2}
    assert shares(**full, link_rate=1e9) == {"link": 0.08, "switch": 0.92}
    assert shares(**full, link_rate=None) == {"link": 0.8, "switch": 0.2}  # at the peak rate
    assert shares(**full, processor_s=0.5, processor_wait_s=1.0) == {
        "link": 0.8,
        "processors": 0.15,
        "switch": 0.05,
    }


def test_a_window_at_its_limit_before_an_empty_path_is_too_small() -> None:
    assert shares(window_s=10.0) == {"slots": 1.0}
    assert shares(window_s=10.0, receive_buffer_bytes=1 << 19) == {"receive buffer": 1.0}


def test_a_window_at_its_limit_is_large_enough_where_packets_queue() -> None:
    assert "slots" not in shares(window_s=10.0, srtt_s=0.003)


def test_of_a_round_trip_what_goes_beyond_the_least_is_the_queue_of_the_switch() -> None:
    assert shares(answers_s=10.0, srtt_s=0.004) == {"latency": 0.25, "switch": 0.75}
    assert shares(answers_s=10.0, srtt_s=0.0015) == {"latency": 1.0}
    unmeasured = {"srtt_s": 0.0, "least_rtt_s": 0.0, "window": 64}
    assert shares(answers_s=10.0, **unmeasured) == {"latency": 1.0}


def test_loss_is_silence_and_the_part_of_the_path_that_resends_take_and_what_answers_take_beyond_a_round_trip() -> (
    None
):
    lossy = {"window_s": 6.0, "answers_s": 4.0, "silent_s": 2.0, "retransmits": 100}
    assert shares(**lossy) == {"loss": 0.459, "slots": 0.54, "latency": 0.001}


def test_small_sums_are_latency_whatever_the_thread_did() -> None:
    small = {"collectives_completed": 500, "answers_s": 5.0, "processor_s": 1.0, "processor_wait_s": 1.5}
    assert shares(**small, packets_received=1000) == {"latency": 0.8, "program": 0.2}
    assert shares(**small, packets_received=8000) == {"latency": 0.25, "processors": 0.25, "program": 0.5}


def test_a_device_that_packs() -> None:
    assert shares(device_s=10.0) == {"device": 1.0}


def test_a_group_that_has_fallen_back_says_why() -> None:
    found = explain_figures({"path": "inner", "reason": "no controller"})
    assert found.verdict == "fallback"
    assert str(found) == "gloo does the sums of this group: no controller"


def test_a_group_that_was_made_this_moment_has_spent_its_time_in_the_program() -> None:
    assert shares(elapsed_s=0.0, collectives_completed=0, packets_received=0) == {"program": 1.0}


@pytest.mark.parametrize(
    ("state", "cause"), [("window_s", "slots"), ("answers_s", "latency"), ("device_s", "device")]
)
def test_the_report_says_what_it_is_and_what_to_do(state: str, cause: str) -> None:
    report = report_of(**{state: 10.0})
    assert f"100% {cause}: {OF_GROUP[cause].meaning}" in report
    assert OF_GROUP[cause].remedy in report


@pytest.mark.parametrize(
    ("lane_bits", "said"),
    [
        (32, " Or lane_bits of 16 or 8 (half floats: half_lane_bits)."),
        (16, " Or lane_bits of 8 (half floats: half_lane_bits)."),
        (8, ""),
    ],
)
def test_only_lanes_narrower_than_the_groups_are_advised(lane_bits: int, said: str) -> None:
    busy = {"window_s": 10.0, "bytes_received": 40 * MB, "window": 64, "processor_s": 2.0}
    report = report_of(**busy, narrowest_lane_bits=lane_bits)
    for cause in ("link", "processors"):
        assert f"{OF_GROUP[cause].remedy}{said}" in report
        assert (f"{OF_GROUP[cause].remedy} Or" in report) == bool(said)


@pytest.mark.parametrize(
    ("seconds", "at_most", "said"),
    [
        (5.0, 2.0, "\nwith sums that cost nothing the program is at most 2.00x as fast"),
        (0.5, 1 / 0.95, "\nin-network"),
    ],
)
def test_the_report_says_what_sums_that_cost_nothing_would_gain(
    seconds: float, at_most: float, said: str
) -> None:
    found = explain_figures(figures(window_s=seconds))
    assert found.at_most == pytest.approx(at_most)
    assert said in str(found)


def test_the_report_names_the_job_and_the_rank() -> None:
    assert str(explain_figures(figures())).startswith(
        "job 3 (train.py), rank 0 (h1, 10.0.0.1)\n share  cause\n"
    )


@pytest.mark.parametrize(
    ("rank", "late"), [(1, ", for rank 1 (h2, 10.0.0.2)"), (0, ", for this rank"), (None, "")]
)
def test_the_longest_wait_stands_beside_the_mean(rank: int | None, late: str) -> None:
    longest = {"rank": rank, "waited_s": 25.04, "collective": 17, "call": "all_reduce(SUM, float32[10])"}
    report = report_of(
        beginning_s=5.0,
        waited_s=5.0,
        straggler={"rank": 1, "late_s": 0.0045},
        longest_wait=longest,
    )
    assert "the last one is rank 1 (h2, 10.0.0.2), 4.5 ms late on average" in report
    assert f"longest wait of a rank: 25.0 s{late}, in collective 17: all_reduce(SUM, float32[10])" in report
    longest |= {"collective": 0, "call": ""}
    assert report_of(longest_wait=longest).endswith(f"longest wait of a rank: 25.0 s{late}")


def test_the_report_says_where_sums_went_on() -> None:
    change = {"why": "switch s1 was lost", "to": "4 servers", "seconds": 1.25}
    report = report_of(changes=[change])
    assert (
        "what sums was lost once: switch s1 was lost. Sums went on after 1.2 s in all, on 4 servers" in report
    )
    assert "what sums was lost 2 times: switch s1 was lost. Sums went on after 2.5 s" in report_of(
        changes=[change, change]
    )
    assert "Sums went on" not in report_of(changes=[])


def test_a_peak_below_the_average_is_not_told() -> None:
    many = {"window_s": 1.0, "bytes_received": 10 * MB}
    assert "in that time, up to 100 Mbit/s; RTT" in report_of(**many)
    assert "in that time; RTT" in report_of(**many, peak_rate=0.0)


def test_the_report_of_a_job_on_shared_slots_says_how_much_switches_have_summed() -> None:
    chunks = {"switches": 90, "both": 6, "servers": 4}
    report = report_of(aggregation="shared", chunks=chunks)
    assert report.endswith(" of the job's chunks 90% were summed in switches, 6% in part, 4% in servers")
    nothing = dict.fromkeys(chunks, 0)
    for aggregation, counts in (("shared", nothing), ("shared", None), ("server", chunks), ("leased", None)):
        report = report_of(aggregation=aggregation, chunks=counts)
        assert "summed in switches" not in report


def test_a_job_whose_slots_other_jobs_have_is_told_so() -> None:
    chunks = {"switches": 36, "both": 24, "servers": 40}
    lossy = {"window_s": 6.0, "answers_s": 4.0, "silent_s": 2.0, "retransmits": 500, "chunks": chunks}
    full = {"window": 64, "window_limit": 128, "bytes_received": 10 * MB}
    for aggregation, said in (("shared", True), ("server", False)):
        report = report_of(aggregation=aggregation, **lossy | full)
        assert ("loss: contributions sent again" in report) == said
        assert ("`slot_collided`, `slot_evicted` and `slot_expired` are competition" in report) == said
        assert ("Servers have summed 64%, over the same links" in report) == said
        assert ("loss: retransmissions" in report) != said
