# SPDX-License-Identifier: Apache-2.0
"""The entries of the conformance tests are those that the controller makes of the same job."""

import pytest

from inagg_controller.switch.entries import (
    JobEntries,
    Member,
    Parent,
    SharedServer,
    Sharing,
    TableEntry,
    job_entries,
)
from tests.conformance.p4_switch import Above, Entries, Shared, Station, job_group, switch_station, worker

LEASED = Entries(job=7, workers=3, slots=4, epoch=9, base=16)
SHARED = Shared(
    base=48,
    mask=15,
    offset=4,
    priority=5,
    expiry_us=1000,
    # Two servers at one address need one entry for what comes from them.
    servers=(
        (1, Station(worker(0).mac, worker(0).ip, 50000)),
        (1, Station(worker(0).mac, worker(0).ip, 50001)),
        (3, Station(worker(2).mac, worker(2).ip, 50000)),
        (9, Station("02:00:00:00:00:99", "10.0.1.1", 18754)),
    ),
)


def of_the_controller(entries: Entries) -> JobEntries:
    members = {
        rank: Member(rank=rank, udp_port=station.udp_port, port=entries.port(rank), **station.params)
        for rank, station in ((rank, entries.station(rank)) for rank in range(entries.workers))
    }
    shared = entries.shared
    return job_entries(
        job=entries.job,
        epoch=entries.epoch,
        group=entries.group,
        members=members,
        slot_base=entries.base,
        slots=entries.slots,
        sharing=None
        if shared is None
        else Sharing(
            base=shared.base,
            size=shared.mask + 1,
            offset=shared.offset,
            servers=tuple(
                SharedServer(udp_port=station.udp_port, port=port, **station.params)
                for port, station in shared.servers
            ),
            priority=shared.priority,
            expiry_us=shared.expiry_us,
        ),
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
        {"shared": SHARED, "base": 0},
    ],
    ids=["leased", "one worker", "tree", "shared"],
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
