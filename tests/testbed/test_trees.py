# SPDX-License-Identifier: Apache-2.0
"""Sums through several switches: right, and of one rack's size on the links above it. The switches are the model's."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app
from inagg_testbed.network import traffic
from inagg_testbed.network.fabric import Fabric, RankOrder
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed

pytestmark = pytest.mark.netns

ELEMENTS = 500_000
SUM = f"""
import torch, torch.distributed as dist
dist.init_process_group("inagg")
tensor = torch.full(({ELEMENTS},), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert bool((tensor == sum(range(1, dist.get_world_size() + 1))).all())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("topology", "order"),
    [("tree:2x3", "interleaved"), ("tree:2x2x1", "contiguous"), ("leaf-spine:2x2x2", "contiguous")],
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
        group = testbed.launch([sys.executable, "-c", SUM], name="sum")
        group.follow(lambda _rank, _event: None, timeout_s=120, watch=testbed.services)
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


def test_the_benchmark_injects_loss_at_the_leaves_and_every_sum_is_right(tmp_path: Path) -> None:
    figures = tmp_path / "rows.json"
    options = ["--topology", "tree:2x2", "--link", "unshaped", "--elements", "20000", "--iters", "2"]
    losses = ["--loss", "0", "--loss", "0.02"]
    backends = ["--backend", "gloo", "--backend", "inagg:32"]
    arguments = ["bench", "allreduce", *options, *losses, *backends, "--json", str(figures)]
    done = CliRunner().invoke(app, [*arguments, "--results", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    found = {(row["backend"], row["loss"]): row for row in json.loads(figures.read_text())}
    assert all(row["checked"] for row in found.values())
    assert found["inagg", 0.02]["retransmits"] > found["inagg", 0.0]["retransmits"]
    (counters,) = (tmp_path / "results").glob("*/counters.json")
    counted = json.loads(counters.read_text())
    lost = {switch: sorted(counted[switch]["ingress_loss_injected"]) for switch in counted}
    assert lost == {"root": [], "leaf1": ["1", "2"], "leaf2": ["1", "2"]}
