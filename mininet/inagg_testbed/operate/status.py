# SPDX-License-Identifier: Apache-2.0
"""`inagg status`: the state of a testbed that is up. Rates come from two snapshots.

The document (`--json`) has
- run, up_s, hosts, switch, link, results: the testbed;
- processes: name, pid, alive;
- controller: the answer of GET /health, or error; null without a controller;
- jobs: id, name, state, slots, workers, reason and, by rank, state, packets (contributions that the switch has
  admitted) and their rate;
- ports: port, node, and Mbit/s from and to the node, as the kernel counts them at the switch's interfaces, Ethernet
  headers included.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from inagg_contract.documents import JobStatus
from inagg_controller.logs import one_line
from inagg_testbed.errors import ControllerRefusedError, ControllerUnreachableError
from inagg_testbed.network.control import ControllerClient, controller_of, has_controller
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.topology import CONTROL_PORT, SWITCH_NODE, port_interface, port_node
from inagg_testbed.terminal import plain_table

Document = dict[str, Any]
_ACTIVE = ("joining", "running")


@dataclass(frozen=True)
class Snapshot:
    """State of a testbed at one time. traffic: port -> bytes from and to its node. jobs: the controller's answer."""

    at_s: float
    traffic: Mapping[int, tuple[int, int]]
    controller: Document | None
    jobs: list[JobStatus]


def take_snapshot(manifest: Manifest) -> Snapshot:
    """Take a snapshot. A controller that does not answer appears in it as an error."""
    health, jobs = _ask(controller_of(manifest)) if has_controller(manifest) else (None, [])
    return Snapshot(time.monotonic(), _traffic(manifest), health, jobs)


def _ask(client: ControllerClient) -> tuple[Document, list[JobStatus]]:
    try:
        return client.health().model_dump(), [_counted(client, job) for job in client.jobs()]
    except (ControllerRefusedError, ControllerUnreachableError) as error:
        return {"error": str(error)}, []


def _counted(client: ControllerClient, job: JobStatus) -> JobStatus:
    """The job with its counters; unchanged if the controller no longer has it."""
    if job.state != "running":
        return job
    try:
        return client.job(job.id)
    except ControllerRefusedError:
        return job


def _traffic(manifest: Manifest) -> dict[int, tuple[int, int]]:
    """Bytes by port, from /proc/net/dev of the switch's namespace; empty if the namespace is gone."""
    prefix = port_interface(manifest.run, 1).removesuffix("1")
    try:
        lines = Path(f"/proc/{manifest.namespace(SWITCH_NODE).pid}/net/dev").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, numbers = line.strip().partition(":")
        if name.startswith(prefix):
            values = numbers.split()
            found[int(name.removeprefix(prefix))] = (int(values[0]), int(values[8]))
    return dict(sorted(found.items()))


def document(manifest: Manifest, before: Snapshot, after: Snapshot) -> Document:
    """The document that the module docstring describes."""
    settings, seconds = manifest.settings, after.at_s - before.at_s
    earlier = {job.id: job for job in before.jobs}
    return {
        "run": manifest.run,
        "up_s": round(uptime_s(manifest), 1),
        **{name: settings.get(name) for name in ("hosts", "switch", "link", "results")},
        "processes": [
            {"name": each.name, "pid": each.pid, "alive": each.alive()} for each in manifest.processes
        ],
        "controller": after.controller,
        "jobs": [_job(earlier.get(job.id), job, seconds) for job in after.jobs],
        "ports": [
            {"port": port, "node": port_node(port), **_rates(before.traffic[port], counts, seconds)}
            for port, counts in after.traffic.items()
            if port in before.traffic
        ],
    }


def uptime_s(manifest: Manifest) -> float:
    """Seconds since the testbed's first host was made: a launcher may make several testbeds in turn."""
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    made = min((node.start for node in manifest.namespaces.values()), default=manifest.launcher.start)
    return since_boot - made / os.sysconf("SC_CLK_TCK")


def _rates(before: tuple[int, int], after: tuple[int, int], seconds: float) -> dict[str, float]:
    sent, received = ((new - old) * 8e-6 / seconds for old, new in zip(before, after, strict=True))
    return {"from_mbit_s": round(sent, 3), "to_mbit_s": round(received, 3)}


