# SPDX-License-Identifier: Apache-2.0
"""The switch of docs/protocol.md (5.1 to 5.3) in plain Python, and whole collectives through it, packet by packet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inagg_simulator.reference import (
    AGAIN,
    DATA,
    EXPONENT,
    HEADER,
    NOT_READY,
    QUERY,
    RESULT,
    SPECIAL,
    VERSION,
    WIDE,
    WORD_BYTES,
    Header,
    Lanes,
    block_exponent,
    block_flags,
    checksum,
    class_lanes,
    contribution,
    decode,
    exponent_code,
    fingerprint,
    marks,
    outliers,
    quantise,
    together,
)

FIRST_MEMBER = 1  # the bit of the member whose asking makes a switch ask above


class Version(NamedTuple):
    """The state of one slot version (section 5.2)."""

    epoch: int = 0
    chunk: int = 0
    members: int = 0
    flags: int = 0
    exponent: int = 0
    flags_check: int = 0
    exponent_check: int = 0
    checksum: int = 0
    words: tuple[int, ...] = ()
    final: bool = False  # the sum of the whole job


class Packet(NamedTuple):
    """A contribution or query, or a result or answer from a switch above."""

    epoch: int
    chunk: int
    member: int  # the sender's bit; 0 from above
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
    held: Version, other: Version, packet: Packet, slots: int, everybody: int, *, root: bool = True
) -> tuple[Version, list[str]]:
    """What section 5.2 does with a contribution. Returns the new state of the version, and the counters' names.

    other: the slot's other version. everybody: the bits of all members. root: no switch is above. A result leaves with
    "completed" and "result_resent", a partial sum with "partial_sent" and "partial_resent".
    """
    held, counter = _contribute(held, other, packet, slots, everybody)
    if counter not in ("started", "added") or held.members != everybody:
        return held, [counter]
    return held._replace(final=root), [counter, "completed" if root else "partial_sent"]


def keep(held: Version, packet: Packet, everybody: int) -> tuple[Version, str]:
    """What section 5.2 does with a result of a switch above. A result leaves with "result_kept"."""
    if refused := _not_awaited(held, packet, everybody):
        return held, refused
    kept = Version(packet.epoch, packet.chunk, everybody, *packet[3:], final=True)
    return kept._replace(words=packet.words or held.words), "result_kept"


def ask(held: Version, query: Packet, everybody: int) -> str:
    """What section 5.2 does with a query: the counter's name."""
    if held.epoch != query.epoch or age(query.chunk, held.chunk) > 0:
        return "query_again"
    if query.chunk != held.chunk:
        return "stale"
    if not held.members & query.member or held.final:
        return "query_again"
    asks_above = held.members == everybody and query.member == FIRST_MEMBER
    return "query_passed" if asks_above else "query_held"


def hear(held: Version, answer: Packet, everybody: int) -> str:
    """What section 5.2 does with an answer of a switch above: the counter's name."""
    return _not_awaited(held, answer, everybody) or "answer_passed"


def _not_awaited(held: Version, packet: Packet, everybody: int) -> str | None:
    """Why a packet from above is dropped; None: the version has the partial sum that it answers."""
    if held.epoch != packet.epoch or age(packet.chunk, held.chunk) > 0:
        return "result_unexpected"
    if packet.chunk != held.chunk:
        return "stale"
    if held.members != everybody:
        return "result_unexpected"
    return "result_duplicate" if held.final else None


