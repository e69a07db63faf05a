# SPDX-License-Identifier: Apache-2.0
"""What theory predicts of a step, and where inagg pays."""

from typing import Any

import pytest

from inagg_testbed.compare.figures import ComparisonFigures, Parts, RunFigures
from inagg_testbed.compare.prediction import _range, payoffs, predictions
from tests.testbed.compare.examples import comparison, run


def of(way: str, *, waited: float, ran: float = 20.0, **figures: Any) -> RunFigures:
    """A run whose steps wait for all of their communication."""
    parts = Parts(ran=ran, queued=0.0, waited=waited, other=0.0, communication=waited)
    return run(way, ran + waited).model_copy(update={"parts_ms": parts, "sums": 1.0, **figures})


def four(
    elements: int, ring_ms: float, inagg_ms: float, *, ran: float = 20.0, rtt_ms: float = 1.0
) -> ComparisonFigures:
    """Four workers, links of 100 Mbit/s, and half of the round-trip time to the switch."""
    return comparison(
        of("ring", waited=ring_ms, ran=ran, elements=elements, least_rtt_ms=rtt_ms),
        of(
            "inagg:32",
            waited=inagg_ms,
            ran=ran,
            elements=elements,
            least_rtt_ms=rtt_ms,
            switch_rtt_ms=rtt_ms / 2,
        ),
    )


def test_a_step_is_computation_bytes_with_headers_and_round_trips() -> None:
    """4 MB: a ring of four moves 6 MB in frames of 1514 bytes with 1448 of payload, and takes six round trips. inagg
    moves 4 MB in frames of 1086 bytes with 1024, and takes one."""
    ring, inagg = predictions(four(1_000_000, ring_ms=520, inagg_ms=350))
    assert ring.bytes == pytest.approx(6e6 * 1514 / 1448)
    assert ring.header_share == pytest.approx(66 / 1514)
    assert (ring.messages, ring.rtt_ms) == (6, 1.0)
    assert ring.step_ms == pytest.approx(20 + 6e6 * 1514 / 1448 * 8 / 1e5 + 6)
    assert inagg.bytes == pytest.approx(4e6 * 1086 / 1024)
    assert (inagg.messages, inagg.rtt_ms) == (1, 0.5)
    assert inagg.step_ms == pytest.approx(20 + 4e6 * 1086 / 1024 * 8 / 1e5 + 0.5)
    assert inagg.measured_ms == 370


def test_overlapped_communication_takes_no_time_of_a_step() -> None:
    figures = of("ring", waited=250, elements=1_000_000, least_rtt_ms=1.0)
    parts = figures.parts_ms.model_copy(update={"communication": 500.0})
    (found,) = predictions(comparison(figures.model_copy(update={"parts_ms": parts})))
    assert found.step_ms == pytest.approx(20 + found.communication_ms / 2)


def test_inagg_pays_where_the_link_is_the_limit() -> None:
    """It saves 163 of 502 ms at 100 Mbit/s, beside 20 ms of computation: a tenth of a step at 6.4 Gbit/s, or with 16
    thousand parameters. In a ring of two each link carries as much as with inagg."""
    (text,) = payoffs(four(1_000_000, ring_ms=502.2, inagg_ms=339.5, rtt_ms=0.02))
    assert text == (
        "inagg:32 is predicted to be at least 1.1x as fast as ring: on links of up to 5 Gbit/s; with at least 20"
        " thousand parameters; with at least 3 workers"
    )


def test_what_theory_does_not_know_grows_with_bytes() -> None:
    """inagg's packets take 200 ms at 100 Mbit/s that neither the link nor round trips need: it never pays."""
    (text,) = payoffs(four(1_000_000, ring_ms=502.2, inagg_ms=539.5, rtt_ms=0.02))
    assert "with no number of parameters" in text


def test_inagg_pays_nowhere_beside_long_computation_of_a_small_model() -> None:
    (text,) = payoffs(four(1000, ring_ms=6.5, inagg_ms=1.0, ran=1000.0))
    assert "on no links" in text


def test_nothing_is_said_of_other_architectures() -> None:
    runs = [of(way, waited=100, elements=1000) for way in ("ring", "server:sync")]
    assert list(payoffs(comparison(*runs))) == []


def test_all_ranges_in_which_it_pays_are_said() -> None:
    def said(*pays: bool) -> str:
        return _range(
            "links", "on {}", list(zip(("1 Mbit/s", "2 Mbit/s", "5 Mbit/s", "10 Mbit/s"), pays, strict=True))
        )

    assert said(True, True, True, True) == "on any links"
    assert said(False, False, False, False) == "on no links"
    assert said(True, False, False, True) == "on links of up to 1 Mbit/s or at least 10 Mbit/s"
    assert said(False, True, True, False) == "on links of 2 Mbit/s to 5 Mbit/s"
