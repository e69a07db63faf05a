# SPDX-License-Identifier: Apache-2.0
"""The HTTP API over a switch in memory: injected loss, and the switch's counters."""

from typing import NoReturn

import pytest

from inagg_controller.errors import SwitchRefusedError
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import Serving, run


def test_loss_is_set_per_port_direction_and_traffic_and_cleared(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    table = "InaggIngress.ingress_loss.ingress_loss"

    async def body() -> None:
        async with serving() as (client, _, _):
            loss = {"port": 2, "direction": "ingress", "probability": 0.5}
            assert (await client.put("/loss", json=loss)).status_code == 200
            await client.put("/loss", json={**loss, "traffic": "other", "probability": 1})
            assert (await client.get("/loss")).json() == {
                "loss": [
                    {"switch": "s1", **loss, "traffic": "aggregation"},
                    {"switch": "s1", **loss, "probability": 1.0, "traffic": "other"},
                ]
            }
            assert {(entry.match, entry.params) for entry in memory_switch.in_table(table)} == {
                ((("port", 2), ("aggregation", 1)), (("threshold", 2**31),)),
                ((("port", 2), ("aggregation", 0)), (("threshold", 2**32 - 1),)),
            }
            await client.put("/loss", json={**loss, "traffic": "aggregation", "probability": 0})
            assert len(memory_switch.in_table(table)) == 1
            assert (await client.delete("/loss")).json() == {"loss": []}
            assert memory_switch.in_table(table) == []

    run(body)


@pytest.mark.parametrize(
    "changes",
    [{"probability": 1.5}, {"probability": -0.1}, {"direction": "up"}, {"traffic": "ssh"}, {"port": 9}],
)
def test_a_bad_loss_is_refused(serving: Serving, changes: dict[str, object]) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            loss = {"port": 2, "direction": "ingress", "probability": 0.5} | changes
            assert (await client.put("/loss", json=loss)).status_code == 422
            assert (await client.get("/loss")).json() == {"loss": []}

    run(body)


def test_a_loss_that_the_switch_refuses_is_not_in_force(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            memory_switch.refuse = lambda entity: True
            loss = {"port": 2, "direction": "ingress", "probability": 0.5}
            assert (await client.put("/loss", json=loss)).status_code == 503
            assert (await client.get("/loss")).json() == {"loss": []}

    run(body)


def test_counters_that_cannot_be_read_are_an_error_and_not_zero(
    serving: Serving, memory_switch: MemorySwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_counters(ports: object) -> NoReturn:
        raise SwitchRefusedError("counter 7 has 64 cells")

    async def body() -> None:
        async with serving() as (client, _, _):
            monkeypatch.setattr(memory_switch, "read_counters", read_counters)
            answer = await client.get("/counters")
            assert answer.status_code == 503
            assert answer.json()["detail"] == "switch s1: counter 7 has 64 cells"
            assert "inagg_switch_packets_total{" not in (await client.get("/metrics")).text

    run(body)


def test_counters_come_by_switch_name_and_port(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            started = {"1": {"packets": 1, "bytes": 100}, "2": {"packets": 2, "bytes": 200}}
            assert (await client.get("/counters")).json() == {"s1": {"started": started}}

    run(body)
