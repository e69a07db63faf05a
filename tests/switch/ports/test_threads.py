# SPDX-License-Identifier: Apache-2.0
"""A switch of several threads: they divide the frames of all ports, and each frame runs on one of them."""

import errno
import itertools
import logging
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import rdpcap

from inagg_switch import Switch, SwitchError
from inagg_switch._ports import PacketLoop
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.ports import PortError, PortOptions, Ports, PortSpec, suitable_threads, threads_of
from tests.switch.network import MakeNetwork, Network
from tests.switch.snippets import v1program
from tests.waiting import wait_until

HOSTS, THREADS = 3, 4
CPU_PORT = 64
NUMBERS = 16

# Counts frames by their number, in a way that loses some if two of a number run at once. Others are counted apart.
COUNT = v1program(
    """
    if (hdr.n.isValid()) {
        @stripe((bit<32>) hdr.n.number & 15) {
            bit<32> n;
            numbers.read(n, (bit<32>) hdr.n.number & 15);
            numbers.write((bit<32>) hdr.n.number & 15, n + 1);
        }
        sm.egress_spec = 2;
    } else {
        others.count(0);
        mark_to_drop(sm);
    }
    """,
    headers="""
    header e_t { bit<48> dst; bit<48> src; bit<16> type; }
    header n_t { @steer(2) bit<16> number; }
    struct headers_t { e_t e; n_t n; }
    struct metadata_t { }
    """,
    parser="""
    state start { packet.extract(hdr.e); transition select(hdr.e.type) { 0x88B5: number; default: accept; } }
    state number { packet.extract(hdr.n); transition accept; }
    """,
    locals="register<bit<32>>(16) numbers; counter(1, CounterType.packets) others;",
)
# The same for one thread.
PLAIN = COUNT.replace("@steer(2)", "")

pytestmark = pytest.mark.netns


def frame(number: int, ethertype: int = 0x88B5, length: int = 60) -> bytes:
    """For no host."""
    start = b"\x02\0\0\0\x09\x09" + b"\x02\0\0\0\x08\x08" + struct.pack("!HH", ethertype, number)
    return start.ljust(length, b"\0")[:length]


def load(source: str, threads: int = THREADS) -> Switch:
    return Switch.from_source(preprocess_text(source, "count.p4").text, threads=threads, or_one=True)


@dataclass
class Opened:
    net: Network
    ports: Ports
    programs: ExitStack

    def run(self, source: str, threads: int = THREADS) -> Switch:
        program = self.programs.enter_context(load(source, threads))
        self.ports.set_program(program)
        return program

    def received(self) -> int:
        return sum(one.rx_packets for one in self.ports.statistics())

    def sent(self) -> int:
        """Frames to the next port, which only frames with a number reach."""
        return sum(one.tx_packets for one in self.ports.statistics())

    def from_hosts(self, send: Callable[[socket.socket], object]) -> None:
        """Each host sends on a thread of its own."""
        sockets = [self.net.packet_socket(host) for host in range(1, HOSTS + 1)]
        senders = [threading.Thread(target=send, args=(raw,)) for raw in sockets]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        for raw in sockets:
            raw.close()


@pytest.fixture
def open_ports(network: MakeNetwork) -> Iterator[Callable[..., Opened]]:
    with ExitStack() as programs, ExitStack() as running:  # a program lives longer than the ports that run it

        def make(options: PortOptions) -> Opened:
            net = network(HOSTS)
            with net.inside(net.switch):
                specs = [PortSpec(number, net.port_interface(number)) for number in range(1, HOSTS + 1)]
                ports = Ports(specs, options)
                running.callback(ports.stop)
                ports.start()
            return Opened(net, ports, programs)

        yield make


