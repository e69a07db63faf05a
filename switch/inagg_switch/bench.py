# SPDX-License-Identifier: Apache-2.0
"""Measures the packet rate of a P4 program in this process, without ports and kernel.

load = read_load(program, Path("program.vectors"))
measure(program, load, packets=1_000_000)
"""

import json
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_switch._ports import run_bench
from inagg_switch.errors import SwitchError
from inagg_switch.ports import MAX_PORT
from inagg_switch.switch import Switch
from inagg_switch.vectors.format import VectorError, read_vectors
from inagg_switch.vectors.run import set_up

_NUMBER_BYTES = 4


class BenchError(SwitchError):
    """The requested load cannot be made."""


@dataclass(frozen=True)
class Load:
    """(port, frame) packets, which are input in passes: each pass inputs all, in order.

    Before packet i of pass p the 4 bytes at its `counter_offset` are set to p * run + i % run. sends: some packet makes
    the program send.
    """

    packets: Sequence[tuple[int, bytes]]
    counter_offset: int | None = None
    run: int = 1
    sends: bool = False


@dataclass(frozen=True)
class Rate:
    """Median, slowest and fastest of several runs, of all threads together. sent_per_packet: packets sent for each
    input packet."""

    packets: int
    runs: int
    threads: int
    sent_per_packet: float
    ns_per_packet: float
    ns_slowest: float
    ns_fastest: float

    @property
    def packets_per_second(self) -> float:
        """Input packets a second, of the median run."""
        return 1e9 / self.ns_per_packet


def measure(program: Switch, load: Load, *, packets: int = 200_000, runs: int = 9) -> Rate:
    """Input about `packets` packets in each of `runs` runs, after one more run for warm-up.

    The program's threads divide the packets. Raises BenchError if nothing leaves of a load that sends.
    """
    passes = max(1, packets // len(load.packets))
    count = passes * len(load.packets)
    nanoseconds, sent = [], 0
    for run in range(runs + 1):
        seconds, sent = run_bench(
            program.api_address,
            program.handle,
            program.threads,
            load.packets,
            run * passes,
            passes,
            load.counter_offset,
            load.run,
        )
        nanoseconds.append(1e9 * seconds / count)
    if load.sends and sent == 0:
        raise BenchError(
            "the program sends nothing, though the load expects it to: is the load for other -D?"
        )
    del nanoseconds[0]
    median = statistics.median(nanoseconds)
    return Rate(count, runs, program.threads, sent / count, median, max(nanoseconds), min(nanoseconds))


def minimum_frame() -> Load:
    """One Ethernet frame of 60 bytes (the minimum of IEEE 802.3, without FCS) with a local experimental type."""
    return Load([(1, b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + b"\x88\xb5" + bytes(46))])


def read_load(program: Switch, path: Path) -> Load:
    """Set up a program as a file of packet vectors says; its packets are the load.

    What leaves is not compared with the file, but where that expects frames, some must leave. Raises BenchError,
    VectorError.
    """
    vectors = read_vectors(path)
    if not vectors.packets:
        raise BenchError(f"{path}: there is no packet")
    set_up(program, vectors)
    sends = any(packet.expected for packet in vectors.packets)
    if vectors.bench is None:
        return Load([(packet.port, packet.frame) for packet in vectors.packets], sends=sends)
    offset, run = vectors.bench.offset, vectors.bench.run
    for packet in vectors.packets:
        if len(packet.frame) < offset + _NUMBER_BYTES:
            raise VectorError(f"{path}:{packet.line}: the frame has no {_NUMBER_BYTES} bytes at {offset}")
    frames = [(packet.port, packet.frame) for packet in vectors.packets for _ in range(run)]
    return Load(frames, offset, run, sends)


def parse_frame(text: str) -> tuple[int, bytes]:
    """Parse "PORT:HEX". Raises BenchError."""
    number, _, digits = text.partition(":")
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= MAX_PORT):
        raise BenchError(f"frame {text[:40]!r}: expected PORT:HEX, the port between 1 and {MAX_PORT}")
    try:
        frame = bytes.fromhex(digits)
    except ValueError as error:
        raise BenchError(f"frame {text[:40]!r}: {error}") from None
    if not frame:
        raise BenchError(f"frame {text[:40]!r}: it is empty")
    return int(number), frame


def read_pcap(path: Path, port: int) -> list[tuple[int, bytes]]:
    """Every frame of a capture file (libpcap's format, not pcapng), as input of `port`. Raises BenchError."""
    data = path.read_bytes()
    magic = data[:4]
    order = {
        b"\xd4\xc3\xb2\xa1": "<",
        b"\x4d\x3c\xb2\xa1": "<",
        b"\xa1\xb2\xc3\xd4": ">",
        b"\xa1\xb2\x3c\x4d": ">",
    }
    if magic not in order:
        raise BenchError(f"{path}: not a pcap file")
    frames, at = [], 24
    while at + 16 <= len(data):
        length = struct.unpack_from(order[magic] + "I", data, at + 8)[0]
        frames.append((port, data[at + 16 : at + 16 + length]))
        at += 16 + length
    if not frames or at != len(data):
        raise BenchError(f"{path}: it is cut short, or has no packet")
    return frames


def install(program: Switch, path: Path) -> None:
    """Install table entries and multicast groups from a JSON file:

        {"entries": [{"table": ..., "match": {...}, "action": ..., "params": {...}, "priority": 0}],
         "multicast": {"1": [[port, replication id], ...]}}

    Match values are those of Switch.insert(), with lists as pairs. Raises BenchError, EntryError, UnknownName.
    """
    try:
        wanted = json.loads(path.read_text())
        _refuse_unknown(path, wanted, {"entries", "multicast"})
        for group, replicas in wanted.get("multicast", {}).items():
            program.multicast_group(int(group), [(port, rid) for port, rid in replicas])
        for entry in wanted.get("entries", []):
            _refuse_unknown(path, entry, {"table", "match", "action", "params", "priority"})
            match = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.get("match", {}).items()}
            program.insert(
                entry["table"], match, entry["action"], entry.get("params"), entry.get("priority", 0)
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path}: not a list of entries: {error!r}") from None


def _refuse_unknown(path: Path, given: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise BenchError(f"{path}: unknown key {unknown[0]!r}; there are: {', '.join(sorted(known))}")
