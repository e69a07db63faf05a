# SPDX-License-Identifier: Apache-2.0
"""What limits a training follows from its figures."""

from typing import Any

import pytest

from inagg.causes import CAUSES
from inagg_testbed.compare.diagnosis import diagnose, diagnoses
from inagg_testbed.compare.figures import Late, Link, Parts, RunFigures
from inagg_testbed.compare.groups import GroupFigures
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


@pytest.mark.parametrize("shares", [{}, {"ranks": 0.5, "link": 0.5}])
def test_a_rank_that_lacks_a_processor_stays_late_as_well(shares: dict[str, float]) -> None:
    late = [Late(rank=1, late_ms=50, cause="processors")]
    figures = of(parts={"waited": 100, "communication": 100}, late=late, sums=1, shares=shares)
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes["processors"] == pytest.approx(0.5)
    assert diagnose(figures, RATE).at_most == pytest.approx(2)


def test_what_gloo_does_beside_sums_stays() -> None:
    """Such as broadcasts of buffers, or messages of a pipeline."""
    figures = of(
        parts={"ran": 50, "waited": 50, "communication": 50},
        shares={"program": 0.5, "link": 0.1, "gloo": 0.4},
    )
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes == pytest.approx({"computation": 0.5, "gloo": 0.4, "link": 0.1})
    assert diagnose(figures, RATE).at_most == pytest.approx(1 / 0.9)


def test_the_stages_of_a_mesh_wait_for_gloo() -> None:
    """Of 40 ms in collectives 30 are messages; the shares are those of a group that has only sums."""
    own = {"ranks": 2, "calls": 1, "bytes": 1}
    groups = [
        GroupFigures(name="tp", kind="all_reduce", path="switch", ms=10, **own),
        GroupFigures(name="pp", kind="recv", path="gloo", ms=30, **own),
    ]
    figures = of(parts={"waited": 80, "communication": 80}, shares={"switch": 0.2}, groups=groups)
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes == pytest.approx({"gloo": 0.75, "switch": 0.25})


def test_loss_is_what_is_left_where_packets_are_sent_again() -> None:
    figures = of(parts={"ran": 10, "waited": 90, "communication": 90}, theory_bytes=1e5, resent=0.02)
    assert limit(figures)[0] == "loss"
    assert limit(figures.model_copy(update={"resent": 0.0}))[0] == "other"


def link(lower: str, *, rate_bps: int | None = RATE, dropped: int = 0) -> Link:
    """A link of a host that has carried nothing worth counting."""
    return Link(lower=lower, upper="s1:1", up=0, down=0, rate_bps=rate_bps, dropped=dropped)


def test_drops_of_a_queue_are_why_packets_are_sent_again() -> None:
    """Half as many packets."""
    figures = of(parts={"ran": 10, "waited": 90, "communication": 90}, resent=0.04, resent_packets=120)
    links = [link("h1"), link("h2", dropped=60), link("h3")]
    (first, _) = diagnose(figures.model_copy(update={"links": links}), RATE).causes
    assert (first.name, first.detail) == ("queue", " (at h2: 60 packets dropped, 4.0% sent again)")
    links[1] = link("h2", dropped=59)
    assert limit(figures.model_copy(update={"links": links}))[0] == "loss"


def test_timeouts_are_loss_before_anything_else() -> None:
    """One in ten steps: 20 ms of each. The link needs all of the rest."""
    figures = of(parts={"waited": 100, "communication": 100}, resent=0.01, timeouts=0.1, theory_bytes=10e6)
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes == pytest.approx({"link": 0.8, "loss": 0.2})


