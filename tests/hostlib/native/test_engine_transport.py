# SPDX-License-Identifier: Apache-2.0
"""The UDP transport on 127.0.0.1, against the reference aggregator behind a socket."""

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from inagg._core import EngineError, Sockets
from inagg_simulator import reference
from inagg_simulator.virtual_network import EPOCH, JOB, make_aggregator
from tests.conformance.loopback_switch import (
    SLOTS,
    WORDS,
    LoopbackSwitch,
    group,
    make_transport,
    run_program,
    silent_peer,
)

SO_NO_CHECK = 11  # socket(7); Python's socket module has no name for it
UDP_GRO = 104  # udp(7)
# Far more than anything here takes.
PATIENCE_S = 20.0


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_sums_are_exact_at_every_rank(loss: float) -> None:
    draws = np.random.default_rng(1)
    with group(3, loss=loss) as transports:
        for elements in (1, 256, 257, 20_000):
            inputs = draws.standard_normal((3, elements), dtype=np.float32)
            outputs = inputs.copy()
            tickets = [t.submit(row) for t, row in zip(transports, outputs, strict=True)]
            assert all(t.wait(ticket, PATIENCE_S) for t, ticket in zip(transports, tickets, strict=True))
            expected = reference.all_reduce_array(inputs, lane_bits=32, words=WORDS)
            assert all(np.array_equal(row, expected) for row in outputs)


def test_watched_collectives_are_told_of_when_they_are_done() -> None:
    with group(1) as (transport,):
        arrays = [np.ones(1000, np.float32) for _ in range(20)]
        tickets = [transport.submit(array, lane_bits=16, average=True) for array in arrays]
        assert tickets == list(range(1, 21))
        for ticket in tickets:
            transport.watch(ticket)
        assert sorted(transport.next_done(PATIENCE_S) or 0 for _ in tickets) == tickets
        assert transport.next_done(0.0) is None
        assert all(array.tolist() == [1.0] * 1000 for array in arrays)


def test_memory_may_be_given_by_address() -> None:
    with group(2) as transports:
        arrays = [np.full(300, rank + 1, np.float32) for rank in range(2)]
        tickets = [t.submit(a.ctypes.data, a.size) for t, a in zip(transports, arrays, strict=True)]
        assert all(t.wait(ticket, PATIENCE_S) for t, ticket in zip(transports, tickets, strict=True))
        assert arrays[0].tolist() == arrays[1].tolist() == [3.0] * 300


def test_an_array_lives_as_long_as_its_collective() -> None:
    with group(1) as (transport,):
        ticket = transport.submit(np.ones(100_000, np.float32))
        assert transport.wait(ticket, PATIENCE_S)


# A second thread may see the same ticket done while the first drops its array. Here it always does.
WAITS_AGAIN_AS_IT_DIES = """
import sys
import numpy as np
from tests.conformance.loopback_switch import group

class Array(np.ndarray):
    def __del__(self):
        died.append(transport.wait(ticket, 0.0))

died = []
with group(1) as (transport,):
    array = np.ones(100, np.float32).view(Array)
    ticket = transport.submit(array)
    del array
    getattr(transport, sys.argv[1])(*eval(sys.argv[2]))
assert died == [True], died
"""


@pytest.mark.parametrize(
    "how", [("wait", "(ticket, 20.0)"), ("next_done", "(transport.watch(ticket) or 20.0,)")]
)
def test_an_array_is_let_go_of_once(how: tuple[str, str]) -> None:
    result = run_program(WAITS_AGAIN_AS_IT_DIES, *how, timeout_s=60)
    assert result.returncode == 0, result.stderr


def test_only_watched_tickets_are_told_of_and_late_watchers_too() -> None:
    with group(1) as (transport,):
        first, second = (transport.submit(np.ones(10, np.float32)) for _ in range(2))
        assert transport.wait(first, PATIENCE_S)
        assert transport.wait(first, 0.0)
        transport.watch(second)
        assert transport.next_done(PATIENCE_S) == second
        assert transport.next_done(0.0) is None
        transport.watch(first)
        assert transport.next_done(0.0) == first
        with pytest.raises(ValueError, match="there is no ticket 3"):
            transport.watch(3)


def test_empty_arrays_are_done_without_a_packet() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        assert transport.wait(transport.submit(np.empty(0, np.float32)), PATIENCE_S)
        assert transport.stats()["packets_sent"] == 0
        transport.close()


