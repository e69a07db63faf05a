# SPDX-License-Identifier: Apache-2.0
"""The packet ports between network namespaces, with a hub instead of a P4 program."""

import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from inagg_switch.ports import PortError, PortOptions, Ports, PortSpec
from tests.switch.network import MakeNetwork, Network
from tests.switch.ports.hub import MakeHub
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

ETHERTYPE = 0x88B5  # local experimental


def frame(payload: bytes, ethertype: int = ETHERTYPE) -> bytes:
    return b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x01" + struct.pack("!H", ethertype) + payload


def receive(raw: socket.socket, ethertype: int = ETHERTYPE) -> bytes:
    """The next frame of `ethertype`. Frames that the kernel sends, such as ARP, are skipped."""
    while True:
        data = raw.recv(70000)
        if data[12:14] == struct.pack("!H", ethertype):
            return data


class OpenPorts(Protocol):
    """Makes a network with the given number of hosts, and starts ports with a hub in its switch."""

    def __call__(self, hosts: int, options: PortOptions | None = None) -> tuple[Network, Ports]: ...


@pytest.fixture(params=[1, 2, 4], ids=lambda n: f"{n}threads")
def open_ports(
    network: MakeNetwork, hub_program: MakeHub, request: pytest.FixtureRequest
) -> Iterator[OpenPorts]:
    opened: list[Ports] = []

    def make(hosts: int, options: PortOptions | None = None) -> tuple[Network, Ports]:
        net = network(hosts)
        options = replace(options or PortOptions(), threads=request.param)
        with net.inside(net.switch):
            ports = Ports([PortSpec(n, net.port_interface(n)) for n in range(1, hosts + 1)], options)
            opened.append(ports)
            ports.set_program(hub_program(list(range(1, hosts + 1))))
            ports.start()
        return net, ports

    yield make
    for ports in opened:
        ports.stop()


def drops(ports: Ports, port: int) -> dict[str, int]:
    statistics = {one.id: one for one in ports.statistics()}
    return {reason: count for reason, count in statistics[port].drops.items() if count}


def test_a_frame_reaches_the_other_hosts_and_not_its_sender(open_ports: OpenPorts) -> None:
    net, _ = open_ports(3)
    first, second, third = (net.packet_socket(n) for n in (1, 2, 3))
    with first, second, third:
        first.send(frame(b"one"))
        assert receive(second) == frame(b"one")
        assert receive(third) == frame(b"one")
        second.send(frame(b"two"))
        assert receive(first) == frame(b"two")


def test_many_frames_arrive_in_order_and_are_counted(open_ports: OpenPorts) -> None:
    net, ports = open_ports(2)
    with net.packet_socket(1) as sender, net.packet_socket(2) as receiver:
        for number in range(3000):
            sender.send(frame(struct.pack("!I", number) + bytes(1000)))
        for number in range(3000):
            assert receive(receiver) == frame(struct.pack("!I", number) + bytes(1000))
    wait_until(lambda: ports.statistics()[1].tx_packets >= 3000, "3000 frames counted")
    one, two = ports.statistics()
    assert one.rx_packets >= 3000
    assert one.rx_bytes >= 3000 * 1018
    assert two.tx_bytes >= 3000 * 1018
    assert drops(ports, 1) == {}
    assert drops(ports, 2) == {}


def test_ping_and_tcp_work_between_hosts(open_ports: OpenPorts) -> None:
    net, _ = open_ports(2)
    net.run(net.host(1), f"ping -c 3 -i 0.05 -W 2 {net.ip(2)}")
    with net.inside(net.host(2)):
        listener = socket.create_server((net.ip(2), 5000))
    with listener, net.inside(net.host(1)), socket.create_connection((net.ip(2), 5000), timeout=10) as client:
        server, _ = listener.accept()
        with server:
            server.settimeout(10)
            sent = bytes(range(256)) * 4096
            client.setblocking(False)
            got = bytearray()
            at = 0
            while len(got) < len(sent):
                with contextlib.suppress(BlockingIOError):
                    at += client.send(sent[at : at + 65536])
                if at > len(got):
                    got += server.recv(65536)
            assert bytes(got) == sent


def test_a_vlan_tag_is_kept(open_ports: OpenPorts) -> None:
    net, _ = open_ports(2)
    tagged = frame(struct.pack("!HH", 0x2064, ETHERTYPE) + b"tagged" + bytes(60), ethertype=0x8100)
    with net.packet_socket(1) as sender, net.packet_socket(2) as receiver:
        receiver.setsockopt(263, 8, 1)  # PACKET_AUXDATA: the host's kernel strips the tag as well
        sender.send(tagged)
        while True:
            data, controls, _, _ = receiver.recvmsg(2000, 100)
            if data[12:14] == struct.pack("!H", ETHERTYPE):
                break
        status, length, _, _, _, tci, tpid = struct.unpack("IIIHHHH", controls[0][2])
        assert data[14:] == b"tagged" + bytes(60)
        assert (tci, tpid) == (0x2064, 0x8100)
        assert status & 0x10  # TP_STATUS_VLAN_VALID
        assert length == len(tagged) - 4