@pytest.mark.parametrize(("source", "threads"), [(COUNT, THREADS), (COUNT, 2), (COUNT, 1), (PLAIN, 1)])
def test_each_frame_runs_once(open_ports: Callable[..., Opened], source: str, threads: int) -> None:
    """On as many threads as the program has, some or all of those of the ports."""
    opened = open_ports(PortOptions(threads=THREADS))
    program = opened.run(source, threads)
    assert program.threads == threads
    each = 1000

    def send(raw: socket.socket) -> None:
        for turn in range(each):
            for number in range(NUMBERS):
                raw.send(frame(number))
            if turn % 10 == 0:
                raw.send(frame(turn, 0x88B7))

    opened.from_hosts(send)
    wait_until(lambda: opened.sent() >= HOSTS * each * NUMBERS, "the switch has sent all frames")
    numbers = program.register("numbers")
    assert [numbers[number] for number in range(NUMBERS)] == [HOSTS * each] * NUMBERS
    # The kernel sends packets too, of IPv6.
    wait_until(
        lambda: opened.received() == HOSTS * each * NUMBERS + program.counter("others")[0][0],
        "each frame is counted once",
    )
    assert program.counter("others")[0][0] >= HOSTS * each // 10


def test_frames_that_are_no_thread_s_are_thread_0_s(open_ports: Callable[..., Opened]) -> None:
    """Frames that end before the number, or that have a tag in front of it, are received once too."""
    opened = open_ports(PortOptions(threads=THREADS, offloads=False))
    program = opened.run(COUNT)
    tagged = frame(3)[:12] + struct.pack("!HH", 0x8100, 7) + frame(3)[12:]
    some = [frame(1, length=14), frame(1, length=15), frame(1, 0x0007), tagged, frame(2, 0x88B6), frame(9)]
    opened.from_hosts(lambda raw: [raw.send(data) for data in some])
    wait_until(lambda: opened.sent() >= HOSTS, "the frames with a number are sent")
    numbers = program.register("numbers")
    assert [numbers[number] for number in range(NUMBERS)] == [
        HOSTS * (number == 9) for number in range(NUMBERS)
    ]
    wait_until(
        lambda: opened.received() == HOSTS + program.counter("others")[0][0], "each frame is counted once"
    )
    assert program.counter("others")[0][0] >= 5 * HOSTS


def test_no_frame_runs_twice_while_programs_change(open_ports: Callable[..., Opened]) -> None:
    opened = open_ports(PortOptions(threads=THREADS))
    over = threading.Event()
    numbers = itertools.count()
    programs = [opened.run(COUNT)]

    def send(raw: socket.socket) -> None:
        while not over.is_set():
            number = next(numbers)
            raw.send(frame(number % 2**16)[:16] + struct.pack("!Q", number) + bytes(40))

    def has_sent(count: int) -> bool:
        return opened.sent() > count

    def change() -> None:
        for source, threads in [(PLAIN, 1), (COUNT, 4), (COUNT, 4), (COUNT, 2), (PLAIN, 1), (COUNT, 4)] * 2:
            before = opened.sent()
            programs.append(opened.run(source, threads))
            wait_until(partial(has_sent, before + 500), "frames run through the new program")
        over.set()

    with opened.net.packet_socket(2) as receiver:
        changer = threading.Thread(target=change)
        changer.start()
        opened.from_hosts(send)
        changer.join()
        found: Counter[bytes] = Counter()
        receiver.settimeout(1)
        with suppress(TimeoutError):
            while True:
                found[receiver.recv(2000)[16:24]] += 1
    assert len(found) > len(programs) * 500
    assert set(found.values()) == {1}


def test_packets_of_all_threads_reach_the_cpu_port(open_ports: Callable[..., Opened]) -> None:
    opened = open_ports(PortOptions(threads=THREADS, cpu_port=CPU_PORT))
    opened.run(COUNT.replace("egress_spec = 2", f"egress_spec = {CPU_PORT}"))
    opened.from_hosts(lambda raw: [raw.send(frame(number)) for number in range(NUMBERS)])
    taken = sorted(bytes(opened.ports.next_to_cpu() or b"") for _ in range(HOSTS * NUMBERS))
    assert taken == sorted(frame(number) for number in range(NUMBERS) for _ in range(HOSTS))
    assert opened.ports.to_cpu_drops() == 0