def test_waiting_ends_after_the_timeout() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        ticket = transport.submit(np.ones(10, np.float32))
        start = time.monotonic()
        assert not transport.wait(ticket, 0.05)
        assert transport.next_done(0.05) is None
        assert time.monotonic() - start >= 0.1
        transport.close()


def test_waiting_for_a_ticket_that_never_was_is_an_error() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        with pytest.raises(ValueError, match="there is no ticket 1"):
            transport.wait(1, 0.0)
        transport.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def wait_in_thread(wait: Callable[[], object]) -> tuple[threading.Thread, list[EngineError]]:
    errors: list[EngineError] = []

    def run() -> None:
        try:
            wait()
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


@pytest.mark.parametrize("how", ["wait", "next_done"])
def test_failing_wakes_who_waits_and_names_the_chunk(how: str) -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        ticket = transport.submit(np.ones(10, np.float32))
        thread, errors = wait_in_thread(
            lambda: transport.wait(ticket) if how == "wait" else transport.next_done()
        )
        transport.fail("rank 3 was lost")
        thread.join(PATIENCE_S)
        (error,) = errors
        assert (error.code, error.collective, error.chunk) == ("failed", 1, 0)
        assert (error.job, error.rank) == (JOB, 0)
        assert str(error) == f"job {JOB}, rank 0, collective 1, chunk 0: rank 3 was lost"
        with pytest.raises(EngineError, match="rank 3 was lost"):
            transport.submit(np.ones(10, np.float32))
        assert transport.failure is not None
        transport.close()


def test_closing_fails_what_is_unfinished_and_may_be_repeated() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        ticket = transport.submit(np.ones(10, np.float32))
        thread, errors = wait_in_thread(lambda: transport.wait(ticket))
        transport.close()
        transport.close()
        thread.join(PATIENCE_S)
        assert [error.code for error in errors] == ["closed"]
        with pytest.raises(EngineError, match="was closed"):
            transport.submit(np.ones(10, np.float32))
        transport.fail("too late")
        assert transport.failure is not None
        assert transport.failure.code == "closed"


def test_what_is_done_stays_done_after_closing() -> None:
    with group(1) as (transport,):
        ticket = transport.submit(np.ones(10, np.float32))
        assert transport.wait(ticket, PATIENCE_S)
        other = transport.submit(np.ones(10, np.float32))
        transport.watch(other)
        until(lambda: transport.stats()["collectives_completed"] == 2)
        transport.close()
        assert transport.wait(ticket, 0.0)
        assert transport.next_done(0.0) == other
        with pytest.raises(EngineError):
            transport.next_done(0.0)


EXIT_WITH_A_THREAD_WAITING = """
import threading
import numpy as np
from inagg._core import JobShape, Route, Sockets, Transport

class SlowToGo:
    def __del__(self):
        threading.Event().wait(0.3)

transport = Transport(
    JobShape(number=1, workers=1, epoch=1, slots=4, words=4),
    rank=0,
    route=Route(aggregator=("127.0.0.1", 9)),
    sockets=Sockets(local=("127.0.0.1", 0)),
)
transport.submit(np.ones(1000, np.float32))
threading.Thread(target=transport.next_done, daemon=True).start()
slow = SlowToGo()
"""


def test_a_program_may_end_without_closing() -> None:
    run = run_program(EXIT_WITH_A_THREAD_WAITING, timeout_s=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    assert "terminate" not in run.stderr


def test_silence_is_given_up() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer, give_up_s=0.2, rto_initial_s=0.02)
        ticket = transport.submit(np.ones(10, np.float32))
        with pytest.raises(EngineError) as caught:
            transport.wait(ticket, PATIENCE_S)
        assert caught.value.code == "give_up"
        assert transport.stats()["queries"] > 0
        transport.close()


