# SPDX-License-Identifier: Apache-2.0
"""Equal copies of a multicast leave once, through a device from which the kernel clones them to the ports."""

import json
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from inagg_switch import Switch
from inagg_switch.ports import PortOptions
from tests.switch.network import MakeNetwork, Network
from tests.switch.p4runtime.client import Connect
from tests.switch.ports.fan_out import (
    FAN_OUT_P4,
    OFTEN,
    Opened,
    devices_of,
    flood,
    kernel_counts,
    open_switch,
    receive,
    receive_until_last,
    start_switch,
)
from tests.switch.ports.frames import (
    CHANGE_4,
    CHANGE_ALL,
    CLONE_3,
    EVERYONE,
    IS_CLONE,
    LAST,
    SOURCE,
    TO_ONE,
    assorted,
    frame,
    numbered,
    one,
    rows,
    single,
    source,
    with_checksum,
)
from tests.switch.ports.segments import Offload
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

SOL_PACKET, PACKET_VNET_HDR = 263, 15
UDP_SEGMENT, UDP_GRO = 103, 104
GROUP, PORT = "239.0.0.9", 5009


class Open(Protocol):
    """Starts ports in a network with as many hosts, or in an existing one. macro: of the program."""

    def __call__(
        self, net: int | Network, options: PortOptions | None = None, *, macro: str = "", near: bool = False
    ) -> Opened: ...


@pytest.fixture(params=[1, 2], ids=lambda n: f"{n}threads")
def open_ports(network: MakeNetwork, request: pytest.FixtureRequest) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(
            net: int | Network, options: PortOptions | None = None, *, macro: str = "", near: bool = False
        ) -> Opened:
            defines = {macro: "1"} if macro else {}
            program = stack.enter_context(Switch.from_p4(FAN_OUT_P4, defines, threads=request.param))
            options = replace(options or PortOptions(), threads=request.param)
            return open_switch(stack, network(net) if isinstance(net, int) else net, program, options, near)

        yield make


def test_frames_are_those_that_each_port_would_send(open_ports: Open) -> None:
    sent = assorted(random.Random(1))
    net: int | Network = 3
    captured: list[list[list[bytes]]] = []
    for fan_out in (False, True):
        opened = open_ports(net, PortOptions(fan_out=fan_out))
        net = opened.net
        net.set_offloads(1, True)  # the host sends large frames, and the kernel cuts them behind the ports
        for port in (2, 3):
            net.run(net.switch, f"ethtool -K port{port} tx off tso off gso off tx-udp-segmentation off")
        if fan_out:
            opened.await_device()
        with ExitStack() as stack:
            raw, *receivers = (stack.enter_context(opened.packet_socket(number)) for number in (1, 2, 3))
            raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            for at in range(0, len(sent), 50):
                opened.send_burst(raw, [some.data for some in sent[at : at + 50]])
            raw.send(Offload().encode() + LAST)
            captured.append(
                [list(map(with_checksum, receive_until_last(receiver))) for receiver in receivers]
            )
        opened.ports.stop()
        assert opened.fan_out().packets > 1000 if fan_out else opened.fan_out().packets == 0
    packets = [with_checksum(packet) for some in sent for packet in some.packets]
    expected = [[data for data in packets if data[0] != TO_ONE or data[5] == number] for number in (2, 3)]
    assert captured[0] == expected
    assert captured[1] == expected


def test_a_large_datagram_is_one_frame_at_every_host(open_ports: Open) -> None:
    opened = open_ports(3)
    net = opened.net
    for number in (1, 2, 3):
        net.set_offloads(number, True)
    opened.await_device()
    before, payload = opened.fan_out().packets, random.Random(2).randbytes(30 * 1000 + 100)
    with ExitStack() as stack:
        receivers = [stack.enter_context(member(net, number)) for number in (2, 3)]
        with net.inside(net.host(1)):
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(net.ip(1)))
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 1000)
        sender.sendto(payload, (GROUP, PORT))
        for receiver in receivers:
            assert receiver.recv(70000) == payload
    wait_until(lambda: opened.fan_out().packets >= before + 31, "the packets to be counted")


def member(net: Network, number: int) -> socket.socket:
    """A socket of a host that has joined GROUP and takes large datagrams whole (UDP_GRO)."""
    with net.inside(net.host(number)):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((GROUP, PORT))
        membership = socket.inet_aton(GROUP) + socket.inet_aton(net.ip(number))
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    udp.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
    udp.settimeout(5)
    return udp


def test_multicasts_and_frames_to_one_port_stay_in_order(open_ports: Open) -> None:
    opened = open_ports(3)
    opened.await_device()
    before = opened.fan_out().packets
    to = [EVERYONE, one(2), one(3), EVERYONE, EVERYONE, one(3)] * 300
    sent = [numbered(number, dst) for number, dst in enumerate(to)]
    received = opened.multicast(sent, 2, 3)
    for number, frames in zip((2, 3), received, strict=True):
        assert frames == [data for data, dst in zip(sent, to, strict=True) if dst in (EVERYONE, one(number))]
    wait_until(lambda: opened.fan_out().packets >= before + 901, "the multicasts to be counted")


