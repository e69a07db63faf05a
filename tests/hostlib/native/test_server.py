# SPDX-License-Identifier: Apache-2.0
"""Aggregation servers on 127.0.0.1: sums of real transports, and who is admitted to what."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg._core import Engine, Route, ServedJob, ServedPart, Server, Sockets, Transport
from inagg_contract.sizes import server_memory, way_of
from inagg_simulator import reference
from inagg_simulator.reference_switch import Aggregator, Job
from inagg_simulator.servers import Servers, make_servers
from inagg_simulator.virtual_network import EPOCH, JOB, make_shape, make_workers
from tests.broken_sockets import COMPLAINT, break_socket
from tests.conformance.loopback_switch import run_program
from tests.hostlib.native.sums import check_sum
from tests.waiting import wait_until

HERE = ("127.0.0.1", 0)
SLOTS, WORDS = 64, 1
PATIENCE_S = 20.0
MEMORY = 1 << 24


def udp() -> socket.socket:
    """A bound socket that gives up waiting."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(HERE)
    made.settimeout(PATIENCE_S)
    return made


def contribution(rank: int, chunk: int = 0, *, job: int = JOB, epoch: int = EPOCH, value: int = 1) -> bytes:
    """A DATA contribution whose lanes are all `value`."""
    header = reference.contribution(kind=reference.DATA, rank=rank, job=job, epoch=epoch, chunk=chunk)
    return header.encode() + value.to_bytes(4, "big") * 64 * WORDS


@contextmanager
def group(workers: int, servers: int, *, slots: int = SLOTS, words: int = WORDS) -> Iterator[list[Transport]]:
    """The transports of a job on servers of its own."""
    with ExitStack() as stack:
        sockets = [udp() for _ in range(workers)]
        made = [Server(local=HERE, memory=MEMORY) for _ in range(servers)]
        shape = make_shape(workers, slots=slots, words=words)
        route = Route(servers=[server.local_address for server in made])
        for index, server in enumerate(made):
            stack.callback(server.close)
            workers_at = {rank: one.getsockname() for rank, one in enumerate(sockets)}
            server.serve(shape, [ServedPart(workers_at, index=index)], servers=servers)
        transports = [
            Transport(shape, rank=rank, route=route, sockets=Sockets(socket_fd=one.detach()))
            for rank, one in enumerate(sockets)
        ]
        for transport in transports:
            stack.callback(transport.close)
        yield transports


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (3, 3), (4, 3), (2, 64)])
def test_sums_are_exact_at_every_rank(workers: int, servers: int) -> None:
    with group(workers, servers) as transports:
        for elements in (1, 64, 65, 20_000):
            check_sum(transports, elements, words=WORDS)


def test_results_leave_in_messages() -> None:
    with group(2, 2, slots=256, words=4) as transports:
        arrays = [np.ones(1_000_000, np.float32) for _ in transports]
        tickets = [t.submit(array) for t, array in zip(transports, arrays, strict=True)]
        assert all(t.wait(ticket, PATIENCE_S) for t, ticket in zip(transports, tickets, strict=True))
        for transport in transports:
            stats = transport.stats()
            assert stats["packets_sent"] > 4 * stats["send_calls"]
            assert stats["packets_received"] > 4 * stats["receive_calls"]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(local=HERE, memory=MEMORY)
    yield made
    made.close()


@pytest.fixture
def workers() -> Iterator[list[socket.socket]]:
    made = [udp(), udp()]
    yield made
    for one in made:
        one.close()


def serve(server: Server, peers: list[socket.socket], **settings: Any) -> None:
    workers = settings.pop("workers", [one.getsockname() for one in peers])
    servers, index = settings.pop("servers", 1), settings.pop("index", 0)
    shape = make_shape(len(workers), **{"slots": SLOTS, "words": WORDS} | settings)
    server.serve(shape, [ServedPart(dict(enumerate(workers)), index=index)], servers=servers)


def sums(server: Server, workers: list[socket.socket], first: int = 0, **fields: int) -> list[bytes]:
    """What both workers get after both have contributed."""
    for rank, one in enumerate(workers):
        one.sendto(contribution(rank, first, **fields), server.local_address)
    return [one.recv(2048) for one in workers]


