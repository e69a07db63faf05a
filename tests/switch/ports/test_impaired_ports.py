# SPDX-License-Identifier: Apache-2.0
"""Ports with impairments between network namespaces, with a hub instead of a P4 program."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from inagg_switch.impairment import Impairment
from inagg_switch.ports import PortError, PortOptions, Ports, PortSpec
from tests.switch.network import MakeNetwork, Network
from tests.switch.ports.frames import ETHERTYPE, numbered, rows
from tests.switch.ports.hub import MakeHub
from tests.waiting import wait_until

pytestmark = pytest.mark.netns


@dataclass
class Opened:
    """Ports 1 to 3; host 1 sends to everyone, host 2 and 3 receive."""

    net: Network
    ports: Ports
    sender: socket.socket
    receivers: dict[int, socket.socket]

    def impair(self, port: int, direction: str, text: str | None) -> None:
        parsed = None if text is None else Impairment.parse(text)
        self.ports.impair(port, "in" if direction == "in" else "out", parsed)
        # What is sent later is impaired: the loop makes the change before it takes a frame that comes after this one.
        probe = numbered(0)
        before = self.ports.statistics()[2].rx_packets
        self.receivers[3].send(probe)
        wait_until(lambda: self.ports.statistics()[2].rx_packets > before, "a probe")

    def counted(self, port: int) -> dict[str, int]:
        return {name: count for name, count in self.ports.statistics()[port - 1].impaired.items() if count}

    def received(self, host: int, until: int) -> list[int]:
        """The numbers of the frames that a host receives, up to that of the last one."""
        found: list[int] = []
        while until not in found:
            data = self.receivers[host].recv(70000)
            if data[12:14] == struct.pack("!H", ETHERTYPE):
                found.append(int.from_bytes(data[14:18], "big"))
        return found


@pytest.fixture(params=[1, 2], ids=lambda n: f"{n}threads")
def opened(network: MakeNetwork, hub_program: MakeHub, request: pytest.FixtureRequest) -> Iterator[Opened]:
    net = network(3)
    with ExitStack() as stack:
        with net.inside(net.switch):
            options = replace(PortOptions(), threads=request.param)
            ports = Ports([PortSpec(n, net.port_interface(n)) for n in (1, 2, 3)], options)
            stack.callback(ports.stop)
            ports.set_program(hub_program([1, 2, 3]))
            ports.start()
        sender, *others = (stack.enter_context(net.packet_socket(n)) for n in (1, 2, 3))
        yield Opened(net, ports, sender, dict(enumerate(others, 2)))


def test_only_the_port_and_direction_are_impaired(opened: Opened) -> None:
    opened.impair(2, "out", "loss=50%")
    for number in range(1, 1001):
        opened.sender.send(numbered(number))
    opened.sender.send(numbered(9999))
    assert opened.received(3, 9999) == [*range(1, 1001), 9999]
    opened.impair(2, "out", None)
    opened.sender.send(numbered(10000))
    received = [n for n in opened.received(2, 10000) if n not in (0, 9999, 10000)]
    assert 400 < len(received) < 600
    assert received == sorted(received)
    assert opened.counted(2).keys() == {"tx_lost"}
    assert opened.counted(1) == opened.counted(3) == {}


def test_what_a_port_receives_is_impaired_for_all_receivers(opened: Opened) -> None:
    opened.impair(1, "in", "loss=50%,seed=5")
    for number in range(1, 1001):
        opened.sender.send(numbered(number))
    wait_until(lambda: opened.ports.statistics()[0].rx_packets >= 1000, "the frames")
    opened.impair(1, "in", None)
    opened.sender.send(numbered(10000))
    received = [[n for n in opened.received(host, 10000) if n] for host in (2, 3)]
    assert received[0] == received[1]
    assert len(received[0]) == 1001 - opened.counted(1)["rx_lost"]


@pytest.mark.parametrize(("port", "direction"), [(1, "in"), (2, "out")])
def test_a_delay_is_kept_to_a_millisecond(opened: Opened, port: int, direction: str) -> None:
    opened.impair(port, direction, "delay=20ms")
    delays = []
    for number in range(1, 42):
        began = time.monotonic()
        opened.sender.send(numbered(number))
        opened.received(2, number)
        delays.append(time.monotonic() - began)
    assert min(delays) >= 0.020
    assert min(delays) < 0.021  # a busy machine is late now and then


def test_packets_that_wait_go_on_when_the_impairment_ends(opened: Opened) -> None:
    opened.impair(2, "out", "delay=30s")
    for number in range(1, 101):
        opened.sender.send(numbered(number))
    opened.sender.send(numbered(9999))
    opened.received(3, 9999)
    opened.impair(2, "out", None)
    assert [n for n in opened.received(2, 9999) if n] == [*range(1, 101), 9999]


def test_packets_that_wait_keep_their_time_when_the_impairment_changes(opened: Opened) -> None:
    opened.impair(2, "out", "delay=100ms")
    opened.sender.send(numbered(1))
    opened.received(3, 1)
    opened.impair(2, "out", "delay=1ms")
    opened.sender.send(numbered(2))
    assert [n for n in opened.received(2, 1) if n] == [2, 1]


def test_a_large_frame_is_impaired_packet_by_packet(network: MakeNetwork, hub_program: MakeHub) -> None:
    net = network(2)
    (sent,) = rows(1, 40)
    with ExitStack() as stack:
        with net.inside(net.switch):
            ports = Ports([PortSpec(n, net.port_interface(n)) for n in (1, 2)])
            stack.callback(ports.stop)
            if not ports.has_offloads():
                pytest.skip("the kernel has no UDP segmentation for packet sockets")
            ports.impair(1, "in", Impairment.parse("loss=30%,corrupt=30%,seed=2"))
            ports.set_program(hub_program([1, 2]))
            ports.start()
        sender = stack.enter_context(net.packet_socket(1))
        sender.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
        sender.send(sent.data)
        wait_until(lambda: ports.statistics()[0].rx_packets >= 40, "the packets")
        counts = ports.statistics()[0].impaired
        assert 2 < counts["rx_lost"] < 25
        assert 2 < counts["rx_corrupted"] < 25
        wait_until(lambda: ports.statistics()[1].tx_packets >= 40 - counts["rx_lost"], "the rest")


def test_an_unknown_port_is_refused(opened: Opened) -> None:
    with pytest.raises(PortError, match="there is no port 7"):
        opened.ports.impair(7, "in", Impairment(loss=0.5))
    assert opened.ports.impairments() == {}