def test_a_clone_of_a_copy_stays_behind_it(open_ports: Open) -> None:
    opened = open_ports(3, macro="CLONES")
    opened.await_device()
    sent = [numbered(number, src=source(CLONE_3)) for number in range(500)]
    clones = [numbered(number, src=source(CLONE_3, IS_CLONE)) for number in range(500)]
    both = [data for pair in zip(sent, clones, strict=True) for data in pair]
    assert opened.multicast(sent, 2, 3) == [both, sent]


def test_copies_that_differ_are_not_merged(open_ports: Open) -> None:
    opened = open_ports(4)
    opened.await_device()
    sources = [SOURCE, source(CHANGE_ALL), source(CHANGE_4), source(CHANGE_ALL), SOURCE] * 200
    received = opened.multicast([numbered(k, src=src) for k, src in enumerate(sources)], 2, 3, 4)
    for number, frames in zip((2, 3, 4), received, strict=True):
        changed = {source(CHANGE_ALL), source(CHANGE_4)} if number == 4 else {source(CHANGE_ALL)}
        expected = [source(src[0], number) if src in changed else src for src in sources]
        assert frames == [numbered(k, src=src) for k, src in enumerate(expected)]


def test_two_copies_for_one_port_both_leave(open_ports: Open) -> None:
    opened = open_ports(3)
    opened.await_device()
    opened.program.multicast_group(1, [(2, 0), (3, 0), (2, 1)])
    sent = [numbered(number) for number in range(500)]
    assert opened.multicast(sent, 2, 3) == [[data for data in sent for _ in range(2)], sent]


def test_counters_are_those_of_frames_that_each_port_sends(open_ports: Open) -> None:
    opened = open_ports(3)
    net = opened.net
    net.set_offloads(1, True)
    probes = opened.await_device()
    sent = [*(single(frame(b"x" * size)) for size in range(46, 1486, 10)), *rows(10, 20)]
    with opened.packet_socket(1) as raw:
        raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        opened.send_burst(raw, [some.data for some in sent])
    packets = [packet for some in sent for packet in some.packets]
    total = {"tx_packets": probes + len(packets), "tx_bytes": 60 * probes + sum(map(len, packets))}
    wait_until(lambda: opened.counted(2) == opened.counted(3) == total, "the packets to be counted")
    for port in (2, 3):
        # The kernel counts a large frame once, with one header of 42 bytes.
        kernel = kernel_counts(net, f"port{port}", "tx")
        assert kernel["packets"] == probes + len(sent)
        assert kernel["bytes"] == total["tx_bytes"] - 42 * 19 * 10
        assert kernel["errors"] == kernel["dropped"] == 0
    # Probes use the device as soon as there is one.
    cloned = kernel_counts(net, "fan0", "rx")["packets"] - len(sent) + len(packets)
    wait_until(lambda: opened.fan_out().packets == cloned, "the cloned packets to be counted")


def test_a_shaped_port_drops_at_its_qdisc_and_delays_no_other(open_ports: Open) -> None:
    opened = open_ports(3)
    opened.await_device()
    opened.net.run(opened.net.switch, "tc qdisc add dev port2 root tbf rate 1mbit burst 5kb limit 10kb")
    sent = [numbered(number, size=1000) for number in range(500)]

    def qdisc() -> dict[str, int]:
        return dict(json.loads(opened.net.run(opened.net.switch, "tc -j -s qdisc show dev port2"))[0])

    with opened.packet_socket(2) as slow:
        assert opened.multicast(sent, 3) == [sent]
        wait_until(lambda: qdisc()["qlen"] == 0, "the queued frames to leave")
        passed = len(sent) + 1 - qdisc()["drops"]
        assert 0 < passed < 100
        received = [receive(slow) for _ in range(passed)]
    assert received == [data for data in [*sent, LAST] if data in received]
    assert opened.counted(2).keys() == {"tx_packets", "tx_bytes"}  # no drops
    assert opened.fan_out().devices == 1


def test_the_kernel_cuts_a_large_frame_for_a_shaped_port(open_ports: Open) -> None:
    opened = open_ports(3)
    opened.net.set_offloads(1, True)
    opened.await_device()
    opened.net.run(opened.net.switch, "tc qdisc add dev port2 root tbf rate 100mbit burst 5kb limit 1mb")
    sent = rows(5, 40)
    packets = [packet for some in sent for packet in some.packets]
    with opened.packet_socket(1) as raw, opened.packet_socket(2) as slow:
        raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        opened.send_burst(raw, [some.data for some in sent])
        received = [receive(slow) for _ in packets]
    # Without their checksums: on a veth pair the kernel does not finish those.
    assert [data[:40] + data[42:] for data in received] == [data[:40] + data[42:] for data in packets]


def test_a_frame_that_is_too_long_for_one_port_reaches_the_others(open_ports: Open) -> None:
    opened = open_ports(3)
    opened.await_device()
    opened.net.run(opened.net.switch, "ip link set port2 mtu 1000")
    sent = [numbered(number, size=size) for number, size in enumerate([1000, 1001] * 100)]
    assert opened.multicast(sent, 2, 3) == [sent[::2], sent]
    assert opened.counted(2)["tx_longer_than_mtu"] == 100