def test_without_offloads_a_partial_checksum_is_dropped_counted_and_reported_once(
    open_ports: OpenPorts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="inagg_switch.ports")
    net, ports = open_ports(2, PortOptions(offloads=False))
    assert not ports.has_offloads()
    net.run(net.host(1), "ethtool -K eth0 tx on")
    net.run(net.host(1), f"ip neigh add {net.ip(2)} lladdr {net.mac(2)} dev eth0")
    with net.inside(net.host(1)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for _ in range(3):
            udp.sendto(b"x", (net.ip(2), 9))
    wait_until(lambda: drops(ports, 1) == {"rx_partial_checksum": 3}, "three drops")
    wait_until(lambda: "ethtool -K" in caplog.text, "a warning")
    assert caplog.text.count("ethtool -K") == 1


def test_without_offloads_a_large_frame_is_dropped_counted_and_reported_as_well(
    open_ports: OpenPorts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="inagg_switch.ports")
    net, ports = open_ports(2, PortOptions(offloads=False))
    net.run(net.host(1), "ethtool -K eth0 tx on gso on tx-udp-segmentation on")
    net.run(net.host(1), f"ip neigh add {net.ip(2)} lladdr {net.mac(2)} dev eth0")
    with net.inside(net.host(1)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"x", (net.ip(2), 9))
        udp.setsockopt(socket.SOL_UDP, 103, 1000)  # UDP_SEGMENT
        udp.sendto(bytes(4000), (net.ip(2), 9))
    wait_until(lambda: drops(ports, 1) == {"rx_partial_checksum": 1, "rx_longer_than_mtu": 1}, "the drops")
    wait_until(lambda: "a frame whose checksum is left to hardware" in caplog.text, "a warning")
    wait_until(lambda: "a frame of 4042 bytes, longer than the MTU of 1500" in caplog.text, "a warning")


def test_a_slow_port_drops_its_own_frames_and_delays_no_other(open_ports: OpenPorts) -> None:
    net, ports = open_ports(3, PortOptions(fan_out=False))  # a device does not know what a qdisc drops
    net.run(net.switch, "tc qdisc add dev port2 root tbf rate 8kbit burst 5kb limit 10kb")  # a frame a second
    with net.packet_socket(1) as sender, net.packet_socket(3) as fast:
        for number in range(500):
            sender.send(frame(struct.pack("!I", number) + bytes(1000)))
        for number in range(500):
            assert receive(fast) == frame(struct.pack("!I", number) + bytes(1000))
    wait_until(lambda: drops(ports, 2).get("tx_qdisc_full", 0) > 400, "drops at the shaped port")
    assert drops(ports, 3) == {}


def test_a_port_that_the_kernel_does_not_drain_drops_at_its_queue(open_ports: OpenPorts) -> None:
    # The send buffer is below the qdisc's limit, so the frames wait in the queue of the port, which is bounded.
    options = PortOptions(send_buffer_bytes=20_000, queue_frames=16)
    net, ports = open_ports(3, options)
    net.run(net.switch, "tc qdisc add dev port2 root tbf rate 200kbit burst 5kb limit 10mb")
    with net.packet_socket(1) as sender, net.packet_socket(2) as slow, net.packet_socket(3) as fast:
        for number in range(200):
            sender.send(frame(struct.pack("!I", number) + bytes(1000)))
        for number in range(200):
            assert receive(fast) == frame(struct.pack("!I", number) + bytes(1000))
        wait_until(lambda: drops(ports, 2).get("tx_queue_full", 0) > 100, "drops at the queue")
        # Queued frames leave in order when the kernel takes them.
        wait_until(
            lambda: ports.statistics()[1].tx_packets + drops(ports, 2)["tx_queue_full"] >= 200,
            "the queue's end",
        )
        numbers = [
            struct.unpack("!I", receive(slow)[14:18])[0] for _ in range(ports.statistics()[1].tx_packets)
        ]
    assert numbers == sorted(numbers)


def test_an_interface_that_goes_away_and_comes_back(
    open_ports: OpenPorts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="inagg_switch.ports")
    net, ports = open_ports(3)
    net.run(net.switch, "ip link delete port2")
    wait_until(lambda: "port 2@port2: the interface is gone" in caplog.text, "the report")
    assert [one.up for one in ports.statistics()] == [True, False, True]
    with net.packet_socket(1) as first, net.packet_socket(3) as third:
        first.send(frame(b"others go on"))
        assert receive(third) == frame(b"others go on")
    wait_until(lambda: drops(ports, 2).get("tx_port_down", 0) >= 1, "a counted drop")
    net.add_link(2)
    wait_until(lambda: all(one.up for one in ports.statistics()), "the port's return")
    with net.packet_socket(1) as first, net.packet_socket(2) as second:
        first.send(frame(b"back"))
        assert receive(second) == frame(b"back")


def test_an_interface_that_goes_down_and_up(open_ports: OpenPorts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="inagg_switch.ports")
    net, ports = open_ports(2)
    net.run(net.switch, "ip link set port1 down")
    wait_until(lambda: "port 1@port1: the interface is down" in caplog.text, "the report")
    net.run(net.switch, "ip link set port1 up")
    wait_until(lambda: ports.statistics()[0].up, "the port's return")
    with net.packet_socket(1) as first, net.packet_socket(2) as second:
        wait_until(lambda: not net_is_down(first), "the host's link")
        first.send(frame(b"again"))
        assert receive(second) == frame(b"again")


def net_is_down(raw: socket.socket) -> bool:
    try:
        raw.send(frame(b"probe", ethertype=0x88B6))
    except OSError as error:
        return error.errno == errno.ENETDOWN
    return False


def test_the_program_is_replaced_while_traffic_runs(open_ports: OpenPorts, hub_program: MakeHub) -> None:
    net, ports = open_ports(3)
    to_second, to_third = hub_program([1, 2]), hub_program([1, 3])
    with net.packet_socket(1) as sender, net.packet_socket(2) as second, net.packet_socket(3) as third:
        for round_number in range(20):
            payload = frame(b"round %d" % round_number)
            ports.set_program(to_second)
            sender.send(payload)
            assert receive(second) == payload
            ports.set_program(to_third)
            sender.send(payload)
            assert receive(third) == payload


def test_a_port_number_without_a_port_is_counted_and_logged_once(
    open_ports: OpenPorts, hub_program: MakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    net, ports = open_ports(2)
    ports.set_program(hub_program([1, 77]))
    with net.packet_socket(1) as sender:
        for _ in range(3):
            sender.send(frame(b"nowhere"))
        wait_until(lambda: ports.unknown_port_drops() >= 3, "counted drops")
    wait_until(lambda: "port 77 does not exist: a packet" in caplog.text, "a line in the log")
    assert caplog.text.count("port 77 does not exist") == 1


@pytest.mark.parametrize("cpu_port", [None, 510])
def test_port_0_is_a_port_like_others(
    network: MakeNetwork, hub_program: MakeHub, cpu_port: int | None
) -> None:
    net = network(2)
    with net.inside(net.switch):
        ports = Ports([PortSpec.parse("0@port1"), PortSpec(2, "port2")], PortOptions(cpu_port=cpu_port))
        ports.set_program(hub_program([0, 2]))
        ports.start()
    try:
        with net.packet_socket(1) as first, net.packet_socket(2) as second:
            first.send(frame(b"one"))
            assert receive(second) == frame(b"one")
            second.send(frame(b"two"))
            assert receive(first) == frame(b"two")
        wait_until(
            lambda: {one.id: one.tx_packets >= 1 for one in ports.statistics()} == {0: True, 2: True},
            "counts",
        )
    finally:
        ports.stop()


def test_without_a_program_frames_are_counted_and_dropped(network: MakeNetwork) -> None:
    net = network(1)
    with net.inside(net.switch):
        ports = Ports([PortSpec(1, "port1")])
        ports.start()
    with net.packet_socket(1) as sender:
        sender.send(frame(b"early"))
    wait_until(lambda: drops(ports, 1).get("rx_no_program", 0) >= 1, "a counted drop")
    ports.stop()


def test_a_missing_interface_is_an_error_that_names_it(network: MakeNetwork) -> None:
    net = network(1)
    with (
        net.inside(net.switch),
        pytest.raises(PortError, match=r"port 2@nothere: there is no such interface"),
    ):
        Ports([PortSpec(1, "port1"), PortSpec(2, "nothere")])


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (PortSpec(1, "port2"), "port 1@port2: the id is given twice"),
        (PortSpec(2, "port1"), "port 2@port1: the interface is port 1 already"),
    ],
)
def test_an_id_or_interface_given_twice_is_an_error(
    network: MakeNetwork, second: PortSpec, reason: str
) -> None:
    net = network(2)
    with net.inside(net.switch), pytest.raises(PortError, match=reason):
        Ports([PortSpec(1, "port1"), second])
