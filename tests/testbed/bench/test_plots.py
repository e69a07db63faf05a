# SPDX-License-Identifier: Apache-2.0
"""Pictures of the all-reduce benchmark, with every backend that it has."""

from pathlib import Path
from typing import Any

import pytest

from inagg_baselines.catalog import BASELINES
from inagg_testbed.bench.plan import SUMMING
from inagg_testbed.bench.plots import plot_allreduce


def row(backend: str, elements: int) -> dict[str, Any]:
    return {
        "backend": backend,
        "lane_bits": 16 if backend in SUMMING else None,
        "elements": elements,
        "workers": 4,
        "loss": 0.0,
        "link": "100mbit",
        "topology": "tree:2x2",
        "time_ms": {"p50": 10.0, "min": 9.0},
        "times_ms": [9.0, 10.0, 12.0],
        "busbw_MBps": 100.0,
    }


@pytest.mark.parametrize("sizes", [(1000,), (1000, 100_000)], ids=["bars", "lines"])
def test_every_backend_has_its_look(sizes: tuple[int, ...], tmp_path: Path) -> None:
    rows = [row(backend, elements) for backend in (*BASELINES, *SUMMING) for elements in sizes]
    plot_allreduce(rows, tmp_path / "allreduce.svg")
    drawn = (tmp_path / "allreduce.svg").read_text()
    assert all(f"<!-- {backend}" in drawn for backend in (*BASELINES, *SUMMING))
