# SPDX-License-Identifier: Apache-2.0
"""How fast one worker's packet threads are, without a switch.

    sudo .venv/bin/python -m tests.bench.worker_path [--packet-threads 2] [--slots 1024] [--elements 10000000]

A job of one worker sums floats over an interface in a network namespace of its own. What it sends comes back as it is,
with the bit of a result: an eBPF program at the interface's exit turns each message round within the kernel (TCX, Linux
6.6 and later). So a sum takes what the worker's side takes: numerics, bookkeeping, and sending and receiving in the
kernel, where one more copy (the program's) stands for that of a switch. One packet thread, several, and as many workers
of one thread, which share the floats and nothing else, take turns: the last shows what the machine allows. So does one
packet thread that keeps its last results, as jobs do that can change their way (docs/protocol.md, 6.4). Prints medians,
the rate in bytes of floats, and the median of the speed-ups of each turn.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from inagg._core import JobShape, Route, Sockets, Transport
from inagg.membership.packet_threads import sharers
from inagg_contract.constants import INAGG_PORT, KIND_RESULT

Array = NDArray[np.float32]

WORDS = 4
HERE, THERE = "10.9.0.1", "10.9.0.2"
DEVICE = "mirror"
WARM_UP = 3  # turns

CLONE_NEWNET = 0x40000000
SYS_BPF = {"x86_64": 321, "aarch64": 280}
BPF_PROG_LOAD, BPF_LINK_CREATE = 5, 28
BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_EGRESS = 3, 47

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    padded = ctypes.create_string_buffer(attributes.ljust(144, b"\0"))
    number = SYS_BPF[os.uname().machine]
    descriptor = int(_libc.syscall(number, command, padded, 144))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"bpf(): {os.strerror(ctypes.get_errno())}")
    return descriptor


class Assembly:
    """eBPF instructions (the kernel's Documentation/bpf/standardization/instruction-set.rst)."""

    SKB_STORE_BYTES, REDIRECT, SKB_LOAD_BYTES, SKB_PULL_DATA = 9, 23, 26, 39

    def __init__(self) -> None:
        self.code = b""

    def add(self, op: int, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> None:
        self.code += struct.pack("<BBhi", op, src << 4 | dst, offset, value)

    def here(self) -> int:
        return len(self.code) // 8

    def set(self, dst: int, value: int) -> None:
        self.add(0xB7, dst, value=value)

    def move(self, dst: int, src: int) -> None:
        self.add(0xBF, dst, src)

    def stack(self, dst: int) -> None:
        """Sets a register to the address of eight bytes on the stack."""
        self.move(dst, 10)
        self.add(0x07, dst, value=-8)

    def load(self, offset_register: int | None, offset: int, size: int) -> None:
        """Copies bytes of the packet to the stack."""
        self._access(self.SKB_LOAD_BYTES, offset_register, offset, size)

    def store(self, offset_register: int | None, offset: int, size: int) -> None:
        """Copies them back."""
        self._access(self.SKB_STORE_BYTES, offset_register, offset, size)

    def _access(self, helper: int, offset_register: int | None, offset: int, size: int) -> None:
        self.move(1, 6)
        if offset_register is None:
            self.set(2, offset)
        else:
            self.move(2, offset_register)
        self.stack(3)
        self.set(4, size)
        self.set(5, 0)
        self.add(0x85, value=helper)


def mirror_program(interface: int) -> bytes:
    """Exchanges the addresses and the ports of a message, makes results of its datagrams, and hands it to the
    interface as if it had arrived there."""
    to, ip_addresses, udp_ports, payload = Assembly(), 26, 34, 42
    length, gso_size = 0, 176  # of struct __sk_buff
    most_datagrams = 64
    to.move(6, 1)
    to.add(0x61, 9, 6, length)
    to.move(1, 6)
    to.move(2, 9)
    to.add(0x85, value=to.SKB_PULL_DATA)
    for offset, size, half in ((ip_addresses, 8, 32), (udp_ports, 4, 16)):
        to.load(None, offset, size)
        load, store = (0x79, 0x7B) if size == 8 else (0x61, 0x63)
        to.add(load, 1, 10, -8)
        to.move(2, 1)
        to.add(0x67, 1, value=half)
        to.add(0x77, 2, value=half)
        to.add(0x4F, 1, 2)
        to.add(store, 10, 1, -8)
        to.store(None, offset, size)
    to.set(8, payload)
    to.set(7, most_datagrams)
    start = to.here()
    to.load(8, 0, 1)
    to.add(0x71, 1, 10, -8)
    to.add(0x47, 1, value=KIND_RESULT)
    to.add(0x73, 10, 1, -8)
    to.store(8, 0, 1)
    to.add(0x61, 1, 6, gso_size)
    to.add(0x15, 1, offset=4)  # one datagram
    to.add(0x0F, 8, 1)
    to.add(0x3D, 8, 9, 2)  # the end
    to.add(0x17, 7, value=1)
    to.add(0x55, 7, offset=start - to.here() - 1)
    to.set(1, interface)
    to.set(2, 1)  # BPF_F_INGRESS
    to.add(0x85, value=to.REDIRECT)
    to.add(0x95)
    return to.code


def attach(code: bytes, interface: int) -> int:
    """The descriptor that keeps the program at the interface's exit. Raises OSError; RuntimeError with the verifier's
    last words."""
    instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(1 << 20)
    try:
        program = _bpf(
            BPF_PROG_LOAD,
            struct.pack(
                "<IIQQIIQ",
                BPF_PROG_TYPE_SCHED_CLS,
                len(code) // 8,
                ctypes.addressof(instructions),
                ctypes.addressof(licence),
                1,
                len(log),
                ctypes.addressof(log),
            ),
        )
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        raise RuntimeError(f"{error.strerror}: {log.value.decode()[-600:]}") from error
    return _bpf(BPF_LINK_CREATE, struct.pack("<III", program, interface, BPF_TCX_EGRESS))


def make_mirror() -> int:
    """Enters a network namespace that has the interface. It ends with the process. Returns the link's descriptor."""
    if _libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(
            ctypes.get_errno(), "cannot make a network namespace: " + os.strerror(ctypes.get_errno())
        )
    address = "02:00:00:00:09:01"
    for command in (
        f"link add {DEVICE} address {address} type veth peer name {DEVICE}-peer",
        f"address add {HERE}/24 dev {DEVICE}",
        f"link set {DEVICE} up",
        f"link set {DEVICE}-peer up",
        f"neighbour add {THERE} lladdr {address} dev {DEVICE} nud permanent",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    interface = socket.if_nametoindex(DEVICE)
    return attach(mirror_program(interface), interface)


@contextlib.contextmanager
def worker(slots: int, packet_threads: int = 1, keeps_results: bool = False) -> Iterator[Transport]:
    """The worker of a job of one."""
    first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    first.bind((HERE, 0))
    more = sharers(first, packet_threads)
    sockets = Sockets(socket_fd=first.detach(), more=[(udp.detach(), None) for udp in more])
    transport = Transport(
        JobShape(number=1, epoch=1, slots=slots, words=WORDS, workers=1),
        rank=0,
        route=Route(aggregator=(THERE, INAGG_PORT)),
        sockets=sockets,
        keeps_results=keeps_results,
    )
    try:
        yield transport
    finally:
        transport.close()


def seconds_of(transports: Sequence[Transport], floats: Array) -> float:
    """Of one sum of all floats, of which each transport has a part. Raises SystemExit if it is wrong."""
    expected = floats[:: 1 << 16].copy()
    parts = np.array_split(floats, len(transports))
    start = time.perf_counter()
    tickets = [transport.submit(part) for transport, part in zip(transports, parts, strict=True)]
    for transport, ticket in zip(transports, tickets, strict=True):
        transport.wait(ticket)
    seconds = time.perf_counter() - start
    if not np.allclose(floats[:: 1 << 16], expected, rtol=1e-5, atol=1e-5):
        sys.exit("the sum is wrong")
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packet-threads", type=int, default=2, help="compared with one")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--slots", type=int, default=1024)
    given = parser.parse_args()
    count, slots = given.packet_threads, given.slots
    floats = np.random.default_rng(1).standard_normal(given.elements, dtype=np.float32)
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(os.close, make_mirror())
        except OSError as error:
            sys.exit(f"this needs root, and a kernel with TCX (6.6): {error}")
        made = {
            "1 packet thread": [stack.enter_context(worker(slots))],
            "1 that keeps results": [stack.enter_context(worker(slots, keeps_results=True))],
            f"{count} packet threads": [stack.enter_context(worker(slots, count))],
            f"{count} workers side by side": [stack.enter_context(worker(slots)) for _ in range(count)],
        }
        times: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(WARM_UP + given.rounds):
            for name, transports in made.items():
                seconds = seconds_of(transports, floats)
                if turn >= WARM_UP:
                    times[name].append(seconds)
        resent = {name: sum(one.stats()["retransmits"] for one in made[name]) for name in made}
    print("| | ms a sum | GB/s | speed-up | sent again |\n|---|---|---|---|---|")
    alone = times["1 packet thread"]
    for name, own in times.items():
        median = statistics.median(own)
        gain = statistics.median(a / b for a, b in zip(alone, own, strict=True))
        print(
            f"| {name} | {1e3 * median:.1f} | {floats.nbytes / median / 1e9:.2f} | {gain:.2f} | {resent[name]} |"
        )


if __name__ == "__main__":
    main()
