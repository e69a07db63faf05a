# SPDX-License-Identifier: Apache-2.0
"""What is particular to jobs in leased slots: literal cases, in virtual time."""

from typing import Any

import pytest

from inagg_controller.errors import ConflictError, FullError, UnavailableError
from inagg_controller.jobs.effects import Install
from tests.controller.tables import carry_out, create_leased, frees_slots, member, new_table, running


def test_a_complete_job_asks_for_exactly_the_entries_of_the_protocol() -> None:
    table = new_table()
    create_leased(table, 1, 4, "", 0.0)
    job = create_leased(table, 2, 4, "", 0.0)
    table.register(job.id, member(1), 0.0)
    assert not table.switches.effects
    table.register(job.id, member(0), 0.0)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    entries = effect.entries["s1"]
    assert [dict(entry.match) for entry in entries.receivers] == [
        {"job": 2, "rank": 0},
        {"job": 2, "rank": 1},
        {"job": 2, "rank": 255},
    ]
    to_all = {"mac": 0x01005E400002, "ip": 0xEFC00002, "udp_port": 0x4941}
    assert dict(entries.receivers[2].params) == to_all
    assert (entries.group.group, entries.group.replicas) == (3, ((1, 256), (2, 256)))
    assert dict(entries.admissions[1].match) == {"port": 2, "source": 0x0A000002, "job": 2, "rank": 1}
    assert dict(entries.admissions[1].params) == {
        "member": 0b10,
        "all": 0b11,
        "slot_base": 8,
        "slot_mask": 7,
        "epoch": table.job(2).placement.epoch,
        "result_group": 3,
        "first_chunk": table.job(2).placement.first_chunk,
        "parents": 0,
        "run_bits": 0,
    }


def test_slots_are_capped_by_what_is_free() -> None:
    assert create_leased(new_table(), 2, 1024, "", 0.0).slots == 32


def test_a_smaller_window_is_granted_before_a_job_is_refused() -> None:
    table = new_table()
    assert [create_leased(table, 1, 16, "", 0.0).slots for _ in range(2)] == [16, 16]
    with pytest.raises(UnavailableError, match="slot pool of switch s1 is full"):
        create_leased(table, 1, 16, "", 0.0)
    table = new_table()
    create_leased(table, 1, 16, "", 0.0)
    create_leased(table, 1, 8, "", 0.0)
    assert create_leased(table, 1, 16, "", 0.0).slots == 8


def test_slots_that_are_too_few_to_fill_a_link_are_not_leased() -> None:
    table = new_table(slot_versions=256)  # 128 slots
    for asked in (64, 32, 16):
        assert create_leased(table, 1, asked, "", 0.0).slots == min(asked, 32)
    create_leased(table, 1, 32, "", 0.0)
    create_leased(table, 1, 8, "", 0.0)
    with pytest.raises(FullError, match="8 of 128 slots are free"):
        create_leased(table, 1, 256, "", 0.0)
    assert create_leased(table, 1, 8, "", 0.0).slots == 8


def test_many_jobs_find_room_beside_one_another_as_each_leaves_some() -> None:
    table = new_table(slot_versions=16384)
    granted = [create_leased(table, 1, 256, "", 0.0).slots for _ in range(41)]
    assert granted == [256] * 29 + [128] * 3 + [64] * 3 + [32] * 6
    with pytest.raises(UnavailableError, match="slot pool of switch s1 is full"):
        create_leased(table, 1, 256, "", 0.0)


@pytest.mark.parametrize(
    ("shares", "granted"),
    [
        ({}, 32),
        ({"host_share": 1.0}, 32),
        ({"job_share": 1.0}, 64),
        ({"job_share": 0.5}, 32),
        ({"host_share": 1.0, "job_share": 1.0}, 128),
    ],
)
def test_a_job_gets_no_more_than_its_share_and_its_hosts(shares: dict[str, Any], granted: int) -> None:
    table = new_table(slot_versions=256, **shares)
    assert create_leased(table, 2, 256, "", 0.0, "10.0.0.1").slots == granted


def test_a_job_that_has_all_slots_leaves_none() -> None:
    table = new_table(slot_versions=256, host_share=1.0, job_share=1.0)
    job = create_leased(table, 2, 128, "", 0.0, "10.0.0.1")
    with pytest.raises(UnavailableError, match="0 of 128 slots are free; wait until a job ends"):
        create_leased(table, 2, 2, "", 0.0, "10.0.0.2")
    table.end(job.id, 1.0)
    carry_out(table, 1.0)
    assert create_leased(table, 2, 128, "", 1.0, "10.0.0.2").slots == 128


def test_slots_that_are_about_to_be_free_are_known() -> None:
    table = new_table()
    job = running(table)
    assert not frees_slots(table)
    table.end(job.id, 0.0)
    assert frees_slots(table)
    carry_out(table, 0.0)
    assert not frees_slots(table)


def test_a_rank_of_a_job_in_leased_slots_serves_nothing() -> None:
    table = new_table()
    job = running(table)
    with pytest.raises(ConflictError, match="rank 0 of job 1 runs no server of it"):
        table.serve(job.id, 0, 0.0)