@pytest.mark.parametrize("shares", [{}, {"link": 0.1, "switch": 0.9}])
def test_a_slower_link_of_another_host_is_named(shares: dict[str, float]) -> None:
    """100 kB and headers take 84 ms at 10 Mbit/s."""
    links = [link("h1"), link("h2", rate_bps=RATE // 10)]
    figures = of(parts={"waited": 100, "communication": 100}, theory_bytes=1e5, links=links, shares=shares)
    first = diagnose(figures, RATE).causes[0]
    assert (first.name, first.detail) == ("link", " (84 ms for 0.1 MB at h2)")
    assert first.share == pytest.approx(0.84)


def test_the_only_link_with_a_rate_is_named() -> None:
    links = [link("h1", rate_bps=None), link("h2")]
    figures = of(parts={"waited": 100, "communication": 100}, theory_bytes=1e6, links=links)
    assert diagnose(figures, None).causes[0].detail == " (84 ms for 1 MB at h2)"


def test_a_link_between_switches_carries_what_was_counted() -> None:
    trunk = Link(lower="leaf1:101", upper="root:1", up=10_000_000, down=0, rate_bps=RATE)
    figures = of(parts={"waited": 500, "communication": 500}, theory_bytes=1e5, steps=1, links=[trunk])
    first = diagnose(figures, RATE).causes[0]
    assert (first.name, round(first.share, 3)) == ("link", 0.8)
    assert first.detail == " (400 ms for 5 MB at leaf1:101-root:1)"


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        ({"switch_ran_ms": 50.0, "switch_queued_ms": 20.0}, "switch"),
        ({"serving_ran_ms": 50.0, "serving_queued_ms": 20.0}, "processors"),
    ],
)
def test_the_slowest_of_what_moves_bytes_is_the_limit(figures: dict[str, Any], name: str) -> None:
    """The link needs 42 ms in the same time."""
    found = of(parts={"waited": 100, "communication": 100}, theory_bytes=5e5, **figures)
    assert limit(found) == (name, 0.7)


def test_a_link_works_while_the_switch_waits_for_a_processor() -> None:
    """84 ms; the waiting explains the rest."""
    found = of(
        parts={"waited": 100, "communication": 100},
        theory_bytes=1e6,
        switch_ran_ms=10.0,
        switch_queued_ms=200.0,
    )
    causes = {cause.name: cause.share for cause in diagnose(found, RATE).causes}
    assert causes == pytest.approx({"link": 0.84, "switch": 0.16})


def test_what_nothing_explains_is_waiting_for_processors_on_a_busy_machine() -> None:
    figures = of(parts={"waited": 100, "communication": 100}, idle=0.02)
    assert limit(figures) == ("processors", 1.0)
    assert limit(figures.model_copy(update={"idle": 0.5}))[0] == "other"


def test_computation_says_that_aggregation_will_not_help() -> None:
    found = str(diagnose(of(parts={"ran": 95, "waited": 5, "communication": 5}), RATE))
    assert "in-network aggregation will not help" in found


def test_sleep_in_data_loaders_is_data_loading() -> None:
    assert limit(of(parts={"ran": 20, "other": 80}, loading_ms=70)) == ("data loading", 0.7)


def test_inagg_says_itself_what_it_waits_for() -> None:
    shares = {"program": 0.5, "switch": 0.3, "link": 0.1, "slots": 0.05, "receive buffer": 0.05, "ranks": 0.0}
    figures = of(
        "inagg:32", parts={"ran": 20, "waited": 80, "communication": 80}, shares=shares, theory_bytes=1e5
    )
    causes = {cause.name: cause.share for cause in diagnose(figures, RATE).causes}
    assert causes == pytest.approx(
        {"switch": 0.48, "computation": 0.2, "link": 0.16, "slots": 0.08, "receive buffer": 0.08}
    )


def test_a_training_without_steps_has_no_limit() -> None:
    assert diagnose(of(parts={}), RATE).causes == ()


def test_the_lines_name_the_limit_and_what_to_do() -> None:
    figures = of(parts={"ran": 20, "waited": 80, "communication": 80}, theory_bytes=1e6)
    (diagnosis,) = diagnoses(comparison(figures))
    first, second = str(diagnosis), diagnosis.remedy
    assert first.startswith("ring: link 80% (84 ms for 1 MB), computation 20%; with sums that cost nothing")
    assert first.endswith("5.00x as fast")
    assert second.startswith(CAUSES["link"].remedy)
