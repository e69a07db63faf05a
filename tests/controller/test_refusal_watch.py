# SPDX-License-Identifier: Apache-2.0
"""The alarm about what edge ports refuse. Virtual time."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from inagg_controller.service import Service
from inagg_controller.state_file import StateFile
from inagg_controller.switch.client import Count
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import Serving, run, start_job


def refuse(switch: MemorySwitch, counter: str, port: int, packets: int) -> None:
    """Sets a counter of the switch."""
    switch.refused.setdefault(counter, {})[port] = Count(packets, 60 * packets)


async def refusals(client: httpx.AsyncClient) -> Any:
    return (await client.get("/health")).json()["switches"][0]["refusals"]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "refuses packets" in record.getMessage()]


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "inagg_controller.refusal_watch")


def test_a_port_whose_host_forges_addresses_is_in_the_log_and_in_health(
    serving: Serving, memory_switch: MemorySwitch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with serving() as (client, service, clock):
            await service.refusal_watch.look()
            assert await refusals(client) == []
            refuse(memory_switch, "source_refused", 3, 12)
            refuse(memory_switch, "aggregator_forged", 3, 1)
            await service.refusal_watch.look()
            clock.now += 4
            packets = {"source_refused": 12, "aggregator_forged": 1}
            assert await refusals(client) == [{"port": 3, "packets": packets, "ago_s": 4.0}]

    run(body)
    assert lines(caplog) == [
        "switch s1: port 3 refuses packets: aggregator_forged 1, source_refused 12; a host there sends what no host "
        "may (docs/counters.md)"
    ]


def test_a_flood_is_one_line_a_minute_and_port_with_all_its_packets(
    serving: Serving, memory_switch: MemorySwitch, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(service: Service, packets: int) -> None:
        refuse(memory_switch, "vlan_tagged", 1, packets)
        await service.refusal_watch.look()

    async def body() -> None:
        async with serving() as (_, service, clock):
            for second in range(0, 60, 10):
                clock.now = second
                await look(service, 100 + second)
            assert len(lines(caplog)) == 1
            refuse(memory_switch, "vlan_tagged", 2, 5)
            await service.refusal_watch.look()
            assert len(lines(caplog)) == 2
            clock.now = 60
            await look(service, 150)

    run(body)
    assert [line.split(";")[0] for line in lines(caplog)] == [
        "switch s1: port 1 refuses packets: vlan_tagged 100",
        "switch s1: port 2 refuses packets: vlan_tagged 5",
        "switch s1: port 1 refuses packets: vlan_tagged 50",
    ]


def test_an_alarm_ends_after_ten_minutes_without_another_packet(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, service, clock):
            refuse(memory_switch, "source_refused", 3, 12)
            await service.refusal_watch.look()
            clock.now = 600
            await service.refusal_watch.look()
            assert len(await refusals(client)) == 1
            clock.now = 601
            assert await refusals(client) == []

    run(body)


def test_a_switch_that_counts_from_0_again_adds_to_what_was(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            refuse(memory_switch, "source_refused", 3, 12)
            await service.refusal_watch.look()
            refuse(memory_switch, "source_refused", 3, 2)
            await service.refusal_watch.look()
            assert (await refusals(client))[0]["packets"] == {"source_refused": 14}

    run(body)


def test_what_a_switch_refused_before_the_controller_started_again_is_not_new(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        with contextlib.closing(StateFile(tmp_path / "state")) as first:
            async with serving(state=first) as (client, _, _):
                await start_job(client)  # so the next controller lets the switch keep its program
        refuse(memory_switch, "source_refused", 3, 12)
        with contextlib.closing(StateFile(tmp_path / "state")) as second:
            async with serving(state=second) as (client, service, _):
                await service.refusal_watch.look()
                assert await refusals(client) == []
                refuse(memory_switch, "source_refused", 3, 15)
                refuse(memory_switch, "vlan_tagged", 1, 2)
                await service.refusal_watch.look()
                found = {one["port"]: one["packets"] for one in await refusals(client)}
                assert found == {1: {"vlan_tagged": 2}, 3: {"source_refused": 3}}

    run(body)
    assert [line.split(";")[0] for line in lines(caplog)] == [
        "switch s1: port 3 refuses packets: source_refused 3",
        "switch s1: port 1 refuses packets: vlan_tagged 2",
    ]


def test_a_switch_that_is_away_stops_no_watch(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            memory_switch.away = True
            await service.refusal_watch.look()
            assert await refusals(client) == []

    run(body)
