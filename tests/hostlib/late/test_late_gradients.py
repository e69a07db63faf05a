# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late with gradients hold nobody up, lose nothing, and have the weights of the others."""

import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event
from tests.hostlib.late.worker import CASES, STALL_S, STALLED, STEPS

WORKER = Path(__file__).with_name("worker.py")
RANKS = 4
# Case -> the ranks that stall; in other cases none does.
LATE = {
    "late once": [2],
    "late in a row": [2],
    "keeps up": [1],
    "far behind": [2],
    "other input": [1],  # DDP waits for all ranks, to know which parameters are not used
    "static graph": [2],
    "another model": [0],
    "accumulates": [1],
    "bfloat16": [2],
    "float16": [2],
    "late at the end": [0],
    "scale grows": [1],
    "zeroes last": [1],
    "formed again": [2],
}

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

Reports = dict[str, list[dict[str, Any]]]  # case -> the report of each rank


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("late")
    ) as opened:
        yield opened


def trained(testbed: Testbed, *cases: str, ranks: int = RANKS, **environment: str) -> Reports:
    """Case -> the report of each rank."""
    found: Reports = {case: [{} for _ in range(ranks)] for case in cases}
    command = [sys.executable, str(WORKER), "{events}", *cases]
    group = testbed.launch(
        command, name=f"late-{len(testbed.groups)}", workers=ranks, environment=environment
    )
    group.follow(
        lambda rank, event: found[event["case"]][rank].update(event), timeout_s=120, watch=testbed.services
    )
    return found


# Cases that `make test` runs. The others are long.
SHORT = (
    "late once",
    "keeps up",
    "all pause",
    "overflow",
    "scale grows",
    "zeroes last",
    "late at the end",
    "skips a step",
)
LONG = tuple(case for case in CASES if case not in SHORT)


class Lazily(Reports):
    """The reports of all short cases, or of all long ones, when one of them is first needed."""

    def __init__(self, testbed: Testbed) -> None:
        super().__init__()
        self._testbed = testbed

    def __missing__(self, case: str) -> list[dict[str, Any]]:
        self.update(trained(self._testbed, *(SHORT if case in SHORT else LONG)))
        return self[case]


@pytest.fixture(scope="module")
def reports(testbed: Testbed) -> Reports:
    return Lazily(testbed)


def marked(cases: Iterable[str]) -> list[Any]:
    return [case if case in SHORT else pytest.param(case, marks=pytest.mark.long) for case in cases]


def carried(report: dict[str, Any], bucket: int, step: int) -> list[int]:
    """How many gradients of each rank the mean of a step has."""
    mean = report["got"][step][bucket]
    return [round(share * sum(one > 0 for one in mean)) for share in mean]


@pytest.mark.parametrize("case", marked(CASES))
def test_all_ranks_have_the_same_gradients_and_weights(reports: Reports, case: str) -> None:
    first, *others = reports[case]
    if case == "skips a step":
        return  # see test_a_rank_that_makes_fewer_steps_is_named
    if case == "overflow":  # NaN is not equal to itself
        assert all(one["weights"] == first["weights"] for one in others)
        return
    for other in others:
        assert (other["got"], other["weights"]) == (first["got"], first["weights"])


@pytest.mark.parametrize("case", marked(LATE))
def test_every_gradient_leaves_once(reports: Reports, case: str) -> None:
    """With the step in which it is handed in, with a later one, or it is owed in the end."""
    for bucket in (0, 1):
        steps = len(reports[case][0]["got"])
        sums = [carried(reports[case][0], bucket, step) for step in range(steps)]
        for rank, report in enumerate(reports[case]):
            left = report["left"].get(str(bucket))
            owed = 0 if left is None else round(left[rank - len(reports[case]) if bucket else rank])
            passes = 2 if case == "accumulates" else 1
            if case == "late at the end" and rank == 0:
                sums[-1] = [round(share * RANKS) for share in reports[case][0]["got"][-1][bucket]]
            assert sum(one[rank] for one in sums) + owed == passes * report["computed"]


@pytest.mark.parametrize(
    "case", marked(sorted(LATE.keys() - {"far behind", "late at the end", "other input"}))
)
def test_nobody_waits_for_a_late_rank(reports: Reports, case: str) -> None:
    punctual = [one for rank, one in enumerate(reports[case]) if rank not in LATE[case]]
    assert min(max(one["seconds"][STALLED : STALLED + 3]) for one in punctual) < 0.75 * STALL_S
    assert all(reports[case][rank]["late"] > 0 for rank in LATE[case])


@pytest.mark.long
def test_the_log_says_that_ddp_itself_waits(testbed: Testbed, reports: Reports) -> None:
    assert reports["other input"]
    log = "".join(path.read_text() for path in testbed.results.glob("late-*-rank1.log"))
    assert (
        log.count("make DistributedDataParallel with find_unused_parameters=False, or static_graph=True") == 1
    )


def test_what_came_too_late_leaves_with_later_sums(reports: Reports) -> None:
    steps = [carried(reports["late once"][0], 0, step)[2] for step in range(STEPS)]
    assert steps[STALLED] == 0 or steps[STALLED + 1] == 0  # the stall is before the sum of one of the buckets
    assert max(steps) > 1
    assert sum(steps[-5:]) > 0


