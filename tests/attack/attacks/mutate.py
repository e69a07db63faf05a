# SPDX-License-Identifier: Apache-2.0
"""Captures datagrams of the job, damages them and sends them, from a third host and from a rank's host."""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import host_address, host_mac
from tests.attack.frames import capture, packet_socket, send_all
from tests.attack.outcome import Outcome
from tests.attack.ranks import BrokenPromiseError, Ranks
from tests.attack.siege import STRANGER, attack_sums, besieged, judge_ranks, refused

SEED = 14
_IP, _UDP, _HEADER, _WORDS = 14, 34, 42, 62


def mutated(frame: bytes, draws: random.Random) -> bytes:
    """A frame with one to four changes behind its Ethernet header."""
    data = bytearray(frame)
    for _ in range(draws.randint(1, 4)):
        place = draws.choice((_IP, _UDP, _HEADER, _HEADER, _HEADER, _WORDS))
        way = draws.randrange(6)
        if way == 0:
            del data[draws.randint(_IP, len(data)) :]
        elif way == 1:
            data += draws.randbytes(draws.randint(1, 200))
        elif place < len(data):
            at = draws.randrange(place, min(place + 20, len(data)))
            data[at] = data[at] ^ 1 << draws.randrange(8) if way < 5 else draws.randrange(256)
    return bytes(data[:1514])


def with_checksum(frame: bytes) -> bytes:
    """The frame with the right IPv4 header checksum, so that later checks see the damage."""
    if len(frame) < _UDP:
        return frame
    head = frame[_IP : _IP + 10] + b"\0\0" + frame[_IP + 12 : _UDP]
    total = sum(int.from_bytes(head[at : at + 2], "big") for at in range(0, 20, 2))
    total = (total & 0xFFFF) + (total >> 16)
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return frame[: _IP + 10] + total.to_bytes(2, "big") + frame[_IP + 12 :]


def as_own(frame: bytes) -> bytes:
    """The frame with the third host's addresses as its source; the switch forwards these."""
    mac = bytes.fromhex(host_mac(STRANGER).replace(":", ""))
    ip = bytes(int(part) for part in host_address(STRANGER).split("."))
    return frame[:6] + mac + frame[12:26] + ip + frame[30:]


def damaged(frames: Sequence[bytes], count: int, draws: random.Random) -> list[bytes]:
    """`count` mutations of captured frames. Three in four have the right IPv4 checksum."""
    made = (mutated(draws.choice(frames), draws) for _ in range(count))
    return [with_checksum(frame) if draws.random() < 0.75 else frame for frame in made]


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """The same number of datagrams from the third host and from a rank's host."""
    count = 50_000 if full else 2000

    def from_stranger(testbed: Testbed, ranks: Ranks) -> str:
        draws, taken = random.Random(SEED), 0
        with packet_socket(testbed, STRANGER) as link:
            for _ in range(count // 500):
                fresh = capture(testbed, 1, 100)
                frames = damaged([*fresh, *(as_own(frame) for frame in fresh)], 500, draws)
                taken += send_all(link, frames)
        return f"{taken:,} datagrams, seed {SEED}"

    yield attack_sums(Outcome("mutate: from another host"), folder, from_stranger)
    yield from_a_rank(Outcome("mutate: from a rank's host"), folder, count)


def from_a_rank(outcome: Outcome, folder: Path, count: int) -> Outcome:
    """Send from a rank's host, which can spoil its job's sums (protocol.md, 9). No sum is wrong. If all ranks of a job
    end with an error, the attack continues with a new job."""
    draws, taken, jobs, began = random.Random(SEED), 0, 0, time.monotonic()
    with besieged(outcome, folder) as testbed:
        while taken < count:
            ranks, jobs = Ranks(testbed, 2), jobs + 1
            try:
                ranks.wait_for("joined")
                with packet_socket(testbed, 2) as link:
                    while taken < count:
                        ranks.go_on(1, timeout_s=150)  # if a slot is spoilt, ranks give up after 120 s
                        own = capture(testbed, 2, 50, timeout_s=5)
                        if own:
                            taken += send_all(link, damaged(own, 2000, draws))
                ranks.finish()
                ranks.wait_ended(timeout_s=150)
            except BrokenPromiseError:
                try:
                    ranks.wait_ended(timeout_s=150)
                except BrokenPromiseError as error:
                    outcome.broken.append(str(error))
            judge_ranks(ranks, outcome, may_fail=True)
            ranks.stop()
        outcome.amount = f"{taken:,} datagrams, {jobs} jobs, seed {SEED}"
        outcome.seconds = time.monotonic() - began
        outcome.counters = refused(testbed)
    return outcome
