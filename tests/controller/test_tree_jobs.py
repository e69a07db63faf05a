# SPDX-License-Identifier: Apache-2.0
"""Jobs on a tree of switches: their leases, and their entries, run by the compiled program."""

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from inagg_contract.aggregation import COLOCATED, LEASED, SHARED
from inagg_controller.errors import InvalidRequestError, UnavailableError
from inagg_controller.fabric.topology import Place
from inagg_controller.jobs.effects import Install, Remove
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import Entity, MulticastGroup
from inagg_switch import Switch
from tests import INAGG_P4
from tests.controller.kinds import Kind, create, join, obey
from tests.controller.serving import AT, LEAF_SPINE, RANKS, SHARED_SLOTS
from tests.controller.tables import create_leased, new_table
from tests.controller.tree_tables import member
from tests.switch.inagg.packets import Inagg, ethernet, ipv4, read_result, udp


def tree_table(**limits: Any) -> JobTable:
    return new_table(topology=LEAF_SPINE, **limits)


def joined(table: JobTable, at: list[str] = AT) -> Job:
    job = create_leased(table, len(at), 4, "", 0.0, at=at)
    for rank in range(len(at)):
        table.register(job.id, member(rank), 0.0)
    return job


class Wires:
    """The switches of LEAF_SPINE, each with the compiled program, and their links. Hosts keep what they get."""

    def __init__(self) -> None:
        self.programs = {name: Switch.from_p4(INAGG_P4, seed=1) for name in LEAF_SPINE.by_name}
        self.received: dict[int, list[bytes]] = {host.ip: [] for host in LEAF_SPINE.hosts}
        self.crossed: dict[Place, int] = {}
        self.host_at = {host.place: host.ip for host in LEAF_SPINE.hosts}

    def insert(self, name: str, entity: Entity) -> None:
        if isinstance(entity, MulticastGroup):
            self.programs[name].multicast_group(entity.group, entity.replicas)
            return
        table, action = entity.table.rpartition(".")[2], entity.action.rpartition(".")[2]
        self.programs[name].insert(table, dict(entity.match), action, dict(entity.params))

    def send(self, place: Place, frame: bytes) -> None:
        """Deliver a frame that comes to a port, and all that follows."""
        queue = deque([(place, frame)])
        while queue:
            (name, port), frame = queue.popleft()
            for out_port, sent in self.programs[name].process(port, frame):
                out = Place(name, out_port)
                if (link := LEAF_SPINE.link_at.get(out)) is None:
                    self.received[self.host_at[out]].append(sent)
                else:
                    self.crossed[out] = self.crossed.get(out, 0) + 1
                    queue.append((next(end for end in link.ends if end != out), sent))

    def close(self) -> None:
        for program in self.programs.values():
            program.close()


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


def contribution(job: Job, rank: int, chunk: int) -> bytes:
    leaf = LEAF_SPINE.by_name[AT[rank]]
    number = job.placement.tree.number_of(rank)
    field = (job.placement.first_chunk + chunk) % 2**32
    header = Inagg(job=job.id, epoch=job.placement.epoch, rank=number, chunk=field, checksum=rank)
    payload = header.encode() + b"".join((1 << rank).to_bytes(256, "big") for _ in range(4))
    packet = ipv4(member(rank).ip, leaf.ip, udp(5000 + rank, 0x4941, payload))
    return ethernet(leaf.mac, member(rank).mac, 0x0800, packet)


@pytest.mark.parametrize("unicast", [False, True])
@pytest.mark.parametrize("roots", [1, 2])
def test_the_entries_make_the_switches_sum_what_all_ranks_send(
    wires: Wires, roots: int, unicast: bool
) -> None:
    table = tree_table(max_roots=roots)
    job = create_leased(table, RANKS, 4, "", 0.0, at=AT)
    if unicast:
        table.unicast(job.id)
    for rank in range(RANKS):
        table.register(job.id, member(rank), 0.0)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    for name, entries in effect.entries.items():
        for entity in itertools.chain(*entries.stages):
            wires.insert(name, entity)
    for chunk in range(4):
        for rank in range(RANKS):
            wires.send(LEAF_SPINE.host_at[member(rank).ip].place, contribution(job, rank, chunk))
    for rank in range(RANKS):
        results = [read_result(frame) for frame in wires.received[member(rank).ip]]
        first_chunk = job.placement.first_chunk
        assert [result.inagg.chunk - first_chunk for result in results] == [0, 1, 2, 3]
        for result in results:
            assert (result.words, result.inagg.checksum) == ([0b1111] * 4, 0 + 1 + 2 + 3)
            assert result.src_ip == LEAF_SPINE.by_name[AT[rank]].ip
            own = (member(rank).ip, 5000 + rank)
            assert (result.dst_ip, result.dst_port) == (
                own if unicast else (job.placement.results_ip, 0x4941)
            )
    up = {str(place): count for place, count in wires.crossed.items() if place.switch.startswith("leaf")}
    expected = {1: {"leaf1:101": 4, "leaf2:101": 4}, 2: dict.fromkeys(up, 2)}[roots]
    assert (up, len(up)) == (expected, 2 * roots)


