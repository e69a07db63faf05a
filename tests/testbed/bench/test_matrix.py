# SPDX-License-Identifier: Apache-2.0
"""`inagg bench suite --matrix`, at small sizes, and its table."""

import json
from pathlib import Path

import pytest

from inagg_testbed.bench.matrix import ELEMENTS, FABRICS, LINKS, TYPES, Matrix, run_matrix, table


def test_every_way_is_measured_on_every_fabric_at_every_rate_with_every_type_and_size() -> None:
    measured = [
        (bench.topology, bench.link_name, case.dtype, case.elements, backend.partition(":")[0])
        for bench in Matrix().benches()
        for case in bench.cases
        for backend in case.backends
        if backend != "gloo"
    ]
    assert len(measured) == len(set(measured)) == len(FABRICS) * len(LINKS) * len(TYPES) * len(ELEMENTS) * 3


@pytest.mark.netns
@pytest.mark.usefixtures("forked_processes")
def test_the_matrix_is_a_table_of_ratios_packets_and_processor_time(tmp_path: Path) -> None:
    assert (
        run_matrix(Matrix(quick=True), tmp_path, tmp_path / "results", on_stage=print, on_progress=print)
        == []
    )
    figures = json.loads((tmp_path / "matrix.json").read_text())
    for row in figures["rows"]:
        assert row["checked"]
        assert (row["packets_per_message"] is None) == (row["backend"] == "gloo")
        if row["backend"] != "gloo" and row["elements"] == 2000:
            assert 1 < row["packets_per_message"]["sent"] <= 8
    header, *rows = (tmp_path / "matrix.md").read_text().splitlines()
    assert header == "| fabric, workers | links | tensor | gloo | leased | shared | servers |"
    assert len(rows) == 1 + len(TYPES) * len(ELEMENTS)
    assert all(cell.strip() for row in rows for cell in row.split("|")[1:-1])


def test_a_testbed_that_failed_leaves_empty_cells() -> None:
    row = {
        "topology": "star",
        "workers": 4,
        "link": "1gbit",
        "dtype": "float32",
        "elements": 2_000_000,
        "switch": "bridge",
    }
    gloo = row | {"backend": "gloo", "time_ms": {"p50": 99.6}, "cpu_s_per_GB": 20.4}
    servers = row | {
        "backend": "inagg-server",
        "ratio_to_gloo": 0.984,
        "packets_per_message": {"sent": 15.5, "received": 61.6},
        "cpu_s_per_GB": 18.7,
    }
    assert table([gloo, servers])[1] == [
        ["star, 4", "1gbit", "2,000,000 float32", "99.6 ms; 20 s", "", "", "0.98x; 16, 62; 19 s"]
    ]
