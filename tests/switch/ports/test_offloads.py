# SPDX-License-Identifier: Apache-2.0
"""Frames with segmentation and checksum offloads through the switch, between hosts that use them."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from inagg_switch.ports import PortOptions, Ports, PortSpec
from tests.switch.network import MakeNetwork, Network
from tests.switch.ports.hub import MakeHub
from tests.switch.ports.segments import TCP, UDP, Packet
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

UDP_SEGMENT, UDP_GRO = 103, 104
SOL_UDP = socket.SOL_UDP


def drops(ports: Ports) -> dict[int, dict[str, int]]:
    counted = {one.id: {k: v for k, v in one.drops.items() if v} for one in ports.statistics()}
    return {port: reasons for port, reasons in counted.items() if reasons}


class OpenPorts(Protocol):
    """Makes two hosts that use offloads and know each other's addresses, and starts ports with a hub."""

    def __call__(self, options: PortOptions | None = None) -> tuple[Network, Ports]: ...


@pytest.fixture
def open_ports(network: MakeNetwork, hub_program: MakeHub) -> Iterator[OpenPorts]:
    opened: list[Ports] = []

    def make(options: PortOptions | None = None) -> tuple[Network, Ports]:
        net = network(2)
        for one, other in ((1, 2), (2, 1)):
            net.set_offloads(one, True)
            net.run(net.host(one), f"ip neigh add {net.ip(other)} lladdr {net.mac(other)} dev eth0")
        with net.inside(net.switch):
            opened.append(Ports([PortSpec(n, net.port_interface(n)) for n in (1, 2)], options))
            opened[-1].set_program(hub_program([1, 2]))
            opened[-1].start()
        return net, opened[-1]

    yield make
    for ports in opened:
        ports.stop()


