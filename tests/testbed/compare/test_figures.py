# SPDX-License-Identifier: Apache-2.0
"""The figures of a run follow from its ranks' events."""

import json
import math
import statistics
from pathlib import Path

import pytest

from inagg_testbed.compare.figures import ComparisonFigures, Interval, RunFigures, ratios, table
from inagg_testbed.compare.ways import Way
from inagg_testbed.errors import WrongResultError
from inagg_testbed.network.workers import Event
from tests.testbed.compare.examples import comparison, figures, of_rank, run, step

SCHEMA = Path(__file__).parents[3] / "docs" / "compare.schema.json"


def test_a_step_is_that_of_the_slowest_rank() -> None:
    found = figures([*of_rank(0, step(0), step(1)), *of_rank(1, step(0, seconds=0.3), step(1, seconds=0.2))])
    assert found.step_ms == pytest.approx(250)
    assert found.seconds == pytest.approx(0.2)  # rank 0's
    assert (found.steps, found.elements, found.peak_bytes) == (3, 100, 501)  # the first step has no event


def test_the_parts_of_a_step_add_up() -> None:
    parts = figures(of_rank(0, step(0))).parts_ms
    assert (parts.ran, parts.queued, parts.waited, parts.other) == pytest.approx((30, 10, 60, 0))
    assert (parts.computation, parts.overlapped) == pytest.approx((40, 20))


def test_sleep_without_communication_is_not_waiting_for_it() -> None:
    parts = figures(of_rank(0, step(0, collecting=0.02, exchanging=0.01))).parts_ms
    assert (parts.waited, parts.other, parts.overlapped) == pytest.approx((30, 30, 0))


def test_the_busiest_link_counts_beside_theory() -> None:
    found = figures([*of_rank(0, step(0)), *of_rank(1, step(0, sent=9000), step(1, sent=3000))])
    assert found.busiest_link_bytes == 6000
    assert found.theory_bytes == 1.5 * 4 * 100
    assert found.theory_steps == 6
    assert figures(of_rank(0, step(0)), "inagg:16").theory_bytes == 200


def test_steps_of_local_sgd_count_by_whole_periods() -> None:
    """One of two steps exchanges weights, and is longer."""
    long, short = {"seconds": 0.4, "received": 4000}, {"seconds": 0.2, "received": 0}
    events = of_rank(0, *(step(number, **(short if number % 2 else long)) for number in range(5)))
    found = figures(events, "local:2")
    assert (found.step_ms, found.busiest_link_bytes) == pytest.approx((300, 2000))
    assert found.seconds == pytest.approx(1.6)
    assert figures(events, "local:8").busiest_link_bytes == 2400  # there is no whole period


def test_different_weights_are_an_error_where_gradients_of_a_model_are_summed() -> None:
    events = [*of_rank(0, step(0)), *of_rank(1, step(0), weights="bb")]
    with pytest.raises(WrongResultError, match="2 different sets of weights"):
        figures(events)
    assert figures(events, "gossip").weights == ["aa", "bb"]
    assert figures(events, model=None).weights == ["aa", "bb"]  # such as a model in stages


def test_a_rank_without_an_end_is_an_error() -> None:
    with pytest.raises(WrongResultError, match=r"os\._exit"):
        figures([*of_rank(0, step(0)), *of_rank(1, step(0))[:-1]])


@pytest.mark.parametrize(
    ("longer", "cause"),
    [
        ({"ran": 0.09}, "computation"),
        ({"ran": 0.05, "queued": 0.05}, "computation"),  # it waits for processors because it computes
        ({"queued": 0.08}, "processors"),
        ({"loaded": 0.06}, "data loading"),
        ({}, "network"),
    ],
)
def test_the_steps_of_a_late_rank_say_why_it_is_late(longer: dict[str, float], cause: str) -> None:
    group = {"event": "group", "shares": {}, "sums": 1, "resent": 0.0, "least_rtt_s": None}
    late = [{"rank": 1, "late_s": 0.1, "cause": "computation"}]
    events = of_rank(0, step(0), {**group, "late": late})
    events += of_rank(1, step(0, **longer), {**group, "late": []}) + of_rank(
        2, step(0), {**group, "late": []}
    )
    (found,) = figures(events).late
    assert (found.rank, found.late_ms, found.cause) == (1, 100, cause)


def test_sums_are_those_of_a_step() -> None:
    group = {"event": "group", "shares": {}, "late": [], "sums": 6, "resent": 0.0, "least_rtt_s": None}
    assert figures(of_rank(0, step(0), step(1), step(2), group)).sums == 2


def test_the_quality_is_rank_0s() -> None:
    other = of_rank(1, step(0), {"event": "quality", "value": 0.5})
    assert figures([*other, *of_rank(0, step(0), {"event": "quality", "value": 0.9})]).quality == 0.9


