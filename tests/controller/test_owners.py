# SPDX-License-Identifier: Apache-2.0
"""Whose address a rank may register (docs/protocol.md, 7)."""

import httpx
import pytest

from inagg.errors import ControllerForbiddenError
from inagg.membership.control import ControlClient
from inagg_contract.addresses import parse_ip, parse_source
from inagg_contract.documents import FOREIGN_ADDRESS
from tests.controller.launching import Launcher, read_line
from tests.controller.serving import Serving, asking, create_job, run, worker

OWN, OTHERS = "10.0.0.1", "10.0.0.2"
MANAGEMENT = "192.0.2.1"
BEHIND_A_PROXY = "2001:db8::1"
ADDRESSES = {parse_source(at): frozenset({parse_ip(OWN)}) for at in (MANAGEMENT, BEHIND_A_PROXY)}


async def register(client: httpx.AsyncClient, ip: str, rank: int = 0) -> httpx.Response:
    document = worker(0, ip=ip, udp_port=4000 + rank, server_udp_port=5000) | {"rank": rank}
    return await client.post("/jobs/1/workers", json=document)


@pytest.mark.parametrize("aggregation", ["leased", "shared", "server"])
def test_no_host_registers_the_address_of_another(serving: Serving, aggregation: str) -> None:
    async def body() -> None:
        async with serving(shared_slots=4) as (operator, service, _):
            job = await create_job(operator, aggregation=aggregation)
            before = (await operator.get("/jobs/1")).json()
            async with asking(service, OWN, job["secret"]) as host:
                answer = await register(host, OTHERS)
                assert (answer.status_code, answer.json()["type"]) == (403, f"urn:inagg:{FOREIGN_ADDRESS}")
                assert answer.json()["detail"] == (
                    "10.0.0.2, which the controller's --host options or topology file place at s1:2, is not known to "
                    "be an address of the host that asks, 10.0.0.1. Register it with a request that comes from "
                    "10.0.0.2; or start the controller with --host-address 10.0.0.1=10.0.0.2 if both are of one host, "
                    "or with --proxy 10.0.0.1 if that is a reverse proxy"
                )
                assert (await operator.get("/jobs/1")).json() == before
                assert (await register(host, OWN)).status_code == 200

    run(body)


@pytest.mark.parametrize("host", ["unknown", "", "::1", "2001:db8::1"])
def test_a_host_without_an_ipv4_address_registers_none(serving: Serving, host: str) -> None:
    async def body() -> None:
        async with serving() as (operator, service, _):
            job = await create_job(operator)
            async with asking(service, host, job["secret"]) as client:
                assert (await register(client, OWN)).status_code == 403

    run(body)


def test_an_address_that_a_proxy_writes_in_ipv6_is_the_same_one(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (operator, service, _):
            job = await create_job(operator)
            async with asking(service, f"::ffff:{OWN}", job["secret"]) as client:
                assert (await register(client, OWN)).status_code == 200

    run(body)


@pytest.mark.parametrize(
    ("ip", "detail"),
    [
        ("255.255.255.255", "is not a host's address"),
        ("239.192.0.1", "is not a host's address"),
        ("0.0.0.0", "is not a host's address"),
        ("10.0.0.253", "ip is the aggregator's own"),
    ],
)
def test_nobody_registers_an_address_that_is_no_hosts(serving: Serving, ip: str, detail: str) -> None:
    async def body() -> None:
        async with serving() as (operator, _, _):
            await create_job(operator)
            answer = await register(operator, ip)
            assert (answer.status_code, detail in answer.json()["detail"]) == (422, True)

    run(body)


@pytest.mark.parametrize("source", [MANAGEMENT, f"::ffff:{MANAGEMENT}", BEHIND_A_PROXY])
def test_the_operator_says_which_addresses_are_of_one_host(serving: Serving, source: str) -> None:
    async def body() -> None:
        async with serving(addresses=ADDRESSES) as (operator, service, _):
            job = await create_job(operator)
            async with asking(service, source, job["secret"]) as client:
                assert (await register(client, OTHERS)).status_code == 403
                assert (await register(client, OWN)).status_code == 200
            async with asking(service, OWN, job["secret"]) as client:
                assert (await register(client, MANAGEMENT, rank=1)).status_code == 403

    run(body)


def test_all_addresses_of_an_ipv6_network_are_one_host_for_limits(serving: Serving) -> None:
    async def body() -> None:
        async with serving(max_server_jobs=2, host_share=0.5) as (_, service, _):
            document = {"workers": 2, "slots": 4, "aggregation": "server"}
            for host, status in (("2001:db8::1", 201), ("2001:db8::2:1", 503), ("2001:db8:0:1::1", 201)):
                async with asking(service, host) as client:
                    answer = await client.post("/jobs", json=document)
                    assert answer.status_code == status
                    if status == 503:
                        assert "the host 2001:db8::/64 has 1 jobs on servers" in answer.json()["detail"]

    run(body)


def test_no_host_registers_the_port_of_a_bound_one(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (operator, service, _):
            job = await create_job(operator)
            async with asking(service, "10.0.0.9", job["secret"]) as client:
                document = worker(0, ip="10.0.0.9", port=3)
                answer = await client.post("/jobs/1/workers", json=document)
                assert (answer.status_code, answer.json()["detail"]) == (
                    422,
                    "port is 3, which the controller's --host options or topology file bind to other addresses: name "
                    "10.0.0.9 there too, with its MAC",
                )
                answer = await client.post("/jobs/1/workers", json=document | {"port": 4})
                assert answer.status_code == 200

    run(body)


def test_a_rank_asks_again_from_the_address_that_it_registers(launch: Launcher, free_port: int) -> None:
    assert read_line(launch(host_address="127.0.0.1=10.0.0.1")) == "ready"
    with ControlClient(f"http://127.0.0.1:{free_port}", timeout_s=0.2) as client:
        job = client.create_job(4, 4, aggregation="server")
        # Another address of this host; one of which the operator says so; and one that this host does not have.
        for rank, ip in enumerate(("127.0.0.2", "10.0.0.1")):
            client.register(job.id, rank, ip=ip, udp_port=4000, server_udp_port=4001)
        with pytest.raises(ControllerForbiddenError, match=r"198\.51\.100\.1 is not known to be") as refused:
            client.register(job.id, 2, ip="198.51.100.1", udp_port=4000, server_udp_port=4001)
        assert refused.value.kind == FOREIGN_ADDRESS
        assert client.status(job.id).registered == (0, 1)
