# SPDX-License-Identifier: Apache-2.0
"""What `inagg status` shows of a document, without a testbed."""

from typing import Any

import pytest
from rich.console import Console

from inagg_testbed.operate.status import rendered


def job(**changes: object) -> dict[str, Any]:
    return {
        "id": 1,
        "name": "digits",
        "job_class": "default",
        "state": "running",
        "slots": 128,
        "workers": 1,
        "reason": None,
        "aggregation": "leased",
        "servers": [],
        "ranks": [{"rank": 0, "state": "joined", "packets": 7, "packets_per_s": 1.0}],
        **changes,
    }


def shown(found: dict[str, Any]) -> str:
    """The text of a document with one job."""
    document = {
        "run": "eu4u8j",
        "up_s": 1.0,
        "topology": "star",
        "hosts": 1,
        "servers": 0,
        "switch": "model",
        "link": "unshaped",
        "processes": [],
        "controller": {"switch": "connected", "slot_versions": 512, "free_slot_versions": 256, "servers": []},
        "jobs": [found],
        "ports": [],
    }
    console = Console(width=200)
    with console.capture() as capture:
        console.print(rendered(document, ended=False))
    return capture.get()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "job 1 digits: running; 1 ranks, 128 slots\n"),
        ({"job_class": "batch"}, "job 1 digits: running; 1 ranks, 128 slots, class batch\n"),
        (
            {"job_class": "batch", "aggregation": "server"},
            "job 1 digits: running; 1 ranks, 128 slots on servers, class batch\n",
        ),
        ({"job_class": "\x1b[2J"}, "128 slots, class \\x1b[2J\n"),
    ],
)
def test_a_job_of_a_class_shows_it(changes: dict[str, object], line: str) -> None:
    assert line in shown(job(**changes))
