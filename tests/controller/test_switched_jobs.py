# SPDX-License-Identifier: Apache-2.0
"""What the job table promises for jobs on switches, in leased and in shared slots: literal cases, in virtual time."""

from collections import deque

import pytest

from inagg_contract.aggregation import COLOCATED, SERVER
from inagg_controller.errors import UnavailableError
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs import states
from inagg_controller.jobs.effects import Install, Regroup, Remove
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Limits
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import RECEIVER, JobEntries, MulticastGroup
from tests.controller.kinds import (
    SWITCHED,
    Kind,
    all_is_free,
    create,
    join,
    obey,
    running,
    serve,
    table_for_all,
    tick,
    worker_of,
)
from tests.controller.server_tables import add_server
from tests.controller.serving import SHARED_SLOTS
from tests.controller.shared_tables import HOSTS, values
from tests.controller.tables import POLICY, carry_out

pytestmark = pytest.mark.parametrize("kind", SWITCHED, ids=str)


def entries(job: Job) -> JobEntries:
    return job.placement.entries["s1"]


# What there is for a job


def test_without_a_switch_jobs_are_refused(kind: Kind) -> None:
    table = table_for_all(topology=Topology(()))
    with pytest.raises(UnavailableError, match="has no switch; aggregation = server needs none"):
        create(table, kind)
    assert (table.jobs, all_is_free(table)) == ({}, True)


def test_a_switch_that_is_away_refuses_jobs(kind: Kind) -> None:
    table = table_for_all()
    table.switches.lost("s1", 0.0)
    with pytest.raises(UnavailableError, match="switch s1 is not connected; try again in a moment"):
        create(table, kind)
    assert (table.jobs, all_is_free(table)) == ({}, True)
    table.switches.connected("s1")
    create(table, kind)


def test_a_switch_that_has_never_connected_refuses_jobs(kind: Kind) -> None:
    limits = Limits(slot_versions=64, shared_slots=SHARED_SLOTS)
    table = JobTable(HOSTS, limits, POLICY, epochs=Epochs.fresh(), now=0.0, words=4)
    add_server(table)
    with pytest.raises(UnavailableError, match="switch s1 is not connected; try again in a moment"):
        create(table, kind)
    assert (table.jobs, all_is_free(table)) == ({}, True)
    table.switches.connected("s1")
    create(table, kind)


def test_the_tables_bound_the_number_of_workers(kind: Kind) -> None:
    table = table_for_all(max_members=3)
    job = create(table, kind)
    with pytest.raises(UnavailableError, match="tables of switch s1 hold 3 workers and 2 are taken"):
        create(table, kind)
    create(table, kind, workers=1)
    table.end(job.id, 0.0)
    create(table, kind)


def test_one_host_leaves_room_for_the_workers_of_others(kind: Kind) -> None:
    table = table_for_all(max_members=4)
    create(table, kind, creator="10.0.0.1")
    with pytest.raises(
        UnavailableError, match=r"jobs of 10\.0\.0\.1 would have too many workers at switch s1"
    ):
        create(table, kind, creator="10.0.0.1")
    create(table, kind, creator="10.0.0.2")


# Its entries


def test_sixty_four_workers_use_every_bit(kind: Kind) -> None:
    *_, last = entries(running(table_for_all(), kind, workers=64)).admissions
    assert (dict(last.params)["member"], dict(last.params)["all"]) == (1 << 63, 2**64 - 1)


def test_results_are_sent_once_for_all_workers_behind_a_port(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind, workers=3)
    for rank, host in enumerate((1, 2, 1)):
        table.register(job.id, worker_of(job, rank, host), 0.0)
    assert entries(job).group.replicas == ((1, 256), (2, 256))


def test_a_job_of_one_worker_has_no_multicast_address(kind: Kind) -> None:
    job = running(table_for_all(), kind, workers=1)
    assert [match["rank"] for match, _ in values(entries(job), RECEIVER)] == [0]
    assert (job.placement.results_ip, entries(job).group.replicas) == (None, ((1, 1),))


@pytest.mark.parametrize("installed", [False, True])
def test_a_job_without_multicast_gets_a_copy_for_each_worker(kind: Kind, installed: bool) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 0), 0.0)
    if installed:
        table.register(job.id, worker_of(job, 1), 0.0)
        obey(table)
    for _ in range(2):
        assert table.unicast(job.id).placement.results_ip is None
    if installed:
        assert table.switches.effects == deque(
            [Regroup(job.id, job.placement.epoch, 0, {"s1": MulticastGroup(2, ((1, 1), (2, 2)))})]
        )
    else:
        table.register(job.id, worker_of(job, 1), 0.0)
    obey(table)
    assert (job.state, entries(job).group.replicas) == ("running", ((1, 1), (2, 2)))


