# SPDX-License-Identifier: Apache-2.0
"""Measures the packet rate of a P4 program in this process, on one core, without ports and kernel.

load = aggregation(program, workers=4)
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

_SLOTS, _EPOCH, _JOB, _GROUP, _UDP_PORT = 1024, 7, 1, 2, 5000
_RUN = 62  # chunks of a datagram of 64 KiB (UDP_SEGMENT) with packets of 1 KiB
_AGGREGATOR_IP = 0x0A0000FD
_GROUP_IP, _GROUP_MAC = 0xEFC00001, 0x01005E400001
_INAGG_OFFSET = 14 + 20 + 8
_CHUNK_OFFSET = _INAGG_OFFSET + 12


class BenchError(SwitchError):
    """The requested load cannot be made."""


@dataclass(frozen=True)
class Load:
    """(port, frame) packets, which are input in passes: each pass inputs all, in order.

    Before packet i of pass p the 4 bytes at its `counter_offset` are set to p * run + i % run.
    """

    packets: Sequence[tuple[int, bytes]]
    counter_offset: int | None = None
    run: int = 1


@dataclass(frozen=True)
class Rate:
    """Median, slowest and fastest of several runs. sent_per_packet: packets sent for each input packet."""

    packets: int
    runs: int
    sent_per_packet: float
    ns_per_packet: float
    ns_slowest: float
    ns_fastest: float

    @property
    def packets_per_second(self) -> float:
        """Input packets a second, of the median run."""
        return 1e9 / self.ns_per_packet


def measure(program: Switch, load: Load, *, packets: int = 200_000, runs: int = 9) -> Rate:
    """Input about `packets` packets in each of `runs` runs, after one more run for warm-up."""
    passes = max(1, packets // len(load.packets))
    count = passes * len(load.packets)
    nanoseconds, sent = [], 0
    for run in range(runs + 1):
        seconds, sent = run_bench(
            program.api_address,
            program.handle,
            load.packets,
            run * passes,
            passes,
            load.counter_offset,
            load.run,
        )
        nanoseconds.append(1e9 * seconds / count)
    del nanoseconds[0]
    median = statistics.median(nanoseconds)
    return Rate(count, runs, sent / count, median, max(nanoseconds), min(nanoseconds))


def minimum_frame() -> Load:
    """One Ethernet frame of 60 bytes (the minimum of IEEE 802.3, without FCS) with a local experimental type."""
    return Load([(1, b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + b"\x88\xb5" + bytes(46))])


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


def aggregation(program: Switch, workers: int) -> Load:
    """Install a job in p4/inagg.p4; its load is a run of DATA contributions of each worker, the last of which completes
    the chunks. Results go to the job's multicast address.

    Raises BenchError for another program.
    """
    if not 1 <= workers <= 64:
        raise BenchError(f"a job has 1 to 64 workers, not {workers}")
    try:
        words = len(program.register("pool")) // len(program.register("slot_epoch"))
        constants = {
            name: int(program.constants[name])
            for name in ("INAGG_VERSION", "INAGG_PORT", "KIND_DATA", "WORD_BYTES", "EXPONENT_CHECK")
        }
        all_ranks = int(program.constants["ALL_RANKS"])
        program.multicast_group(_GROUP, [(rank + 1, all_ranks + 1) for rank in range(workers)])
        program.insert("receiver", {"job": _JOB, "rank": all_ranks}, "deliver", {
            "mac": _GROUP_MAC, "ip": _GROUP_IP, "udp_port": _UDP_PORT,
        })  # fmt: skip
        for rank in range(workers):
            _admit(program, rank, workers)
    except (SwitchError, KeyError) as error:
        raise BenchError(f"--aggregate is for p4/inagg.p4: {error}") from None
    frames = [
        (rank + 1, _contribution(rank, words, constants)) for rank in range(workers) for _ in range(_RUN)
    ]
    return Load(frames, _CHUNK_OFFSET, _RUN)


def _ip(rank: int) -> int:
    return 0x0A000001 + rank


def _admit(program: Switch, rank: int, workers: int) -> None:
    program.insert("admission", {"port": rank + 1, "source": _ip(rank), "job": _JOB, "rank": rank}, "admit", {
        "member": 1 << rank, "all": (1 << workers) - 1, "slot_base": 0, "slot_mask": 2 * _SLOTS - 1, "epoch": _EPOCH,
        "result_group": _GROUP, "parents": 0,
    })  # fmt: skip


def _contribution(rank: int, words: int, constants: dict[str, int]) -> bytes:
    """A DATA contribution (docs/protocol.md, 2); every 32-bit lane is rank + 1."""
    payload = (rank + 1).to_bytes(4, "big") * (words * constants["WORD_BYTES"] // 4)
    header = struct.pack("!BBHHHIII", constants["INAGG_VERSION"] << 4 | constants["KIND_DATA"], rank, _JOB, 0,
                         constants["EXPONENT_CHECK"], _EPOCH, 0, sum(payload[3::4]))  # fmt: skip
    length = 8 + len(header) + len(payload)
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0, _ip(rank), _AGGREGATOR_IP)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + ip[12:]
    udp = struct.pack("!HHHH", _UDP_PORT, constants["INAGG_PORT"], length, 0)
    ethernet = b"\x02\x49\x41\0\0\x01" + (0x020000000001 + rank).to_bytes(6, "big") + b"\x08\x00"
    return ethernet + ip + udp + header + payload