def add_ipv6(net: Network) -> None:
    for one, other in ((1, 2), (2, 1)):
        host = net.host(one)
        net.run(host, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0")
        net.run(host, f"ip address add fd00::{one}/64 dev eth0 nodad")
        net.run(host, f"ip -6 neigh add fd00::{other} lladdr {net.mac(other)} dev eth0")


def add_vlan(net: Network, proto: str = "802.1Q") -> None:
    for one, other in ((1, 2), (2, 1)):
        host = net.host(one)
        command = f"ip -n {host} link add link eth0 name tagged type vlan proto {proto} id 7"
        if subprocess.run(command.split(), capture_output=True).returncode != 0:
            pytest.skip("this kernel has no VLAN interfaces (8021q)")
        net.run(host, "ip link set tagged up")
        net.run(host, f"ip address add 10.7.0.{one}/24 dev tagged")
        net.run(host, f"ip neigh add 10.7.0.{other} lladdr {net.mac(other)} dev tagged")


def udp_socket(net: Network, number: int, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with net.inside(net.host(number)):
        udp = socket.socket(family, socket.SOCK_DGRAM)
        udp.bind((address, 0))
    # SO_RCVBUFFORCE. Set before anything is sent: the kernel drops what does not fit.
    udp.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
    udp.settimeout(10)
    return udp


def receive_datagrams(udp: socket.socket, count: int) -> tuple[list[bytes], int]:
    """The next `count` datagrams, and the largest number that the kernel delivered as one. Those are taken apart."""
    udp.setsockopt(SOL_UDP, UDP_GRO, 1)
    datagrams: list[bytes] = []
    most = 0
    while len(datagrams) < count:
        data, controls, _, _ = udp.recvmsg(70000, 100)
        sizes = [struct.unpack("i", c[2][:4])[0] for c in controls if c[:2] == (SOL_UDP, UDP_GRO)]
        size = sizes[0] if sizes else len(data)
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        most = max(most, len(parts))
        datagrams += parts
    return datagrams, most


def send_segments(udp: socket.socket, address: tuple[str, int], payload: bytes, size: int) -> list[bytes]:
    """Sends `payload` with one system call (UDP_SEGMENT), and returns the datagrams that the kernel makes of it."""
    udp.setsockopt(SOL_UDP, UDP_SEGMENT, size)
    udp.sendto(payload, address)
    return [payload[i : i + size] for i in range(0, len(payload), size)]


@pytest.mark.parametrize("size", [1, 7, 1000, 1024, 1472])
@pytest.mark.parametrize("odd", [0, 5])
def test_a_large_udp_datagram_arrives_whole(open_ports: OpenPorts, size: int, odd: int) -> None:
    net, ports = open_ports()
    with udp_socket(net, 1, net.ip(1)) as sender, udp_socket(net, 2, net.ip(2)) as receiver:
        receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
        payload = os.urandom(min(40, 60000 // size) * size + min(odd, size - 1))
        sent = send_segments(sender, receiver.getsockname(), payload, size)
        received, most = receive_datagrams(receiver, len(sent))
    assert received == sent
    assert most == len(sent)  # one frame on the whole way
    assert drops(ports) == {}
    assert ports.statistics()[0].rx_packets >= len(sent)
    # Packets arrive before the system call that sends them returns. They are counted after it.
    wait_until(lambda: ports.statistics()[1].tx_packets >= len(sent), "the packets to be counted")


@pytest.mark.parametrize("kind", ["ipv6", "vlan", "802.1ad"])
def test_a_large_datagram_arrives_with_other_headers(open_ports: OpenPorts, kind: str) -> None:
    net, ports = open_ports()
    if kind == "ipv6":
        add_ipv6(net)
        names = ["fd00::1", "fd00::2"]
    else:
        add_vlan(net, "802.1ad" if kind == "802.1ad" else "802.1Q")
        names = ["10.7.0.1", "10.7.0.2"]
    with udp_socket(net, 1, names[0]) as sender, udp_socket(net, 2, names[1]) as receiver:
        sent = send_segments(sender, receiver.getsockname(), os.urandom(30_011), 1000)
        received, _ = receive_datagrams(receiver, len(sent))
    assert received == sent
    assert drops(ports) == {}


@pytest.mark.parametrize("tags", [((0x8100, 7),), ((0x88A8, 9), (0x8100, 0x2003))])
@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_a_large_frame_with_vlan_tags(
    open_ports: OpenPorts, tags: tuple[tuple[int, int], ...], protocol: int
) -> None:
    """The kernel takes the outer tag off a frame from a packet socket. The offsets of its offload then lack it too."""
    net, _ = open_ports()
    with net.inside(net.host(1)):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sender.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
        sender.bind(("eth0", 0))
    packets = [
        Packet(bytes([k]) * 100, protocol=protocol, tags=tags, identification=k + 1, sequence=1 + 100 * k)
        for k in range(5)
    ]
    offload, frame = replace(packets[0], payload=b"".join(one.payload for one in packets)).large(100)
    with sender, net.packet_socket(2) as receiver:
        receiver.setsockopt(263, 8, 1)  # PACKET_AUXDATA
        sender.send(offload.encode() + frame)
        received: list[bytes] = []
        while len(received) < len(packets):
            data, controls, _, _ = receiver.recvmsg(70000, 100)
            status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", controls[0][2])
            if status & 0x10:  # TP_STATUS_VLAN_VALID
                received.append(data[:12] + struct.pack("!HH", tpid, tci) + data[12:])
    assert received == [one.encode() for one in packets]


def transfer(net: Network, source: str, target: str, amount: int) -> None:
    """Sends `amount` bytes over TCP in both directions at once, and compares them."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    with net.inside(net.host(2)):
        listener = socket.create_server((target, 0), family=family)
    with contextlib.ExitStack() as stack:
        stack.enter_context(listener)
        with net.inside(net.host(1)):
            client = stack.enter_context(socket.create_connection(listener.getsockname()[:2], 10))
        server, _ = listener.accept()
        stack.enter_context(server)
        payloads = {client: os.urandom(amount), server: os.urandom(amount)}
        for end in payloads:
            end.settimeout(60)
        senders = [threading.Thread(target=end.sendall, args=(data,)) for end, data in payloads.items()]
        got = {client: bytearray(), server: bytearray()}

        def read(end: socket.socket) -> None:
            while len(got[end]) < amount and (data := end.recv(1 << 18)):
                got[end] += data

        threads = [*senders, *(threading.Thread(target=read, args=(end,)) for end in got)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bytes(got[server]) == payloads[client]
        assert bytes(got[client]) == payloads[server]


@pytest.mark.parametrize("kind", ["ipv4", "ipv6", "vlan"])
def test_tcp_with_offloads_at_both_ends(open_ports: OpenPorts, kind: str) -> None:
    net, ports = open_ports()
    names = {"ipv4": (net.ip(1), net.ip(2)), "ipv6": ("fd00::1", "fd00::2"), "vlan": ("10.7.0.1", "10.7.0.2")}
    if kind == "ipv6":
        add_ipv6(net)
    if kind == "vlan":
        add_vlan(net)
    transfer(net, *names[kind], amount=20_000_000)
    reasons = {reason for counted in drops(ports).values() for reason in counted}
    assert reasons <= {"tx_qdisc_full"}  # the backlog of a socket may overflow; TCP retransmits
    if kind != "vlan":
        # Segments leave in large frames; half of the frames are acknowledgements.
        received = json.loads(net.run(net.host(2), "ip -j -s link show eth0"))[0]["stats64"]["rx"]
        assert received["bytes"] / received["packets"] > 3 * 1514


@pytest.mark.parametrize("discipline", ["tbf rate 100mbit burst 5kb limit 1mb", "htb default 1"])
def test_a_shaped_port_loses_and_cuts_nothing(open_ports: OpenPorts, discipline: str) -> None:
    """Frames larger than the bucket: the kernel cuts them for tbf, and htb lets them borrow."""
    net, ports = open_ports()
    net.run(net.switch, f"tc qdisc add dev port2 root handle 1: {discipline}")
    if discipline.startswith("htb"):
        net.run(net.switch, "tc class add dev port2 parent 1: classid 1:1 htb rate 100mbit burst 5kb")
    with udp_socket(net, 1, net.ip(1)) as sender, udp_socket(net, 2, net.ip(2)) as receiver:
        sent = []
        for _ in range(10):
            sent += send_segments(sender, receiver.getsockname(), os.urandom(50_021), 1024)
        received, _ = receive_datagrams(receiver, len(sent))
    assert received == sent
    assert drops(ports) == {}


def test_the_switch_command_has_an_option_for_offloads(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> None:
    net = network(2)
    net.set_offloads(1, True)
    net.run(net.host(1), f"ip neigh add {net.ip(2)} lladdr {net.mac(2)} dev eth0")
    for option, reason in (("--offloads", "rx_no_program"), ("--no-offloads", "rx_longer_than_mtu")):
        figures = tmp_path / f"{option}.json"
        arguments = ["run", *net.port_arguments, "--grpc", f"unix:{tmp_path}/s.sock", "--stats", str(figures)]
        process = net.start_and_wait(net.switch, *switch_command, *arguments, option)
        with udp_socket(net, 1, net.ip(1)) as sender:
            send_segments(sender, (net.ip(2), 9), bytes(4000), 1000)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        counted = json.loads(figures.read_text())["ports"][0]["drops"]
        assert counted[reason] == (4 if option == "--offloads" else 1)
