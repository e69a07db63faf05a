# SPDX-License-Identifier: Apache-2.0
"""`inagg status`: the state of a testbed that is up, or of a controller. Rates come from two snapshots.

The document (`--json`) has
- starting: what is brought up at the moment, null when the testbed is ready. Until then it has no
  ports, links and jobs;
- run, up_s, topology, hosts, servers, switch, link, uplink, results: the testbed; hosts are the workers', servers the
  number of further hosts with an aggregation server each;
- processes: name, pid, alive;
- controller: the answer of GET /health, or error; null without a controller. Its `servers` are the aggregation servers
  that have registered;
- jobs: id, name, job_class, tenant (null: none), priority, state, slots, workers, reason, aggregation, servers (name,
  ip, udp_port, rank), chunks (by where they were summed; null without servers), displaced (evicted, expired; null
  without shared slots, or if the job has ended), changing (why it looks for another way; null: it does not), late (the
  ranks that others wait for) and, by rank, host and address (null: not registered), state, packets (contributions that
  the switch has admitted; null in a job on servers) and their rate, sums_per_s, late_s (how much less the rank waits
  for others in a sum than the rank that waits most), rtt_s, window and window_limit (packets), resent (the share of
  packets that were sent again) and goodput_mbit_s (payload of results); null what is not known;
- ports: switch, port, node (a host, ctl0, or another switch's port), and Mbit/s from and to it, as the kernel counts
  them at the switch's interfaces, Ethernet headers included;
- links: lower (a host, or a port such as leaf1:101), upper, its rate in bit/s (null: unshaped), and Mbit/s up and down.
Of a controller without a testbed the document has controller and jobs, and its url.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from inagg_contract.aggregation import LEASED, SHARED
from inagg_contract.documents import DEFAULT_JOB_CLASS, ENDED_STATES, JobStatus, Overview, OverviewRank
from inagg_contract.ranks import name_job, name_ranks
from inagg_controller.logs import one_line
from inagg_testbed.errors import ControllerRefusedError, ControllerUnreachableError
from inagg_testbed.network.control import ControllerClient, controller_of, has_controller
from inagg_testbed.network.fabric import CONTROL_PORT, STAR, Fabric
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.traffic import PortBytes, link_bytes, port_bytes
from inagg_testbed.operate.live import RankRates, rank_rates
from inagg_testbed.terminal import plain_table

Document = dict[str, Any]
_SHOWN = {
    *("id", "name", "job_class", "tenant", "priority", "state", "slots", "workers", "reason"),
    *("aggregation", "servers", "chunks", "displaced"),
}
_SETTINGS = ("topology", "hosts", "servers", "switch", "link", "uplink", "results")


@dataclass(frozen=True)
class Snapshot:
    """State of a testbed at one time. traffic: bytes from and to what each port leads to. jobs: the controller's
    answer. overview: the controller's; None: it does not answer, or is of a release that has none."""

    at_s: float
    traffic: PortBytes
    controller: Document | None
    jobs: list[JobStatus]
    overview: Overview | None = None


def take_snapshot(manifest: Manifest) -> Snapshot:
    """Take a snapshot. A controller that does not answer appears in it as an error; a testbed that starts is empty."""
    if manifest.starting is not None:
        return Snapshot(time.monotonic(), {}, None, [])
    health, jobs, overview = _ask(controller_of(manifest)) if has_controller(manifest) else (None, [], None)
    fabric = Fabric.from_settings(manifest.settings)
    traffic = port_bytes(fabric, manifest.run, lambda node: manifest.namespace(node).pid)
    return Snapshot(time.monotonic(), traffic, health, jobs, overview)


def ask_controller(client: ControllerClient) -> Snapshot:
    """A snapshot of a controller without a testbed."""
    health, jobs, overview = _ask(client)
    return Snapshot(time.monotonic(), {}, health, jobs, overview)