def test_time_is_charged_to_what_the_engine_waits_for() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer, give_up_s=0.3)
        time.sleep(0.1)  # without a collective: nobody's
        with pytest.raises(EngineError):
            transport.wait(transport.submit(np.ones(100_000, np.float32)), PATIENCE_S)
        alone = transport.stats()
        assert alone["beginning_s"] == pytest.approx(0.3, rel=0.5)
        assert (alone["window_s"], alone["answers_s"], alone["device_s"]) == (0.0, 0.0, 0.0)
        assert alone["processor_s"] > 0
        assert alone["silent_s"] == 0.0  # no packet has shown that the other ranks run
        transport.close()
        assert transport.stats()["processor_s"] >= alone["processor_s"]
    with group(1) as (transport,):
        assert transport.wait(transport.submit(np.ones(1_000_000, np.float32)), PATIENCE_S)
        served = transport.stats()
        assert served["window_limit"] == SLOTS
        assert served["window_s"] + served["answers_s"] > served["beginning_s"] > 0
        assert served["peak_rate"] >= 0


def test_an_unreachable_aggregator_is_counted_and_given_up() -> None:
    with silent_peer() as peer:
        pass  # the port is closed: every packet causes an ICMP error
    transport = make_transport(peer, give_up_s=0.2)
    ticket = transport.submit(np.ones(10, np.float32))
    with pytest.raises(EngineError) as caught:
        transport.wait(ticket, PATIENCE_S)
    assert caught.value.code == "give_up"
    assert transport.stats()["network_errors"] > 0
    transport.close()


def test_strangers_are_not_heard() -> None:
    with silent_peer() as peer, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        transport = make_transport(peer, give_up_s=0.3)
        ticket = transport.submit(np.ones(10, np.float32))
        checksum = 8 * 10 + reference.marks(0, 0)
        result = reference.contribution(
            kind=0x9, rank=0, job=JOB, epoch=EPOCH, chunk=0, exponent=257, checksum=checksum % 2**32
        )
        forged = result.encode()
        stranger.sendto(forged, transport.local_address)
        with pytest.raises(EngineError):
            transport.wait(ticket, PATIENCE_S)
        stats = transport.stats()
        assert (stats["packets_received"], stats["discarded"]) == (0, 0)
        transport.close()


SUM_IN_PACKETS_OF_8_KIB = """
import numpy as np
from inagg._core import Route, Sockets, Transport
from tests.conformance.loopback_switch import LoopbackSwitch
from inagg_simulator.virtual_network import make_aggregator, make_shape

with LoopbackSwitch(make_aggregator(1, slots=1, words=32)) as switch:
    transport = Transport(
        make_shape(1, slots=1, words=32),
        rank=0,
        route=Route(aggregator=switch.address),
        sockets=Sockets(local=("127.0.0.1", 0)),
    )
    transport.wait(transport.submit(np.ones(2048, np.float32)), 10.0)
"""


@pytest.mark.netns
def test_a_packet_beyond_the_mtu_is_an_error_that_says_so() -> None:
    narrow = 'ip link set lo mtu 1500 up && exec "$0" "$@"'
    run = run_program(
        SUM_IN_PACKETS_OF_8_KIB, timeout_s=PATIENCE_S, within=["unshare", "--net", "sh", "-c", narrow]
    )
    assert (
        "EngineError: job 7, rank 0, collective 1, chunk 1: a packet of 32 words does not fit the MTU"
        in run.stderr
    )


def test_a_bound_socket_is_taken_over() -> None:
    aggregator = make_aggregator(1, slots=SLOTS, words=WORDS)
    with LoopbackSwitch(aggregator) as switch:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        address, fd = bound.getsockname(), bound.detach()
        transport = make_transport(switch.address, sockets=Sockets(socket_fd=fd))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        assert transport.local_address == address
        assert transport.wait(transport.submit(np.ones(10, np.float32)), PATIENCE_S)
        transport.close()


@pytest.mark.parametrize("checksums", [True, False])
def test_where_the_kernel_does_not_segment_packets_go_one_by_one(checksums: bool) -> None:
    aggregator = make_aggregator(1, slots=SLOTS, words=WORDS)
    with LoopbackSwitch(aggregator) as switch:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        # Without checksums the kernel refuses to segment, as it does on an interface that leaves them to the sender.
        bound.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, not checksums)
        transport = make_transport(switch.address, sockets=Sockets(socket_fd=bound.detach()))
        array = np.ones(100_000, np.float32)
        assert transport.wait(transport.submit(array), PATIENCE_S)
        assert array.tolist() == [1.0] * array.size
        assert transport.stats()["segmentation"] == checksums
        transport.close()


