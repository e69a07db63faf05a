# SPDX-License-Identifier: Apache-2.0
"""The switch of docs/protocol.md (5.1 and 5.2) in plain Python, and whole collectives through it, packet by packet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.conformance.reference import (
    DATA,
    EXPONENT,
    HEADER,
    NOT_READY,
    RESULT,
    SPECIAL,
    VERSION,
    WORD_BYTES,
    Header,
    Lanes,
    block_exponent,
    checksum,
    class_lanes,
    contribution,
    decode,
    fingerprint,
    is_special,
    marks,
    quantise,
)


class Version(NamedTuple):
    """The state of one slot version (section 5.2)."""

    epoch: int = 0
    chunk: int = 0
    workers: int = 0
    flags: int = 0
    exponent: int = 0
    flags_check: int = 0
    exponent_check: int = 0
    checksum: int = 0
    words: tuple[int, ...] = ()


class Contribution(NamedTuple):
    epoch: int
    chunk: int
    worker: int  # the sender's bit
    flags: int = 0
    exponent: int = 0
    flags_check: int = 0
    exponent_check: int = 0
    checksum: int = 0
    words: tuple[int, ...] = ()


def age(a: int, b: int) -> int:
    """Serial-number arithmetic: positive when a is newer."""
    difference = (a - b) % 2**32
    return difference - 2**32 if difference >= 2**31 else difference


def step(
    held: Version, other: Version, packet: Contribution, slots: int, all_workers: int
) -> tuple[Version, str]:
    """The decision table of section 5.2. Returns the new state of the version, and the counter's name.

    other: the slot's other version. A result leaves after "result_resent", and after "started" and "added" when all
    bits are set.
    """
    if held.epoch != packet.epoch or age(packet.chunk, held.chunk) > 0:
        before = (packet.epoch, (packet.chunk - slots) % 2**32, all_workers)
        first = held.epoch != packet.epoch and packet.chunk < slots
        if not first and other[:3] != before:
            return held, "ahead"
        fresh = Version(packet.epoch, packet.chunk, packet.worker, *packet[3:])
        # An EXPONENT packet has no words, and leaves those of the slot alone.
        return fresh._replace(words=packet.words or held.words), "started"
    if packet.chunk != held.chunk:
        return held, "stale"
    if held.workers & packet.worker:
        return held, "result_resent" if held.workers == all_workers else "duplicate_pending"
    words = held.words
    if packet.words:
        old = held.words or (0,) * len(packet.words)
        words = tuple((a + b) % 2 ** (8 * WORD_BYTES) for a, b in zip(old, packet.words, strict=True))
    added = Version(
        epoch=held.epoch,
        chunk=held.chunk,
        workers=held.workers | packet.worker,
        flags=held.flags | packet.flags,
        exponent=max(held.exponent, packet.exponent),
        flags_check=held.flags_check | packet.flags_check,
        exponent_check=max(held.exponent_check, packet.exponent_check),
        checksum=(held.checksum + packet.checksum) % 2**32,
        words=words,
    )
    return added, "added"


@dataclass
class Job:
    workers: int
    slots: int  # S
    epoch: int
    base: int = 0  # first slot version of the lease

    def version(self, chunk: int) -> int:
        """The index of a chunk's slot version."""
        return self.base + chunk % (2 * self.slots)

    def complete_before(self, chunk: int) -> dict[int, Version]:
        """The slot versions, by index, of a job that has summed all chunks before this one; none for chunk 0."""
        if chunk == 0:
            return {}
        return {
            self.version(past): Version(self.epoch, past % 2**32, 2**self.workers - 1)
            for past in range(chunk - 2 * self.slots, chunk)
        }


