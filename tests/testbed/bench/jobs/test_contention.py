# SPDX-License-Identifier: Apache-2.0
"""`inagg bench suite --contention`, at small sizes, and its table."""

import json
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.bench.jobs.contention import (
    JOBS,
    LINKS,
    POOL,
    SLOTS,
    WORKERS,
    Contention,
    plot,
    run_contention,
    table,
)


def test_slots_become_scarce_at_every_rate_with_jobs_of_every_size() -> None:
    benches = list(Contention().benches())
    assert len(benches) == len(LINKS) * len(WORKERS) * len(JOBS)
    assert {link for link, _ in benches} == set(LINKS)
    # Two of the jobs find slots.
    assert {bench.jobs * SLOTS - POOL for _, bench in benches} == {0, SLOTS, 2 * SLOTS}


def row(link: str, jobs: int, workers: int, ratio: float) -> dict[str, Any]:
    return {
        "link": link,
        "jobs": jobs,
        "workers": workers,
        "policies": [
            {"goodput_MBps": 100.0, "in_switch": 2 / 3, "ratios": {"leased": 1.0, "shared": 1 / ratio}},
            {"goodput_MBps": 100 * ratio, "in_switch": 0.96, "ratios": {"leased": ratio, "shared": 1.0}},
        ],
    }


def test_the_table_has_both_policies_and_their_ratio() -> None:
    header, body = table([row("1gbit", 3, 4, 1.25)])
    assert len(header) == len(body[0])
    assert body == [["1gbit", "3", "4", "100.0 MB/s", "67%", "125.0 MB/s", "96%", "1.25x"]]


def test_the_picture_needs_not_all_rows(tmp_path: Path) -> None:
    plot([row("100mbit", 2, 2, 1.0)], tmp_path / "one.png")
    plot([row("100mbit", 2, 2, 1.0), row("1gbit", 3, 4, 1.2)], tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > (tmp_path / "one.png").stat().st_size > 1000


@pytest.mark.netns
@pytest.mark.usefixtures("forked_processes")
def test_contention_is_measured(tmp_path: Path) -> None:
    run_contention(Contention(quick=True), tmp_path, tmp_path / "results", on_stage=print, on_progress=print)
    (found,) = json.loads((tmp_path / "contention.json").read_text())["rows"]
    leased, shared = found["policies"]
    assert [job["sums_by"] for job in leased["jobs"]] == [["switch"], ["switch"], ["gloo"]]
    assert all(job["slots"] == [SLOTS] and 0 < job["in_switch"] <= 1 for job in shared["jobs"])
    header, _, line = (tmp_path / "contention.md").read_text().splitlines()
    assert header.startswith("| links | jobs |")
    assert "100mbit" in line
    assert (tmp_path / "contention.png").exists()