def test_a_rank_that_keeps_up_skips_passes_and_takes_part_again(reports: Reports) -> None:
    late = reports["keeps up"][1]
    assert late["computed"] < len(late["got"]) == 2 * STEPS
    last = [carried(late, 0, step)[1] for step in range(2 * STEPS - 20, 2 * STEPS)]
    assert last.count(1) > 10


@pytest.mark.long
def test_at_least_so_many_take_part(reports: Reports) -> None:
    for step in range(STEPS):
        for bucket in (0, 1):
            assert sum(one > 0 for one in carried(reports["too many late"][0], bucket, step)) >= 2
    assert max(reports["too many late"][0]["seconds"][STALLED : STALLED + 2]) > STALL_S / 2


@pytest.mark.long
def test_a_rank_that_is_too_far_behind_is_waited_for(reports: Reports) -> None:
    assert sum(reports["far behind"][0]["seconds"][STALLED : STALLED + 6]) > STALL_S / 2


@pytest.mark.parametrize(
    ("case", "step"), [("all pause", STALLED), ("late at the rebuild", 0), ("late at the rebuild", 1)]
)
def test_nobody_is_late_in_a_pause_of_all_ranks_or_with_other_buckets(
    reports: Reports, case: str, step: int
) -> None:
    assert [carried(reports[case][0], bucket, step) for bucket in (0, 1)] == [[1] * RANKS] * 2


def test_all_ranks_skip_a_step_if_a_late_gradient_overflows(reports: Reports) -> None:
    """Two steps if the buckets leave with different steps."""
    for report in reports["overflow"]:
        skipped = set()
        for bucket in (0, 1):
            infinite = [step for step, means in enumerate(report["got"]) if math.inf in means[bucket]]
            assert len(infinite) == 1
            assert infinite[0] > STALLED
            skipped.update(infinite)
        assert report["scales"][-1] == 4.0 / 2 ** len(skipped)
        assert all(map(math.isfinite, report["weights"]))


def test_the_last_gradient_is_flushed(reports: Reports) -> None:
    for report in reports["late at the end"]:
        assert (report["flushed"], report["again"]) == (True, False)
        assert report["got"][-1] == [[1 / RANKS, 0, 0, 0]] * 2
        assert report["left"] == {}
    assert max(reports["late at the end"][1]["seconds"][STEPS - 2 : STEPS]) < 0.75 * STALL_S


def test_a_rank_that_makes_fewer_steps_is_named(testbed: Testbed, reports: Reports) -> None:
    for rank, report in enumerate(reports["skips a step"]):
        assert len(report["got"]) == STEPS - (rank == 1)
        assert f"different numbers of steps (rank 1 {STEPS - 1}, rank 0 {STEPS})" in report["error"]
    logs = "".join(path.read_text() for path in testbed.results.glob("late-*-rank*.log"))
    assert logs.count("rank 1: this rank ends with fewer steps than the others, by 1: its weights") == 1


@pytest.mark.long
def test_a_checkpoint_has_what_is_owed(reports: Reports) -> None:
    for report in reports["restores"]:
        assert report["got"] == [[[2 / RANKS, *[1 / RANKS] * 3]] * 2]


def test_gloo_sums_in_the_same_way(testbed: Testbed) -> None:
    found = trained(
        testbed, "late once", "keeps up", INAGG_FALLBACK="inner", INAGG_CONTROLLER="http://127.0.0.1:9"
    )
    for case in found:
        test_all_ranks_have_the_same_gradients_and_weights(found, case)
        test_every_gradient_leaves_once(found, case)
        test_nobody_waits_for_a_late_rank(found, case)


@pytest.mark.long
def test_counts_are_exact_in_narrow_lanes(testbed: Testbed) -> None:
    found = trained(testbed, "late once", INAGG_LANE_BITS="8")
    test_all_ranks_have_the_same_gradients_and_weights(found, "late once")
    test_nobody_waits_for_a_late_rank(found, "late once")
    assert found["late once"][0]["got"][0] == [[1 / RANKS] * RANKS] * 2


def test_a_rank_alone_is_never_late(testbed: Testbed) -> None:
    found = trained(testbed, "bfloat16", "late at the end", ranks=1)
    assert found["bfloat16"][0]["got"] == [[[1.0]] * 2] * STEPS
    assert (found["late at the end"][0]["late"], found["late at the end"][0]["flushed"]) == (0, False)


def test_a_rank_that_dies_while_it_is_late_is_named(testbed: Testbed) -> None:
    events: list[tuple[int, Event]] = []
    group = testbed.launch([sys.executable, str(WORKER), "{events}", "dies late"], name="dies")
    with pytest.raises(WorkerFailedError):
        group.follow(lambda rank, event: events.append((rank, event)), timeout_s=60)
    assert sorted(rank for rank, _ in events) == [0, 2, 3]
    for _, event in events:
        assert "lost rank 1" in event["error"]
        assert event["steps"] > STALLED + 1  # the others have gone on


def test_the_program_may_end_right_after_it_was_late(testbed: Testbed) -> None:
    late = {}
    group = testbed.launch([sys.executable, str(WORKER), "{events}", "ends late"], name="ends")
    group.follow(lambda rank, event: late.update({rank: event["late"]}), timeout_s=60, watch=testbed.services)
    assert late[0] > 0
