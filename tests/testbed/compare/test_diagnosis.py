# SPDX-License-Identifier: Apache-2.0
"""What limits a training follows from its figures."""

from typing import Any

import pytest

from inagg_testbed.compare.diagnosis import REMEDIES, diagnose, diagnoses
from inagg_testbed.compare.figures import Late, Parts, RunFigures
from tests.testbed.compare.examples import comparison, run

RATE = 100_000_000


def of(way: str = "ring", *, parts: dict[str, float], **figures: Any) -> RunFigures:
    """Figures of a run whose steps have these parts, in ms."""
    made = Parts(**({"ran": 0.0, "queued": 0.0, "waited": 0.0, "other": 0.0, "communication": 0.0} | parts))
    return run(way, 100).model_copy(update={"parts_ms": made, "theory_bytes": 0.0, **figures})


def limit(figures: RunFigures) -> tuple[str, float]:
    """The largest cause, and its share."""
    first = diagnose(figures, RATE).causes[0]
    return first.name, first.share


def test_computation_is_what_ran() -> None:
    found = diagnose(of(parts={"ran": 90, "waited": 10, "communication": 10}, theory_bytes=1e5), RATE)
    assert (found.causes[0].name, found.causes[0].share) == ("computation", 0.9)
    assert found.at_most == pytest.approx(100 / 90)


def test_time_in_the_run_queue_is_the_processors() -> None:
    assert limit(of(parts={"ran": 30, "queued": 70})) == ("processors", 0.7)


def test_a_link_takes_what_its_bytes_need() -> None:
    """1 MB and its headers take 84 ms at 100 Mbit/s; half of the communication is overlapped."""
    figures = of(parts={"ran": 60, "waited": 45, "communication": 90}, theory_bytes=1e6)
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes == pytest.approx({"computation": 60 / 105, "link": 42 / 105})
    assert "link" not in {cause.name for cause in diagnose(figures, None).causes}


def test_messages_that_wait_for_each_other_are_latency() -> None:
    """Six messages of a ring, twice a step, each a round trip of 5 ms: gloo's receiver asks for it."""
    figures = of(
        parts={"ran": 20, "waited": 70, "communication": 70}, least_rtt_ms=5.0, theory_steps=6, sums=2
    )
    name, share = limit(figures)
    assert (name, round(share, 3)) == ("latency", 0.667)


def test_a_late_rank_comes_before_what_theory_says() -> None:
    late = [Late(rank=3, late_ms=80, cause="data loading")]
    figures = of(parts={"ran": 10, "waited": 90, "communication": 90}, late=late, sums=1, theory_bytes=1e6)
    first = diagnose(figures, RATE).causes[0]
    assert (first.name, first.share, first.detail) == ("ranks", 0.8, " (rank 3: data loading)")
    assert diagnose(figures, RATE).at_most == pytest.approx(100 / 90)  # late ranks stay late


def test_loss_is_what_is_left_where_packets_are_sent_again() -> None:
    figures = of(parts={"ran": 10, "waited": 90, "communication": 90}, theory_bytes=1e5, resent=0.02)
    assert limit(figures)[0] == "loss"
    assert limit(figures.model_copy(update={"resent": 0.0}))[0] == "other"


def test_sleep_in_data_loaders_is_data_loading() -> None:
    assert limit(of(parts={"ran": 20, "other": 80}, loading_ms=70)) == ("data loading", 0.7)


def test_inagg_says_itself_what_it_waits_for() -> None:
    shares = {"program": 0.5, "switch": 0.3, "link": 0.1, "slots": 0.05, "receive buffer": 0.05, "ranks": 0.0}
    figures = of(
        "inagg:32", parts={"ran": 20, "waited": 80, "communication": 80}, shares=shares, theory_bytes=1e6
    )
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes == pytest.approx({"switch": 0.48, "computation": 0.2, "link": 0.16, "queue": 0.16})


def test_a_training_without_steps_has_no_limit() -> None:
    assert diagnose(of(parts={}), RATE).causes == ()


def test_the_lines_name_the_limit_and_what_to_do() -> None:
    figures = of(parts={"ran": 20, "waited": 80, "communication": 80}, theory_bytes=1e6)
    (diagnosis,) = diagnoses(comparison(figures))
    first, second = str(diagnosis), diagnosis.remedy
    assert first.startswith("ring: link 80% (84 ms for 1 MB), computation 20%; with sums that cost nothing")
    assert first.endswith("5.00x as fast")
    assert second == REMEDIES["link"]
