# SPDX-License-Identifier: Apache-2.0
"""What `inagg status` shows of a document, without a testbed."""

from typing import Any

import pytest
from rich.console import Console

from inagg_testbed.operate.status import alarms, rendered


def job(**changes: object) -> dict[str, Any]:
    return {
        "id": 1,
        "name": "digits",
        "job_class": "default",
        "tenant": None,
        "priority": 0,
        "state": "running",
        "slots": 128,
        "workers": 1,
        "reason": None,
        "aggregation": "leased",
        "servers": [],
        "chunks": None,
        "displaced": None,
        "ranks": [
            {
                "rank": 0,
                "host": "h1",
                "address": "10.0.0.1",
                "state": "joined",
                "packets": 7,
                "packets_per_s": 1.0,
            }
        ],
        **changes,
    }


def shown(found: dict[str, Any]) -> str:
    """The text of a document with one job."""
    document = {
        "run": "eu4u8j",
        "starting": None,
        "up_s": 1.0,
        "topology": "star",
        "hosts": 1,
        "servers": 0,
        "switch": "model",
        "link": "unshaped",
        "processes": [],
        "controller": {
            "switch": "connected",
            "slot_versions": 512,
            "free_slot_versions": 256,
            "shared_slots": 128,
            "servers": [],
        },
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
        ({}, "job 1 (digits): running; 1 ranks, 128 slots\n"),
        ({"job_class": "batch"}, "job 1 (digits): running; 1 ranks, 128 slots, class batch\n"),
        (
            {"job_class": "batch", "aggregation": "server"},
            "job 1 (digits): running; 1 ranks, 128 slots on servers, class batch\n",
        ),
        ({"job_class": "batch", "priority": 3}, "128 slots, class batch, priority 3\n"),
        (
            {"job_class": "batch", "tenant": "vision", "priority": 3},
            "128 slots, class batch, tenant vision, priority 3\n",
        ),
        ({"tenant": "vision"}, "128 slots, tenant vision\n"),
        ({"job_class": "\x1b[2J"}, "128 slots, class \\x1b[2J\n"),
    ],
)
def test_a_job_of_a_class_or_a_tenant_shows_it(changes: dict[str, object], line: str) -> None:
    assert line in shown(job(**changes))


def test_the_controllers_line_has_the_shared_slots() -> None:
    assert "connected, 256 of 512 slot versions in use, 128 shared slots\n" in shown(job())


def test_a_port_that_refuses_packets_is_an_alarm_and_no_trouble() -> None:
    refusals = [{"port": 3, "packets": {"source_refused": 1200, "aggregator_forged": 1}, "ago_s": 61.0}]
    health = {"switches": [{"name": "leaf1", "refusals": refusals}, {"name": "leaf2", "refusals": []}]}
    assert alarms({"controller": health}) == [
        "port leaf1:3 refuses packets of its host: aggregator_forged 1, source_refused 1,200, the last 1 min 1 s ago"
    ]
    assert alarms({"controller": None}) == alarms({"controller": {"error": "no answer"}}) == []


CHUNKS = {"switches": 1800, "both": 120, "servers": 80}
SHARED = {
    "aggregation": "shared",
    "servers": [{"name": "rank 0", "ip": "10.0.0.1", "udp_port": 5000, "rank": 0}],
    "chunks": CHUNKS,
    "displaced": {"evicted": 1234, "expired": 5},
}


def test_a_job_on_shared_slots_says_where_its_chunks_were_summed() -> None:
    summed = "chunks: 2,000; 90% summed in switches, 6% in part, 4% in servers"
    text = shown(job(**SHARED))
    assert "1 ranks, 128 slots on shared slots and the ranks' servers\n" in text
    assert f"{summed}; 1,234 sums evicted, 5 expired\n" in text
    assert f"{summed}\n" in shown(job(**SHARED | {"displaced": None}))


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": dict.fromkeys(CHUNKS, 0)},
        {"chunks": None},
        {"aggregation": "server", "displaced": None},
        {"aggregation": "leased", "chunks": None, "displaced": None, "servers": []},
    ],
)
def test_other_jobs_say_nothing_of_chunks(changes: dict[str, object]) -> None:
    assert "chunks" not in shown(job(**SHARED | changes))