def test_only_a_worker_s_own_address_may_contribute_for_it(
    server: Server, workers: list[socket.socket]
) -> None:
    serve(server, workers)
    with udp() as stranger:
        stranger.sendto(contribution(0), server.local_address)
        workers[1].sendto(contribution(0), server.local_address)
        workers[1].sendto(contribution(63), server.local_address)
        workers[1].sendto(contribution(0, job=JOB + 1), server.local_address)
        workers[1].sendto(b"", server.local_address)
        workers[1].sendto(b"\x00" * 2000, server.local_address)
    wait_until(lambda: server.stats()["unknown"] == 6, "the count")
    assert not any(server.stats()["jobs"][JOB].values())
    assert all(result[20:24] == (2).to_bytes(4, "big") for result in sums(server, workers))


def test_packets_of_another_epoch_are_counted(server: Server, workers: list[socket.socket]) -> None:
    serve(server, workers)
    workers[0].sendto(contribution(0, epoch=EPOCH - 1), server.local_address)
    wait_until(lambda: server.stats()["jobs"][JOB]["wrong_epoch"] == 1, "the count")


def test_one_socket_sums_for_many_jobs(server: Server, workers: list[socket.socket]) -> None:
    numbers = range(1, 40)
    for number in numbers:
        serve(server, workers, job=number, epoch=number)
    for number in numbers:
        results = sums(server, workers, job=number, epoch=number, value=number)
        assert all(result[20:24] == (2 * number).to_bytes(4, "big") for result in results)
    stats = server.stats()
    assert stats["memory"] == len(numbers) * server_memory(SLOTS, 1, WORDS)
    assert all(stats["jobs"][number]["completed"] == 1 for number in numbers)


def test_a_server_counts_the_chunks_of_each_job(server: Server, workers: list[socket.socket]) -> None:
    for number in (1, 2):
        serve(server, workers, job=number, epoch=1)
    sums(server, workers, job=1, epoch=1)
    none = {"switches": 0, "both": 0, "servers": 0}
    assert server.stats()["chunks"] == {1: none | {"servers": 1}, 2: none}


def test_jobs_interleaved_in_one_stream_each_get_their_sums(
    server: Server, workers: list[socket.socket]
) -> None:
    for number in (1, 2):
        serve(server, workers, job=number, epoch=1)
    for rank, one in enumerate(workers):
        for chunk in range(8):
            for number in (1, 2):
                one.sendto(contribution(rank, chunk, job=number, epoch=1, value=number), server.local_address)
    for one in workers:
        got = sorted(reference.decode(one.recv(2048))[3:4] for _ in range(16))
        assert got == [(1,)] * 8 + [(2,)] * 8


def test_a_job_that_is_dropped_is_forgotten(server: Server, workers: list[socket.socket]) -> None:
    serve(server, workers)
    serve(server, workers)  # again: nothing happens
    workers[0].sendto(contribution(0), server.local_address)
    wait_until(lambda: server.stats()["jobs"][JOB]["started"] == 1, "the count")
    serve(server, workers)
    assert server.stats()["jobs"][JOB]["started"] == 1
    server.drop(JOB, EPOCH + 1)
    assert server.stats()["jobs"][JOB]["started"] == 1
    server.drop(JOB, EPOCH)
    server.drop(JOB, EPOCH)
    assert server.stats()["jobs"] == {}
    assert server.stats()["memory"] == 0


def test_a_new_epoch_replaces_the_job(server: Server, workers: list[socket.socket]) -> None:
    serve(server, workers)
    workers[0].sendto(contribution(0), server.local_address)
    wait_until(lambda: server.stats()["jobs"][JOB]["started"] == 1, "the count")
    serve(server, workers, epoch=EPOCH + 1)
    assert server.stats()["memory"] == server_memory(SLOTS, 1, WORDS)
    assert all(result[20:24] == (2).to_bytes(4, "big") for result in sums(server, workers, epoch=EPOCH + 1))


