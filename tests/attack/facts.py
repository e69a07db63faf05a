# SPDX-License-Identifier: Apache-2.0
"""What an attacker knows: addresses, the header's format, and the job, which any host that listens can learn."""

import struct
from dataclasses import dataclass

from inagg_testbed.network.testbed import Testbed
from tests.attack.frames import capture

INAGG_PORT = 18753
HEADER = struct.Struct(">BBHHHIII")  # docs/protocol.md, 2.1
EXPONENT, DATA, EXPONENT_RESULT, DATA_RESULT = 0x41, 0x42, 0x49, 0x4A
WORDS_BYTES = 1024
AGGREGATOR_IP, AGGREGATOR_MAC = "10.0.0.253", "02:49:41:00:00:01"
_UDP_PAYLOAD = 42


@dataclass(frozen=True)
class JobFacts:
    """A running job: its number, epoch, a recent chunk, and the UDP port of the rank on host 1."""

    job: int
    epoch: int
    chunk: int
    udp_port: int


def spy(testbed: Testbed) -> JobFacts:
    """Learn the job from the contributions of host 1. (Results to the group address have INAGG_PORT twice.)"""
    port = INAGG_PORT.to_bytes(2, "big")
    frame = next(frame for frame in capture(testbed, 1, 50) if frame[36:38] == port != frame[34:36])
    _, _, job, _, _, epoch, chunk, _ = HEADER.unpack_from(frame, _UDP_PAYLOAD)
    return JobFacts(job, epoch, chunk, int.from_bytes(frame[34:36], "big"))


def payload(kind: int, job: JobFacts, *, rank: int = 0, exponent: int = 256) -> bytes:
    """A datagram's payload that passes all checks except those that depend on the sums."""
    header = HEADER.pack(kind, rank, job.job, exponent, exponent + 341, job.epoch, job.chunk & 0xFFFFFFFF, 0)
    return header + (bytes(WORDS_BYTES) if kind & 0xF in (0x2, 0xA) else b"")