def test_figures_of_a_training_that_diverges_can_be_read_again() -> None:
    found = figures(of_rank(0, step(0, loss=math.nan), judged(2, math.nan)), until="accuracy=0.9")
    again = RunFigures.model_validate_json(found.model_dump_json())
    assert (again.losses, again.judged[0][2], again.reached_s) == ([None], None, None)


def test_a_program_that_takes_no_steps_is_named() -> None:
    with pytest.raises(WrongResultError, match="no optimizer"):
        figures(of_rank(0))


def judged(steps: int, value: float) -> Event:
    return {"event": "judged", "steps": steps, "value": value}


def test_a_model_reaches_its_target_when_it_is_judged() -> None:
    events = of_rank(0, step(0), judged(2, 0.5), step(1), judged(3, 0.9), step(2), judged(4, 0.95))
    found = figures(events, until="accuracy=0.9")
    assert found.reached_s == pytest.approx(0.2)
    steps, seconds, values = zip(*found.judged, strict=True)
    assert (steps, values) == ((2, 3, 4), (0.5, 0.9, 0.95))
    assert seconds == pytest.approx((0.1, 0.2, 0.3))
    assert figures(events, until="accuracy=0.99").reached_s is None


def test_a_program_reaches_its_target_with_the_mean_of_ten_steps() -> None:
    losses = [2.0] * 10 + [1.0] * 10
    events = of_rank(0, *(step(number, loss=loss) for number, loss in enumerate(losses)))
    assert figures(events, until="loss=1.5", model=None).reached_s == pytest.approx(1.5)
    assert figures(events, until="loss=1.05", model=None).reached_s == pytest.approx(2.0)
    silent = of_rank(0, *(step(number, loss=None) for number in range(20)))
    assert figures(silent, until="loss=1.5", model=None).reached_s is None


def test_an_interval_is_students() -> None:
    """Of 1, 2, 3: the 97.5% quantile of two degrees of freedom is 4.303 (NIST's table)."""
    assert Interval.of([1.0, 2.0, 3.0]).half_width == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert Interval.of([2.0]).half_width is None
    assert f"{Interval.of([2.0]):.1f}" == "2.0"


def test_gains_are_medians_of_ratios_of_the_same_repeat() -> None:
    first = [run("ring", 100, 0, 10), run("ring", 400, 1, 40), run("ring", 100, 2, 10)]
    own = [run("gossip", 50, 0, 5), run("gossip", 100, 1, 20), run("gossip", 100, 2, None)]
    assert statistics.median(ratios(own, first, by_target=False)) == 2
    assert statistics.median(ratios(own[:2], first, by_target=True)) == 2
    assert ratios(own, first, by_target=True) == []  # one has not reached the target


def test_the_table_has_a_row_for_each_architecture_that_has_run() -> None:
    rows = table(comparison(run("ring", 100), run("inagg:32", 50)))
    assert [(row[0], row[-1]) for row in rows] == [("ring", "1.00x"), ("inagg:32", "2.00x")]


def test_the_schema_is_published() -> None:
    assert json.loads(SCHEMA.read_text()) == ComparisonFigures.model_json_schema(), (
        "run: python -m inagg_testbed.compare > docs/compare.schema.json"
    )


def test_a_way_is_one_of_its_name() -> None:
    assert Way.parse("inagg").text == "inagg:32"


def spans(*lengths_s: float, late_s: float = 0.0) -> Event:
    """The event of a rank whose steps from the third on have these lengths: a wait each, as a rank writes it."""
    steps, begin_s = [], 50.0 + late_s
    for number, length_s in enumerate(lengths_s, 2):
        end_s = begin_s + length_s
        steps.append(
            [number, begin_s, end_s, [["wait", begin_s, end_s, 0], ["all_reduce", begin_s, end_s, 4]]]
        )
        begin_s = end_s
    return {"event": "spans", "steps": steps}


def test_the_timeline_is_of_the_step_of_median_length() -> None:
    events = [
        *of_rank(0, step(0), spans(0.1, 0.3, 0.2)),
        *of_rank(1, step(0), spans(0.1, 0.3, 0.2, 9.0, late_s=0.01)),
    ]
    timeline = figures(events).timeline
    assert timeline is not None
    assert (timeline.step, len(timeline.ranks)) == (4, 2)
    wait, total = timeline.ranks[1]
    assert wait.kind == "wait"
    assert (wait.begin_ms, wait.end_ms) == pytest.approx((10, 210))
    assert (total.kind, total.bytes) == ("all_reduce", 4)


def test_the_first_steps_are_no_example_of_the_others() -> None:
    first = spans(0.2, 0.2, 0.9)
    for fields in first["steps"]:
        fields[0] -= 2  # 0, 1 and 2
    timeline = figures(of_rank(0, step(0), first)).timeline
    assert timeline is not None
    assert timeline.step == 2


def test_a_rank_without_steps_leaves_no_timeline() -> None:
    assert figures([*of_rank(0, step(0), spans(0.1)), *of_rank(1, step(0), spans())]).timeline is None
    assert figures(of_rank(0, step(0))).timeline is None
