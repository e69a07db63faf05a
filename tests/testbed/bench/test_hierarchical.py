# SPDX-License-Identifier: Apache-2.0
"""gloo in two levels: the sums are right for every shape of racks. The ranks run in a tree of bridges."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


@pytest.mark.parametrize(
    ("topology", "order"),
    [
        ("tree:2x2", "interleaved"),
        ("tree:3x1", "contiguous"),
        ("tree:1x3", "contiguous"),
        ("tree:1x1", "contiguous"),
    ],
)
def test_every_rank_has_the_sum(tmp_path: Path, topology: str, order: str) -> None:
    figures = tmp_path / "rows.json"
    options = ["--topology", topology, "--rank-order", order, "--link", "unshaped", "--switch", "bridge"]
    options += ["--elements", "1000", "--iters", "2", "--warmup", "0", "--json", str(figures)]
    backends = ["--backend", "gloo", "--backend", "gloo-hierarchical"]
    arguments = ["bench", "allreduce", *options, *backends, "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(figures.read_text())["rows"]
    assert [(row["backend"], row["checked"]) for row in rows] == [("gloo", True), ("gloo-hierarchical", True)]
    assert {(row["topology"], row["rank_order"]) for row in rows} == {(topology, order)}