def _ask(client: ControllerClient) -> tuple[Document, list[JobStatus], Overview | None]:
    try:
        jobs = [_counted(client, job) for job in client.jobs()]
        return client.health().model_dump(), jobs, _overview(client)
    except (ControllerRefusedError, ControllerUnreachableError) as error:
        return {"error": str(error)}, [], None


def _overview(client: ControllerClient) -> Overview | None:
    """The controller's overview; None if its release has none."""
    try:
        return client.overview()
    except ControllerRefusedError:
        return None


def _counted(client: ControllerClient, job: JobStatus) -> JobStatus:
    """The job with its counters; unchanged if the controller no longer has it."""
    if job.state != "running":
        return job
    try:
        return client.job(job.id)
    except ControllerRefusedError:
        return job


def document(manifest: Manifest, before: Snapshot, after: Snapshot) -> Document:
    """The document that the module docstring describes."""
    settings, seconds = manifest.settings, after.at_s - before.at_s
    # Without traffic, as while the testbed starts, nothing needs the fabric, whose settings may not be there yet.
    fabric = Fabric.from_settings(settings) if before.traffic and after.traffic else None
    return {
        "run": manifest.run,
        "starting": manifest.starting,
        "up_s": round(uptime_s(manifest), 1),
        **{name: settings.get(name) for name in _SETTINGS},
        "processes": [
            {"name": each.name, "pid": each.pid, "alive": each.alive()} for each in manifest.processes
        ],
        **controller_document(before, after),
        "ports": [
            {
                "switch": port.switch,
                "port": port.port,
                "node": fabric.neighbours[port],
                **_rates(before.traffic[port], counts, seconds),
            }
            for port, counts in after.traffic.items()
            if fabric is not None and port in before.traffic
        ],
        "links": [
            {
                "lower": link.lower,
                "upper": link.upper,
                "rate_bps": _rate_bps(settings, link.lower),
                "up_mbit_s": _mbit_s(link.up, seconds),
                "down_mbit_s": _mbit_s(link.down, seconds),
            }
            for link in (link_bytes(fabric, before.traffic, after.traffic) if fabric is not None else ())
        ],
    }


def controller_document(before: Snapshot, after: Snapshot) -> Document:
    """The part that a controller without a testbed has too."""
    earlier = {job.id: job for job in before.jobs}
    seconds = after.at_s - before.at_s
    return {
        "controller": after.controller,
        "jobs": [
            _job(earlier.get(job.id), job, seconds, before.overview, after.overview) for job in after.jobs
        ],
    }


def _rate_bps(settings: Mapping[str, Any], lower: str) -> int | None:
    """The rate of the link at a host or port; None: unshaped."""
    if "rates" in settings:
        rate: int | None = settings["rates"].get(lower)
    else:
        rate = settings.get("uplink_bps" if ":" in lower else "link_bps")
    return rate


def uptime_s(manifest: Manifest) -> float:
    """Seconds since the testbed's first host was made: a launcher may make several testbeds in turn."""
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    made = min((node.start for node in manifest.namespaces.values()), default=manifest.launcher.start)
    return since_boot - made / os.sysconf("SC_CLK_TCK")


def _rates(before: tuple[int, int], after: tuple[int, int], seconds: float) -> dict[str, float]:
    sent, received = (_mbit_s(new - old, seconds) for old, new in zip(before, after, strict=True))
    return {"from_mbit_s": sent, "to_mbit_s": received}


def _mbit_s(count: int, seconds: float) -> float:
    return round(count * 8e-6 / seconds, 3)


def _job(
    before: JobStatus | None,
    job: JobStatus,
    seconds: float,
    earlier: Overview | None,
    overview: Overview | None,
) -> Document:
    seen = next((each for each in overview.jobs if each.id == job.id), None) if overview is not None else None
    rates: Mapping[int, RankRates] = {}
    if earlier is not None and overview is not None and seen is not None:
        rates = rank_rates(earlier, overview, seen)
    return {
        **job.model_dump(include=_SHOWN),
        "changing": None if seen is None else seen.changing,
        "late": [] if seen is None else [each.rank for each in seen.late],
        "ranks": [
            {
                **_rank(before, job, rank, seconds),
                **_figures(None if seen is None else seen.ranks[rank], rates.get(rank, RankRates())),
            }
            for rank in range(job.workers)
        ],
    }


