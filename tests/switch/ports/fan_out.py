# SPDX-License-Identifier: Apache-2.0
"""Switches whose ports clone multicasts: started in this process with a small program, or as a process."""

import json
import socket
import struct
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.ports import FanOutStatistics, PortOptions, Ports, PortSpec
from tests import INAGG_P4
from tests.switch.network import Network
from tests.switch.p4runtime.client import Connect, group, insert
from tests.switch.ports.frames import LAST, PROBE, PROBE_FRAME, numbered
from tests.waiting import wait_until

OFTEN = 300  # multicasts at once that are enough for a device
FAN_OUT_P4 = Path(__file__).with_name("fan_out.p4")


def packet_socket(net: Network, namespace: str, interface: str = "eth0") -> socket.socket:
    """A socket for receive()."""
    with net.inside(namespace):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
        raw.setsockopt(263, 8, 1)  # PACKET_AUXDATA
        raw.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: a test may read long after it sends
        raw.bind((interface, 3))  # ETH_P_ALL
    raw.settimeout(5)
    return raw


def receive(raw: socket.socket) -> bytes:
    """The next frame that is no PROBE, with its VLAN tag."""
    while True:
        data, controls, _, _ = raw.recvmsg(70000, 100)
        status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", controls[0][2])
        if status & 0x10:  # TP_STATUS_VLAN_VALID: the kernel has taken the tag off
            data = data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
        if data[12:14] != struct.pack("!H", PROBE):
            return data


def receive_until_last(raw: socket.socket) -> list[bytes]:
    """The frames before LAST."""
    return list(iter(lambda: receive(raw), LAST))


@dataclass
class Opened:
    """Started ports and their program, between hosts in namespaces; with `near`, in the switch's namespace too."""

    net: Network
    ports: Ports
    program: Switch
    near: bool

    def packet_socket(self, number: int) -> socket.socket:
        """A packet socket on a host's interface."""
        if self.near:
            return packet_socket(self.net, self.net.switch, f"peer{number}")
        return packet_socket(self.net, self.net.host(number))

    def fan_out(self) -> FanOutStatistics:
        return self.ports.fan_out()

    def counted(self, port: int) -> dict[str, int]:
        """A port's counts that are not 0: packets and bytes, and drops by reason."""
        found = next(one for one in self.ports.statistics() if one.id == port)
        counts = {
            name: getattr(found, name) for name in ("rx_packets", "tx_packets", "tx_bytes")
        } | found.drops
        return {name: count for name, count in counts.items() if count}

    def await_device(self) -> int:
        """Multicasts PROBE frames from host 1 until the other ports have a device; returns how many."""
        before, count = self.counted(1).get("rx_packets", 0), 0
        with self.packet_socket(1) as raw:

            def is_made() -> bool:
                nonlocal count
                for _ in range(OFTEN):
                    raw.send(PROBE_FRAME)
                count += OFTEN
                wait_until(lambda: self.counted(1).get("rx_packets", 0) >= before + count, "the probes")
                return self.fan_out().devices > 0 or self.fan_out().refusal is not None

            wait_until(is_made, "a device")
        if (refusal := self.fan_out().refusal) is not None:
            skip_unless_kernel_clones(self.net)
            pytest.fail(refusal)
        return count

    def await_frame(self, number: int) -> None:
        """Multicasts PROBE frames from host 1 until a host gets one: its port is up."""
        with self.packet_socket(1) as raw, self.packet_socket(number) as receiver:
            receiver.setblocking(False)

            def arrives() -> bool:
                raw.send(PROBE_FRAME)
                try:
                    return bool(receiver.recv(100))
                except BlockingIOError:
                    return False

            wait_until(arrives, f"a frame at host {number}")

    def send_burst(self, raw: socket.socket, frames: Sequence[bytes], then: str = "") -> None:
        """Sends frames while the program is locked, so that the loop finds all but the first as one burst. then: a
        command in the switch's namespace, before the loop continues."""
        with self.program.locked():
            for data in frames:
                raw.send(data)
            if then:
                self.net.run(self.net.switch, then)

    def multicast(self, frames: Sequence[bytes], *to: int, then: str = "") -> list[list[bytes]]:
        """Sends a burst and LAST from host 1; returns what other hosts receive before LAST. then: see send_burst()."""
        with ExitStack() as stack:
            raw, *receivers = (stack.enter_context(self.packet_socket(number)) for number in (1, *to))
            self.send_burst(raw, [*frames, LAST], then)
            return [receive_until_last(receiver) for receiver in receivers]


def open_switch(
    stack: ExitStack, net: Network, program: Switch, options: PortOptions | None, near: bool = False
) -> Opened:
    """Ports 1 to the number of hosts, in use until the stack is closed."""
    numbers = range(1, net.hosts + 1)
    program.multicast_group(1, [(number, 0) for number in numbers])
    program.clone_session(7, [(2, 0)])
    with net.inside(net.switch):
        ports = Ports([PortSpec(number, net.port_interface(number)) for number in numbers], options)
        stack.callback(ports.stop)
        ports.set_program(program)
        ports.start()
    return Opened(net, ports, program, near)


def start_switch(
    net: Network,
    command: list[str],
    folder: Path,
    connect: Connect,
    *options: str,
    program: Path = INAGG_P4,
) -> subprocess.Popen[str]:
    """The process `inagg-switch run` with a program that floods broadcasts."""
    address = f"unix:{folder}/s.sock"
    arguments = ["run", str(program), *net.port_arguments, "--grpc", address, *options]
    process = net.start_and_wait(net.switch, *command, *arguments)
    lead = connect(address)
    lead.arbitrate()
    lead.next()
    lead.write(insert(group(1, *((number, 0) for number in range(1, net.hosts + 1)))))
    return process


def flood(net: Network, count: int = OFTEN) -> None:
    """Sends broadcasts from host 1, and waits until host 2 has received them."""
    with packet_socket(net, net.host(1)) as raw, packet_socket(net, net.host(2)) as receiver:
        for number in range(count):
            raw.send(numbered(number))
        for number in range(count):
            assert receive(receiver) == numbered(number)


def skip_unless_kernel_clones(net: Network) -> None:
    """Skips the test if the kernel has no TAP devices, or not the parts of tc that pass frames on."""
    for command in (
        "ip tuntap add dev probe mode tap",
        "tc qdisc add dev lo clsact",
        "tc filter add dev lo ingress protocol all u32 match u32 0 0 action mirred egress redirect dev lo",
    ):
        run = ["ip", "netns", "exec", net.switch, *command.split()]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            pytest.skip(f"this kernel does not clone multicasts: {command}: {done.stderr.strip()}")


def devices_of(net: Network) -> list[str]:
    """The fan-out devices in the switch's namespace."""
    links = json.loads(net.run(net.switch, "ip -j link show"))
    return [link["ifname"] for link in links if link["ifname"].startswith("fan")]


def kernel_counts(net: Network, interface: str, way: str) -> dict[str, int]:
    """An interface's counts; way: "rx" or "tx"."""
    links = json.loads(net.run(net.switch, f"ip -j -s link show {interface}"))
    return dict(links[0]["stats64"][way])
