# SPDX-License-Identifier: Apache-2.0
"""Takes the frames of captures one by one, and keeps what the summary or the story of a chunk needs.

Memory is bounded. The summary holds `MOST_SENDINGS` packets at a time: a chunk counts when newer chunks push it out, or
at the end. A story holds only the packets of its chunk.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from inagg_contract.constants import INAGG_PORT
from inagg_wire.captures import Frame, Place
from inagg_wire.chunks import Chunk, Sighting
from inagg_wire.errors import NoPacketError
from inagg_wire.frames import Address, datagram
from inagg_wire.network import Network
from inagg_wire.packets import may_be, parse, split

MOST_SENDINGS = 200_000  # packets of chunks that the summary holds
MOST_JOBS = 1000  # jobs and epochs
SLOWEST = 10  # chunks that the summary names
_MOST_LENGTHS = 64


class Job(NamedTuple):
    """A job in one epoch: after a change of way it has another (6.4)."""

    number: int
    epoch: int


class Slow(NamedTuple):
    """How long a chunk took, from its first packet to its last result."""

    took_ns: int
    chunk: int


@dataclass
class MemberFigures:
    """Counts of one sender's packets, and of what was lost."""

    contributions: int = 0
    again: int = 0
    duplicates: int = 0
    queries: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    last: int = 0


@dataclass
class JobFigures:
    """What the summary says about a job. Times in ns."""

    first_ns: int
    last_ns: int
    first_chunk: int
    newest_chunk: int
    chunks: int = 0
    packets: Counter[int] = field(default_factory=Counter)  # by kind
    held: int = 0
    told_again: int = 0
    late: int = 0  # packets of chunks that had been counted
    damaged: int = 0
    congested: int = 0
    members: dict[Address, MemberFigures] = field(default_factory=dict)
    slowest: list[Slow] = field(default_factory=list)
    gone: int | None = None  # the newest chunk that has been counted

    def member(self, address: Address) -> MemberFigures:
        return self.members.setdefault(address, MemberFigures())


def is_newer(chunk: int, other: int) -> bool:
    """Serial-number arithmetic (RFC 1982) with 32 bits."""
    return 0 < (chunk - other) % 2**32 < 2**31


@dataclass
class Decoder:
    """Call `take` with each frame, then `finish`.

    job: only this job's packets. chunk: only this chunk's are kept, for stories; otherwise the summary is.
    """

    job: int | None = None
    chunk: int | None = None
    network: Network = field(default_factory=Network)
    frames: Counter[Place] = field(default_factory=Counter)
    other: int = 0  # frames without a packet of the protocol
    cut: int = 0  # frames of which the capture has too little
    malformed: Counter[str] = field(default_factory=Counter)  # datagrams at INAGG_PORT, by reason
    left_out: int = 0  # packets of jobs beyond MOST_JOBS
    jobs: dict[Job, JobFigures] = field(default_factory=dict)
    chunks: "OrderedDict[tuple[Job, int], Chunk]" = field(default_factory=OrderedDict)
    _lengths: set[int] = field(default_factory=set)
    _held: int = 0

    def take_all(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.take(frame)
        self.finish()

    def take(self, frame: Frame) -> None:
        """Take the next frame in the order of time."""
        self.frames[frame.place] += 1
        found = datagram(frame.data, frame.link_type)
        if found is None:
            self.other += 1
            return
        named = INAGG_PORT in (found.source.port, found.destination.port)
        if not named and not may_be(found.data, found.length):
            self.other += 1
            return
        whole = len(found.data) == found.length
        parts = split(found.data, found.length, self._lengths)
        if not parts:
            try:
                parse(found.data, found.length)
                self.cut += not whole  # a message of unknown parts
            except NoPacketError as error:
                self._refuse(str(error), whole)
            return
        for offset, length in parts:
            data = found.data[offset : offset + length]
            try:
                packet = parse(data, length)
            except NoPacketError as error:
                self._refuse(str(error), whole)
                continue
            if offset == 0 and len(data) == length and len(self._lengths) < _MOST_LENGTHS:
                self._lengths.add(length)
            if self.job is None or packet.job == self.job:
                self._keep(
                    Sighting(
                        frame.time_ns, frame.place, found.source, found.destination, packet, found.congested
                    )
                )

    def _refuse(self, reason: str, whole: bool) -> None:
        if whole:
            self.malformed[reason if len(self.malformed) < MOST_JOBS else "other reasons"] += 1
        else:
            self.cut += 1

    def _keep(self, sighting: Sighting) -> None:
        packet = sighting.packet
        if packet.checks:
            self.network.learn(packet, sighting.source, sighting.destination, sighting.place)
        if self.chunk is not None and packet.chunk != self.chunk:
            return
        job = Job(packet.job, packet.epoch)
        figures = self.jobs.get(job)
        if figures is None:
            if len(self.jobs) >= MOST_JOBS:
                self.left_out += 1
                return
            time, chunk = sighting.time_ns, packet.chunk
            figures = self.jobs[job] = JobFigures(time, time, chunk, chunk)
        figures.last_ns = max(figures.last_ns, sighting.time_ns)
        key = (job, packet.chunk)
        if key not in self.chunks:
            if figures.gone is not None and not is_newer(packet.chunk, figures.gone):
                figures.late += 1
                return
            self.chunks[key] = Chunk()
        self._held += self.chunks[key].add(sighting)
        while self.chunk is None and self._held > MOST_SENDINGS:
            self._count(*self.chunks.popitem(last=False))

    def finish(self) -> None:
        """Count what is still held. Stories keep their chunks."""
        while self.chunk is None and self.chunks:
            self._count(*self.chunks.popitem(last=False))

    def _count(self, key: tuple[Job, int], chunk: Chunk) -> None:
        """Add a chunk to its job's figures."""
        job, number = key
        self._held -= len(chunk.sendings)
        figures = self.jobs[job]
        sound = chunk.sound
        figures.damaged += len(chunk.sendings) - len(sound)
        if not sound:
            return
        figures.chunks += 1
        if is_newer(figures.first_chunk, number):
            figures.first_chunk = number
        if is_newer(number, figures.newest_chunk):
            figures.newest_chunk = number
        for each in sound:
            packet = each.packet
            figures.packets[packet.kind] += 1
            figures.congested += each.congested
            figures.told_again += packet.is_answer and packet.asks_again
            figures.held += packet.is_answer and not packet.asks_again
            if packet.is_contribution:
                figures.member(each.source).contributions += 1
            elif packet.is_query:
                figures.member(each.source).queries += 1
        outcome = chunk.outcome(self.network)
        for each in outcome.again:
            figures.member(each.source).again += 1
        for each in outcome.duplicates:
            figures.member(each.source).duplicates += 1
        for loss in outcome.losses:
            figures.member(loss.member).lost[loss.what] += 1
        for turn in outcome.turns.values():
            if turn.last is not None:
                figures.member(turn.last).last += 1
        results = [each.last_ns for each in sound if each.packet.is_result]
        if results:  # a packet with a damaged chunk field has none
            if figures.gone is None or is_newer(number, figures.gone):
                figures.gone = number
            took = Slow(max(results) - sound[0].time_ns, number)
            push = heapq.heappush if len(figures.slowest) < SLOWEST else heapq.heappushpop
            push(figures.slowest, took)
