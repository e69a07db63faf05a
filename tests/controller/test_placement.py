# SPDX-License-Identifier: Apache-2.0
"""What a job has of switches: its states, and a job that gets another place."""

from itertools import product

import pytest

from inagg_controller.configuration import parse_job_classes
from inagg_controller.errors import UnavailableError
from inagg_controller.jobs.effects import Install, Remove
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.placement import TRANSITIONS, Event, State
from inagg_controller.jobs.table import JobTable
from tests.controller.serving import LEAF_SPINE
from tests.controller.tables import carry_out, create_leased, member, move, new_table, running


def reach(state: State) -> tuple[JobTable, Job]:
    """A job whose placement is in a state."""
    table = new_table()
    job = create_leased(table, 1, 4)
    if state is State.PLANNED:
        return table, job
    table.register(job.id, member(0), 0.0)
    if state is not State.INSTALLING:
        carry_out(table, 0.0)
    if state in (State.REMOVING, State.GONE):
        table.end(job.id, 0.0)
    if state is State.GONE:
        carry_out(table, 0.0)
    return table, job


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_an_event_leads_where_the_table_says_and_every_other_is_refused(state: State, event: Event) -> None:
    placement = reach(state)[1].placement
    assert placement.state is state
    if (state, event) in TRANSITIONS:
        placement._change(event)
        assert placement.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            placement._change(event)
        assert placement.state is state


def test_every_state_is_reached_and_only_gone_is_final() -> None:
    assert {State.PLANNED, *TRANSITIONS.values()} == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.GONE}


def test_a_job_moves_to_other_slots_and_the_old_ones_are_free_when_they_are_empty() -> None:
    table = new_table()
    job = running(table)
    old = job.placement
    move(table, job)
    new = job.placement
    assert job.placements == [old, new]
    assert new.epoch != old.epoch
    assert new.leases["s1"] != old.leases["s1"]
    (removal,) = table.switches.effects
    assert isinstance(removal, Remove)
    assert removal.epoch == old.epoch
    assert (old.state, new.state) == (State.REMOVING, State.PLANNED)
    table.switches.done(table.switches.effects.popleft(), 1.0)
    (installation,) = table.switches.effects
    assert isinstance(installation, Install)
    assert installation.epoch == new.epoch
    assert (job.placements, old.state) == ([new], State.GONE)
    assert table.switches.pools["s1"].leases == (new.leases["s1"],)
    carry_out(table, 1.0)
    assert (job.state, new.state) == ("running", State.INSTALLED)


def test_what_is_to_be_installed_waits_for_a_switch_that_refuses_to_remove() -> None:
    table = new_table()
    job = running(table)
    old = job.placement
    move(table, job)
    table.switches.done(table.switches.effects.popleft(), 1.0, "refused")
    assert not table.switches.effects
    table.tick(2.0)
    carry_out(table, 2.0)
    assert (old.state, job.placement.state, job.placements) == (
        State.GONE,
        State.INSTALLED,
        [job.placement],
    )


def test_a_job_leaves_a_spine_that_is_lost_while_it_moves() -> None:
    """The old placement has the spine, and the new one goes without it."""
    table = new_table(topology=LEAF_SPINE)
    job = create_leased(table, 2, 4, at=["leaf1", "leaf2"])
    for rank in range(2):
        table.register(job.id, member(rank), 0.0)
    carry_out(table, 0.0)
    old = job.placement
    assert old.tree.roots == 2
    for link in LEAF_SPINE.links:
        if any(end.switch == "spine1" for end in link.ends):
            table._states._supplies.resources.down.add(link)
    move(table, job)
    table.switches.lost("spine1", 1.0)
    carry_out(table, 1.0)
    assert (job.state, list(job.placement.tree.by_name)) == ("running", ["spine2", "leaf1", "leaf2"])
    assert (old.state, job.placement.state) == (State.GONE, State.INSTALLED)


def test_a_job_that_ends_while_it_moves_frees_both_places() -> None:
    table = new_table()
    job = running(table)
    move(table, job)
    old, new = job.placements
    table.end(job.id, 1.0)
    assert (old.state, new.state) == (State.REMOVING, State.GONE)
    assert job.holds_resources
    carry_out(table, 1.0)
    assert not job.holds_resources
    assert table.switches.pools["s1"].leases == ()


def test_a_job_without_multicast_has_none_elsewhere() -> None:
    table = new_table()
    job = running(table)
    old = job.placement
    assert old.results_ip is not None
    table.unicast(job.id)
    carry_out(table, 1.0)
    move(table, job)
    carry_out(table, 1.0)
    assert job.placement is not old
    assert (job.state, job.placement.results_ip) == ("running", None)


def test_a_job_moves_though_its_class_has_no_place_for_another() -> None:
    table = new_table(classes=parse_job_classes(["one,jobs=1"]))
    job = create_leased(table, 1, 4, job_class="one")
    table.register(job.id, member(0), 0.0)
    carry_out(table, 0.0)
    move(table, job)
    carry_out(table, 1.0)
    assert (job.state, len(job.placements), table.held_by(table.classes["one"]).jobs) == ("running", 1, 1)


def test_a_job_stays_where_fewer_slots_are_free() -> None:
    table = new_table(slot_versions=16)
    job = running(table)
    create_leased(table, 1, 2)
    before = (job.placements, table.switches.pools["s1"].leases)
    with pytest.raises(UnavailableError, match="has 4 slots, and 2 are free elsewhere"):
        move(table, job)
    assert (job.placements, table.switches.pools["s1"].leases) == before
