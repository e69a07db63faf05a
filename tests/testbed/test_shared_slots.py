# SPDX-License-Identifier: Apache-2.0
"""Jobs in slots of the switch that they share, with servers in the ranks' processes behind them."""

import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg.membership.mtu_probe import blocks_of
from inagg_testbed.demo.run import INAGG_16, INAGG_32, INAGG_32_LOSS, TrainingSpec
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.testbed.commands import inagg
from tests.testbed.programs import SUMS, launch, right_sum, sum_rightly, weights
from tests.waiting import BUSY_S

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

WORKERS = 4
SHARED = {"INAGG_AGGREGATION": "shared"}
MOST_S = 10.0 + BUSY_S  # until every rank has ended after another has died


@pytest.fixture(scope="module")
def testbed(folder: Path) -> Iterator[Testbed]:
    with open_testbed(
        hosts=WORKERS,
        link=LinkSpec.parse("unshaped"),
        results_root=folder / "results",
        state_dir=folder / "state",
        environment=SHARED,
    ) as opened:
        yield opened


def counted(testbed: Testbed, name: str) -> int:
    """A counter of the switch, over all ports."""
    assert testbed.controller is not None
    (counters,) = testbed.controller.counters().values()
    return sum(count.packets for count in counters.get(name, {}).values())


@pytest.fixture(scope="module")
def leased(folder: Path) -> dict[TrainingSpec, str]:
    """Weights after training in slots of the job's own."""
    with open_testbed(
        hosts=WORKERS,
        link=LinkSpec.parse("unshaped"),
        results_root=folder / "leased",
        state_dir=folder / "state",
    ) as opened:
        return {spec: weights(opened, spec) for spec in (INAGG_32, INAGG_16)}


@pytest.mark.parametrize("spec", [INAGG_32, INAGG_16], ids=lambda spec: spec.name)
def test_shared_slots_train_the_weights_of_leased_ones(
    testbed: Testbed, leased: dict[TrainingSpec, str], spec: TrainingSpec
) -> None:
    before = counted(testbed, "slot_combined")
    assert weights(testbed, spec) == leased[spec]
    assert counted(testbed, "slot_combined") > before
    assert testbed.controller is not None
    job = max(testbed.controller.jobs(), key=lambda one: one.id)
    assert (job.aggregation, len(job.servers), job.state) == ("shared", WORKERS, "finished")


def test_with_loss_too(testbed: Testbed, leased: dict[TrainingSpec, str]) -> None:
    assert weights(testbed, INAGG_32_LOSS) == leased[INAGG_32]


def test_jobs_at_the_same_time_are_all_right_and_count_each_chunk_once(testbed: Testbed) -> None:
    elements, together = 300_000, 3
    groups = [
        testbed.launch([sys.executable, "-c", right_sum(elements)], name=f"job{number}")
        for number in range(together)
    ]
    for group in groups:
        group.follow(lambda _rank, _event: None, timeout_s=120, watch=testbed.services)
    assert testbed.controller is not None
    jobs = sorted(testbed.controller.jobs(), key=lambda job: job.id)[-together:]
    for job in jobs:
        assert (job.aggregation, job.state) == ("shared", "finished")
        assert job.chunks is not None
        counts = job.chunks.model_dump()
        # The first sum, of the path, has blocks for each server.
        assert sum(counts.values()) == math.ceil(4 * elements / (256 * job.words)) + blocks_of(job), counts
        assert counts["switches"] > 0
        ended = testbed.controller.job(job.id)
        assert ended.displaced is not None


def test_a_rank_that_dies_is_named_and_the_next_job_starts_clean(testbed: Testbed) -> None:
    group = launch(testbed, SUMS)
    group.workers[1].process.signal(signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerFailedError) as caught:
        group.follow(lambda _rank, _event: None, timeout_s=60)
    assert time.monotonic() - began < MOST_S
    others = {rank: text for rank, text in caught.value.failures.items() if rank != 1}
    assert set(others) == set(range(WORKERS)) - {1}
    assert all("rank 1" in text for text in others.values()), caught.value
    sum_rightly(testbed, watch=testbed.services)


def counted_at_each(testbed: Testbed, name: str) -> dict[str, int]:
    """A counter over all ports, by switch."""
    assert testbed.controller is not None
    return {
        switch: sum(count.packets for count in counters.get(name, {}).values())
        for switch, counters in testbed.controller.counters().items()
    }


@pytest.mark.parametrize(
    ("topology", "servers", "switch"),
    [
        ("tree:2x2", 0, "model"),
        pytest.param("leaf-spine:2x2x2", 1, "model", marks=pytest.mark.long),
        pytest.param("tree:2x2", 0, "bmv2", marks=pytest.mark.bmv2),
    ],
)
def test_every_switch_of_a_tree_combines_and_the_weights_are_the_same(
    folder: Path, leased: dict[TrainingSpec, str], topology: str, servers: int, switch: SwitchKind
) -> None:
    with open_testbed(
        fabric=Fabric.parse(topology),
        link=LinkSpec.parse("unshaped"),
        results_root=folder / "tree",
        state_dir=folder / "state",
        switch=switch,
        servers=servers,
        environment=SHARED | ({"INAGG_SERVERS": "registered"} if servers else {}),
    ) as tree:
        assert weights(tree, INAGG_32_LOSS if switch == "model" else INAGG_32) == leased[INAGG_32]
        combined = counted_at_each(tree, "slot_combined")
        used = set(combined) - {"spine2"}
        assert all(combined[name] > 0 for name in used), combined
        assert tree.controller is not None
        (job,) = tree.controller.jobs()
        assert {each.switch for each in job.tree} == used
        assert job.chunks is not None
        assert job.chunks.switches > 0
        assert [server.rank for server in job.servers] == ([None] if servers else list(range(WORKERS)))


def test_the_benchmark_says_how_much_the_switch_has_summed(tmp_path: Path) -> None:
    figures = tmp_path / "rows.json"
    options = ["--workers", "3", "--elements", "100000", "--link", "1gbit", "--iters", "3"]
    backends = ["--backend", "inagg:32", "--backend", "inagg-shared:32", "--backend", "inagg-shared:16"]
    arguments = ["bench", "allreduce", *options, *backends, "--json", str(figures)]
    done = inagg(*arguments, "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stdout + done.stderr
    leased, *shared = json.loads(figures.read_text())["rows"]
    assert leased["in_switch"] == 1
    assert all(0 < row["in_switch"] <= 1 for row in shared), shared


@pytest.mark.bmv2
def test_shared_slots_on_the_reference_switch_train_the_same_weights(
    folder: Path, leased: dict[TrainingSpec, str]
) -> None:
    with open_testbed(
        hosts=WORKERS,
        link=LinkSpec.parse("unshaped"),
        results_root=folder / "bmv2",
        state_dir=folder / "state",
        switch="bmv2",
        environment=SHARED,
    ) as reference:
        assert weights(reference, INAGG_32) == leased[INAGG_32]
        assert counted(reference, "slot_combined") > 0