def test_captures_have_the_frames_of_all_threads(open_ports: Callable[..., Opened], tmp_path: Path) -> None:
    opened = open_ports(PortOptions(threads=THREADS, captures=tmp_path))
    opened.run(COUNT)
    opened.from_hosts(lambda raw: [raw.send(frame(number)) for number in range(200)])
    wait_until(lambda: opened.sent() >= HOSTS * 200, "the switch has sent all frames")
    opened.ports.stop()
    for port in range(1, HOSTS + 1):
        captured = rdpcap(str(tmp_path / f"port{port}_in.pcap"))
        numbered = [bytes(one) for one in captured if bytes(one)[12:14] == b"\x88\xb5"]
        assert sorted(numbered) == sorted(map(frame, range(200)))
        stamps = [one.time for one in captured]
        assert stamps == sorted(stamps)
    assert len(rdpcap(str(tmp_path / "port2_out.pcap"))) == HOSTS * 200


def test_each_thread_is_one_of_the_process(open_ports: Callable[..., Opened]) -> None:
    open_ports(PortOptions(threads=THREADS))
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert names.count("inagg-ports") == THREADS


def test_threads_suit_the_processors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for processors, suitable in [
        (1, 1),
        (2, 1),
        (7, 1),
        (8, 2),
        (16, 4),
        (24, 4),
        (31, 4),
        (32, 8),
        (128, 8),
    ]:
        monkeypatch.setattr("os.sched_getaffinity", lambda _, n=processors: set(range(n)))
        assert suitable_threads(20) == suitable
        assert suitable_threads(1) == 1
        assert suitable_threads(0) == 1
    caplog.set_level(logging.INFO)
    ports = Ports([], PortOptions(threads=None))
    ports.start()
    ports.stop()
    assert "threads: 1, of 128 processors" in caplog.messages


@pytest.mark.parametrize("threads", [0, 3, 65])
def test_a_number_of_threads_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(SwitchError, match=rf"{threads} threads: a switch has 1, 2, 4, ... 64"):
        Ports([PortSpec(1, "lo")], PortOptions(threads=threads))


def test_a_program_of_more_threads_than_ports_have_is_refused(network: MakeNetwork) -> None:
    net = network(1)
    with net.inside(net.switch), load(COUNT, 4) as program:
        ports = Ports([PortSpec(1, net.port_interface(1))], PortOptions(threads=2))
        with pytest.raises(PortError, match="a program of 4 threads: the ports have 2"):
            ports.set_program(program)
        ports.stop()


def test_ports_that_cannot_be_opened_for_a_later_thread_are_closed(
    network: MakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(1)
    made: list[PacketLoop] = []

    def open_one(*arguments: Any, **options: Any) -> PacketLoop:
        if made:
            raise OSError(errno.EMFILE, "port 1@port1: too many")
        made.append(PacketLoop(*arguments, **options))
        return made[0]

    monkeypatch.setattr("inagg_switch.ports.PacketLoop", open_one)
    with net.inside(net.switch), pytest.raises(PortError, match="port 1@port1: Too many open files"):
        Ports([PortSpec(1, net.port_interface(1))], PortOptions(threads=2))
    assert made[0].next_event() is None  # it has been stopped


def test_several_priority_queues_take_one_thread_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)))
    assert threads_of(PortOptions(threads=None), 20) == 8
    assert threads_of(PortOptions(threads=None, priority_queues=2), 20) == 1
    assert threads_of(PortOptions(threads=4), 20) == 4


def test_queues_with_limits_and_several_threads_exclude_each_other(open_ports: Callable[..., Opened]) -> None:
    opened = open_ports(PortOptions(threads=2))
    opened.run(COUNT, 2)
    with pytest.raises(PortError, match="need a program of one thread"):
        opened.ports.set_queue_rate(100)
    opened.run(PLAIN, 1)
    opened.ports.set_queue_rate(100_000)
    with pytest.raises(PortError, match="queues with limits need one"):
        opened.run(COUNT, 2)