def test_a_job_that_is_changed_to_unicast_while_it_is_installed_runs_when_that_is_done(kind: Kind) -> None:
    table = table_for_all()
    job = join(table, create(table, kind))
    installation = table.switches.effects.popleft()  # under way
    table.unicast(job.id)
    serve(table)
    table.switches.done(installation, 1.0)
    assert job.state == "joining"
    (change,) = table.switches.effects
    table.switches.done(change, 2.0)
    assert (job.state, job.liveness.last_seen) == ("running", {0: 2.0, 1: 2.0})


def test_a_rank_that_leaves_while_entries_are_being_installed_has_them_removed_after_that(kind: Kind) -> None:
    table = table_for_all()
    job = join(table, create(table, kind))
    table.leave(job.id, 0, 0.0)
    install, remove = table.switches.effects
    assert isinstance(install, Install)
    assert isinstance(remove, Remove)
    serve(table)
    assert job.holds_resources
    carry_out(table, 0.0)
    assert (job.state, all_is_free(table)) == ("failed", True)


def test_a_multicast_group_is_free_again_when_its_job_has_left_the_switch(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "_LAST_GROUP", 2)  # of one group
    table = table_for_all()
    job = running(table, kind)
    table.end(job.id, 1.0)
    obey(table, 1.0)
    assert running(table, kind).placement.group == job.placement.group == 2


# What the switch refuses


def test_a_switch_that_refuses_the_entries_fails_the_job(kind: Kind) -> None:
    table = table_for_all()
    job = join(table, create(table, kind))
    serve(table)
    table.switches.done(table.switches.effects.popleft(), 1.0, "full")
    assert (job.state, job.reason) == ("failed", "the switch refused the job's entries: full")
    (removal,) = table.switches.effects
    assert isinstance(removal, Remove)
    obey(table, 1.0)
    assert all_is_free(table)


def test_a_removal_that_the_switch_refuses_is_repeated(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    table.end(job.id, 1.0)
    table.switches.done(table.switches.effects.popleft(), 1.0, "busy")
    serve(table, 1.0)
    for now in (1.5, 1.9):
        tick(table, now)
    assert (job.holds_resources, list(table.switches.effects)) == (True, [])
    tick(table, 2.0)
    carry_out(table, 2.0)
    assert all_is_free(table)


# A switch that is lost


def test_a_lost_switch_fails_a_running_job_and_not_one_on_servers_alone(kind: Kind) -> None:
    table = table_for_all()
    job, alone = running(table, kind), running(table, Kind(SERVER, COLOCATED))
    table.switches.lost("s1", 1.0)
    assert (job.state, job.reason) == ("failed", "switch s1 was lost: the sums in its slots are gone")
    assert (alone.state, list(table.switches.effects)) == ("running", [])
    serve(table, 1.0)
    assert not job.holds_resources


def test_a_joining_job_survives_a_switch_restart_and_a_half_installed_one_is_installed_again(
    kind: Kind,
) -> None:
    table = table_for_all()
    waiting = create(table, kind)
    table.register(waiting.id, worker_of(waiting, 0), 0.0)
    complete = join(table, create(table, kind))
    serve(table)
    stale = table.switches.effects.popleft()  # half of it may be in the switch
    table.switches.lost("s1", 1.0)
    table.switches.done(stale, 1.0)
    assert (waiting.state, complete.state, complete.placement.entries) == ("joining", "joining", {})
    table.switches.connected("s1")
    assert complete.state == "joining"
    obey(table, 2.0)
    assert (waiting.state, complete.state) == ("joining", "running")


def test_a_lost_switch_frees_what_waited_for_removal(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    table.end(job.id, 1.0)
    serve(table, 1.0)
    assert job.holds_resources
    table.switches.lost("s1", 1.0)
    assert all_is_free(table)


@pytest.mark.parametrize(
    ("joined", "away", "reason"),
    [
        (1, False, "ranks [1] did not join in time"),
        (2, True, "switch s1 is not connected"),
        (1, True, "ranks [1] did not join in time; switch s1 is not connected"),
        (2, False, "its entries were not in the switches in time"),
    ],
)
def test_a_job_that_does_not_run_in_time_says_what_is_missing(
    kind: Kind, joined: int, away: bool, reason: str
) -> None:
    table = table_for_all()
    job = create(table, kind)
    if away:
        table.switches.lost("s1", 1.0)
    for rank in range(joined):
        table.register(job.id, worker_of(job, rank), 3.0)
    serve(table, 3.0)
    for now in range(4, 20):
        tick(table, float(now))
    assert job.state == "joining"
    tick(table, 20.0)
    assert (job.state, job.reason) == ("failed", reason)
