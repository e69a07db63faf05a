# SPDX-License-Identifier: Apache-2.0
"""GET /metrics, for Prometheus: the state of the service and of the API, and the switch's counters.

Each request reads all of them. docs/counters.md has the table of metrics.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inagg_contract.addresses import format_ip
from inagg_contract.aggregation import SUMMING
from inagg_contract.counters import EDGE_REFUSALS, PORT_COUNTERS
from inagg_controller.errors import UnavailableError
from inagg_controller.jobs.accounts import Account
from inagg_controller.jobs.job import Job
from inagg_controller.service import Service
from inagg_controller.switch.client import Count

_STATES = ("joining", "running", "changing", "failed", "finished")
# Labels of a job and of a rank. Prometheus itself labels what it reads with `job` and `instance`.
_JOB = ("inagg_job", "name")
_RANK = (*_JOB, "rank", "host", "address")


class ApiCounts(NamedTuple):
    """Counts of the API itself. refusals: HTTP status -> requests."""

    connections: int
    connections_refused: int
    refusals: Mapping[int, int]


async def exposition(service: Service, api: ApiCounts) -> bytes:
    """The metrics in Prometheus' text format; without the counters of switches that are not connected."""
    try:
        counters, admitted, displaced = await asyncio.gather(
            service.counts.indexed(), service.counts.admitted(), service.counts.displaced()
        )
    except UnavailableError:
        counters, admitted, displaced = {}, {}, {}
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Once(lambda: _of_service(service)))
    registry.register(_Once(lambda: _of_servers(service)))
    classes, tenants = service.jobs.classes, service.jobs.tenants.by_name
    registry.register(_Once(lambda: _of_accounts(service, "class", "job_class", classes)))
    registry.register(_Once(lambda: _of_accounts(service, "tenant", "tenant", tenants)))
    registry.register(_Once(lambda: _of_jobs(service)))
    registry.register(_Once(lambda: _of_switches(service, counters, admitted)))
    registry.register(_Once(lambda: _of_shared_slots(service, displaced)))
    registry.register(_Once(lambda: _of_api(api)))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()

    def describe(self) -> list[Metric]:
        """Describe nothing: a registry of one request needs no check for duplicate names."""
        return []


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[Any, float],
) -> Metric:
    """A metric of `kind`. values: by a tuple of the labels' values."""
    family = kind(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _of_service(service: Service) -> Iterator[Metric]:
    table = service.jobs
    states = Counter((job.state, job.placement.aggregation) for job in table.jobs.values())
    pools = {(name, "free"): pool.free for name, pool in table.switches.pools.items()} | {
        (name, "leased"): pool.size - pool.free for name, pool in table.switches.pools.items()
    }
    connections = {(name,): managed.connection for name, managed in service.switches.items()}
    yield _gauge("inagg_controller_info", "Version of the controller", ("version",), {(version("inagg"),): 1})
    yield _gauge(
        "inagg_switch_connected",
        "1 if the switch is connected",
        ("switch",),
        {key: connection.state == "connected" for key, connection in connections.items()},
    )
    yield _counter(
        "inagg_switch_pipeline_pushes",
        "How often the program was pushed to the switch",
        ("switch",),
        {key: connection.connects for key, connection in connections.items()},
    )
    yield _gauge("inagg_pool_slot_versions", "Slot versions of a switch", ("switch", "state"), pools)
    shared = {(name,): table.limits.shared_slots for name in table.switches.pools}
    yield _gauge("inagg_shared_slots", "Slots of a switch that jobs share", ("switch",), shared)
    links = {tuple(map(str, link.ends)): state == "up" for link, state in service.links.states.items()}
    yield _gauge("inagg_link_up", "1 if beacons pass a link both ways", ("end", "other_end"), links)
    jobs = {key: states[key] for key in product(_STATES, SUMMING)}
    labels = ("state", "aggregation")
    yield _gauge("inagg_jobs", "Jobs; ended jobs are forgotten after a while", labels, jobs)
    losses = {
        (
            name,
            str(place.port),
            place.direction,
            "aggregation" if place.aggregation else "other",
        ): probability
        for name, managed in service.switches.items()
        for place, probability in managed.losses
    }
    yield _gauge(
        "inagg_loss_probability",
        "Probability of injected loss",
        ("switch", "port", "direction", "traffic"),
        losses,
    )


def _of_servers(service: Service) -> Iterator[Metric]:
    servers = service.jobs.servers.by_name
    yield _gauge("inagg_servers", "Registered aggregation servers", (), {(): len(servers)})
    memory = {(name, "free"): server.free for name, server in servers.items()} | {
        (name, "leased"): server.memory - server.free for name, server in servers.items()
    }
    yield _gauge("inagg_server_memory_bytes", "Memory for jobs of a server", ("server", "state"), memory)
    jobs = {
        (name,): len(service.jobs.servers.orders(name, server.instance)) for name, server in servers.items()
    }
    yield _gauge("inagg_server_jobs", "Jobs that a server is to serve", ("server",), jobs)
    text = "Datagrams of no job that a server serves, or from none of its workers"
    unknown = {(name,): server.unknown for name, server in servers.items()}
    yield _counter("inagg_server_unknown_packets", text, ("server",), unknown)


def _of_accounts(
    service: Service, kind: str, label: str, accounts: Mapping[str, Account]
) -> Iterator[Metric]:
    """What the jobs of classes, or of tenants, hold."""
    held = {name: service.jobs.held_by(account) for name, account in accounts.items()}
    jobs = {(name,): each.jobs for name, each in held.items()}
    yield _gauge(f"inagg_{kind}_jobs", f"Jobs of a {kind} that hold resources", (label,), jobs)
    slots = {(name, switch): count for name, each in held.items() for switch, count in each.slots.items()}
    text = f"Slots of a switch that jobs of a {kind} lease"
    yield _gauge(f"inagg_{kind}_slots", text, (label, "switch"), slots)
    memory = {(name,): each.memory for name, each in held.items()}
    text = f"Memory of registered servers that jobs of a {kind} lease"
    yield _gauge(f"inagg_{kind}_memory_bytes", text, (label,), memory)
    quotas = {
        (name, quota): most
        for name, account in accounts.items()
        for quota, most in (("jobs", account.jobs), ("slots", account.slots), ("memory", account.memory))
        if most is not None
    }
    yield _gauge(f"inagg_{kind}_quota", f"Quota of a {kind}, if it has one", (label, "quota"), quotas)


def _of_jobs(service: Service) -> Iterator[Metric]:
    jobs = [job for job in service.jobs.jobs.values() if not job.ended]
    names = {_job_key(job): job for job in jobs}
    changes = {key: job.changes for key, job in names.items()}
    yield _counter("inagg_job_changes", "Times that a job has gone on another way", _JOB, changes)
    yield _gauge("inagg_job_slots", "Slots of a job", _JOB, {key: job.slots for key, job in names.items()})
    ranks = {(*key, state): count for key, job in names.items() for state, count in _ranks(job).items()}
    yield _gauge("inagg_job_ranks", "Ranks of a job", (*_JOB, "state"), ranks)
    chunks = {
        (*key, place): count
        for key, job in names.items()
        if job.summed is not None
        for place, count in job.summed._asdict().items()
    }
    text = "Chunks that a job's servers have completed, by where they were summed"
    yield _counter("inagg_job_chunks", text, (*_JOB, "summed_in"), chunks)
    ages = {_rank_key(job, rank): age for job in jobs for rank, age in service.heartbeat_ages(job).items()}
    yield _gauge("inagg_rank_heartbeat_age_seconds", "Time since a rank's last heartbeat", _RANK, ages)
    waits = {_rank_key(job, rank): wait for job in jobs for rank, wait in job.waits.items()}
    sums = {key: wait.sums for key, wait in waits.items()}
    yield _counter("inagg_rank_sums", "Sums through the switch that a rank has completed", _RANK, sums)
    waited = {key: wait.waited_s for key, wait in waits.items()}
    yield _counter(
        "inagg_rank_waited_seconds",
        "Time that a rank waited for other ranks to start its sums",
        _RANK,
        waited,
    )


def _job_key(job: Job) -> tuple[str, str]:
    return str(job.id), job.name


def _rank_key(job: Job, rank: int) -> tuple[str, ...]:
    member = job.members.get(rank)
    host, address = ("", "") if member is None else (member.host, format_ip(member.ip))
    return *_job_key(job), str(rank), host, address


def _ranks(job: Job) -> dict[str, int]:
    return {
        "present": len(job.members.keys() - job.left),
        "left": len(job.left),
        "missing": job.workers - len(job.members),
    }


def _of_switches(
    service: Service,
    counters: Mapping[str, Mapping[str, Mapping[int, Count]]],
    admitted: Mapping[str, Mapping[tuple[int, int], Count]],
) -> Iterator[Metric]:
    # Zeros of what raises an alarm: of a series that begins with 1, Prometheus does not see the increase.
    cells = {
        (switch, name, str(port)): Count(0, 0)
        for switch, name in product(counters, EDGE_REFUSALS)
        for port in service.switches[switch].node.ports
    } | {
        (switch, name, str(index)): count
        for switch, names in counters.items()
        for name, counts in names.items()
        for index, count in counts.items()
    }
    yield from _packets_and_bytes(
        "switch",
        "The switch's counters by port",
        ("switch", "counter", "port"),
        {key: count for key, count in cells.items() if key[1] in PORT_COUNTERS},
    )
    yield from _packets_and_bytes(
        "switch_indexed",
        "Counters that were added to the program, by their index",
        ("switch", "counter", "index"),
        {key: count for key, count in cells.items() if key[1] not in PORT_COUNTERS},
    )
    ranks: dict[tuple[str, ...], Count] = {}
    switches: dict[tuple[str, ...], Count] = {}
    for job in service.jobs.jobs.values():
        for switch in job.placement.tree.switches:
            counts = admitted.get(switch.name, {})
            for member, rank in enumerate(switch.ranks):
                if (job.id, member) in counts:
                    ranks[_rank_key(job, rank)] = counts[job.id, member]
            for member, below in enumerate(switch.below, len(switch.ranks)):
                if (job.id, member) in counts:
                    switches[*_job_key(job), below, switch.name] = counts[job.id, member]
    text = "Contributions of a rank that its switch admitted"
    yield from _packets_and_bytes("rank_admitted", text, _RANK, ranks)
    text = "Partial sums of a switch that a switch above admitted"
    yield from _packets_and_bytes("partial_admitted", text, (*_JOB, "switch", "above"), switches)


def _of_shared_slots(
    service: Service, displaced: Mapping[str, Mapping[tuple[int, bool], Count]]
) -> Iterator[Metric]:
    counts = {
        (*_job_key(service.jobs.jobs[job]), switch, "expired" if expired else "evicted"): count.packets
        for switch, found in displaced.items()
        for (job, expired), count in found.items()
        if job in service.jobs.jobs
    }
    text = "Sums of a job that left a shared slot because another contribution took it"
    yield _counter("inagg_job_displaced", text, (*_JOB, "switch", "cause"), counts)


def _packets_and_bytes(
    name: str, text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], Count]
) -> Iterator[Metric]:
    packets = {key: count.packets for key, count in counts.items()}
    yield _counter(f"inagg_{name}_packets", f"{text}, packets", labels, packets)
    size = {key: count.bytes for key, count in counts.items()}
    yield _counter(f"inagg_{name}_bytes", f"{text}, bytes", labels, size)


def _of_api(api: ApiCounts) -> Iterator[Metric]:
    yield _gauge("inagg_api_connections", "Open connections to the API", (), {(): api.connections})
    yield _counter(
        "inagg_api_connections_refused",
        "Connections refused because of the limits",
        (),
        {(): api.connections_refused},
    )
    refusals = {(str(status),): count for status, count in api.refusals.items()}
    yield _counter("inagg_api_refusals", "Requests answered with an error", ("status",), refusals)
