# SPDX-License-Identifier: Apache-2.0
"""Keeps the headers of the last inagg packets at all ports of a switch, with the kernel's time stamps.

The kernel writes packets into blocks of memory that it shares with this process (TPACKET_V3, packet_mmap.rst in Linux's
Documentation/networking). A filter in the kernel takes only the protocol's datagrams, and cuts them. A thread copies
full blocks, and forgets the oldest. Nothing is decoded while a training runs, so it costs little.
"""

import ctypes
import mmap
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from inagg_contract.constants import ETHERTYPE_IPV4, INAGG_PORT, IP_PROTOCOL_UDP
from inagg_testbed.errors import NetworkError
from inagg_testbed.network.control import call_in_network_namespace

_ETH_P_ALL = 3
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION = 263, 5, 6, 10
_TPACKET_V3 = 2
_SO_ATTACH_FILTER = 26
_OUTGOING = 4  # of sockaddr_ll's sll_pkttype
_BLOCK_BYTES, _BLOCKS = 1 << 18, 128
_RETIRE_MS = 100  # a block that is not full is handed over after this time
_LOOK_S = 0.2

_BLOCK = struct.Struct("=IIIIII")  # version, private, status, packets, first packet, length
_STATUS_AT = 8
_PACKET = struct.Struct("=IIIIIIHH")  # next, seconds, nanoseconds, captured, length, status, MAC, network
_ADDRESS_AT = 48  # sockaddr_ll behind tpacket3_hdr
_ADDRESS = struct.Struct("=HHiHB")

# Classic BPF (linux/filter.h): code, jumps if true and if false, value. Offsets are those of untagged frames without
# options of IPv4.
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD_BYTE, _LOAD_HALF, _EQUAL, _RETURN = 0x30, 0x28, 0x15, 0x06


class Frame(NamedTuple):
    """A frame, cut. time_s: of `time.monotonic`. interface: its index. leaves: the switch sent it."""

    time_s: float
    interface: int
    leaves: bool
    data: bytes


class PacketRing:
    """The last packets of a switch.

    Args:
        pid: of a process in the switch's network namespace.
        keep: bytes to keep, of the kernel's blocks.
        cut: bytes of a frame to take.

    Raises:
        NetworkError: the kernel refuses.
    """

    def __init__(self, pid: int, *, keep: int, cut: int) -> None:
        self._keep = keep
        self._blocks: deque[bytes] = deque()
        self._size = 0
        self._socket = call_in_network_namespace(pid, lambda: _open(cut))
        self._ring = mmap.mmap(self._socket.fileno(), _BLOCK_BYTES * _BLOCKS)
        self._next = 0
        self.dropped = 0  # packets that the kernel had no free block for; known after `close`
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="packet ring")
        self._thread.start()

    def close(self) -> None:
        """Take no more packets. What is there can still be read."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._thread.join()
        self.dropped = struct.unpack("=III", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))[1]
        self._ring.close()
        self._socket.close()

    def frames(self) -> Iterator[Frame]:
        """What is there, in the order of time. After `close`."""
        ahead_s = time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()
        for block in self._blocks:
            _, _, _, count, at, _ = _BLOCK.unpack_from(block)
            for _ in range(count):
                following, seconds, nanoseconds, captured, _, _, start, _ = _PACKET.unpack_from(block, at)
                _, _, interface, _, kind = _ADDRESS.unpack_from(block, at + _ADDRESS_AT)
                data = block[at + start : at + start + captured]
                time_s = seconds - ahead_s + nanoseconds / 1e9
                yield Frame(time_s, interface, kind == _OUTGOING, data)
                at += following

    def _collect(self) -> None:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while not self._ending.is_set():
            waiting.poll(1e3 * _LOOK_S)
            self._take()
        time.sleep(2e-3 * _RETIRE_MS)  # the kernel hands the last block over
        self._take()

    def _take(self) -> None:
        """Copy the blocks that the kernel has handed over, and give them back."""
        while True:
            start = self._next * _BLOCK_BYTES
            _, _, status, _, _, length = _BLOCK.unpack_from(self._ring, start)
            if not status & 1:
                return
            self._blocks.append(self._ring[start : start + length])
            self._size += length
            struct.pack_into("=I", self._ring, start + _STATUS_AT, 0)
            self._next = (self._next + 1) % _BLOCKS
            while self._size > self._keep:
                self._size -= len(self._blocks.popleft())


def _open(cut: int) -> socket.socket:
    source = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    try:
        program = _program(cut)  # in memory until the kernel has copied it
        source.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _filter(program))
        source.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
        ring = struct.pack(
            "=7I", _BLOCK_BYTES, _BLOCKS, 2048, _BLOCK_BYTES // 2048 * _BLOCKS, _RETIRE_MS, 0, 0
        )
        source.setsockopt(_SOL_PACKET, _RX_RING, ring)
    except OSError as error:
        source.close()
        raise NetworkError(f"cannot watch the packets of a switch: {error.strerror}") from error
    return source


def _filter(program: "ctypes.Array[ctypes.c_char]") -> bytes:
    """struct sock_fprog, which points to the program."""
    return struct.pack("@HP", len(program) // _INSTRUCTION.size, ctypes.addressof(program))


def _program(cut: int) -> "ctypes.Array[ctypes.c_char]":
    """Takes the first bytes of UDP datagrams from or to the protocol's port."""
    instructions = [
        (_LOAD_HALF, 0, 0, 12),
        (_EQUAL, 0, 7, ETHERTYPE_IPV4),
        (_LOAD_BYTE, 0, 0, 23),
        (_EQUAL, 0, 5, IP_PROTOCOL_UDP),
        (_LOAD_HALF, 0, 0, 34),
        (_EQUAL, 2, 0, INAGG_PORT),
        (_LOAD_HALF, 0, 0, 36),
        (_EQUAL, 0, 1, INAGG_PORT),
        (_RETURN, 0, 0, cut),
        (_RETURN, 0, 0, 0),
    ]
    code = b"".join(_INSTRUCTION.pack(*each) for each in instructions)
    return ctypes.create_string_buffer(code, len(code))
