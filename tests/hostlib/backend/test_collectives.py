# SPDX-License-Identifier: Apache-2.0
"""Backend "inagg" in real processes and namespaces, through the compiled P4 program. Each case of collectives_worker.py
is a test, with 1, 2 and 4 ranks. Sums are the same with packet loss, with servers in place of the switch or behind it,
with variables of torch and gloo, and if CPU tensors are treated as CUDA tensors are (`stage_cpu`)."""

import sys
from collections.abc import Iterator

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event
from tests.hostlib.backend import collectives_worker

CASES = [run.__name__ for run in collectives_worker.CASES]
RUNS = [
    "1 rank",
    "2 ranks, variables",
    pytest.param("2 ranks, staged", marks=pytest.mark.long),
    pytest.param("4 ranks", marks=pytest.mark.long),
    "4 ranks, 5% loss",
    "4 ranks, server",
    "4 ranks, shared, 5% loss",
]

# Variables of torch and gloo that change how groups are made, and what is recorded of them.
VARIABLES = {
    "GLOO_DISABLE_CONNECTION_RETRIES": "1",
    "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1",
    "GLOO_ENABLE_STORE_V2_API": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_DIST_INIT_BARRIER": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_GLOO_LAZY_INIT": "1",
}

Outcome = dict[str, list[str | None]]

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=4, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("collectives")
    ) as opened:
        yield opened


def run_all(testbed: Testbed, name: str, ranks: int, loss: float) -> Outcome:
    """Runs all cases in one launch. Only sums lose packets: TCP at 5% loss could delay gloo for minutes."""
    environment = {collectives_worker.STAGE_CPU: "1"} if "staged" in name else {}
    environment |= VARIABLES if "variables" in name else {}
    environment["INAGG_AGGREGATION"] = next((way for way in ("server", "shared") if way in name), "leased")
    rows: list[tuple[int, Event]] = []
    with testbed.loss(loss, "aggregation"):
        group = testbed.launch(
            [sys.executable, "-m", collectives_worker.__name__, "{events}"],
            name=name,
            workers=ranks,
            environment=environment,
        )
        group.follow(lambda rank, row: rows.append((rank, row)), timeout_s=120, watch=testbed.services)
    outcome: Outcome = {case: [None] * ranks for case in CASES}
    seen = set()
    for rank, row in rows:
        seen.add((rank, row["case"]))
        outcome[row["case"]][rank] = row["problem"]
    assert len(seen) == ranks * len(CASES), "a rank left out a case"
    return outcome


@pytest.fixture(scope="module", params=RUNS)
def outcome(testbed: Testbed, request: pytest.FixtureRequest) -> Outcome:
    """Case -> each rank's problem, or None, in one launch of the worker."""
    name = request.param.replace(" ", "-").replace(",", "").replace("%", "")
    return run_all(testbed, name, ranks=int(name[0]), loss=0.05 if "loss" in name else 0.0)


@pytest.mark.parametrize("case", CASES)
def test_no_rank_has_a_problem(outcome: Outcome, case: str) -> None:
    problems = {rank: problem for rank, problem in enumerate(outcome[case]) if problem}
    assert not problems, "\n".join(f"rank {rank}: {problem}" for rank, problem in problems.items())