def test_a_lost_partial_sum_is_repaired_by_member_0(wires: Wires) -> None:
    table = tree_table(max_roots=1)
    joined(table)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    for name, entries in effect.entries.items():
        for entity in itertools.chain(*entries.stages):
            if name != "spine1":
                wires.insert(name, entity)
    (job,) = table.jobs.values()
    for rank in range(RANKS):
        wires.send(LEAF_SPINE.host_at[member(rank).ip].place, contribution(job, rank, 0))
    for entity in itertools.chain(*effect.entries["spine1"].stages):
        wires.insert("spine1", entity)
    for rank in (1, 0, 2):
        wires.send(LEAF_SPINE.host_at[member(rank).ip].place, contribution(job, rank, 0))
    assert all(len(frames) == 1 for frames in wires.received.values())


def test_a_job_leases_as_much_in_every_switch_of_its_tree_or_nothing() -> None:
    table = tree_table()
    alone = create_leased(table, 1, 32, "", 0.0, at=["leaf2"])
    assert {name: pool.free for name, pool in table.switches.pools.items()} == {
        "leaf1": 64,
        "leaf2": 0,
        "spine1": 64,
        "spine2": 64,
    }
    with pytest.raises(UnavailableError, match="the slot pool of switch leaf2 is full"):
        create_leased(table, RANKS, 4, "", 0.0, at=AT)
    assert {name: pool.free for name, pool in table.switches.pools.items() if name != "leaf2"} == {
        "leaf1": 64,
        "spine1": 64,
        "spine2": 64,
    }
    table.end(alone.id, 0.0)
    job = create_leased(table, RANKS, 4, "", 0.0, at=AT)
    assert {lease.size for lease in job.placement.leases.values()} == {8}
    assert job.placement.leases.keys() == LEAF_SPINE.by_name.keys()


def test_entries_go_in_from_the_root_down() -> None:
    table = tree_table()
    joined(table)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    assert list(effect.entries) == ["spine1", "spine2", "leaf1", "leaf2"]


def test_no_switch_sums_for_more_members_than_it_has_bits() -> None:
    table = tree_table()
    with pytest.raises(InvalidRequestError, match="switch leaf1 would sum for 65 workers and switches"):
        create_leased(table, 66, 4, "", 0.0, at=["leaf1"] * 65 + ["leaf2"])
    assert create_leased(table, 128, 4, "", 0.0, at=["leaf1", "leaf2"] * 64).workers == 128


def test_switches_above_count_too_for_what_the_tables_hold() -> None:
    table = tree_table(max_above=6)
    for _ in range(2):
        create_leased(table, 2, 2, "", 0.0, "10.0.0.1", at=["leaf1", "leaf2"])  # two spines each
    assert create_leased(table, 2, 2, "", 0.0, "10.0.0.1", at=["leaf1", "leaf1"]).id == 3
    with pytest.raises(
        UnavailableError, match=r"jobs of 10.0.0.1 would have too many switches and servers above at .* is 4;"
    ):
        create_leased(table, 2, 2, "", 0.0, "10.0.0.1", at=["leaf1", "leaf2"])
    create_leased(table, 2, 2, "", 0.0, at=["leaf1", "leaf2"])
    with pytest.raises(
        UnavailableError, match="the tables of switch leaf1 hold 6 switches and servers above and 6 are taken"
    ):
        create_leased(table, 2, 2, "", 0.0, at=["leaf1", "leaf2"])


