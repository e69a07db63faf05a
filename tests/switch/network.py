# SPDX-License-Identifier: Apache-2.0
"""Network namespaces joined to a switch by veth pairs. Needs root."""

import ctypes
import fcntl
import os
import shlex
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

_libc = ctypes.CDLL(None, use_errno=True)

_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # netdevice(7)


def _setns(fd: int) -> None:
    if _libc.setns(fd, 0x40000000) != 0:  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "setns")


@dataclass
class Network:
    """A switch's namespace and hosts 1 to N, each with one link to it: 10.0.0.i, MAC 02:00:00:00:00:0i."""

    prefix: str
    hosts: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def switch(self) -> str:
        return f"{self.prefix}s"

    def host(self, number: int) -> str:
        return f"{self.prefix}h{number}"

    @staticmethod
    def ip(number: int) -> str:
        return f"10.0.0.{number}"

    @staticmethod
    def mac(number: int) -> str:
        return f"02:00:00:00:00:{number:02x}"

    @staticmethod
    def port_interface(number: int) -> str:
        return f"port{number}"

    @property
    def port_arguments(self) -> list[str]:
        return [a for n in range(1, self.hosts + 1) for a in ("--port", f"{n}@{self.port_interface(n)}")]

    def run(self, namespace: str, command: str) -> str:
        """Runs a command in a namespace and returns its output. Fails the test if the command fails."""
        done = subprocess.run(
            ["ip", "netns", "exec", namespace, *shlex.split(command)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, namespace: str, *command: str) -> subprocess.Popen[str]:
        """Starts a command in a namespace. remove() ends it."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def start_and_wait(self, namespace: str, *command: str) -> subprocess.Popen[str]:
        """Starts a command in a namespace, and waits until it prints `ready`. Fails the test if it does not."""
        process = self.start(namespace, *command)
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != "ready\n":
            process.kill()
            raise AssertionError(f"{command} is not ready: {line}{process.communicate()[1]}")
        return process

    @contextmanager
    def inside(self, namespace: str) -> Iterator[None]:
        """In the block, new sockets and threads of this thread belong to the namespace."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        other = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            _setns(other)
            try:
                yield
            finally:
                _setns(own)
        finally:
            os.close(own)
            os.close(other)

    def packet_socket(self, number: int) -> socket.socket:
        """A raw socket on a host's interface that receives all frames that the host receives."""
        with self.inside(self.host(number)):
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            raw.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
            raw.setsockopt(
                socket.SOL_SOCKET, 33, 64 << 20
            )  # SO_RCVBUFFORCE: a test may read long after it sends
            raw.bind(("eth0", 3))  # ETH_P_ALL
        raw.settimeout(5)
        return raw

    def add_link(self, number: int) -> None:
        port, host = self.port_interface(number), self.host(number)
        _ip("link", "add", port, "netns", self.switch, "type", "veth", "peer", "name", "eth0", "netns", host)
        self.run(self.switch, f"ip link set {port} up")
        for command in (
            f"ip link set eth0 address {self.mac(number)} up",
            f"ip address add {self.ip(number)}/24 dev eth0",
            "ethtool -K eth0 tx off tso off gso off gro off",
        ):
            self.run(host, command)
        self._await_carrier(self.switch, port)
        self._await_carrier(host, "eth0")

    def _await_carrier(self, namespace: str, interface: str) -> None:
        """Waits until the kernel has noticed that both ends are up. Before that it loses frames without an error."""
        request = struct.pack("16sh14x", interface.encode(), 0)  # struct ifreq
        deadline = time.monotonic() + 10
        with self.inside(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            while (
                not struct.unpack("16xh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[0]
                & _IFF_RUNNING
            ):
                assert time.monotonic() < deadline, f"{interface} in {namespace} has no carrier"
                time.sleep(0.001)

    def set_offloads(self, number: int, on: bool) -> None:
        """Turns segmentation, checksums and GRO of a host's interface on or off."""
        state = "on" if on else "off"
        names = ("tx", "tso", "gso", "gro", "tx-udp-segmentation")
        settings = " ".join(f"{name} {state}" for name in names)
        self.run(self.host(number), f"ethtool -K eth0 {settings}")

    def _add_namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        # Without this, the kernel sends router solicitations between the test's frames.
        self.run(name, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
        self.run(name, "ip link set lo up")

    def create(self) -> None:
        self._add_namespace(self.switch)
        for number in range(1, self.hosts + 1):
            self._add_namespace(self.host(number))
            self.add_link(number)

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for name in (self.switch, *(self.host(number) for number in range(1, self.hosts + 1))):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


MakeNetwork: TypeAlias = Callable[[int], Network]  # from the number of hosts


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)
