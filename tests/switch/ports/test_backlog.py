# SPDX-License-Identifier: Apache-2.0
"""The lengths of queues that a program sees are those of the kernel, behind links shaped with tc."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.ports import PortOptions, Ports, PortSpec
from tests import INAGG_P4
from tests.switch.inagg.packets import Job, with_tos
from tests.switch.network import MakeNetwork, Network
from tests.switch.snippets import HEADERS, v1program
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

# From port 1 to port 2, or to ports 2 and 3. Keeps the length that a packet meets, by port and by the packet's number.
PROGRAM = v1program(
    """
    if (hdr.h.a == 2) { sm.egress_spec = 2; }
    else if (hdr.h.a == 3) { sm.mcast_grp = 1; }
    else { mark_to_drop(sm); }
    """,
    egress_locals="register<bit<32>>(1024) lengths;",
    egress="@stripe(0) { lengths.write((bit<32>) (sm.egress_port[1:0] ++ hdr.h.b), 13w0 ++ sm.deq_qdepth); }",
    headers=HEADERS.replace(
        "bit<8> a;", "@steer(1) bit<8> a;"
    ),  # of two threads, number 1 has TO_2 and TO_ALL
)
TO_2, TO_ALL = 2, 3
BYTES = 1000  # of a frame
SLOW = "tbf rate 80kbit burst 4000 limit 4000000"  # ten of these frames a second
UDP_SEGMENT = 103


def frame(number: int, to: int = TO_2) -> bytes:
    return struct.pack("!BB4x6sH", to, number, b"\x02\0\0\0\0\1", 0x88B5).ljust(BYTES, b"\0")


@dataclass
class Opened:
    net: Network
    ports: Ports
    program: Switch

    def length(self, number: int, port: int = 2) -> int:
        return self.program.register("lengths")[(port << 8) + number]

    def in_kernel(self, port: int = 2) -> tuple[int, int]:
        """Frames and bytes that wait, as tc tells."""
        shown = json.loads(self.net.run(self.net.switch, f"tc -s -j qdisc show dev port{port}"))
        return shown[0]["qlen"], shown[0]["backlog"]

    def sent(self, port: int = 2) -> int:
        return next(one.tx_packets for one in self.ports.statistics() if one.id == port)

    def send(self, raw: socket.socket, frames: list[bytes], port: int = 2) -> None:
        """Sends frames, and waits until the switch has handed them to the kernel."""
        after = self.sent(port) + len(frames)
        for data in frames:
            raw.send(data)
        wait_until(lambda: self.sent(port) >= after, "all frames are sent")

    def check_length_of(self, raw: socket.socket, number: int) -> None:
        """A further frame meets what tc shows."""
        before, _ = self.in_kernel()
        self.send(raw, [frame(number)])
        after, _ = self.in_kernel()
        # It drains meanwhile, and the last frame is in it.
        assert 0 < after - 1 <= self.length(number) <= before


Open = Callable[..., Opened]


@pytest.fixture(params=[1, 2], ids=lambda n: f"{n}threads")
def open_ports(network: MakeNetwork, request: pytest.FixtureRequest) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(hosts: int = 2, options: PortOptions | None = None, discipline: str = "") -> Opened:
            net = network(hosts)
            if discipline:
                net.run(net.switch, f"tc qdisc add dev port2 root {discipline}")
            text = preprocess_text(PROGRAM, "lengths.p4").text
            program = stack.enter_context(Switch.from_source(text, threads=request.param))
            program.multicast_group(1, [(port, port) for port in range(2, hosts + 1)])
            options = replace(options or PortOptions(), threads=request.param)
            with net.inside(net.switch):
                ports = Ports([PortSpec(n, net.port_interface(n)) for n in range(1, hosts + 1)], options)
                stack.callback(ports.stop)
                ports.set_program(program)
                ports.start()
            return Opened(net, ports, program)

        yield make


def test_a_packet_sees_what_tc_shows(open_ports: Open) -> None:
    opened = open_ports(discipline=SLOW)
    with opened.net.packet_socket(1) as raw:
        opened.send(raw, [frame(0)] * 60)
        opened.check_length_of(raw, 1)


def test_packets_of_a_burst_count_those_before_them(open_ports: Open) -> None:
    opened = open_ports(discipline=SLOW)
    with opened.net.packet_socket(1) as raw:
        opened.send(raw, [frame(0)] * 20)
        opened.send(raw, [frame(number) for number in range(60)])
        drained = 80 - opened.in_kernel()[0]
        for number in range(60):
            assert 20 + number - drained <= opened.length(number) <= 20 + number


def test_a_large_frame_counts_as_the_packets_in_it(open_ports: Open) -> None:
    opened = open_ports(discipline="tbf rate 80kbit burst 60000 limit 4000000")
    net = opened.net
    net.set_offloads(1, True)
    net.run(net.host(1), f"ip neigh add {net.ip(2)} lladdr {net.mac(2)} dev eth0")
    with net.packet_socket(1) as raw, net.inside(net.host(1)), socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, BYTES - 42)
        for _ in range(10):
            udp.sendto(bytes(40 * (BYTES - 42)), (net.ip(2), 9))
        wait_until(lambda: opened.sent() >= 400, "all packets are sent")
        frames, before = opened.in_kernel()
        opened.send(raw, [frame(1)])
        _, after = opened.in_kernel()
        assert (after - BYTES) // BYTES <= opened.length(1) <= before // BYTES
        assert opened.length(1) > 2 * frames


def test_frames_that_the_kernel_does_not_take_count_as_well(open_ports: Open) -> None:
    opened = open_ports(options=PortOptions(send_buffer_bytes=20_000), discipline=SLOW)
    with opened.net.packet_socket(1) as raw:
        for number in range(200):
            raw.send(frame(number))
        wait_until(lambda: opened.length(199) > 0, "the last packet has come")
        in_kernel, _ = opened.in_kernel()
        assert opened.length(199) > in_kernel
        assert 199 - opened.sent() <= opened.length(199) <= 199


def test_without_a_discipline_there_is_no_queue(open_ports: Open) -> None:
    opened = open_ports()
    with opened.net.packet_socket(1) as raw:
        opened.send(raw, [frame(number) for number in range(200)])
        assert [opened.length(number) for number in range(200)] == [0] * 200


def test_a_queue_that_has_drained_is_empty(open_ports: Open) -> None:
    opened = open_ports(discipline="tbf rate 8mbit burst 4000 limit 4000000")
    with opened.net.packet_socket(1) as raw:
        opened.send(raw, [frame(0)] * 200)
        wait_until(lambda: opened.in_kernel() == (0, 0), "an empty queue")
        opened.send(raw, [frame(1)])
        assert opened.length(1) == 0


def test_a_discipline_that_comes_later_is_noticed(open_ports: Open) -> None:
    opened = open_ports()
    with opened.net.packet_socket(1) as raw:
        opened.send(raw, [frame(0)] * 20)
        opened.net.run(opened.net.switch, f"tc qdisc add dev port2 root {SLOW}")
        opened.send(raw, [frame(0)] * 40)

        def seen() -> bool:
            opened.send(raw, [frame(1)])
            return opened.length(1) > 0

        wait_until(seen, "a length")
        opened.check_length_of(raw, 2)


def test_what_others_send_counts(open_ports: Open) -> None:
    opened = open_ports(discipline=SLOW)
    with opened.net.packet_socket(1) as raw, opened.net.inside(opened.net.switch):
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as other:
            other.bind(("port2", 0))
            for _ in range(30):
                other.send(frame(0))
        opened.check_length_of(raw, 1)


def test_copies_see_the_queues_of_their_ports_cloned_or_not(open_ports: Open) -> None:
    opened = open_ports(3, discipline=SLOW)
    with opened.net.packet_socket(1) as raw:
        # So many that the kernel clones the later ones.
        opened.send(raw, [frame(0, TO_ALL)] * 400)
        wait_until(lambda: opened.ports.fan_out().devices == 1, "a device")
        opened.send(raw, [frame(0, TO_ALL)] * 50)
        assert opened.ports.fan_out().packets > 0
        before, _ = opened.in_kernel()
        opened.send(raw, [frame(1, TO_ALL)])
        after, _ = opened.in_kernel()
        assert 400 < after - 1 <= opened.length(1) <= before
        assert opened.length(1, port=3) == 0


ECN_CAPABLE = 0b10


def test_inagg_marks_what_meets_a_shaped_link(network: MakeNetwork) -> None:
    net = network(1)
    net.run(net.switch, "tc qdisc add dev port1 root tbf rate 8kbit burst 2000 limit 1000000")
    with ExitStack() as stack:
        program = stack.enter_context(Switch.from_p4(INAGG_P4))
        job = Job(workers=1)
        job.install(program)
        with net.inside(net.switch):
            ports = Ports([PortSpec(job.port(0), "port1")])
            stack.callback(ports.stop)
            ports.set_program(program)
            ports.start()
        opened = Opened(net, ports, program)
        raw = stack.enter_context(net.packet_socket(1))
        # Each is answered, to the port that it comes by.
        queries = [with_tos(job.query(0, 0, number), ECN_CAPABLE) for number in range(200)]
        opened.send(raw, queries, port=job.port(0))
        assert program.counter("congestion_marked")[job.port(0)][0] == 0
        program.insert("mark_congestion.queue", {"port": job.port(0)}, "mark_beyond", {"packets": 100})
        opened.send(raw, queries[:1], port=job.port(0))
        assert opened.in_kernel(1)[0] > 101
        assert program.counter("congestion_marked")[job.port(0)][0] == 1
        program.modify("mark_congestion.queue", {"port": job.port(0)}, "mark_beyond", {"packets": 1000})
        opened.send(raw, queries[:1], port=job.port(0))
        assert program.counter("congestion_marked")[job.port(0)][0] == 1