def test_later_jobs_go_around_a_lost_spine_and_have_to_wait_for_a_leaf() -> None:
    table = tree_table()
    table.switches.lost("spine2", 1.0)
    assert list(create_leased(table, RANKS, 4, "", 2.0, at=AT).placement.tree.by_name) == [
        "spine1",
        "leaf1",
        "leaf2",
    ]
    table.switches.lost("leaf1", 2.0)
    with pytest.raises(UnavailableError, match="switch leaf1 is not connected"):
        create_leased(table, RANKS, 4, "", 2.0, at=AT)


def test_later_jobs_go_around_a_cut_link() -> None:
    table = tree_table()
    cut = LEAF_SPINE.links[0]
    table.switches.link_down(cut, 1.0, "")
    assert list(create_leased(table, RANKS, 4, "", 1.0, at=AT).placement.tree.by_name) == [
        "spine2",
        "leaf1",
        "leaf2",
    ]
    table.switches.link_down(LEAF_SPINE.links[2], 1.0, "")
    with pytest.raises(UnavailableError, match="there is no working way from switch leaf1 to switch leaf2"):
        create_leased(table, RANKS, 4, "", 1.0, at=AT)
    table.switches.link_up(cut)
    assert list(create_leased(table, RANKS, 4, "", 1.0, at=AT).placement.tree.by_name) == [
        "spine1",
        "leaf1",
        "leaf2",
    ]


# In leased and in shared slots

# The switches of a job on all hosts. Servers take partial sums from one root.
SPANNED = {LEASED: {"leaf1", "leaf2", "spine1", "spine2"}, SHARED: {"leaf1", "leaf2", "spine1"}}
in_slots = pytest.mark.parametrize("kind", [Kind(LEASED), Kind(SHARED, COLOCATED)], ids=str)


def created(table: JobTable, kind: Kind, at: list[str] = AT) -> Job:
    return create(table, kind, len(at), at=at)


@in_slots
@pytest.mark.parametrize("name", ["leaf1", "spine1"])
def test_a_lost_switch_fails_the_jobs_of_its_tree_and_frees_what_they_had_elsewhere(
    kind: Kind, name: str
) -> None:
    table = tree_table(shared_slots=SHARED_SLOTS)
    spanning, local = (join(table, created(table, kind, at)) for at in (AT, ["leaf2", "leaf2"]))
    obey(table)
    assert (spanning.state, local.state) == ("running", "running")
    table.switches.lost(name, 1.0)
    assert (spanning.state, local.state) == ("failed", "running")
    assert spanning.reason == f"switch {name} was lost: the sums in its slots are gone"
    (effect,) = table.switches.effects
    assert isinstance(effect, Remove)
    assert effect.entries.keys() == SPANNED[kind.aggregation] - {name}
    obey(table, 1.0)
    assert (spanning.holds_resources, local.holds_resources) == (False, True)


@in_slots
def test_a_cut_link_fails_the_jobs_of_its_tree(kind: Kind) -> None:
    table = tree_table(shared_slots=SHARED_SLOTS)
    spanning, local = (join(table, created(table, kind, at)) for at in (AT, ["leaf1", "leaf1"]))
    obey(table)
    table.switches.link_down(LEAF_SPINE.links[0], 1.0, "no beacon arrives at spine1:1")
    assert (spanning.state, local.state) == ("failed", "running")
    assert spanning.reason == "the link leaf1:101 - spine1:1 is down: no beacon arrives at spine1:1"
    obey(table, 1.0)
    assert (spanning.holds_resources, local.holds_resources) == (False, True)


@in_slots
def test_a_joining_job_waits_for_a_lost_switch_and_is_installed_afresh(kind: Kind) -> None:
    table = tree_table(shared_slots=SHARED_SLOTS)
    job = join(table, created(table, kind))
    table.switches.effects.popleft()  # half of it may be in the switches
    table.switches.lost("spine1", 1.0)
    obey(table, 1.0)
    assert job.state == "joining"
    table.switches.connected("spine1")
    obey(table, 1.0)
    assert job.state == "running"


@in_slots
def test_a_switch_sums_for_a_limited_number_of_members(kind: Kind) -> None:
    table = tree_table(shared_slots=SHARED_SLOTS, job_members=3)
    assert created(table, kind).placement.tree.by_name["spine1"].members == 2
    with pytest.raises(InvalidRequestError, match="switch leaf1 would sum for 4 workers and switches"):
        created(table, kind, ["leaf1"] * 4)
    assert len(table.jobs) == 1
