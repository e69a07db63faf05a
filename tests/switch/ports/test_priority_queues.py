# SPDX-License-Identifier: Apache-2.0
"""Queues by priority: which packet leaves first, at what rate, and how many may wait."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.ports import PortError, PortOptions, Ports, PortSpec
from tests.switch.network import MakeNetwork, Network
from tests.switch.snippets import v1program
from tests.waiting import wait_until

# From port 1 to port 2. A frame begins with its priority and its number.
PROGRAM = v1program(
    "sm.egress_spec = 2; sm.priority = (bit<3>) hdr.h.a;",
    egress_locals="register<bit<32>>(256) lengths;",
    egress="lengths.write((bit<32>) hdr.h.b, 13w0 ++ sm.deq_qdepth);",
)
BYTES = 1000  # of a frame


def frame(priority: int, number: int) -> bytes:
    return struct.pack("!BB10sH", priority, number, bytes(10), 0x88B5).ljust(BYTES, b"\0")


@dataclass
class Opened:
    net: Network
    ports: Ports
    program: Switch

    def drops(self, reason: str) -> int:
        return next(one.drops[reason] for one in self.ports.statistics() if one.id == 2)

    def send(self, frames: list[bytes]) -> None:
        """Send frames into port 1, and wait until the switch has received them."""
        with self.net.packet_socket(1) as raw:
            before = self.received()
            for one in frames:
                raw.send(one)
            wait_until(lambda: self.received() >= before + len(frames), "the switch has the frames")

    def received(self) -> int:
        return next(one.rx_packets for one in self.ports.statistics() if one.id == 1)


Open = Callable[..., Opened]


def next_number(raw: socket.socket) -> tuple[int, int]:
    """Priority and number of the next of our frames."""
    while True:
        got = raw.recv(2 * BYTES)
        if got[12:14] == b"\x88\xb5":
            return got[0], got[1]


@pytest.fixture
def open_ports(network: MakeNetwork) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(options: PortOptions) -> Opened:
            net = network(2)
            program = stack.enter_context(Switch.from_source(preprocess_text(PROGRAM, "queues.p4").text))
            with net.inside(net.switch):
                ports = Ports([PortSpec(n, net.port_interface(n)) for n in (1, 2)], options)
                stack.callback(ports.stop)
                ports.set_program(program)
                ports.start()
            return Opened(net, ports, program)

        yield make


PRIORITIES = (0, 3, 7)


@pytest.mark.netns
def test_packets_of_a_higher_priority_overtake_those_that_wait(open_ports: Open) -> None:
    opened = open_ports(PortOptions(priority_queues=8))
    opened.ports.set_queue_rate(1)
    with opened.net.packet_socket(2) as out:
        opened.send([frame(priority, 0) for priority in PRIORITIES])  # these leave at once
        sent = [(priority, n) for priority in PRIORITIES for n in range(1, 20)]
        opened.send([frame(*one) for one in sent])
        opened.ports.set_queue_rate(0)
        arrived = [next_number(out) for _ in range(3 + len(sent))]
    # The first of them may have left by the rate, one a second.
    waited = [one for one in arrived if one[1] > 9]
    assert waited == sorted(waited, key=lambda one: (-one[0], one[1]))
    assert sorted(arrived) == sorted([*sent, *((priority, 0) for priority in PRIORITIES)])


@pytest.mark.netns
def test_a_queue_sends_at_its_rate_and_others_as_before(open_ports: Open) -> None:
    opened = open_ports(PortOptions(priority_queues=2))
    opened.ports.set_queue_rate(10, 2, 0)
    with opened.net.packet_socket(2) as out:
        begin = time.monotonic()
        opened.send([frame(0, n) for n in range(10)])
        opened.send([frame(1, 0)])
        arrived = [next_number(out) for _ in range(11)]
        took = time.monotonic() - begin
    assert arrived.index((1, 0)) < 9  # it waited for none of the others
    assert [n for priority, n in arrived if priority == 0] == list(range(10))
    assert took >= 0.9  # 9 gaps of 0.1 s
    assert opened.drops("tx_queue_full") == 0


@pytest.mark.netns
def test_a_queue_holds_as_many_packets_as_its_depth(open_ports: Open) -> None:
    opened = open_ports(PortOptions(priority_queues=2))
    opened.ports.set_queue_rate(1)
    opened.ports.set_queue_depth(3, 2, 0)
    with opened.net.packet_socket(2) as out:
        opened.send([frame(0, n) for n in range(12)])
        opened.send([frame(1, n) for n in range(12)])
        dropped = opened.drops("tx_queue_full")
        opened.ports.set_queue_rate(0)
        arrived = [next_number(out) for _ in range(24 - dropped)]
    low = [n for priority, n in arrived if priority == 0]
    assert low[:4] == [0, 1, 2, 3]  # the first leaves at once, three wait
    assert len(low) == 12 - dropped
    assert dropped >= 5  # more than 12 - 1 - 3 - 3 s
    assert [n for priority, n in arrived if priority == 1] == list(range(12))


@pytest.mark.netns
def test_programs_see_the_packets_that_a_rate_holds(open_ports: Open) -> None:
    opened = open_ports(PortOptions())
    opened.ports.set_queue_rate(1)
    opened.send([frame(0, n) for n in range(8)])
    wait_until(lambda: opened.received() >= 8, "the frames are there")
    opened.send([frame(0, 8)])
    assert opened.program.register("lengths")[8] >= 4


def test_a_packet_without_a_queue_is_dropped() -> None:
    with Switch.from_source(preprocess_text(PROGRAM, "queues.p4").text) as switch:
        assert [bool(switch.process(1, frame(priority, 0))) for priority in (0, 1, 7)] == [True, False, False]
        with switch.locked() as (api, handle):
            api.priority_queues(handle, 2)
        assert [bool(switch.process(1, frame(priority, 0))) for priority in (0, 1, 7)] == [True, True, False]


@pytest.mark.parametrize("queues", [0, 9])
def test_priority_has_three_bits(queues: int) -> None:
    with pytest.raises(PortError, match="1 to 8"):
        Ports([], PortOptions(priority_queues=queues))


@pytest.mark.netns
def test_queues_that_do_not_exist_are_refused(open_ports: Open, network: MakeNetwork) -> None:
    opened = open_ports(PortOptions(priority_queues=2))
    with pytest.raises(PortError, match="no port 3"):
        opened.ports.set_queue_rate(1, 3)
    with pytest.raises(PortError, match="--priority-queues 2"):
        opened.ports.set_queue_depth(1, 2, 2)
    net = network(2)
    specs = [PortSpec(n, net.port_interface(n)) for n in (1, 2)]
    with net.inside(net.switch), pytest.raises(PortError, match="one thread"):
        Ports(specs, PortOptions(priority_queues=2, threads=2))