def test_a_quarter_of_the_window_leaves_in_one_piece() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        peer.settimeout(PATIENCE_S)
        transport = make_transport(peer.getsockname())
        transport.submit(np.ones(100_000, np.float32))
        pieces: list[int] = []
        while sum(pieces) < SLOTS:
            data, control, _, _ = peer.recvmsg(65536, socket.CMSG_SPACE(4))
            segment = int.from_bytes(control[0][2][:4], sys.byteorder) if control else len(data)
            pieces.append(len(data) // segment)
        transport.close()
    assert max(pieces) == SLOTS // 4


def test_a_socket_stays_the_caller_s_when_the_transport_cannot_be_made() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as wrong:
        with pytest.raises(ValueError, match="not a UDP/IPv4 socket"):
            make_transport(("127.0.0.1", 9), sockets=Sockets(socket_fd=wrong.fileno()))
        os.fstat(wrong.fileno())


def test_an_address_of_another_host_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"cannot bind a UDP socket to 192\.0\.2\.1:0") as caught:
        make_transport(("127.0.0.1", 9), sockets=Sockets(local=("192.0.2.1", 0)))
    assert caught.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("sockets", [Sockets(), Sockets(local=("127.0.0.1", 0), socket_fd=0)])
def test_either_an_address_or_a_socket_is_needed(sockets: Sockets) -> None:
    with pytest.raises(ValueError, match="either local or socket_fd"):
        make_transport(("127.0.0.1", 9), sockets=sockets)


def test_a_window_of_results_fits_the_receive_buffer_or_the_stats_say_so() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        stats = transport.stats()
        assert stats["receive_buffer_wanted_bytes"] >= SLOTS * (20 + WORDS * 256)
        assert stats["receive_buffer_bytes"] >= stats["receive_buffer_wanted_bytes"]
        transport.close()


def test_subnormals_survive_a_caller_that_flushes_them() -> None:
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        with group(2) as transports:
            arrays = [np.full(10, 0x3, np.uint32).view(np.float32) for _ in range(2)]
            tickets = [t.submit(a) for t, a in zip(transports, arrays, strict=True)]
            assert all(t.wait(ticket, PATIENCE_S) for t, ticket in zip(transports, tickets, strict=True))
            assert arrays[0].view(np.uint32).tolist() == [6] * 10
    finally:
        torch.set_flush_denormal(False)


SUMS_BESIDE_FORGED_ERRORS = """
import socket
import struct

import numpy as np
from inagg._core import Route, Sockets, Transport
from tests.conformance.loopback_switch import LoopbackSwitch
from inagg_simulator.virtual_network import make_aggregator, make_shape


def checksum(message):
    words = sum(struct.unpack(f"!{len(message) // 2}H", message))
    return ~(words + (words >> 16)) & 0xFFFF


def icmp(kind, code, rest, about):
    message = struct.pack("!BBHI", kind, code, 0, rest) + about
    return struct.pack("!BBHI", kind, code, checksum(message), rest) + about


with (
    LoopbackSwitch(make_aggregator(1, slots=1, words=4)) as switch,
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as forger,
):
    transport = Transport(
        make_shape(1, slots=1, words=4),
        rank=0,
        route=Route(aggregator=switch.address),
        sockets=Sockets(local=("127.0.0.1", 0)),
    )
    lo = socket.inet_aton("127.0.0.1")
    datagram = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1072, 1, 0x4000, 64, socket.IPPROTO_UDP, 0, lo, lo)
    datagram += struct.pack("!HHHH", transport.local_address[1], switch.address[1], 1052, 0)
    errors = [icmp(3, code, 552 if code == 4 else 0, datagram) for code in range(16)]
    errors += [icmp(kind, code, 0, datagram) for kind in (4, 11, 12) for code in (0, 1)]
    for error in errors:
        forger.sendto(error, ("127.0.0.1", 0))
        array = np.ones(1000, np.float32)
        assert transport.wait(transport.submit(array), 20.0)
        assert (array == 1).all()
    assert transport.stats()["network_errors"] > 10
    transport.close()
"""


@pytest.mark.netns
def test_errors_that_anybody_can_forge_end_nothing() -> None:
    up = 'ip link set lo mtu 1500 up && exec "$0" "$@"'
    done = run_program(
        SUMS_BESIDE_FORGED_ERRORS, timeout_s=PATIENCE_S, within=["unshare", "--net", "sh", "-c", up]
    )
    assert done.returncode == 0, done.stderr