def _figures(rank: OverviewRank | None, rates: RankRates) -> Document:
    traffic = None if rank is None else rank.traffic
    return {
        "sums_per_s": _rounded(rates.sums, 2),
        "late_s": _rounded(rates.late_s, 6),
        "rtt_s": traffic.rtt_s or None if traffic is not None else None,
        "window": None if traffic is None else traffic.window,
        "window_limit": None if traffic is None else traffic.window_limit,
        "resent": _rounded(rates.resent, 6),
        "goodput_mbit_s": None if rates.goodput is None else round(rates.goodput / 1e6, 3),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _rank(before: JobStatus | None, job: JobStatus, rank: int, seconds: float) -> Document:
    lost = {each.rank: each.reason for each in job.lost}
    state = "awaited"
    if rank in lost:
        state = f"lost: {lost[rank]}"
    elif rank in job.left:
        state = "has left"
    elif rank in job.registered:
        state = "joined"
    there = next((each for each in job.ranks if each.rank == rank), None)
    then, now = (_packets(each, rank) for each in (before, job))
    rate = None if then is None or now is None else round((now - then) / seconds, 1)
    return {
        "rank": rank,
        "host": None if there is None else there.host,
        "address": None if there is None else there.ip,
        "state": state,
        "packets": now,
        "packets_per_s": rate,
    }


def _packets(job: JobStatus | None, rank: int) -> int | None:
    if job is None or job.counters is None:
        return None
    return job.counters[rank].packets if rank in job.counters else 0


def troubles(found: Document) -> list[str]:
    """Messages about failed parts."""
    lines = [f"the {each['name']} has ended" for each in found.get("processes", ()) if not each["alive"]]
    health = found["controller"] or {}
    if "error" in health:
        lines.append(health["error"])
    elif health and health["switch"] not in ("connected", "none"):
        lines.append(f"the controller has {health['switch']} the switch: {health['switch_error']}")
    for link in health.get("links", ()):
        if link["state"] == "down":
            lines.append(f"the link {' - '.join(link['ends'])} is down: {link['reason']}")
    return lines


def alarms(found: Document) -> list[str]:
    """Messages about hosts that send what they must not."""
    return [
        f"port {switch['name']}:{port['port']} refuses packets of its host: "
        f"{', '.join(f'{name} {count:,}' for name, count in sorted(port['packets'].items()))}, the last "
        f"{_duration(port['ago_s'])} ago"
        for switch in (found["controller"] or {}).get("switches", ())
        for port in switch["refusals"]
    ]


def rendered_controller(found: Document, *, ended: bool) -> Group:
    """The document of a controller without a testbed, as `rendered`."""
    health = found["controller"]
    answers = "error" not in health
    state = f": {_switch_health(health)}" if answers else ""
    parts: list[Text | Table] = [Text(f"controller {found['url']}{state}")]
    parts += [Text(f"! {line}", style="red") for line in troubles(found)]
    parts += [Text(f"! {line}", style="yellow") for line in alarms(found)]
    if answers:
        if health["switches"]:
            parts += [Text(), _switches(health["switches"])]
        parts += _jobs(found["jobs"], ended)
        parts += _servers(health["servers"])
    return Group(*parts)


def _switches(switches: Sequence[Document]) -> Table:
    rows = [
        (
            each["name"],
            each["aggregator"]["ip"],
            each["state"],
            f"{each['slot_versions'] - each['free_slot_versions']:,}",
            f"{each['slot_versions']:,}",
        )
        for each in switches
    ]
    header = ("switch", "address", "state", "slot versions in use", "slot versions")
    return plain_table(header, rows, text_columns=3)


def rendered(found: Document, *, ended: bool) -> Group:
    """The document for a terminal: a headline, jobs by rank, ports. Ended jobs are counted, and shown if `ended`."""
    if found["starting"] is not None:
        return Group(Text(f"run {found['run']} is starting: {found['starting']}"))
    health = found["controller"]
    servers = f" and {found['servers']} for servers" if found["servers"] else ""
    parts: list[Text | Table] = [
        Text(
            f"run {found['run']}: {found['hosts']} hosts{servers}, switch {found['switch']},"
            f" up {_duration(found['up_s'])}"
        )
    ]
    star = found["topology"] == STAR
    parts.append(Text(f"links: {found['link']}"))
    if not star:
        parts.append(Text(f"topology: {found['topology']}; links between switches: {found['uplink']}"))
    answers = health is not None and "error" not in health
    if answers:
        parts.append(Text(f"controller: {_switch_health(health)}"))
    names = [each["name"] for each in found["processes"] if each["alive"]]
    parts.append(Text(f"processes: {', '.join(names) or 'none'}"))
    parts += [Text(f"! {line}", style="red") for line in troubles(found)]
    parts += [Text(f"! {line}", style="yellow") for line in alarms(found)]
    if answers:
        parts += _jobs(found["jobs"], ended)
        parts += _servers(health["servers"])
    return Group(*parts, Text(), _ports(found["ports"]) if star else _tree(found["links"]))


def _switch_health(health: Document) -> str:
    if health["switch"] == "none":
        return "without a switch: servers do the sums"
    used = health["slot_versions"] - health["free_slot_versions"]
    text = f"{health['switch']}, {used:,} of {health['slot_versions']:,} slot versions in use"
    return f"{text}, {health['shared_slots']:,} shared slots" if health["shared_slots"] else text


def _servers(servers: Sequence[Document]) -> Iterator[Text | Table]:
    """The aggregation servers that have registered; nothing if there are none."""
    if not servers:
        return
    yield Text()
    rows = [
        (
            each["name"],
            f"{each['ip']}:{each['udp_port']}",
            str(each["jobs"]),
            f"{(each['memory'] - each['free_memory']) / 2**20:,.1f}",
            f"{each['memory'] / 2**20:,.1f}",
            f"{each['unknown']:,}",
        )
        for each in servers
    ]
    yield plain_table(
        ("server", "address", "jobs", "MiB in use", "MiB", "unknown packets"), rows, text_columns=2
    )


def _ports(ports: list[Document]) -> Table:
    """The ports of a star."""
    rows = [
        (str(each["port"]), each["node"], f"{each['from_mbit_s']:,.1f}", f"{each['to_mbit_s']:,.1f}")
        for each in ports
        if each["port"] != CONTROL_PORT or each["from_mbit_s"] or each["to_mbit_s"]
    ]
    return plain_table(("port", "node", "Mbit/s from it", "Mbit/s to it"), rows)


def _tree(links: list[Document]) -> Table:
    """The switches from the top down, each with the hosts and switches below it, and the link to each of these.

    A leaf stands below each of its spines, with its hosts below the first only.
    """
    below: dict[str, list[Document]] = {}
    for link in links:
        below.setdefault(_switch_of(link["upper"]), []).append(link)
    lower = {_switch_of(link["lower"]) for link in links}
    rows: list[tuple[str, ...]] = []

    def add_below(switch: str, indent: str) -> None:
        for link in below.pop(switch, []):
            rate = "unshaped" if link["rate_bps"] is None else f"{link['rate_bps'] / 1e6:g} Mbit/s"
            name = _switch_of(link["lower"])
            up, down = f"{link['up_mbit_s']:,.1f}", f"{link['down_mbit_s']:,.1f}"
            rows.append((f"{indent}{name}", link["upper"], rate, up, down))
            add_below(name, f"{indent}  ")

    for top in [switch for switch in below if switch not in lower]:
        rows.append((top, "", "", "", ""))
        add_below(top, "  ")
    return plain_table(("node", "at port", "link", "Mbit/s up", "Mbit/s down"), rows, text_columns=3)


def _switch_of(end: str) -> str:
    return end.partition(":")[0]


def _jobs(jobs: list[Document], ended: bool) -> Iterator[Text | Table]:
    shown = [job for job in jobs if ended or job["state"] not in ENDED_STATES]
    over = sum(job["state"] in ENDED_STATES for job in jobs)
    if not shown:
        yield Text("jobs: none" + (f" now; {over} ended (--all shows them)" if over else ""))
    for job in shown:
        reason = f": {job['reason']}" if job["reason"] else ""
        # The name and the reason come from hosts and may contain anything.
        line = f"{name_job(job['id'], job['name'])}: {job['state']}{reason}; "
        line += f"{job['workers']} ranks, {job['slots']} slots"
        line += f" on {_summed_by(job)}" if job["aggregation"] != LEASED else ""
        line += "" if job["job_class"] == DEFAULT_JOB_CLASS else f", class {job['job_class']}"
        line += f", tenant {job['tenant']}" if job["tenant"] else ""
        line += f", priority {job['priority']}" if job["priority"] else ""
        yield Text(f"\n{one_line(line)}")
        if summed := _summed_in(job):
            yield Text(summed)
        if job.get("changing"):
            yield Text(f"looks for another way: {one_line(job['changing'])}", style="yellow")
        if job.get("late"):
            yield Text(f"late: {name_ranks(job['late'])}", style="yellow")
        live = any(each.get("window") is not None for each in job["ranks"])
        rows = [
            (
                str(each["rank"]),
                one_line(each["host"] or "-"),
                each["address"] or "-",
                each["state"].partition(":")[0],
                *((_shown(each["packets"]), _shown(each["packets_per_s"])) if not live else _live(each)),
            )
            for each in job["ranks"]
        ]
        figures = _LIVE_HEADER if live else ("contributions", "a second")
        yield plain_table(("rank", "host", "address", "state", *figures), rows, text_columns=4)
        for each in job["ranks"]:
            if ":" in each["state"]:  # the reason comes from a host
                yield Text(f"rank {each['rank']}: {one_line(each['state'])}")


_LIVE_HEADER = ("contributions", "a second", "sums/s", "late\nms", "RTT\nms", "window", "again", "Mbit/s")


def _live(rank: Document) -> tuple[str, ...]:
    """A rank's figures for people who watch."""
    return (
        _shown(rank["packets"]),
        _shown(rank["packets_per_s"]),
        _shown(rank["sums_per_s"], 1),
        _shown(None if rank["late_s"] is None else rank["late_s"] * 1e3, 1),
        _shown(None if rank["rtt_s"] is None else rank["rtt_s"] * 1e3, 1),
        "-" if rank["window"] is None else f"{rank['window']}/{rank['window_limit']}",
        "-" if rank["resent"] is None else f"{rank['resent']:.1%}",
        _shown(rank["goodput_mbit_s"], 1),
    )


def _shown(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _summed_by(job: Document) -> str:
    """What sums for a job with servers: the registered ones by name. They are known once all ranks have joined."""
    own = [server["name"] for server in job["servers"] if server["rank"] is None]
    servers = f"servers {', '.join(own)}" if own else "the ranks' servers" if job["servers"] else "servers"
    return f"shared slots and {servers}" if job["aggregation"] == SHARED else servers


def _summed_in(job: Document) -> str:
    """Where the chunks of a job on shared slots were summed; empty for another, or before the first."""
    chunks, displaced = job["chunks"], job["displaced"]
    if job["aggregation"] != SHARED or not chunks or not (total := sum(chunks.values())):
        return ""
    text = f"chunks: {total:,}; {chunks['switches'] / total:.0%} summed in switches"
    text += f", {chunks['both'] / total:.0%} in part, {chunks['servers'] / total:.0%} in servers"
    if displaced is not None:
        text += f"; {displaced['evicted']:,} sums evicted, {displaced['expired']:,} expired"
    return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
