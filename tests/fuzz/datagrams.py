# SPDX-License-Identifier: Apache-2.0
"""Mutates datagrams on their way through the P4 program: no sum may be wrong, nothing may crash, no job may hang.

A seed is a job: real engines sum a few tensors in virtual time, through p4/inagg.p4 in this process. Some contributions
and some results are mutated. Mutated copies, packets of earlier jobs and garbage are added. The job must end with the
exact sums, or with an error at some rank. All seeds run on one switch, one job after another.

Several changes of words or checksums may cancel (protocol.md, 9), so they are changed in only one packet of a job.

    python -m tests.fuzz.datagrams --seeds 1..1000
    python -m tests.fuzz.datagrams --count 100000          # from seed 1, until 100000 datagrams have been mutated
"""

import argparse
import itertools
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inagg._core import LaneBits
from inagg_contract.constants import INAGG_PORT
from inagg_simulator import p4_switch, reference
from inagg_simulator.p4_switch import (
    AGGREGATOR_IP,
    HEADERS_BYTES,
    Entries,
    P4Switch,
    packed_ip,
    worker,
)
from inagg_simulator.virtual_network import Impairment, Network, make_workers
from inagg_switch.switch import Switch
from tests.fuzz.seeds import seeds_of

WORDS = 1
FLOOD_GROUP = 1
# Virtual seconds: less than the give-up time, 120 s, after which a job that hangs would end.
SOON_S = 60.0
UDP_LENGTH, IP_LENGTH, IP_CHECKSUM = slice(38, 40), slice(16, 18), slice(24, 26)
# Fields of the inagg header: (first byte, bytes). Fields of one size are swapped, or taken from another packet.
FIELDS = [(1, 1), (0, 1), (2, 2), (4, 2), (6, 2), (8, 4), (12, 4), (16, 4)]


def with_lengths(frame: bytes, udp: int, ip: int) -> bytes:
    """The frame with these lengths in its UDP and IPv4 headers, and the right IPv4 checksum."""
    made = bytearray(frame)
    made[UDP_LENGTH], made[IP_LENGTH], made[IP_CHECKSUM] = (
        struct.pack("!H", udp),
        struct.pack("!H", ip),
        b"\0\0",
    )
    total = sum(struct.unpack("!10H", made[14:34]))
    total = (total & 0xFFFF) + (total >> 16)
    made[IP_CHECKSUM] = struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)
    return bytes(made)


Mutation = Callable[[bytes, Sequence[bytes], random.Random], bytes]


