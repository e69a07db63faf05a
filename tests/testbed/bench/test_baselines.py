# SPDX-License-Identifier: Apache-2.0
"""The baselines: the sums are right for every shape of racks, and links carry what theory says."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inagg_baselines.catalog import BASELINES
from inagg_testbed.cli.main import app

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


def rows(folder: Path, backends: list[str], *options: str) -> list[dict[str, Any]]:
    """What `inagg bench allreduce` measures over bridges."""
    figures = folder / "rows.json"
    arguments = ["bench", "allreduce", "--switch", "bridge", "--iters", "2", "--warmup", "0", *options]
    arguments += [word for name in backends for word in ("--backend", name)]
    done = CliRunner().invoke(app, [*arguments, "--json", str(figures), "--results", str(folder / "results")])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(figures.read_text())["rows"]
    return found


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
    shape = ["--topology", topology, "--rank-order", order, "--link", "unshaped"]
    found = rows(tmp_path, list(BASELINES), *shape, "--elements", "1000", "--elements", "2")
    assert [(row["backend"], row["checked"]) for row in found] == 2 * [(name, True) for name in BASELINES]
    assert {(row["topology"], row["rank_order"]) for row in found} == {(topology, order)}


def test_links_carry_what_theory_says(tmp_path: Path) -> None:
    """Headers of frames of 1500 bytes are 4.7% of their payload."""
    found = rows(tmp_path, list(BASELINES), "--workers", "4", "--link", "1gbit", "--elements", "1000000")
    for row in found:
        assert 1 <= row["link_bytes"] / row["theory_bytes"] < 1.1, row["backend"]
    busiest = {row["backend"]: row["theory_bytes"] / 4e6 for row in found}
    assert busiest == {
        "gloo": 1.5,
        "gloo-hierarchical": pytest.approx(2.75),
        "gloo-server": 1.5,
        "gloo-server-1": 3.0,
    }
