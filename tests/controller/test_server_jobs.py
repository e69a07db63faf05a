# SPDX-License-Identifier: Apache-2.0
"""What is particular to jobs on servers alone, and registered servers without jobs: literal cases, in virtual time."""

import pytest

from inagg_controller.errors import ConflictError
from tests.controller.server_tables import (
    ROOM,
    add_server,
    beat,
    colocated,
    join,
    registered,
    seats,
    serve_all,
    table_without_switch,
    tick,
)
from tests.controller.tables import new_table, running


def test_a_job_on_servers_has_nothing_of_a_switch() -> None:
    table = new_table()
    job = join(table, colocated(table))
    assert (job.placement.results_ip, job.placement.group, job.placement.entries) == (None, None, {})
    assert (table.switches.installed(), list(table.switches.effects)) == ({}, [])
    serve_all(table, job)
    assert job.state == "running"


def test_unicast_changes_nothing_for_a_job_on_servers() -> None:
    table = table_without_switch()
    job = join(table, colocated(table))
    version = table.version
    assert table.unicast(job.id) is job
    assert (table.version, list(table.switches.effects)) == (version, [])


def test_a_job_has_at_most_64_servers_and_at_most_one_a_slot() -> None:
    table = table_without_switch()
    for number in range(70):
        table.servers.register(f"s{number}", 0x0A000200 + number, 18754, ROOM, 0.0)
    counts = [len(seats(join(table, registered(table, slots=slots)))) for slots in (2, 8, 128)]
    assert counts == [2, 8, 64]


# Registered servers


def test_a_heartbeat_just_in_time_keeps_a_server() -> None:
    table = table_without_switch()
    server = add_server(table)
    tick(table, 0.0, 4.9)
    beat(table, server, now=4.95)
    tick(table, 5.0, 9.9)
    assert list(table.servers.by_name) == ["a"]
    tick(table, 10.0, 10.0)
    assert list(table.servers.by_name) == []


def test_time_in_which_the_controller_itself_stood_still_is_not_held_against_servers() -> None:
    table = table_without_switch()
    add_server(table)
    table.tick(0.1)
    table.tick(60.0)
    assert list(table.servers.by_name) == ["a"]
    tick(table, 60.1, 64.0)
    assert list(table.servers.by_name) == ["a"]
    tick(table, 64.1, 65.1)
    assert list(table.servers.by_name) == []


def test_a_name_belongs_to_one_server_while_it_lives() -> None:
    table = table_without_switch()
    server = add_server(table)
    with pytest.raises(ConflictError, match="has the name a: give this one another"):
        table.servers.register("a", server.ip + 1, server.udp_port, ROOM, 1.0)
    assert table.servers.by_name == {"a": server}
    tick(table, 1.0, 6.0)
    assert table.servers.register("a", server.ip + 1, server.udp_port, ROOM, 6.0).instance > server.instance


# Beside jobs on switches


def test_jobs_on_switches_and_on_servers_do_not_touch_one_another() -> None:
    table = new_table()
    server = add_server(table)
    on_switch, on_server, in_ranks = (
        running(table),
        join(table, registered(table)),
        join(table, colocated(table)),
    )
    beat(table, server, on_server)
    serve_all(table, in_ranks)
    table.switches.lost("s1", 1.0)
    assert [job.state for job in (on_switch, on_server, in_ranks)] == ["failed", "running", "running"]
    table.switches.connected("s1")
    again = running(table, now=1.0)
    table.servers.stop("a", server.instance, 1.0)
    assert [job.state for job in (again, on_server, in_ranks)] == ["running", "failed", "running"]
    assert not table.switches.effects


def test_a_switch_that_connects_again_installs_nothing_for_jobs_on_servers() -> None:
    table = new_table()
    join(table, colocated(table))
    table.switches.lost("s1", 1.0)
    table.switches.connected("s1")
    assert not table.switches.effects
