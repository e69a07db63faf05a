# SPDX-License-Identifier: Apache-2.0
"""Servers of ranks sum within racks first (docs/protocol.md, 5.6)."""

import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg._core import Route, Sockets, Transport
from inagg.errors import PeerLostError
from inagg.membership.control import ControlClient
from inagg.membership.mtu_probe import MtuProbe
from inagg.membership.own_server import OwnServer, servers_of, shape_of, silent_servers
from inagg_contract.documents import JobServer, JobStatus, WorkerAddress
from inagg_contract.racks import Racks, ServedWay
from inagg_contract.sizes import way_of
from inagg_simulator.virtual_network import JOB
from tests.hostlib.membership.one_rank import status_of
from tests.hostlib.native.sums import check_sum

HERE = "127.0.0.1"
INTERLEAVED = ["a", "b"] * 4  # rank r in rack a or b
labels = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=64)


def summed_below(racks: Racks, ranks: int, server: int, way: int) -> list[int]:
    """The ranks whose contributions to a way reach a server, each as often as it does."""
    (served,) = [one for one in racks.served_by(server) if one.way == way]
    found = []
    for member in served.members:
        if racks.server(member, way) == server:
            found.append(member)
        else:  # it sends as a server
            (below,) = [one for one in racks.served_by(member) if one.way == way]
            assert below.above == server
            found += summed_below(racks, ranks, member, way)
    return found


@given(labels, st.data())
def test_every_ranks_contribution_reaches_the_root_of_each_way_once(
    names: list[str], data: st.DataObject
) -> None:
    servers = data.draw(st.integers(1, len(names)))
    racks = Racks(names, servers)
    for way in range(servers):
        assert sorted(summed_below(racks, len(names), way, way)) == list(range(len(names)))


@given(labels, st.data())
def test_a_rank_is_a_member_of_the_server_that_it_sends_to(names: list[str], data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, len(names)))
    racks = Racks(names, servers)
    for rank in range(len(names)):
        for way in range(servers):
            server = racks.server(rank, way)
            assert any(one.way == way and rank in one.members for one in racks.served_by(server))
            assert server == way or names[server] == names[rank]


@given(labels, st.data())
def test_a_way_leaves_each_rack_once(names: list[str], data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, len(names)))
    racks = Racks(names, servers)
    for way in range(servers):
        (root,) = [one for one in racks.served_by(way) if one.above is None]
        for name in set(names) - {"", names[way]}:
            serve = any(names[rank] == name for rank in range(servers))
            senders = [rank for rank in root.members if names[rank] == name]
            assert len(senders) == 1 if serve else len(senders) == names.count(name)


def test_two_racks_of_two() -> None:
    racks = Racks(["a", "b", "a", "b"], 4)
    assert [racks.server(0, way) for way in range(4)] == [0, 0, 2, 2]
    assert [racks.server(1, way) for way in range(4)] == [1, 1, 3, 3]
    assert racks.served_by(0) == [ServedWay(0, (0, 1, 2)), ServedWay(1, (0, 2), above=1)]
    assert racks.served_by(3) == [ServedWay(3, (1, 2, 3)), ServedWay(2, (1, 3), above=2)]


@pytest.mark.parametrize("names", [[""] * 4, ["a"] * 4, ["a", "b", "c", ""]])
def test_without_a_rack_to_sum_in_each_rank_sends_to_the_root(names: list[str]) -> None:
    racks = Racks(names, 4)
    for rank in range(4):
        assert [racks.server(rank, way) for way in range(4)] == [0, 1, 2, 3]
        assert racks.served_by(rank) == [ServedWay(rank, (0, 1, 2, 3))]


def test_a_rack_whose_ranks_run_no_server_sends_to_the_root() -> None:
    racks = Racks(["a", "a", "b", "b"], 2)
    assert [racks.server(2, way) for way in range(2)] == [0, 1]
    assert racks.served_by(3) == []


class Rank(NamedTuple):
    transport: Transport
    own: OwnServer | None