def _job(before: JobStatus | None, job: JobStatus, seconds: float) -> Document:
    return {
        **job.model_dump(include={"id", "name", "state", "slots", "workers", "reason"}),
        "ranks": [_rank(before, job, rank, seconds) for rank in range(job.workers)],
    }


def _rank(before: JobStatus | None, job: JobStatus, rank: int, seconds: float) -> Document:
    lost = {each.rank: each.reason for each in job.lost}
    state = "awaited"
    if rank in lost:
        state = f"lost: {lost[rank]}"
    elif rank in job.left:
        state = "has left"
    elif rank in job.registered:
        state = "joined"
    then, now = (_packets(each, rank) for each in (before, job))
    rate = None if then is None or now is None else round((now - then) / seconds, 1)
    return {"rank": rank, "state": state, "packets": now, "packets_per_s": rate}


def _packets(job: JobStatus | None, rank: int) -> int | None:
    if job is None or job.counters is None:
        return None
    return job.counters[rank].packets if rank in job.counters else 0


def troubles(found: Document) -> list[str]:
    """Messages about failed parts of the testbed."""
    lines = [f"the {each['name']} has ended" for each in found["processes"] if not each["alive"]]
    health = found["controller"] or {}
    if "error" in health:
        lines.append(health["error"])
    elif health and health["switch"] != "connected":
        lines.append(f"the controller has {health['switch']} the switch: {health['switch_error']}")
    return lines


def rendered(found: Document, *, ended: bool) -> Group:
    """The document for a terminal: a headline, jobs by rank, ports. Ended jobs are counted, and shown if `ended`."""
    health = found["controller"]
    parts: list[Text | Table] = [
        Text(
            f"run {found['run']}: {found['hosts']} hosts, switch {found['switch']}, up {_duration(found['up_s'])}"
        )
    ]
    parts.append(Text(f"links: {found['link']}"))
    answers = health is not None and "error" not in health
    if answers:
        used = health["slot_versions"] - health["free_slot_versions"]
        parts.append(
            Text(
                f"controller: {health['switch']}, {used:,} of {health['slot_versions']:,} slot versions in use"
            )
        )
    names = [each["name"] for each in found["processes"] if each["alive"]]
    parts.append(Text(f"processes: {', '.join(names) or 'none'}"))
    parts += [Text(f"! {line}", style="red") for line in troubles(found)]
    if answers:
        parts += _jobs(found["jobs"], ended)
    rows = [
        (str(each["port"]), each["node"], f"{each['from_mbit_s']:,.1f}", f"{each['to_mbit_s']:,.1f}")
        for each in found["ports"]
        if each["port"] != CONTROL_PORT or each["from_mbit_s"] or each["to_mbit_s"]
    ]
    parts += [Text(), plain_table(("port", "node", "Mbit/s from it", "Mbit/s to it"), rows)]
    return Group(*parts)


def _jobs(jobs: list[Document], ended: bool) -> Iterator[Text | Table]:
    shown = [job for job in jobs if ended or job["state"] in _ACTIVE]
    over = len(jobs) - sum(job["state"] in _ACTIVE for job in jobs)
    if not shown:
        yield Text("jobs: none" + (f" now; {over} ended (--all shows them)" if over else ""))
    for job in shown:
        name = f" {job['name']}" if job["name"] else ""
        reason = f": {job['reason']}" if job["reason"] else ""
        # The name and the reason come from hosts and may contain anything.
        line = f"job {job['id']}{name}: {job['state']}{reason}; {job['workers']} ranks, {job['slots']} slots"
        yield Text(f"\n{one_line(line)}")
        rows = [
            (
                str(each["rank"]),
                one_line(each["state"]),
                "-" if each["packets"] is None else f"{each['packets']:,}",
                "-" if each["packets_per_s"] is None else f"{each['packets_per_s']:,.0f}",
            )
            for each in job["ranks"]
        ]
        yield plain_table(("rank", "state", "contributions", "a second"), rows, text_columns=2)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
