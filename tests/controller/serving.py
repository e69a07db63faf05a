# SPDX-License-Identifier: Apache-2.0
"""The controller's API and service inside the test's process, with virtual time and a MemorySwitch."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from ipaddress import IPv4Address
from typing import Any, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from inagg_contract.addresses import Address
from inagg_contract.aggregation import AGGREGATIONS, uses_servers, uses_switches
from inagg_controller.fabric.topology import Host, Link, Place, SwitchNode, Topology
from inagg_controller.http.api import create_app
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.table import JobTable
from inagg_controller.jobs.tenants import Tenants
from inagg_controller.network import Network
from inagg_controller.service import Service
from inagg_controller.state_file import StateFile
from tests.controller.memory_switch import MemorySwitch
from tests.controller.p4info import SLOT_VERSIONS, WORDS

OPERATORS_TOKEN = "the-token-of-the-operator-of-these-tests"

STAR = Topology(
    (SwitchNode("s1", "127.0.0.1:9559", 1, 0x0A0000FD, 0x024941000001, (1, 2, 3, 4, 255)),),
    hosts=(
        Host("h1", 0x0A000001, None, Place("s1", 1)),
        Host("h2", 0x0A000002, None, Place("s1", 2)),
        Host("h3", 0x0A000003, 0x0200000000BB, Place("s1", 3)),
    ),
)


def _leaf_spine() -> Topology:
    """Two leaves with two hosts each (h1, h2 at leaf1, h3, h4 at leaf2), and two spines."""
    ports = {"leaf1": (1, 2, 101, 102), "leaf2": (1, 2, 101, 102), "spine1": (1, 2), "spine2": (1, 2)}
    return Topology(
        tuple(
            SwitchNode(name, f"unix:/{name}", 1, 0x0A00FF01 + number, 0x024941000001 + number, ports[name])
            for number, name in enumerate(ports)
        ),
        tuple(
            Link((Place(f"leaf{leaf}", 100 + spine), Place(f"spine{spine}", leaf)))
            for spine in (1, 2)
            for leaf in (1, 2)
        ),
        tuple(
            Host(f"h{n}", 0x0A000000 + n, 0x020000000000 + n, Place(f"leaf{1 + n // 3}", 1 + (n - 1) % 2))
            for n in range(1, 5)
        ),
    )


LEAF_SPINE = _leaf_spine()
# A test's client, which is at 127.0.0.1, registers ranks at all hosts.
OF_THE_TESTS: dict[Address, frozenset[int]] = {
    IPv4Address("127.0.0.1"): frozenset(range(0x0A000001, 0x0A000009))
}
ON_SWITCHES = tuple(filter(uses_switches, AGGREGATIONS))
WITH_SERVERS = tuple(filter(uses_servers, AGGREGATIONS))
SHARED_SLOTS = 16  # of the slot versions, where there are any
# A job on all of its hosts, rank by rank.
RANKS = 4
AT = ["leaf1", "leaf1", "leaf2", "leaf2"]

Result = TypeVar("Result")


class Clock:
    """Virtual time in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Serving:
    """Makes a service of switches, by name; a test's asynchronous context."""

    def __init__(self, switches: Mapping[str, MemorySwitch], topology: Topology = STAR) -> None:
        self._switches = switches
        self._topology = topology

    @contextlib.asynccontextmanager
    async def __call__(
        self,
        policy: Policy | None = None,
        on_crash: Callable[[], None] = lambda: None,
        multicast: int | None = None,
        mark_queue: int | None = None,
        addresses: Mapping[Address, frozenset[int]] = OF_THE_TESTS,
        state: StateFile | None = None,
        wait_s: float = 0.0,
        tenants: Tenants | None = None,
        **limits: Any,
    ) -> AsyncIterator[tuple[httpx.AsyncClient, Service, Clock]]:
        """Yields the operator's client of the API, the service, and the job table's clock.

        multicast: of `JobTable`. mark_queue, addresses: of `Network`. state: restores the table, and keeps it. wait_s:
        for switches. tenants: of the job table. limits: of `Limits`.
        """
        clock = Clock()
        table = JobTable(
            self._topology,
            Limits(slot_versions=SLOT_VERSIONS, **limits),
            policy or Policy(),
            epochs=Epochs.fresh(),
            now=clock(),
            words=WORDS,
            multicast=multicast,
            tenants=tenants,
        )
        if state is not None:
            table.restore(state.load(), clock())
        network = Network(topology=self._topology, words=WORDS, mark_queue=mark_queue, addresses=addresses)
        service = Service(table, self._switches, network, clock=clock, on_crash=on_crash, state=state)
        await service.start(wait_s)
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(create_app(service, OPERATORS_TOKEN)),
                base_url="http://controller",
                headers={"Authorization": f"Bearer {OPERATORS_TOKEN}"},
            ) as client:
                yield client, service, clock
        finally:
            await service.stop()