def flip_anywhere(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    made = bytearray(frame)
    for _i in range(draws.choice((1, 1, 1, 2, 8))):
        bit = draws.randrange(8 * len(made))
        made[bit // 8] ^= 0x80 >> bit % 8
    return bytes(made)


def flip_in_header(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    made = bytearray(frame)
    bit = draws.randrange(8 * reference.HEADER.size)
    made[HEADERS_BYTES + bit // 8] ^= 0x80 >> bit % 8
    return bytes(made)


def cut(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    return frame[: draws.randrange(len(frame))]


def cut_with_right_lengths(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    payload = draws.randrange(len(frame) - HEADERS_BYTES)
    return with_lengths(frame[: HEADERS_BYTES + payload], 8 + payload, 28 + payload)


def other_lengths(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    right = len(frame) - 34
    values = (0, 7, 8, 27, 28, 29, right - 1, right, right + 1, right + 256, 0xFFFF - 20)
    udp = draws.choice(values)
    return with_lengths(frame, udp, draws.choice((udp + 20, right + 20)))


def longer(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    made = frame + draws.randbytes(draws.choice((1, 4, 18, 256)))
    payload = len(made) - HEADERS_BYTES
    return with_lengths(made, 8 + payload, 28 + payload) if draws.random() < 0.5 else made


def swap_fields(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    made = bytearray(frame)
    at, size = draws.choice(FIELDS)
    other = draws.choice([first for first, bytes_ in FIELDS if bytes_ == size])
    a, b = (slice(HEADERS_BYTES + x, HEADERS_BYTES + x + size) for x in (at, other))
    made[a], made[b] = made[b], made[a]
    return bytes(made)


def field_of_another(frame: bytes, seen: Sequence[bytes], draws: random.Random) -> bytes:
    made = bytearray(frame)
    at, size = draws.choice(FIELDS)
    where = slice(HEADERS_BYTES + at, HEADERS_BYTES + at + size)
    made[where] = draws.choice(seen)[where]
    return bytes(made)


def words_of_another(frame: bytes, seen: Sequence[bytes], draws: random.Random) -> bytes:
    end = HEADERS_BYTES + reference.HEADER.size
    return frame[:end] + draws.choice(seen)[end:]


def near_chunk(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    made = bytearray(frame)
    where = slice(HEADERS_BYTES + 12, HEADERS_BYTES + 16)
    (chunk,) = struct.unpack("!I", made[where])
    made[where] = struct.pack("!I", (chunk + draws.randint(-20, 20)) % 2**32)
    return bytes(made)


def earlier(_: bytes, seen: Sequence[bytes], draws: random.Random) -> bytes:
    return draws.choice(seen)


def garbage(frame: bytes, _: Sequence[bytes], draws: random.Random) -> bytes:
    return frame[:HEADERS_BYTES] + draws.randbytes(draws.choice((0, 19, 20, len(frame) - HEADERS_BYTES)))


MUTATIONS: list[Mutation] = [
    flip_anywhere,
    flip_in_header,
    cut,
    cut_with_right_lengths,
    other_lengths,
    longer,
    swap_fields,
    field_of_another,
    words_of_another,
    near_chunk,
    earlier,
    garbage,
]


def summed(datagram: bytes) -> bytes:
    """The checksum and the words that it covers."""
    return datagram[reference.HEADER.size - 4 :]


def cancels(a: bytes, b: bytes) -> bool:
    """Whether the checksum, with lanes of some width, misses the difference of two datagrams of one length."""
    words = reference.HEADER.size
    stated = int.from_bytes(a[16:20], "big") - int.from_bytes(b[16:20], "big")
    for lane in (np.dtype(">u4"), np.dtype(">u2"), np.dtype("u1")):
        sums = [int(np.frombuffer(datagram, lane, offset=words).sum(dtype=np.int64)) for datagram in (a, b)]
        if (sums[0] - sums[1] - stated) % 2**32 == 0:
            return True
    return False


@dataclass
class Mutating:
    """A switch behind a network that mutates packets: the switch of a virtual_network.Network."""

    program: Switch
    workers: int
    draws: random.Random
    replaced: float  # probability that a contribution, or a result, is mutated
    added: float  # probability that a mutated packet comes before a contribution
    seen: list[tuple[int, bytes]]  # (port, frame) of this job and earlier ones
    mutated: Counter[str] = field(default_factory=Counter)
    spoiled: bool = False  # the job has a packet with changed words or checksum

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """Returns (receiver's rank, datagram) of all results that leave."""
        port = rank + 1
        frame = p4_switch.contribution_headers(rank, len(datagram)) + datagram
        self.seen.append((port, frame))
        out = []
        while self.draws.random() < self.added:
            at, original = self.draws.choice(self.seen[-400:])
            if at <= self.workers:
                out += self.program.process(at, self.mutate(original))
        if self.draws.random() < self.replaced:
            frame = self.mutate(frame)
        out += self.program.process(port, frame)
        return [(rank, self.damage(result)) for rank, result in self.results(out)]

    def mutate(self, frame: bytes) -> bytes:
        seen = [frame for _, frame in self.seen[-400:]]
        while True:
            mutation = self.draws.choice(MUTATIONS)
            made = mutation(frame, seen, self.draws)
            if made in seen or self.may_change(frame[HEADERS_BYTES:], made[HEADERS_BYTES:]):
                self.mutated[mutation.__name__] += 1
                return made

    def may_change(self, datagram: bytes, made: bytes) -> bool:
        """Whether `made` may be sent instead of `datagram`."""
        if len(made) != len(datagram) or summed(made) == summed(datagram):
            return True
        if self.spoiled or cancels(made, datagram):
            return False
        self.spoiled = True
        return True

    def damage(self, result: bytes) -> bytes:
        if self.draws.random() >= self.replaced:
            return result
        damaged = bytearray(result)
        bit = self.draws.randrange(8 * len(damaged))
        damaged[bit // 8] ^= 0x80 >> bit % 8
        made = bytes(damaged[: self.draws.randrange(len(damaged))] if self.draws.random() < 0.2 else damaged)
        if not self.may_change(result, made):
            return result
        self.mutated["result"] += 1
        return made

    def results(self, frames: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """The datagrams that the workers' kernels deliver to their sockets, which are connected to the aggregator."""
        out = []
        for port, frame in frames:
            rank = port - 1
            addresses = (
                packed_ip(AGGREGATOR_IP),
                packed_ip(worker(rank).ip),
                INAGG_PORT,
                worker(rank).udp_port,
            )
            if len(frame) >= HEADERS_BYTES and struct.unpack_from("!IIHH", frame, 26) == addresses:
                (length,) = struct.unpack("!H", frame[UDP_LENGTH])
                out.append((rank, frame[HEADERS_BYTES : 34 + length]))
        return out


@dataclass
class Report:
    jobs: Counter[str] = field(default_factory=Counter)
    mutated: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Fuzzer:
    """One switch; run() is a job on it."""

    def __init__(self) -> None:
        self.program = p4_switch.load(WORDS)
        self.program.multicast_group(FLOOD_GROUP, [(port, port) for port in range(1, 9)])
        self.report = Report()
        self._jobs = itertools.count(1)
        self._seen: list[tuple[int, bytes]] = []

    def run(self, seed: int) -> None:
        """Runs one job and adds its outcome to the report."""
        number = next(self._jobs)
        draws = random.Random(seed)
        workers, slots = draws.choice((1, 2, 2, 3, 5)), draws.choice((1, 2, 4))
        job, epoch = 1 + number % 2, number
        switch = P4Switch(self.program, Entries(job=job, workers=workers, slots=slots, epoch=epoch))
        mutating = Mutating(
            self.program,
            workers,
            draws,
            replaced=draws.choice((0.0, 0.01, 0.1)),
            added=draws.choice((0.05, 0.5, 0.8)),
            seen=self._seen[-400:],
        )
        loss = draws.choice((0.0, 0.05))
        try:
            outcome = self._sum(mutating, job, epoch, slots, Impairment(loss=loss, jitter=0.0005), seed)
            self.report.jobs[outcome] += 1
        except AssertionError as error:
            self.report.wrong.append(f"seed {seed}: {error}")
        finally:
            switch.remove()
            self._seen = mutating.seen
            self.report.mutated += mutating.mutated

    def _sum(
        self, switch: Mutating, job: int, epoch: int, slots: int, impairment: Impairment, seed: int
    ) -> str:
        draws = np.random.default_rng(seed)
        engines = make_workers(switch.workers, slots=slots, words=WORDS, job=job, epoch=epoch)
        network = Network(engines, switch, impairment, random.Random(seed))
        lanes: list[LaneBits] = [32, 16, 8]
        inputs: list[tuple[LaneBits, NDArray[np.float32]]] = [
            (
                lanes[draws.integers(3)],
                draws.standard_normal((switch.workers, draws.integers(1, 400)), np.float32),
            )
            for _ in range(draws.integers(1, 5))
        ]
        outputs = [array.copy() for _, array in inputs]
        for (lane_bits, _), output in zip(inputs, outputs, strict=True):
            for engine, row in zip(engines, output, strict=True):
                engine.submit(row, lane_bits=lane_bits, now=0.0)
        for rank in range(switch.workers):
            network.flush(rank)
        # A rank that fails ends the job: the controller tells the others (6.3).
        while all(engine.failure is None for engine in engines) and network.step():
            assert network.now < SOON_S, f"the job hangs, completed: {network.completed}"
        for rank, done in network.completed.items():
            for ticket in done:
                lane_bits, array = inputs[ticket - 1]
                expected = reference.all_reduce_array(array, lane_bits=lane_bits, words=WORDS)
                assert np.array_equal(outputs[ticket - 1][rank], expected), f"a wrong sum at rank {rank}"
        for failure in (engine.failure for engine in engines if engine.failure is not None):
            self.report.errors[failure.code] += 1
            return "failed"
        assert all(len(done) == len(inputs) for done in network.completed.values()), "a sum is missing"
        return "done"


def main() -> int:
    """The command line; returns how many jobs went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 1001), help="N or FIRST..LAST")
    parser.add_argument("--count", type=int, help="mutated datagrams, from seed 1 on")
    arguments = parser.parse_args()
    seeds: Iterable[int] = arguments.seeds
    if arguments.count is not None:
        seeds = itertools.count(arguments.seeds.start)
    fuzzer = Fuzzer()
    report = fuzzer.report
    for seed in seeds:
        if arguments.count is not None and report.mutated.total() >= arguments.count:
            break
        fuzzer.run(seed)
    print(*report.wrong, sep="\n")
    print(f"{len(report.wrong)} wrong; jobs: {dict(report.jobs)}; errors: {dict(report.errors)}")
    print(f"{report.mutated.total()} mutated datagrams: {dict(report.mutated)}")
    return len(report.wrong)


if __name__ == "__main__":
    sys.exit(min(main(), 100))