@contextmanager
def ranks_of(names: Sequence[str], servers: int, slots: int = 64) -> Iterator[tuple[JobStatus, list[Rank]]]:
    """A job of ranks in racks of these names, whose processes are this one."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in names]
        for udp in sockets:
            udp.bind((HERE, 0))
        # Groups of one process share a server unless their controllers differ.
        own = [stack.enter_context(OwnServer(HERE, f"controller of {rank}")) for rank in range(servers)]
        job = status_of(len(names)).model_copy(
            update={
                "aggregation": "server",
                "aggregator": None,
                "slots": slots,
                "servers": tuple(
                    JobServer(name=f"rank {rank}", ip=HERE, udp_port=one.udp_port, rank=rank)
                    for rank, one in enumerate(own)
                ),
                "members": tuple(
                    WorkerAddress(rank=rank, ip=HERE, udp_port=one.getsockname()[1], rack=name)
                    for rank, (name, one) in enumerate(zip(names, sockets, strict=True))
                ),
            }
        )
        for index, server in enumerate(own):
            server.serve(job, index)
        ranks = []
        for rank, udp in enumerate(sockets):
            route = Route(servers=[(server.ip, server.udp_port) for server in servers_of(job, rank)])
            transport = Transport(
                shape_of(job),
                rank=rank,
                route=route,
                sockets=Sockets(socket_fd=udp.detach()),
                own_server=own[rank].server if rank < servers else None,
            )
            stack.callback(transport.close)
            ranks.append(Rank(transport, own[rank] if rank < servers else None))
        yield job, ranks


@pytest.mark.parametrize(
    ("names", "servers"),
    [
        (INTERLEAVED, 8),
        (["a", "a", "a", "b", "b", "", "c"], 7),
        (["a", "a", "b", "b", "b"], 2),
        (["a"] * 3, 3),
    ],
    ids=["two racks of four", "racks of three sizes", "a rack without servers", "one rack"],
)
def test_sums_are_exact_at_every_rank(names: list[str], servers: int) -> None:
    with ranks_of(names, servers) as (_, ranks):
        for elements in (1, 65, 50_000):
            check_sum([one.transport for one in ranks], elements, words=4)


def test_each_chunk_is_counted_at_its_root_only() -> None:
    with ranks_of(INTERLEAVED, 8) as (_, ranks):
        check_sum([one.transport for one in ranks], 50_000, words=4)
        chunks = [one.own.chunks() for one in ranks if one.own is not None]
        assert sum(one["servers"] for one in chunks if one is not None) == math.ceil(50_000 / 256)


def test_a_server_below_another_counts_what_it_sends_up_and_gets() -> None:
    with ranks_of(INTERLEAVED, 8, slots=1024) as (_, ranks):
        check_sum([one.transport for one in ranks], 1_000_000, words=4)
        for one in ranks:
            assert one.own is not None
            counts = one.own.server.stats()["jobs"][JOB]
            # Of one way it is the root.
            assert counts["partial_sent"] == counts["result_kept"] > 0
            assert counts["completed"] + counts["partial_sent"] == counts["started"]


def job_of(names: list[str]) -> JobStatus:
    """A job of these racks in which all ranks serve."""
    ranks = range(len(names))
    return status_of(len(names)).model_copy(
        update={
            "aggregation": "server",
            "servers": tuple(JobServer(name="", ip=HERE, udp_port=1 + one, rank=one) for one in ranks),
            "members": tuple(
                WorkerAddress(rank=one, ip=HERE, udp_port=100 + one, rack=names[one]) for one in ranks
            ),
        }
    )


def silent(names: list[str], rank: int, way: int) -> list[int | None]:
    """The ranks whose servers may be silent."""
    return [server.rank for server in silent_servers(job_of(names), rank, way)]


def test_a_rank_without_answers_names_the_servers_of_which_one_is_silent() -> None:
    # Racks {0, 2, 4, 6} and {1, 3, 5, 7}; way 1 goes through rank 0 in the first, way 3 through rank 2.
    assert silent(INTERLEAVED, 2, 0) == [0]  # the root
    assert silent(INTERLEAVED, 2, 1) == [0]  # answers for itself
    assert silent(INTERLEAVED, 0, 3) == [2, 3]  # passes the queries of rank 0 up
    assert silent(INTERLEAVED, 0, 1) == [1]  # the server of its own process is there
    assert silent([""] * 4, 2, 1) == [1]


def test_the_error_names_them() -> None:
    job = job_of(INTERLEAVED)
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind((HERE, 0))
        transport = Transport(
            shape_of(job), rank=0, route=Route(servers=[(HERE, 1)]), sockets=Sockets(socket_fd=udp.detach())
        )
    probe = MtuProbe(transport, ControlClient("http://127.0.0.1:9"), job, 0)
    chunk = next(chunk for chunk in range(16) if way_of(chunk, 16, 8) == 3)
    one = probe.unanswered(chunk - 4, 5.0, {})
    assert isinstance(one, PeerLostError)
    assert one.lost_ranks == (1,)
    two = probe.unanswered(chunk, 5.0, {2: "h3, 10.0.0.3"})
    assert isinstance(two, PeerLostError)
    assert two.lost_ranks == (2, 3)
    assert "ranks 2 (h3, 10.0.0.3), 3 (127.0.0.1): their server at 127.0.0.1:3 or 127.0.0.1:4 has not" in str(
        two
    )
    transport.close()