def run(body: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a test's coroutine function to its end."""
    return asyncio.run(body())


def worker(rank: int, **changes: object) -> dict[str, object]:
    """The document that registers a rank of a job of any kind."""
    return {
        "rank": rank,
        "ip": f"10.0.0.{rank + 1}",
        "mac": f"02:00:00:00:00:{rank + 1:02x}",
        "udp_port": 4000,
        "port": rank + 1,
        "server_udp_port": 5000,
        **changes,
    }


@contextlib.asynccontextmanager
async def asking(service: Service, host: str, secret: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API at another host, with the secret of a job."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(service, OPERATORS_TOKEN), client=(host, 5000)),
        base_url="http://controller",
        headers={"Authorization": f"Bearer {secret}"},
    ) as client:
        yield client


async def create_job(client: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    """Create a job of two workers and four slots, unless `fields` say otherwise. Returns its document."""
    answer = await client.post("/jobs", json={"workers": 2, "slots": 4, **fields})
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def register_ranks(
    client: httpx.AsyncClient,
    number: int,
    *,
    document: Callable[[int], dict[str, object]] = worker,
    workers: int = 2,
) -> dict[str, Any]:
    """Register all ranks. Returns the answer to the last."""
    for rank in range(workers):
        answer = await client.post(f"/jobs/{number}/workers", json=document(rank))
        assert answer.status_code == 200, answer.text
    registered: dict[str, Any] = answer.json()
    return registered


async def start_job(client: httpx.AsyncClient, workers: int = 2, slots: int = 4, **fields: object) -> int:
    """Create a job, register its ranks, have their servers serve it, and wait until it runs. Returns its number."""
    number: int = (await create_job(client, workers=workers, slots=slots, **fields))["id"]
    for server in (await register_ranks(client, number, workers=workers))["servers"]:
        await client.post(f"/jobs/{number}/workers/{server['rank']}/serving")
    job = (await client.get(f"/jobs/{number}", params={"wait": "running"})).json()
    assert job["state"] == "running", job
    return number


SERVER = {"name": "big", "ip": "10.0.1.1", "udp_port": 18754, "memory": 1 << 20}


async def add_server(client: httpx.AsyncClient, **changes: object) -> int:
    """Register a server. Returns its instance."""
    answer = await client.post("/servers", json=SERVER | changes)
    assert answer.status_code == 201, answer.text
    instance: int = answer.json()["instance"]
    return instance


async def beat(
    client: httpx.AsyncClient, instance: int, *serving: dict[str, Any], name: str = "big", **fields: object
) -> httpx.Response:
    """A heartbeat of a server that serves these jobs."""
    keys = [{"id": job["id"], "epoch": job["epoch"]} for job in serving]
    document = {"instance": instance, "serving": keys, **fields}
    return await client.post(f"/servers/{name}/heartbeat", json=document)


async def metrics(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, which are sorted."""
    text = (await client.get("/metrics")).text
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def settle(condition: Callable[[], object]) -> None:
    """Wait in the loop for a condition, 10 s at most."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def ask_and_leave(
    service: Service, method: str, path: str, query: str = "", secret: str = "", body: bytes = b""
) -> None:
    """A request whose client has closed the connection before it gets an answer. Returns when it has been handled."""
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"authorization", f"Bearer {secret}".encode())],
        "client": ("127.0.0.1", 5000),
        "server": ("controller", 80),
    }

    async def receive() -> Message:
        return next(messages)

    async def send(_: Message) -> None:
        pass

    await create_app(service, OPERATORS_TOKEN)(scope, receive, send)
