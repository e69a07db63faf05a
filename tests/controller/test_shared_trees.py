# SPDX-License-Identifier: Apache-2.0
"""Jobs on shared slots of several switches: literal cases on leaf1, leaf2 and spine1 of LEAF_SPINE, in virtual time."""

from dataclasses import replace
from typing import Any

import pytest

from inagg_contract.constants import INAGG_PORT
from inagg_controller.errors import UnavailableError
from inagg_controller.fabric.topology import Link
from inagg_controller.jobs.effects import Install
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import PARENT, SERVER, SHARING, UPLINK, JobEntries
from tests.controller.server_tables import ROOM
from tests.controller.serving import AT, LEAF_SPINE, SHARED_SLOTS
from tests.controller.shared_tables import values
from tests.controller.tables import create_leased, create_shared, new_table
from tests.controller.tree_tables import member

SPINE1 = 0x0A00FF03
ADMISSION = "InaggIngress.admission.admission"


def tree_table(**limits: Any) -> JobTable:
    return new_table(topology=LEAF_SPINE, shared_slots=SHARED_SLOTS, **limits)


def link_named(name: str) -> Link:
    (link,) = [link for link in LEAF_SPINE.links if str(link) == name]
    return link


def create(table: JobTable, at: list[str] = AT, *, colocated: bool = True) -> Job:
    return create_shared(table, len(at), 4, "", 0.0, at=at, colocated=colocated)


def installed(table: JobTable, job: Job) -> dict[str, JobEntries]:
    """A job's entries by switch, once all ranks have registered."""
    for rank in range(job.workers):
        table.register(job.id, replace(member(rank), server_udp_port=6000), 0.0)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    return dict(effect.entries)


def test_every_switch_has_the_bits_of_the_ranks_below() -> None:
    table = tree_table()
    made = installed(table, create(table))
    assert list(made) == ["spine1", "leaf1", "leaf2"]
    bits = {
        name: {
            match["rank"]: (params["member"], params["all"])
            for match, params in values(made[name], ADMISSION)
        }
        for name in made
    }
    assert bits == {
        "leaf1": {0: (0b0001, 0b0011), 1: (0b0010, 0b0011)},
        "leaf2": {0: (0b0100, 0b1100), 1: (0b1000, 0b1100)},
        "spine1": {0: (0b0011, 0b1111), 1: (0b1100, 0b1111)},
    }
    for entries in made.values():
        assert values(entries, UPLINK) == []
        ((_, share),) = values(entries, SHARING)
        assert (share["base"], share["mask"]) == (48, 15)


def test_partial_sums_go_to_the_root_and_from_there_to_the_servers() -> None:
    table = tree_table()
    made = installed(table, create(table))
    for number, leaf in enumerate(("leaf1", "leaf2")):
        ((_, share),) = values(made[leaf], SHARING)
        assert (share["servers"], share["homes"]) == (1, 0)
        up = {"port": 101, "mac": 0x024941000003, "ip": SPINE1, "udp_port": INAGG_PORT, "rank": number}
        assert values(made[leaf], SERVER) == [({"job": 1, "server": 0}, up)]
    ((_, share),) = values(made["spine1"], SHARING)
    assert (share["servers"], share["homes"]) == (4, 0)
    assert values(made["spine1"], SERVER) == [
        (
            {"job": 1, "server": rank},
            {
                "port": 1 + rank // 2,
                "mac": 0x020000000001 + rank,
                "ip": 0x0A000001 + rank,
                "udp_port": 6000,
                "rank": 0,
            },
        )
        for rank in range(4)
    ]


def arrivals(entries: JobEntries) -> dict[tuple[int, int], int | None]:
    """(port, source) of what is admitted from above or from servers -> the port that it is relayed to, if it is."""
    return {(match["port"], match["source"]): params.get("up") for match, params in values(entries, PARENT)}


def test_results_go_from_the_servers_to_the_root_and_from_there_to_all() -> None:
    table = tree_table()
    made = installed(table, create(table))
    assert arrivals(made["leaf1"]) == {(101, SPINE1): None, (1, 0x0A000001): 101, (2, 0x0A000002): 101}
    assert arrivals(made["leaf2"]) == {(101, SPINE1): None, (1, 0x0A000003): 101, (2, 0x0A000004): 101}
    assert arrivals(made["spine1"]) == {(1 + rank // 2, 0x0A000001 + rank): None for rank in range(4)}
    (epoch,) = {params["epoch"] for entries in made.values() for _, params in values(entries, PARENT)}
    assert epoch == table.job(1).placement.epoch


@pytest.mark.parametrize("host", [1, 3])
def test_a_registered_server_may_be_at_any_switch_of_the_job(host: int) -> None:
    table = tree_table()
    table.servers.register("big", 0x0A000000 + host, 18754, ROOM, 0.0)
    made = installed(table, create(table, colocated=False))
    leaf, other = ("leaf1", "leaf2") if host == 1 else ("leaf2", "leaf1")
    assert arrivals(made[leaf]) == {(101, SPINE1): None, (1, 0x0A000000 + host): 101}
    assert arrivals(made[other]) == {(101, SPINE1): None}
    assert arrivals(made["spine1"]) == {(1 + host // 2, 0x0A000000 + host): None}


def test_a_job_at_one_switch_needs_no_other() -> None:
    table = tree_table()
    made = installed(table, create(table, ["leaf2", "leaf2"]))
    assert list(made) == ["leaf2"]


def test_only_links_of_ordinary_traffic_are_used() -> None:
    """A job with a lease takes turns at both spines; what goes to a server could not."""
    table = tree_table()
    assert create_leased(table, 4, 4, "", 0.0, at=AT).placement.tree.roots == 2
    job = create(table)
    assert list(job.placement.tree.by_name) == ["spine1", "leaf1", "leaf2"]
    assert set(job.placement.tree.links.values()) <= table.switches.ordinary.links


def test_a_job_goes_around_a_link_that_is_down_as_ordinary_traffic_does() -> None:
    table = tree_table()
    table.switches.link_down(link_named("leaf2:101 - spine1:2"), 1.0, "cut")
    table.tick(1.0)
    (notice,) = table.take_notices()
    assert notice == "ordinary traffic uses the link leaf2:102 - spine2:2 from now on"
    assert list(create(table).placement.tree.by_name) == ["spine2", "leaf1", "leaf2"]


def test_without_a_working_way_jobs_are_refused() -> None:
    table = tree_table()
    for name in ("leaf2:101 - spine1:2", "leaf2:102 - spine2:2"):
        table.switches.link_down(link_named(name), 1.0, "cut")
    table.tick(1.0)
    with pytest.raises(UnavailableError, match="no working way from switch leaf1 to switch leaf2"):
        create(table)
