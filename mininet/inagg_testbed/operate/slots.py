# SPDX-License-Identifier: Apache-2.0
"""`inagg slots`: what the slot versions of running jobs hold, from the switches' registers (protocol.md, 5.2, 5.7).

The document (`--json`) has, for each switch, its jobs: id, name, kind (leased or shared), places (host and address of
each rank), slots, and versions. A version has
- index: in the registers;
- slot, version: of the job's; null in shared slots;
- chunk;
- has, misses: the members whose contributions are in it, or are not: ranks such as "rank 2", or a switch below;
- state: "summing" (some are missing), "sent up" (all are there, and the sum has gone to the switch above), "final" (it
  has the job's sum), or in a shared slot "sent on" (it is free again).

A version that has not been used by the job is left out. Versions are read one register after the other, while packets
change them, so a document of a job that sums is no snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from inagg_contract.aggregation import SHARED
from inagg_contract.documents import JobStatus
from inagg_contract.ranks import name_job, name_ranks, place
from inagg_testbed.network.control import switch_controller_of
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.operate import switch_reader
from inagg_testbed.operate.switch_reader import SwitchReader
from inagg_testbed.terminal import plain_table

Document = dict[str, Any]
_STATES = ("summing", "sent up", "final", "sent on")
_FEW = 3
_REGISTERS = ("slot_epoch", "slot_chunk", "slot_members", "slot_final")


class Cell(NamedTuple):
    """The registers of one slot version."""

    epoch: int
    chunk: int
    members: int
    final: int


def document(manifest: Manifest) -> Document:
    """The document that the module docstring describes.

    Raises ConfigurationError for a testbed without a controller or with bridges for switches, SwitchReadError if a
    switch cannot be read.
    """
    jobs = [job for job in switch_controller_of(manifest).jobs() if job.state == "running"]
    found: Document = {}
    for switch in switch_reader.switches(manifest):
        with switch_reader.opened(manifest, switch) as reader:
            here = [job for job in jobs if any(each.switch == switch for each in job.tree)]
            cells = _cells(reader) if here else []
            found[switch] = [on_switch(job, switch, cells) for job in here]
    return found


def _cells(reader: SwitchReader) -> list[Cell]:
    columns = [reader.read(reader.find(name)).values() for name in _REGISTERS]
    return [Cell(*values) for values in zip(*columns, strict=True)]


def on_switch(job: JobStatus, switch: str, cells: Sequence[Cell]) -> Document:
    """What the slot versions of a job hold in one switch of its tree. cells: all of the switch, by index."""
    (node,) = (each for each in job.tree if each.switch == switch)
    shared = job.aggregation == SHARED
    if shared:
        names = [f"rank {rank}" for rank in range(job.workers)]
        base, lease = 0, cells
    else:
        names = [*(f"rank {rank}" for rank in sorted(node.ranks)), *node.below]
        base = node.first_slot_version
        lease = cells[base : base + node.slot_versions]
    is_root = not node.above
    versions = [
        _version(
            cell, names, base + offset, None if shared else divmod(offset, job.slots)[::-1], is_root=is_root
        )
        for offset, cell in enumerate(lease)
        if cell.epoch == job.epoch
    ]
    return {
        "id": job.id,
        "name": job.name,
        "places": {each.rank: place(each.host, each.ip) for each in job.ranks},
        "kind": job.aggregation,
        "slots": None if shared else job.slots,
        "versions": versions,
    }


def _version(
    cell: Cell, names: Sequence[str], index: int, place: tuple[int, int] | None, *, is_root: bool
) -> Document:
    has = [name for member, name in enumerate(names) if cell.members >> member & 1]
    misses = [name for name in names if name not in has]
    if place is None and not has:
        state, misses = "sent on", []
    else:
        state = "summing" if misses else "final" if cell.final or is_root else "sent up"
    slot, version = place or (None, None)
    return {
        "index": index,
        "slot": slot,
        "version": version,
        "chunk": cell.chunk,
        "state": state,
        "has": has,
        "misses": misses,
    }


def rendered(found: Document, *, everything: bool) -> Group:
    """The document for a terminal: a line for each job, and those of its versions that sum; or all of them."""
    parts = [
        part for switch, jobs in found.items() for job in jobs for part in _shown(switch, job, everything)
    ]
    return Group(*(parts or [Text("no running job has slots in a switch")]))


def _shown(switch: str, job: Document, everything: bool) -> Iterator[Text | Table]:
    versions = job["versions"]
    counts = {state: sum(each["state"] == state for each in versions) for state in _STATES}
    summary = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    kind = "versions of shared slots" if job["slots"] is None else f"versions of {job['slots']:,} slots"
    yield Text(f"{name_job(job['id'], job['name'])} on {switch}, {kind}: {summary or 'not used yet'}")
    if everything:
        cells = [
            (
                _place(each),
                f"{each['chunk']:,}",
                each["state"],
                _members(each["has"]),
                _members(each["misses"]),
            )
            for each in versions
        ]
        yield plain_table(("slot", "chunk", "state", "has", "waits for"), cells, text_columns=5)
        return
    alike: dict[tuple[str, str], list[int]] = {}
    for each in versions:
        if each["state"] == "summing":
            key = _members(each["has"]), _members(each["misses"], job["places"])
            alike.setdefault(key, []).append(each["chunk"])
    rows = [
        (has, misses, f"{len(chunks):,}", _span(chunks)) for (has, misses), chunks in sorted(alike.items())
    ]
    if rows:
        yield plain_table(("has", "waits for", "versions", "chunks"), rows, text_columns=2)


def _place(version: Document) -> str:
    return str(version["index"]) if version["slot"] is None else f"{version['slot']}.{version['version']}"


def _span(chunks: Sequence[int]) -> str:
    first, last = min(chunks), max(chunks)
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _members(names: Sequence[str], places: Mapping[int, str] | None = None) -> str:
    """ "ranks 0-2, 5, leaf1" of rank 0, rank 1, rank 2, rank 5 and leaf1; "-" of none. places: of a few ranks."""
    ranks = sorted(int(name.removeprefix("rank ")) for name in names if name.startswith("rank "))
    if places and 0 < len(ranks) <= _FEW and len(ranks) == len(names):
        return name_ranks(ranks, places)
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if parts:
        parts[0] = f"{'rank' if len(ranks) == 1 else 'ranks'} {parts[0]}"
    return ", ".join([*parts, *(name for name in names if not name.startswith("rank "))]) or "-"
