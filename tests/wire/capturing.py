# SPDX-License-Identifier: Apache-2.0
"""Captures of a star that tests write packet by packet: rank r is at port r + 1 of the switch."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from inagg_simulator import reference
from inagg_simulator.p4_switch import AGGREGATOR, Station, headers, job_group, worker

JOB, EPOCH = 3, 0x01020304


def contribution(
    rank: int, chunk: int, *, words: int = 1, kind: int = reference.DATA, number: int = 0
) -> bytes:
    """A contribution, or with kind | QUERY a query; its words hold the rank."""
    header = reference.contribution(kind=kind, rank=rank, job=JOB, epoch=EPOCH, chunk=chunk, checksum=number)
    has_words = kind & ~reference.RESULT == reference.DATA
    return header.encode() + (bytes([rank]) * reference.WORD_BYTES * words if has_words else b"")


def query(rank: int, chunk: int, number: int) -> bytes:
    return contribution(rank, chunk, kind=reference.DATA | reference.QUERY, number=number)


def answer(question: bytes, flags: int) -> bytes:
    """The answer to a query: reference.AGAIN, or 0 for "held"."""
    asked = reference.decode(question)
    return asked._replace(kind=asked.kind | reference.RESULT).announcing(flags, 0).encode()


def result(chunk: int, rank: int = 0, words: int = 1) -> bytes:
    return contribution(rank, chunk, words=words, kind=reference.DATA | reference.RESULT)


@dataclass
class Star:
    """Frames by the file they belong to, such as port1_in; times in ms."""

    frames: dict[str, list[Ether]] = field(default_factory=lambda: defaultdict(list))

    def up(self, ms: float, rank: int, datagram: bytes) -> None:
        """What a rank sends, at its port of the switch."""
        self.put(ms, f"port{rank + 1}_in", headers(worker(rank), AGGREGATOR, len(datagram)) + datagram)

    def down(self, ms: float, rank: int, datagram: bytes, *, to_group: bool = False) -> None:
        """What the switch sends to one rank, or this rank's copy of a result for all."""
        to: Station = job_group(JOB) if to_group else worker(rank)
        self.put(ms, f"port{rank + 1}_out", headers(AGGREGATOR, to, len(datagram)) + datagram)

    def put(self, ms: float, name: str, frame: bytes) -> None:
        packet = Ether(frame)
        packet.time = 1000 + ms / 1000
        self.frames[name].append(packet)

    def sum(self, ms: float, chunk: int, ranks: int = 2) -> None:
        """A chunk to which nothing happens: rank r sends after r ms, the result leaves 1 ms after the last."""
        for rank in range(ranks):
            self.up(ms + rank, rank, contribution(rank, chunk))
        for rank in range(ranks):
            self.down(ms + ranks, rank, result(chunk, ranks - 1), to_group=True)

    def write(self, folder: Path) -> list[Path]:
        """The captures, one file for each port and direction."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, frames in sorted(self.frames.items()):
            paths.append(folder / f"{name}.pcap")
            wrpcap(str(paths[-1]), sorted(frames, key=lambda frame: frame.time))
        return paths