@dataclass
class Aggregator:
    """The switch of sections 5.1 and 5.2, without ports and addresses: packets come by rank."""

    words: int
    jobs: dict[int, Job]
    versions: dict[int, Version] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(receiver's rank, datagram) of each packet that leaves."""
        replies, counter = self._process(rank, datagram)
        self.counters[counter] += 1
        return replies

    def _process(self, rank: int, datagram: bytes) -> tuple[list[tuple[int, bytes]], str]:
        if len(datagram) < HEADER.size:
            return [], "malformed"
        header = decode(datagram)
        length = {EXPONENT: HEADER.size, DATA: HEADER.size + self.words * WORD_BYTES}.get(header.kind)
        if header.version != VERSION or len(datagram) != length or not header.agrees:
            return [], "malformed"
        job = self.jobs.get(header.job)
        if job is None or header.rank != rank or rank >= job.workers:
            return [], "not_admitted"
        if header.epoch != job.epoch:
            return [], "wrong_epoch"
        return self._add(job, header, datagram[HEADER.size :])

    def _add(self, job: Job, header: Header, payload: bytes) -> tuple[list[tuple[int, bytes]], str]:
        all_workers = 2**job.workers - 1
        index = job.version(header.chunk)
        other = job.version(header.chunk - job.slots)
        packet = Contribution(
            header.epoch,
            header.chunk,
            1 << header.rank,
            header.flags,
            header.exponent,
            header.flags_check,
            header.exponent_check,
            header.checksum,
            tuple(
                int.from_bytes(payload[i : i + WORD_BYTES], "big") for i in range(0, len(payload), WORD_BYTES)
            ),
        )
        versions = self.versions
        held, action = step(
            versions.get(index, Version()), versions.get(other, Version()), packet, job.slots, all_workers
        )
        self.versions[index] = held
        words = b"".join(word.to_bytes(WORD_BYTES, "big") for word in held.words) if payload else b""
        result = header._replace(
            kind=header.kind | RESULT,
            flags=held.flags,
            exponent=held.exponent,
            flags_check=held.flags_check,
            exponent_check=held.exponent_check,
            checksum=held.checksum,
        )
        if action == "result_resent":
            return [(header.rank, result.encode() + words)], action
        if action in ("started", "added") and held.workers == all_workers:
            receivers = range(job.workers)
            return [(rank, result.encode() + words) for rank in receivers], action
        return [], action


class Exchange(NamedTuple):
    """A contribution, and the packets that the switch sends because of it."""

    rank: int
    datagram: bytes
    results: list[tuple[int, bytes]]


@dataclass
class AllReduce:
    """One collective: each rank's elements, and the format of its packets."""

    inputs: Sequence[Sequence[float]]
    lane_bits: int
    average: bool = False

    def __post_init__(self) -> None:
        self.exponents: dict[int, Header] = {}  # by block: the result that carried the exponent

    def divide(self, workers: int, slots: int, words: int) -> None:
        """Divide elements into blocks. Returns K, P and the blocks of each rank."""
        self.lanes = Lanes(self.lane_bits, workers)
        size = self.lanes.block_elements(words)
        self.blocks = [[x[first : first + size] for first in range(0, len(x), size)] for x in self.inputs]
        self.count = len(self.blocks[0])  # K
        self.lead = min(slots, self.count)  # P

    @property
    def fingerprint(self) -> int:
        return fingerprint(len(self.inputs[0]), self.lane_bits, self.average)


@dataclass
class Dialogue:
    """All ranks of a job, in step: chunk after chunk, rank after rank, nothing lost."""

    aggregator: Aggregator
    job: int
    chunk: int = 0  # the next

    def all_reduces(self, collectives: Sequence[AllReduce], *, queued: bool) -> list[list[Exchange]]:
        """The packets of each collective. queued: ranks submit all collectives first, not one after the other."""
        job, words = self.aggregator.jobs[self.job], self.aggregator.words
        for collective in collectives:
            collective.divide(job.workers, job.slots, words)
        out = []
        announced = 0  # A
        for index, collective in enumerate(collectives):
            following = collectives[index + 1] if queued and index + 1 < len(collectives) else None
            out.append(self._all_reduce(collective, following, announced))
            announced = min(collective.lead, following.lead) if following else 0
        return out

    def _all_reduce(
        self, collective: AllReduce, following: AllReduce | None, announced: int
    ) -> list[Exchange]:
        words, lanes = self.aggregator.words, collective.lanes
        out: list[Exchange] = []
        for block in range(announced, collective.lead):
            out += self._everybody(collective, (collective, block))
        for block in range(collective.count):
            code = collective.exponents[block].exponent
            packed = [quantise(own[block], code, lanes, words) for own in collective.blocks]
            ahead = block + collective.lead
            if ahead < collective.count:
                out += self._everybody(
                    collective, (collective, ahead), [lanes.pack(x) for x in packed], packed
                )
            elif following is None:
                out += self._everybody(collective, None, [lanes.pack(x) for x in packed], packed, NOT_READY)
            else:
                first = ahead - collective.count
                announce = (following, first) if first < following.lead else None
                out += self._everybody(collective, announce, [lanes.pack(x) for x in packed], packed)
        for block in range(collective.count):
            if collective.exponents[block].flags & SPECIAL:
                classes = [class_lanes(own[block], lanes, words) for own in collective.blocks]
                size = len(classes[0]) // lanes.class_chunks
                for part in range(lanes.class_chunks):
                    parts = [x[part * size : (part + 1) * size] for x in classes]
                    out += self._everybody(
                        collective, None, [lanes.class_format.pack(x) for x in parts], parts
                    )
        return out

    def _everybody(
        self,
        collective: AllReduce,
        announce: tuple[AllReduce, int] | None,
        payloads: Sequence[bytes] | None = None,
        packed: Sequence[Sequence[int]] | None = None,
        flags: int = 0,
    ) -> list[Exchange]:
        """Send one chunk of every rank: EXPONENT without payloads, otherwise DATA."""
        out = []
        job = self.aggregator.jobs[self.job]
        for rank in range(job.workers):
            own = announce[0].blocks[rank][announce[1]] if announce else []
            summed = checksum(packed[rank]) if packed else 0
            header = contribution(
                kind=EXPONENT if payloads is None else DATA,
                rank=rank,
                job=self.job,
                flags=flags | (SPECIAL if is_special(own) else 0),
                exponent=block_exponent(own, announce[0].lanes) if announce else 0,
                epoch=job.epoch,
                chunk=self.chunk,
                checksum=(summed + collective.fingerprint + marks(self.chunk, rank)) % 2**32,
            )
            datagram = header.encode() + (payloads[rank] if payloads else b"")
            out.append(Exchange(rank, datagram, self.aggregator.process(rank, datagram)))
        if announce:
            announce[0].exponents[announce[1]] = decode(out[-1].results[0][1])
        self.chunk = (self.chunk + 1) % 2**32
        return out
