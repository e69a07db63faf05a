# SPDX-License-Identifier: Apache-2.0
"""The entries of the conformance tests are those that the controller makes of the same job."""

import pytest

from inagg_controller.switch.entries import (
    JobEntries,
    Member,
    Parent,
    TableEntry,
    job_entries,
)
from inagg_simulator.p4_switch import Above, Entries, job_group, switch_station

LEASED = Entries(job=7, workers=3, slots=4, epoch=9, base=16)


def of_the_controller(entries: Entries) -> JobEntries:
    members = {
        rank: Member(rank=rank, udp_port=station.udp_port, port=entries.port(rank), **station.params)  # type: ignore[arg-type]
        for rank, station in ((rank, entries.station(rank)) for rank in range(entries.workers))
    }
    return job_entries(
        job=entries.job,
        epoch=entries.epoch,
        group=entries.group,
        members=members,
        slot_base=entries.base,
        slots=entries.slots,
        results_ip=job_group(entries.job).params["ip"] if entries.to_group else None,
        parents=[Parent(port=one.port, rank=one.rank, **one.station.params) for one in entries.above],
        own=(entries.own.params["mac"], entries.own.params["ip"]),
    )


def values(entry: TableEntry) -> tuple[object, ...]:
    table, action = entry.table.rpartition(".")[2], entry.action.rpartition(".")[2]
    return table, frozenset(entry.match), action, frozenset(entry.params)


@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 1},
        {"above": tuple(Above(switch_station(number), 40 + number, 3) for number in range(2))},
    ],
    ids=["leased", "one worker", "tree"],
)
def test_the_entries_are_the_controllers(changes: dict[str, object], multicast: bool) -> None:
    entries = Entries(**(vars(LEASED) | {"multicast": multicast} | changes))
    made = of_the_controller(entries)
    inserts = [
        (one.table, frozenset(one.match.items()), one.action, frozenset(one.params.items()))
        for one in entries.inserts()
    ]
    assert len(set(inserts)) == len(inserts)
    assert set(inserts) == {values(entry) for entry in (*made.receivers, *made.admissions)}
    assert entries.replicas() == list(made.group.replicas)