def test_a_port_that_goes_down_keeps_no_other_from_receiving(open_ports: Open) -> None:
    opened = open_ports(4)
    opened.await_device()
    sent = [numbered(number) for number in range(100)]
    assert opened.multicast(sent, 3, 4, then="ip link set port2 down") == [sent, sent]
    wait_until(lambda: not opened.ports.statistics()[1].up, "the port to be down")
    opened.net.run(opened.net.switch, "ip link set port2 up")
    opened.await_frame(2)
    before = opened.fan_out().packets
    assert opened.multicast(sent, 2, 3, 4) == [sent, sent, sent]
    wait_until(lambda: opened.fan_out().packets >= before + 101, "the frames to be cloned")


def test_a_port_that_is_removed_and_comes_back_is_in_another_device(open_ports: Open) -> None:
    opened = open_ports(4)
    opened.await_device()
    sent = [numbered(number) for number in range(100)]
    assert opened.multicast(sent, 3, 4, then="ip link delete port2") == [sent, sent]
    wait_until(lambda: devices_of(opened.net) == [], "the end of the device", timeout_s=5)
    opened.net.add_link(2)
    opened.await_frame(2)
    opened.await_device()
    before = opened.fan_out().packets
    assert opened.multicast(sent, 2, 3, 4) == [sent, sent, sent]
    wait_until(lambda: opened.fan_out().packets >= before + 101, "the frames to be cloned")


def test_a_device_that_refuses_frames_is_given_up(open_ports: Open) -> None:
    opened = open_ports(3)
    opened.await_device()
    opened.net.run(opened.net.switch, "ip link set fan0 down")
    opened.await_frame(2)
    assert opened.counted(2)["tx_error"] == opened.counted(3)["tx_error"] > 0
    sent = [numbered(number) for number in range(100)]
    assert opened.multicast(sent, 2, 3) == [sent, sent]
    wait_until(lambda: devices_of(opened.net) == [], "the end of the device", timeout_s=5)


def test_a_device_serves_more_ports_than_a_filter_has_actions(network: MakeNetwork, open_ports: Open) -> None:
    count = 40
    net = replace(network(0), hosts=count)  # pairs in one namespace
    commands = [
        f"link add port{n} up type veth peer name peer{n}\nlink set peer{n} up" for n in range(1, count + 1)
    ]
    batch = ["ip", "-n", net.switch, "-batch", "-"]
    subprocess.run(batch, input="\n".join(commands), text=True, check=True, timeout=60)
    opened = open_ports(net, near=True)
    opened.await_device()
    others = range(2, count + 1)
    for number in others:
        opened.await_frame(number)
    before = opened.fan_out().packets
    sent = [numbered(number) for number in range(20)]
    assert opened.multicast(sent, *others) == [sent] * len(others)
    wait_until(lambda: opened.fan_out().packets >= before + 21, "the frames to be cloned")


def test_devices_exist_only_while_ports_use_them(open_ports: Open) -> None:
    opened = open_ports(3)
    assert devices_of(opened.net) == []
    opened.await_device()
    assert devices_of(opened.net) == ["fan0"]
    filters = opened.net.run(opened.net.switch, "tc filter show dev fan0 ingress")
    assert [port for port in ("port1", "port2", "port3") if f"to device {port}" in filters] == [
        "port2",
        "port3",
    ]
    opened.ports.stop()
    assert devices_of(opened.net) == []


def test_a_killed_switch_leaves_no_device(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net = network(3)
    process = start_switch(net, switch_command, tmp_path, connect)
    flood(net, 2 * OFTEN)
    wait_until(lambda: devices_of(net) == ["fan0"], "a device")
    process.kill()
    process.wait(20)
    wait_until(lambda: devices_of(net) == [], "the end of the device")


def test_without_tc_each_port_sends_its_own_copy(
    open_ports: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = open_ports(3)
    monkeypatch.setenv("PATH", str(tmp_path))
    sent = [numbered(number) for number in range(2 * OFTEN)]
    assert opened.multicast(sent, 2, 3) == [sent, sent]
    wait_until(lambda: opened.fan_out().refusal, "the refusal")
    assert opened.multicast(sent, 2, 3) == [sent, sent]
    assert opened.fan_out().refusal == "tc is not installed (iproute2)"
    assert (opened.fan_out().devices, opened.fan_out().packets) == (0, 0)


def test_without_the_permission_each_port_sends_its_own_copy(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net, figures = network(3), tmp_path / "stats.json"
    command = ["setpriv", "--bounding-set=-net_admin", *switch_command]
    process = start_switch(net, command, tmp_path, connect, "--stats", str(figures))
    flood(net, 2 * OFTEN)
    assert process.stderr is not None
    while "each port sends its own copy of a multicast" not in (line := process.stderr.readline()):
        assert line
    flood(net)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    refusal = "TUNSETIFF: Operation not permitted"
    assert line.rstrip().endswith(refusal)
    assert json.loads(figures.read_text())["fan_out"] == {"devices": 0, "packets": 0, "refusal": refusal}
