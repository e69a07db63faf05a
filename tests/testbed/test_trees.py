# SPDX-License-Identifier: Apache-2.0
"""Sums through several switches: right, and of one rack's size on the links above it. The switches are the model's."""

import json
import signal
import time
from pathlib import Path

import pytest

from inagg_testbed.demo.run import INAGG_32, INAGG_32_LOSS, TrainingSpec
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network import traffic
from inagg_testbed.network.fabric import Fabric, RankOrder, SwitchPort
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.testbed import open_testbed
from tests.testbed.commands import inagg
from tests.testbed.programs import SUMS, launch, sum_rightly, switch_process, weights

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

ELEMENTS = 500_000


@pytest.mark.parametrize(
    ("topology", "order"),
    [
        pytest.param("tree:2x3", "interleaved", marks=pytest.mark.long),
        ("tree:2x2x1", "contiguous"),
        ("leaf-spine:2x2x2", "contiguous"),
    ],
)
def test_a_link_above_a_rack_carries_one_sum(tmp_path: Path, topology: str, order: RankOrder) -> None:
    fabric = Fabric.parse(topology, rank_order=order)
    with open_testbed(
        fabric=fabric,
        link=LinkSpec.parse("unshaped"),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        gloo_over="bridge",
    ) as testbed:
        ports = traffic.port_bytes(fabric, testbed.run.id, testbed.network.pid_of)
        sum_rightly(testbed, ELEMENTS, watch=testbed.services)
        after = traffic.port_bytes(fabric, testbed.run.id, testbed.network.pid_of)
        assert testbed.controller is not None
        assert {link.state for link in testbed.controller.health().links} == {"up"}
    crossed = traffic.link_bytes(fabric, ports, after)
    size = 4 * ELEMENTS
    sent = {link.lower: link.up for link in crossed if link.lower.startswith("h")}
    assert min(sent.values()) >= size
    for leaf in fabric.leaves:
        above = sum(link.up for link in crossed if link.lower.startswith(f"{leaf}:"))
        # What the rack's workers send again may pass the leaf, but only from one of them.
        assert size <= above < 1.2 * max(sent.values()), leaf


def test_the_benchmark_injects_loss_on_every_link_and_every_sum_is_right(tmp_path: Path) -> None:
    figures = tmp_path / "rows.json"
    options = ["--topology", "tree:2x2", "--link", "unshaped", "--elements", "20000", "--iters", "2"]
    losses = ["--loss", "0", "--loss", "0.02"]
    backends = ["--backend", "gloo", "--backend", "inagg:32"]
    arguments = ["bench", "allreduce", *options, *losses, *backends, "--json", str(figures)]
    done = inagg(*arguments, "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(row["backend"], row["loss"]): row for row in json.loads(figures.read_text())["rows"]}
    assert all(row["checked"] for row in found.values())
    assert found["inagg", 0.02]["retransmits"] > found["inagg", 0.0]["retransmits"]
    (counters,) = (tmp_path / "results").glob("*/counters.json")
    counted = json.loads(counters.read_text())
    lost = {switch: sorted(counted[switch]["ingress_loss_injected"]) for switch in counted}
    assert lost == {"root": [], "leaf1": ["1", "101", "2"], "leaf2": ["1", "101", "2"]}


@pytest.mark.parametrize("part", [pytest.param("spine2", marks=pytest.mark.long), "leaf2:102"])
def test_a_switch_or_link_that_dies_fails_its_job_with_its_name_and_the_next_job_is_right(
    tmp_path: Path, part: str
) -> None:
    with open_testbed(
        fabric=Fabric.parse("leaf-spine:2x2x2"),
        link=LinkSpec.parse("unshaped"),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
    ) as testbed:
        group = launch(testbed, SUMS, {"INAGG_ON_PATH_LOSS": "fail"})
        if ":" in part:
            name, _, port = part.partition(":")
            testbed.set_link(SwitchPort(name, int(port)), "down")
            reason = "the link leaf2:102 - spine2:2 is down: no beacon arrives at "
        else:
            switch_process(testbed, part).signal(signal.SIGKILL)
            reason = "switch spine2 was lost: the sums in its slots are gone"
        start = time.monotonic()
        with pytest.raises(WorkerFailedError):
            group.follow(lambda _rank, _event: None, timeout_s=60)
        assert time.monotonic() - start < 15
        for worker in group.workers:
            log = worker.process.log_path.read_text()
            assert "JobError: " in log
            assert reason in log
        sum_rightly(testbed, ELEMENTS)


def weights_on(folder: Path, topology: str, spec: TrainingSpec, switch: SwitchKind = "model") -> str:
    """The weights of a model that four workers have trained, as SHA-256."""
    with open_testbed(
        fabric=Fabric.parse(topology, hosts=4),
        link=LinkSpec.parse("unshaped"),
        switch=switch,
        results_root=folder,
        state_dir=folder / "state",
    ) as testbed:
        return weights(testbed, spec)


def test_weights_trained_on_trees_are_those_of_a_star_with_loss_on_all_links_too(tmp_path: Path) -> None:
    star = weights_on(tmp_path, "star", INAGG_32)
    assert weights_on(tmp_path, "tree:2x2", INAGG_32) == star
    assert weights_on(tmp_path, "leaf-spine:2x2x2", INAGG_32_LOSS) == star


@pytest.mark.bmv2
def test_weights_trained_on_trees_of_bmv2_are_the_models(tmp_path: Path) -> None:
    star = weights_on(tmp_path, "star", INAGG_32)
    assert weights_on(tmp_path, "tree:2x2", INAGG_32, "bmv2") == star
    assert weights_on(tmp_path, "leaf-spine:2x2x2", INAGG_32_LOSS, "bmv2") == star
