# SPDX-License-Identifier: Apache-2.0
"""The HTTP API over a switch in memory: requests, answers and refusals."""

from typing import NoReturn

import pytest

from inagg_controller.errors import SwitchRefusedError
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import ADMISSION, RECEIVER
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import Serving, run, start_job, worker

WORKER = {"ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "udp_port": 4000}


def test_health_tells_the_programs_properties(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            assert (await client.get("/health")).json() == {
                "switch": "connected",
                "switch_error": None,
                "words": 4,
                "slot_versions": 64,
                "free_slot_versions": 64,
                "shared_slots": 0,
                "aggregator": {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753},
                "jobs": 0,
                "switches": [
                    {
                        "name": "s1",
                        "state": "connected",
                        "error": None,
                        "slot_versions": 64,
                        "free_slot_versions": 64,
                        "aggregator": {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753},
                    }
                ],
                "links": [],
                "servers": [],
            }

    run(body)


def test_a_new_job_is_joining_and_says_what_it_was_granted(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            answer = await client.post("/jobs", json={"workers": 2, "slots": 1024, "name": "digits"})
            assert answer.status_code == 201
            job = answer.json()
            assert job.pop("secret")
            assert (job["state"], job["slots"], job["words"], job["epoch"]) == ("joining", 32, 4, 100)
            assert job["name"] == "digits"
            assert job["policy"]["give_up_s"] == 120
            assert (await client.get("/jobs")).json() == {"jobs": [job]}

    run(body)


def test_a_job_runs_once_its_last_rank_has_registered_and_its_entries_are_in(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            assert len(memory_switch.in_table(ADMISSION)) == len(memory_switch.in_table(RECEIVER)) == 2
            assert memory_switch.groups == [1, 2]
            memory_switch.admitted = {(number, 0): Count(5, 500), (99, 0): Count(1, 1)}
            job = (await client.get(f"/jobs/{number}")).json()
            assert job["counters"] == {"0": {"packets": 5, "bytes": 500}}

    run(body)


def test_a_registration_tells_the_workers_place(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            answer = (await client.post("/jobs/1/workers", json={"rank": 1, **WORKER})).json()
            assert (answer["rank"], answer["member"], answer["switch"], answer["port"]) == (1, 1, "s1", 1)
            assert answer["registered"] == [1]

    run(body)


@pytest.mark.parametrize("mtu", [1072, 9000, None])
def test_a_path_that_takes_a_data_packet_will_do(serving: Serving, mtu: int | None) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            answer = await client.post("/jobs/1/workers", json=worker(1, mtu=mtu))
            assert (answer.status_code, answer.json()["registered"]) == (200, [1])

    run(body)


def test_registering_the_same_worker_again_changes_nothing(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            first = await client.post("/jobs/1/workers", json=worker(0))
            again = await client.post("/jobs/1/workers", json=worker(0))
            assert (first.status_code, first.json()) == (again.status_code, again.json())

    run(body)


@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        ({"ip": "10.0.0.9"}, 409, "rank 0 of job 1 is already registered by a worker at another address"),
        ({"rank": 1, "ip": "10.0.0.1"}, 409, "rank 0 of job 1 already has this address and UDP port"),
        ({"rank": 2}, 422, "rank is 2; the ranks of job 1 are 0 to 1"),
        ({"rank": -1}, 422, "rank: Input should be greater than or equal to 0"),
        ({"rank": "1"}, 422, "body.rank: Input should be a valid integer"),
        ({"rank": True}, 422, "body.rank: Input should be a valid integer"),
        ({"ip": "10.0.0"}, 422, "body.ip"),
        ({"ip": "224.0.0.1"}, 422, "224.0.0.1 is not a host's address"),
        ({"ip": "0.0.0.0"}, 422, "0.0.0.0 is not a host's address"),
        ({"mac": "02-00-00-00-00-01"}, 422, "is not a MAC address such as"),
        ({"mac": "01:00:5e:00:00:01"}, 422, "01:00:5e:00:00:01 is not a station's address"),
        ({"mac": "00:00:00:00:00:00"}, 422, "is not a station's address"),
        ({"udp_port": 0}, 422, "body.udp_port"),
        ({"udp_port": 18753}, 422, "udp_port 18753 is reserved for the aggregator"),
        ({"ip": "10.0.0.253"}, 422, "ip is the aggregator's own"),
        ({"udp_port": 65536}, 422, "body.udp_port"),
        ({"ip": "10.0.0.9", "port": 7}, 422, "port is 7; the switch's ports are [1, 2, 3, 4, 255]"),
        (
            {"rank": 1, "ip": "10.0.0.2", "port": 3},
            422,
            "but the controller's --host options or topology file name 2 for this ip",
        ),
        ({"ip": "10.0.0.9", "port": None}, 422, "port is missing"),
        ({"mac": "02:49:41:00:00:01"}, 422, "mac is the aggregator's own"),
        ({"ip": "10.0.0.3", "port": 3}, 422, "mac is not the one that the controller's --host"),
        ({"mac": "02:00:00:00:00:bb"}, 422, "mac is the one that the controller's --host"),
        ({"mtu": 1071}, 422, "mtu is 1071, but a DATA packet of this switch needs 1072 bytes (WORDS = 4)"),
        ({"mtu": 67}, 422, "body.mtu"),
        ({"mtu": "1500"}, 422, "body.mtu"),
        ({"colour": "red"}, 422, "body.colour: Extra inputs are not permitted"),
    ],
)
def test_a_bad_registration_is_refused_and_changes_nothing(
    serving: Serving, changes: dict[str, object], status: int, detail: str
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            await client.post("/jobs/1/workers", json=worker(0))
            before = (await client.get("/jobs")).json()
            answer = await client.post("/jobs/1/workers", json=worker(0) | changes)
            problem = answer.json()
            assert (answer.status_code, problem["status"]) == (status, status)
            assert answer.headers["content-type"] == "application/problem+json"
            assert detail in problem["detail"]
            assert problem["type"].startswith("urn:inagg:")
            assert problem["title"]
            assert (await client.get("/jobs")).json() == before

    run(body)


@pytest.mark.parametrize(
    "body",
    [
        {"workers": 0, "slots": 4},
        {"workers": 65, "slots": 4},
        {"workers": 2, "slots": 3},
        {"workers": 2, "slots": 1},
        {"workers": 2, "slots": 0},
        {"workers": 2, "slots": -4},
        {"workers": 2.0, "slots": 4},
        {"workers": 2},
        [],
    ],
)
def test_a_bad_job_is_refused(serving: Serving, body: object) -> None:
    async def test() -> None:
        async with serving() as (client, _, _):
            assert (await client.post("/jobs", json=body)).status_code == 422
            assert (await client.get("/jobs")).json() == {"jobs": []}

    run(test)


def test_unknown_jobs_and_paths_are_not_found_and_wrong_methods_refused(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            for method, path, status in [
                ("GET", "/jobs/5", 404),
                ("DELETE", "/jobs/5", 404),
                ("POST", "/jobs/5/unicast", 404),
                ("POST", "/jobs/5/workers/0/heartbeat", 404),
                ("GET", "/nothing", 404),
                ("PUT", "/jobs", 405),
            ]:
                answer = await client.request(method, path, json=None)
                assert (answer.status_code, answer.json()["status"]) == (status, status)

    run(body)


def test_a_wrong_method_is_answered_with_all_that_there_are(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            for method, path, allowed in [
                ("PUT", "/jobs", "GET, POST"),
                ("PUT", "/jobs/5", "DELETE, GET"),
                ("GET", "/jobs/5/unicast", "POST"),
                ("POST", "/loss", "DELETE, GET, PUT"),
                ("PATCH", "/jobs/5/workers/0", "DELETE"),
                ("POST", "/metrics", "GET"),
            ]:
                answer = await client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path
            assert (await client.post("/docs")).status_code == 405

    run(body)


def test_a_job_that_runs_or_has_ended_takes_no_new_worker(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            stranger = worker(0, ip="10.0.0.7")
            assert (await client.post(f"/jobs/{number}/workers", json=stranger)).status_code == 409
            await client.delete(f"/jobs/{number}")
            answer = await client.post(f"/jobs/{number}/workers", json=worker(0))
            assert (answer.status_code, answer.json()["detail"]) == (
                409,
                "job 1 has failed (ended on request)",
            )

    run(body)


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