def _contribute(
    held: Version, other: Version, packet: Packet, slots: int, everybody: int
) -> tuple[Version, str]:
    if held.epoch != packet.epoch or age(packet.chunk, held.chunk) > 0:
        before = (packet.epoch, (packet.chunk - slots) % 2**32, True)
        first = held.epoch != packet.epoch and packet.chunk < slots
        if not first and (other.epoch, other.chunk, other.final) != before:
            return held, "ahead"
        fresh = Version(packet.epoch, packet.chunk, packet.member, *packet[3:])
        # An EXPONENT packet has no words, and leaves those of the slot alone.
        return fresh._replace(words=packet.words or held.words), "started"
    if packet.chunk != held.chunk:
        return held, "stale"
    if held.members & packet.member:
        if held.final:
            return held, "result_resent"
        asks_above = held.members == everybody and packet.member == FIRST_MEMBER
        return held, "partial_resent" if asks_above else "duplicate_pending"
    words = held.words
    if packet.words:
        old = held.words or (0,) * len(packet.words)
        words = tuple((a + b) % 2 ** (8 * WORD_BYTES) for a, b in zip(old, packet.words, strict=True))
    added = Version(
        epoch=held.epoch,
        chunk=held.chunk,
        members=held.members | packet.member,
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
    """A job at one switch. `workers`: the members of the job at this switch, workers and switches below.

    above: the job's member numbers at the switches above, which take turns chunk by chunk; a root has none.
    """

    workers: int
    slots: int  # S
    epoch: int
    base: int = 0  # first slot version of the lease
    above: Sequence[int] = ()

    @property
    def everybody(self) -> int:
        """The bits of all members."""
        return (1 << self.workers) - 1

    def version(self, chunk: int) -> int:
        """The index of a chunk's slot version."""
        return self.base + chunk % (2 * self.slots)

    def complete_before(self, chunk: int) -> dict[int, Version]:
        """The slot versions, by index, of a job that has summed all chunks before this one; none for chunk 0."""
        if chunk == 0:
            return {}
        return {
            self.version(past): Version(self.epoch, past % 2**32, self.everybody, final=True)
            for past in range(chunk - 2 * self.slots, chunk)
        }


class Up(NamedTuple):
    """The receiver of a partial sum: a switch above, by its number in Job.above."""

    parent: int


Sent = list[tuple[int | Up, bytes]]


@dataclass
class Aggregator:
    """The switch of sections 5.1 to 5.3, without ports and addresses: packets come by member."""

    words: int
    jobs: dict[int, Job]
    versions: dict[int, Version] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(receiver's rank, datagram) of each packet that leaves a root because of a contribution or query."""
        sent = self.contribute(rank, datagram)
        return [(receiver, reply) for receiver, reply in sent if not isinstance(receiver, Up)]

    def contribute(self, member: int, datagram: bytes) -> Sent:
        """(receiver, datagram) of each packet that leaves because of a contribution or query."""
        return self._count(self._admit(datagram, member) or self._from_below(datagram))

    def result(self, datagram: bytes) -> Sent:
        """The same because of a result or answer of a switch above."""
        return self._count(self._admit(datagram, None) or self._from_above(datagram))

    def _count(self, outcome: tuple[Sent, list[str]]) -> Sent:
        sent, counters = outcome
        self.counters.update(counters)
        return sent

    def _admit(self, datagram: bytes, member: int | None) -> tuple[Sent, list[str]] | None:
        """What refuses the packet; None: nothing. `member`: the sender, None for a switch above."""
        if len(datagram) < HEADER.size:
            return [], ["malformed"]
        header = decode(datagram)
        words = self.words if header.kind in (DATA, DATA | RESULT) else 0
        known = header.version == VERSION and header.kind & ~(QUERY | RESULT) in (EXPONENT, DATA)
        if not known or len(datagram) != HEADER.size + words * WORD_BYTES or not header.agrees:
            return [], ["malformed"]
        job = self.jobs.get(header.job)
        if job is None or (header.kind & RESULT != 0) != (member is None):
            return [], ["not_admitted"]
        if not (job.above if member is None else header.rank == member < job.workers):
            return [], ["not_admitted"]
        return ([], ["wrong_epoch"]) if header.epoch != job.epoch else None

    def _from_below(self, datagram: bytes) -> tuple[Sent, list[str]]:
        header, payload = decode(datagram), datagram[HEADER.size :]
        job = self.jobs[header.job]
        index, other = job.version(header.chunk), job.version(header.chunk - job.slots)
        held = self.versions.get(index, Version())
        packet = _packet(header, payload, 1 << header.rank)
        if header.kind & QUERY:
            counter = ask(held, packet, job.everybody)
            return self._answer(counter, header), [counter]
        held, counters = step(
            held,
            self.versions.get(other, Version()),
            packet,
            job.slots,
            job.everybody,
            root=not job.above,
        )
        self.versions[index] = held
        if "result_resent" in counters:
            return [(header.rank, _result(header, held, payload))], counters
        if "completed" in counters:
            result = _result(header, held, payload)
            return [(member, result) for member in range(job.workers)], counters
        if {"partial_sent", "partial_resent"} & set(counters):
            up, own = self._as_member(header)
            return [(up, _result(own, held, payload, kind=header.kind))], counters
        return [], counters

    def _answer(self, counter: str, query: Header) -> Sent:
        """What leaves because of a query."""
        if counter == "stale":
            return []
        if counter == "query_passed":
            up, own = self._as_member(query)
            return [(up, own.encode())]
        answer = query._replace(kind=query.kind | RESULT)
        return [(query.rank, answer.announcing(AGAIN if counter == "query_again" else 0, 0).encode())]

    def _as_member(self, header: Header) -> tuple[Up, Header]:
        """The switch above whose turn it is, and the header as this switch's."""
        above = self.jobs[header.job].above
        parent = header.chunk % len(above)
        return Up(parent), header._replace(rank=above[parent])

    def _from_above(self, datagram: bytes) -> tuple[Sent, list[str]]:
        header, payload = decode(datagram), datagram[HEADER.size :]
        job = self.jobs[header.job]
        index = job.version(header.chunk)
        held = self.versions.get(index, Version())
        packet = _packet(header, payload, 0)
        if header.kind & QUERY:
            counter = hear(held, packet, job.everybody)
            return ([(0, datagram)] if counter == "answer_passed" else []), [counter]
        self.versions[index], counter = keep(held, packet, job.everybody)
        members = range(job.workers) if counter == "result_kept" else ()
        return [(member, datagram) for member in members], [counter]


def _packet(header: Header, payload: bytes, member: int) -> Packet:
    words = (payload[i : i + WORD_BYTES] for i in range(0, len(payload), WORD_BYTES))
    return Packet(
        header.epoch,
        header.chunk,
        member,
        header.flags,
        header.exponent,
        header.flags_check,
        header.exponent_check,
        header.checksum,
        tuple(int.from_bytes(word, "big") for word in words),
    )


def _result(header: Header, held: Version, payload: bytes, kind: int | None = None) -> bytes:
    """What the version holds, as the answer to a contribution. kind: of the answer, if it is not a result."""
    words = b"".join(word.to_bytes(WORD_BYTES, "big") for word in held.words) if payload else b""
    answer = header._replace(
        kind=header.kind | RESULT if kind is None else kind,
        flags=held.flags,
        exponent=held.exponent,
        flags_check=held.flags_check,
        exponent_check=held.exponent_check,
        checksum=held.checksum,
    )
    return answer.encode() + words


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

    def with_flags(self, mask: int) -> list[int]:
        """The blocks whose results have any of these flags."""
        return [block for block in range(self.count) if self.exponents[block].flags & mask]

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
            out += self._announce(collective, collective, block)
        for block in range(collective.count):
            code = collective.exponents[block].exponent
            packed = [quantise(together(own[block]), code, lanes, words) for own in collective.blocks]
            payloads = [lanes.pack(x) for x in packed]
            ahead = block + collective.lead
            if ahead < collective.count:
                out += self._announce(collective, collective, ahead, payloads, packed)
            elif following is None:
                unready = [(NOT_READY, 0)] * len(packed)
                out += self._everybody(collective, payloads, packed, unready)
            elif ahead - collective.count < following.lead:
                out += self._announce(collective, following, ahead - collective.count, payloads, packed)
            else:
                out += self._everybody(collective, payloads, packed)
        outlier_codes = {}
        for block in collective.with_flags(SPECIAL | WIDE):
            codes = [(0, exponent_code(outliers(own[block]), lanes)) for own in collective.blocks]
            classes = [class_lanes(own[block], lanes, words) for own in collective.blocks]
            size = len(classes[0]) // lanes.class_chunks
            for part in range(lanes.class_chunks):
                parts = [x[part * size : (part + 1) * size] for x in classes]
                payloads = [lanes.class_format.pack(x) for x in parts]
                out += self._everybody(collective, payloads, parts, codes if part == 0 else None)
            outlier_codes[block] = max(code for _, code in codes)
        for block in collective.with_flags(WIDE):
            code = outlier_codes[block]
            packed = [quantise(outliers(own[block]), code, lanes, words) for own in collective.blocks]
            out += self._everybody(collective, [lanes.pack(x) for x in packed], packed)
        return out

    def _announce(
        self,
        collective: AllReduce,
        announced: AllReduce,
        block: int,
        payloads: Sequence[bytes] | None = None,
        packed: Sequence[Sequence[int]] | None = None,
    ) -> list[Exchange]:
        """Send one chunk of every rank that carries the exponents of a block of `announced`."""
        own = [blocks[block] for blocks in announced.blocks]
        codes = [(block_flags(x), block_exponent(x, announced.lanes)) for x in own]
        out = self._everybody(collective, payloads, packed, codes)
        announced.exponents[block] = decode(out[-1].results[0][1])
        return out

    def _everybody(
        self,
        collective: AllReduce,
        payloads: Sequence[bytes] | None,
        packed: Sequence[Sequence[int]] | None,
        announced: Sequence[tuple[int, int]] | None = None,
    ) -> list[Exchange]:
        """Send one chunk of every rank: EXPONENT without payloads, otherwise DATA.

        announced: flags and exponent of each rank's packet; None: 0.
        """
        out = []
        job = self.aggregator.jobs[self.job]
        for rank in range(job.workers):
            summed = checksum(packed[rank]) if packed else 0
            flags, exponent = announced[rank] if announced else (0, 0)
            header = contribution(
                kind=EXPONENT if payloads is None else DATA,
                rank=rank,
                job=self.job,
                flags=flags,
                exponent=exponent,
                epoch=job.epoch,
                chunk=self.chunk,
                checksum=(summed + collective.fingerprint + marks(self.chunk, rank)) % 2**32,
            )
            datagram = header.encode() + (payloads[rank] if payloads else b"")
            out.append(Exchange(rank, datagram, self.aggregator.process(rank, datagram)))
        self.chunk = (self.chunk + 1) % 2**32
        return out