def test_memory_is_bounded_and_a_refusal_changes_nothing(workers: list[socket.socket]) -> None:
    server = Server(local=HERE, memory=server_memory(SLOTS, 1, WORDS))
    try:
        serve(server, workers)
        with pytest.raises(ValueError, match=r"needs .* bytes, and 0 of .* are free"):
            serve(server, workers, job=JOB + 1)
        with pytest.raises(ValueError, match=r"needs .* bytes"):
            serve(server, workers, epoch=EPOCH + 1, slots=2 * SLOTS)
        assert all(result[20:24] == (2).to_bytes(4, "big") for result in sums(server, workers))
    finally:
        server.close()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"workers": []}, "workers is 0"),
        ({"workers": [("127.0.0.1", 1)] * 65}, "workers is 65"),
        ({"slots": 3}, "slots is 3"),
        ({"slots": 2, "servers": 3}, "servers is 3"),
        ({"servers": 2, "index": 2}, "index is 2 of 2"),
        ({"epoch": 0}, "epoch is 0"),
        ({"job": 0}, "job is 0"),
        ({"words": 0}, "words is 0"),
        ({"workers": [("nowhere", 1)]}, "not an IPv4 address"),
    ],
)
def test_a_wrong_job_is_refused(
    server: Server, workers: list[socket.socket], settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        serve(server, workers, **settings)
    assert server.stats()["jobs"] == {}


def test_closing_may_be_repeated_and_ends_the_server(server: Server, workers: list[socket.socket]) -> None:
    serve(server, workers)
    server.close()
    server.close()
    for call in (server.stats, lambda: server.drop(JOB, EPOCH), lambda: serve(server, workers)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_server_whose_socket_is_broken_ends_and_keeps_the_reason(
    server: Server, workers: list[socket.socket]
) -> None:
    serve(server, workers)
    assert server.failure is None
    break_socket(server.local_address)
    wait_until(lambda: server.failure is not None, "the thread has ended")
    assert server.failure == COMPLAINT
    for call in (server.stats, lambda: server.drop(JOB, EPOCH), lambda: serve(server, workers)):
        with pytest.raises(RuntimeError, match=f"the server's thread has ended: {COMPLAINT}"):
            call()
    server.close()
    assert server.failure == COMPLAINT


def test_a_server_that_is_closed_has_not_failed(server: Server) -> None:
    server.close()
    assert server.failure is None


DROPS_AT_EXIT = """
import atexit, threading
from inagg._core import Server

ending, dropping = threading.Event(), threading.Event()
servers = [Server(local=("127.0.0.1", 0), memory=1 << 20) for _ in range(100)]

def drop():
    ending.wait()
    while servers:
        servers.pop()
        dropping.set()

def end():
    ending.set()
    dropping.wait()

threading.Thread(target=drop, daemon=True).start()
atexit.register(end)  # before the servers are closed
"""


def test_a_program_may_end_while_a_thread_drops_servers() -> None:
    ended = run_program(DROPS_AT_EXIT, timeout_s=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_worker_that_is_gone_does_not_keep_results_from_the_others(server: Server) -> None:
    with udp() as lives, udp() as dies:
        addresses = {0: lives.getsockname(), 1: dies.getsockname()}
        server.serve(make_shape(2, slots=SLOTS, words=WORDS), [ServedPart(addresses)])
        for chunk in range(SLOTS):
            dies.sendto(contribution(1, chunk), server.local_address)
        wait_until(lambda: server.stats()["jobs"][JOB]["started"] == SLOTS, "the count")
        dies.close()
        for chunk in range(SLOTS):
            lives.sendto(contribution(0, chunk), server.local_address)
            assert reference.decode(lives.recv(2048)).chunk == chunk


def test_strangers_results_are_not_taken() -> None:
    """A transport that sends to servers hears these only."""
    with group(1, 2) as (transport,), udp() as stranger:
        (engine,) = make_workers(1, slots=SLOTS, words=WORDS, ways=2, ways_apart=True)
        engine.submit(np.full(64, 7, np.float32), now=0.0)
        served = Servers(make_servers(2, job=JOB, epoch=EPOCH, slots=SLOTS, words=WORDS, workers=1), SLOTS, 1)
        for sent in engine.to_send(0.0):
            for _, result in served.process(0, sent):
                stranger.sendto(result, transport.local_address)
        array = np.full(64, 3, np.float32)
        assert transport.wait(transport.submit(array), PATIENCE_S)
        assert array.tolist() == [3.0] * 64
        assert transport.stats()["duplicates_received"] == 0


def new_engine() -> Engine:
    (engine,) = make_workers(1, slots=SLOTS, words=WORDS, ways=3, ways_apart=True)
    engine.submit(np.zeros(64 * 4 * SLOTS, np.float32), now=0.0)
    return engine


def chunks(datagrams: list[bytes]) -> list[int]:
    return [reference.decode(datagram).chunk for datagram in datagrams]


def test_chunks_leave_in_groups_to_one_server_after_the_other() -> None:
    train = chunks(new_engine().to_send(0.0, 248))
    ways = [way_of(chunk, SLOTS, 3) for chunk in train]
    assert ways == sorted(ways)
    for way in range(3):
        here = [chunk for chunk in range(SLOTS) if way_of(chunk, SLOTS, 3) == way]
        sent = [chunk for chunk in train if way_of(chunk, SLOTS, 3) == way]
        # A third of the window of 64, in whole groups: half of that third, rounded down to a power of two.
        assert sent == here[:16]


@pytest.mark.parametrize("taken", [1, 5, 40])
def test_what_the_socket_does_not_take_leaves_later(taken: int) -> None:
    engine, left = new_engine(), list[int]()
    while sent := engine.to_send(0.0, taken):
        left += chunks(sent)
    assert sorted(left) == sorted(chunks(new_engine().to_send(0.0, 248)))


def test_a_group_waits_until_the_window_has_room_for_all_of_it() -> None:
    """Otherwise each result would let one packet out, and no message would have more."""
    (engine,) = make_workers(1, slots=256, words=WORDS, ways=8, ways_apart=True)
    engine.submit(np.zeros(64 * 4096, np.float32), now=0.0)
    first = engine.to_send(0.0, 248)
    assert [way_of(chunk, 256, 8) for chunk in chunks(first)] == [way for way in range(8) for _ in range(8)]
    made = make_servers(8, job=JOB, epoch=EPOCH, slots=256, words=WORDS, workers=1)
    servers = Servers(made, 256, 1)
    for number, packet in enumerate(first[:8], 1):
        for _, result in servers.process(0, packet):
            engine.receive(result, now=0.001)
        left = chunks(engine.to_send(0.001, 248))
        assert left == {4: [*range(8, 12)], 8: [*range(12, 16)]}.get(number, [])


CHUNKS = 12
# Rank, chunk, whether it is a query, and what decides the rest.
packets = st.tuples(
    st.integers(0, 3),
    st.integers(0, CHUNKS - 1),
    st.sampled_from([False, False, True]),
    st.integers(0, 2**20),
)


@given(
    sequence=st.lists(packets, max_size=60),
    kinds=st.lists(st.sampled_from([reference.EXPONENT, reference.DATA]), min_size=1, max_size=7),
    workers=st.integers(1, 3),
    first=st.sampled_from([0, 2**32 - 6]),
)
def test_a_server_does_what_the_reference_does(
    sequence: list[tuple[int, int, bool, int]], kinds: list[int], workers: int, first: int
) -> None:
    """Also if ranks disagree on a chunk's kind."""
    slots = 2
    expected = Aggregator(WORDS, {JOB: Job(workers, slots, EPOCH, first_chunk=first)})
    (served,) = make_servers(
        1, job=JOB, epoch=EPOCH, slots=slots, words=WORDS, workers=workers, first_chunk=first
    )
    server = Servers([served], slots, workers)
    for (rank, chunk, query, value), chunk_kind in zip(sequence, cycle(kinds), strict=False):
        kind = chunk_kind | (reference.QUERY if query else 0)
        header = reference.contribution(
            kind=kind,
            rank=rank,
            job=JOB,
            epoch=EPOCH,
            chunk=(first + chunk) % 2**32,
            flags=0 if query else value % 4,
            exponent=0 if query else value % 683,
            checksum=value,
        )
        words = value.to_bytes(4, "big") * 64 * WORDS if kind == reference.DATA else b""
        datagram = header.encode() + words
        assert server.process(rank, datagram) == expected.process(rank, datagram)
        assert server.counters == +expected.counters


def test_a_sum_without_words_has_none_of_an_older_chunk() -> None:
    """Its words are 0 where a worker asks for it as DATA (protocol 5.2)."""
    (server,) = make_servers(1, job=JOB, epoch=EPOCH, slots=1, words=WORDS, workers=1)
    for chunk in (0, 1):
        server.receive(contribution(0, chunk, value=7), 0)
    exponent = reference.contribution(kind=reference.EXPONENT, rank=0, job=JOB, epoch=EPOCH, chunk=2)
    server.receive(exponent.encode(), 0)
    ((_, again),) = server.receive(contribution(0, 2), 0)
    assert again[reference.HEADER.size :] == bytes(256 * WORDS)


def test_a_result_that_is_sent_again_to_several_says_the_rank_of_the_packet() -> None:
    """A switch's partial sum has its rank there (protocol 2.1)."""
    (server,) = make_servers(1, job=JOB, epoch=EPOCH, slots=1, words=WORDS, workers=3, relayed=True)

    def partial(members: int) -> bytes:
        own = contribution(rank=5)
        return own[: reference.HEADER.size] + members.to_bytes(8, "big") + own[reference.HEADER.size :]

    server.receive(partial(0b111), None)
    again = server.receive(partial(0b011), None)
    assert [(to, reference.decode(left).rank) for to, left in again] == [(0, 5), (1, 5)]


def test_memory_is_what_the_controller_counts() -> None:
    for slots, servers, words in ((256, 1, 4), (256, 3, 4), (2, 2, 32), (1024, 64, 5), (1024, 48, 1)):
        made = ServedJob(make_shape(4, slots=slots, words=words), servers=servers)
        assert made.memory == server_memory(slots, servers, words)


CONGESTED, ECT_0, CE = 0x10, 0b10, 0b11


def test_a_mark_on_a_contribution_becomes_a_flag_of_the_sum(
    server: Server, workers: list[socket.socket]
) -> None:
    serve(server, workers)
    assert {reference.decode(result).flags for result in sums(server, workers)} == {0}
    workers[1].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CE)
    for result in sums(server, workers, 1):
        header = reference.decode(result)
        assert header.agrees
        assert header.flags == CONGESTED
    workers[1].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECT_0)
    assert {reference.decode(result).flags for result in sums(server, workers, 2)} == {0}


def test_what_a_server_and_a_worker_send_may_be_marked(server: Server, workers: list[socket.socket]) -> None:
    serve(server, workers)
    for one in workers:
        one.setsockopt(socket.IPPROTO_IP, 13, 1)  # IP_RECVTOS
    for rank, one in enumerate(workers):
        one.sendto(contribution(rank), server.local_address)
    assert [tos_of(one) for one in workers] == [ECT_0, ECT_0]

    with udp() as aggregator, udp() as own:
        aggregator.setsockopt(socket.IPPROTO_IP, 13, 1)
        transport = Transport(
            make_shape(1, slots=SLOTS, words=WORDS),
            rank=0,
            route=Route(servers=[aggregator.getsockname()]),
            sockets=Sockets(socket_fd=own.detach()),
        )
        transport.submit(np.ones(1, np.float32))
        assert tos_of(aggregator) == ECT_0
        transport.close()


def tos_of(receiver: socket.socket) -> int:
    """The second byte of the IPv4 header of the next datagram."""
    _, controls, _, _ = receiver.recvmsg(2048, 100)
    return controls[0][2][0]


@pytest.mark.parametrize(("tos", "congested"), [(0, 0), (ECT_0, 0), (0b01, 0), (CE, 2)])
def test_a_worker_counts_results_that_come_with_a_mark(tos: int, congested: int) -> None:
    with udp() as aggregator, udp() as own:
        aggregator.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        transport = Transport(
            make_shape(1, slots=SLOTS, words=WORDS),
            rank=0,
            route=Route(servers=[aggregator.getsockname()]),
            sockets=Sockets(socket_fd=own.detach()),
        )
        array = np.ones(1, np.float32)
        ticket = transport.submit(array)
        (server,) = make_servers(1, job=JOB, epoch=EPOCH, slots=SLOTS, words=WORDS, workers=1)
        for _ in range(2):  # its exponent, and its block
            datagram, worker = aggregator.recvfrom(2048)
            ((_, result),) = server.receive(datagram, 0)
            aggregator.sendto(result, worker)
        assert transport.wait(ticket, PATIENCE_S)
        assert array[0] == 1.0
        assert transport.stats()["congested"] == congested
        transport.close()
