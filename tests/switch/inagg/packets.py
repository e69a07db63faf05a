# SPDX-License-Identifier: Apache-2.0
"""Frames of docs/protocol.md for the tests of the P4 program, written by hand, and a job's table entries."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inagg_switch import Switch

EXPONENT = 0x1
DATA = 0x2
QUERY = 0x4
RESULT = 0x8
AGAIN = 0x20
EXPONENT_CHECK = 341
INAGG_PORT = 0x4941
WORD_BYTES = 256
HEADER_BYTES = 14 + 20 + 8 + 20
AGGREGATOR_IP = 0x0A0000FD
AGGREGATOR_MAC = 0x024941000001
BROADCAST = 0xFFFFFFFFFFFF
ALL_RANKS = 255


def inet_checksum(data: bytes) -> int:
    """RFC 1071."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ethernet(dst: int, src: int, ether_type: int, payload: bytes) -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + ether_type.to_bytes(2, "big") + payload


def ipv4(
    src: int,
    dst: int,
    payload: bytes,
    *,
    ttl: int = 64,
    protocol: int = 17,
    total: int | None = None,
    fragment: int = 0x4000,
    options: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    ihl = 5 + len(options) // 4
    length = 4 * ihl + len(payload) if total is None else total
    header = (
        struct.pack("!BBHHHBBHII", 0x40 | ihl, 0, length, 1, fragment, ttl, protocol, 0, src, dst) + options
    )
    value = inet_checksum(header) if checksum is None else checksum
    return header[:10] + value.to_bytes(2, "big") + header[12:] + payload


def with_tos(frame: bytes, tos: int) -> bytes:
    """A frame of IPv4 with another second byte of the header, and the right checksum."""
    bare = frame[:15] + bytes([tos]) + frame[16:24] + bytes(2) + frame[26:]
    return bare[:24] + inet_checksum(bare[14:34]).to_bytes(2, "big") + bare[26:]


def udp(src: int, dst: int, payload: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("!HHHH", src, dst, 8 + len(payload) if length is None else length, 0) + payload


def arp(operation: int, sender_mac: int, sender_ip: int, target_mac: int, target_ip: int) -> bytes:
    fixed = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
    return b"".join((
        fixed, sender_mac.to_bytes(6, "big"), sender_ip.to_bytes(4, "big"), target_mac.to_bytes(6, "big"),
        target_ip.to_bytes(4, "big"),
    ))  # fmt: skip


class Inagg(NamedTuple):
    """The inagg header; the defaults make a contribution. None stands for the correct value of a check field."""

    version: int = 4
    kind: int = DATA
    rank: int = 0
    job: int = 3
    flags: int = 0
    exponent: int = 0
    flags_check: int | None = None
    exponent_check: int | None = None
    epoch: int = 7
    chunk: int = 0
    checksum: int = 0

    def encode(self) -> bytes:
        flags_check = self.flags if self.flags_check is None else self.flags_check
        exponent_check = (
            self.exponent + EXPONENT_CHECK if self.exponent_check is None else self.exponent_check
        )
        return struct.pack(
            "!BBHHHIII",
            self.version << 4 | self.kind,
            self.rank,
            self.job,
            self.flags << 10 | self.exponent,
            flags_check << 10 | exponent_check,
            self.epoch,
            self.chunk,
            self.checksum,
        )


def read_inagg(header: bytes) -> Inagg:
    first, rank, job, stated, check, epoch, chunk, checksum = struct.unpack("!BBHHHIII", header)
    version, kind = divmod(first, 16)
    flags, exponent = divmod(stated, 1024)
    flags_check, exponent_check = divmod(check, 1024)
    return Inagg(
        version, kind, rank, job, flags, exponent, flags_check, exponent_check, epoch, chunk, checksum
    )


class Result(NamedTuple):
    """A result as a worker's network card sees it."""

    dst_mac: int
    src_mac: int
    ttl: int
    src_ip: int
    dst_ip: int
    src_port: int
    dst_port: int
    udp_checksum: int
    inagg: Inagg
    words: list[int]


def read_result(frame: bytes) -> Result:
    """Parses a result, and checks its lengths and its IPv4 checksum."""
    dst, src, ether_type = frame[:6], frame[6:12], frame[12:14]
    assert ether_type == b"\x08\x00"
    header = frame[14:34]
    assert header[0] == 0x45
    assert inet_checksum(header) == 0
    (total,) = struct.unpack("!H", header[2:4])
    assert total == len(frame) - 14
    ttl = header[8]
    src_ip, dst_ip = struct.unpack("!II", header[12:20])
    src_port, dst_port, length, checksum = struct.unpack("!HHHH", frame[34:42])
    assert length == total - 20
    inagg = read_inagg(frame[42:62])
    payload = frame[62:]
    assert len(payload) % WORD_BYTES == 0
    words = [int.from_bytes(payload[i : i + WORD_BYTES], "big") for i in range(0, len(payload), WORD_BYTES)]
    return Result(
        int.from_bytes(dst, "big"), int.from_bytes(src, "big"), ttl, src_ip, dst_ip, src_port, dst_port, checksum,
        inagg, words,
    )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Rank r has 10.0.0.(r + 1) and 02:00:00:00:00:(r + 1). Ports count from 1, with `per_port` workers each.

    multicast: results go to the job's group, 239.192.0.0 + its number (docs/protocol.md, 5.3).
    """

    workers: int
    number: int = 3
    epoch: int = 7
    slots: int = 8
    slot_base: int = 0
    group: int = 2
    multicast: bool = False
    per_port: int = 1

    @property
    def group_ip(self) -> int:
        return 0xEFC00000 + self.number

    @property
    def group_mac(self) -> int:
        return 0x01005E400000 + self.number

    def port(self, rank: int) -> int:
        return rank // self.per_port + 1

    def ip(self, rank: int) -> int:
        return 0x0A000001 + rank

    def mac(self, rank: int) -> int:
        return 0x020000000001 + rank

    def udp_port(self, rank: int) -> int:
        return 5000 + rank

    def key(self, rank: int) -> dict[str, int]:
        return {"port": self.port(rank), "source": self.ip(rank), "job": self.number, "rank": rank}

    def admission(self, rank: int) -> dict[str, int]:
        """The parameters of the action `admit`."""
        return {
            "member": 1 << rank, "all": (1 << self.workers) - 1, "slot_base": self.slot_base,
            "slot_mask": 2 * self.slots - 1, "epoch": self.epoch, "result_group": self.group, "first_chunk": 0,
            "parents": 0, "run_bits": 0,
        }  # fmt: skip

    def install(self, program: Switch) -> None:
        for rank in range(self.workers):
            program.insert("admission", self.key(rank), "admit", self.admission(rank))
            program.insert("receiver", {"job": self.number, "rank": rank}, "deliver", {
                "mac": self.mac(rank), "ip": self.ip(rank), "udp_port": self.udp_port(rank),
            })  # fmt: skip
        if self.multicast:
            program.insert("receiver", {"job": self.number, "rank": ALL_RANKS}, "deliver", {
                "mac": self.group_mac, "ip": self.group_ip, "udp_port": INAGG_PORT,
            })  # fmt: skip
            ports = range(1, self.port(self.workers - 1) + 1)
            program.multicast_group(self.group, [(port, ALL_RANKS + 1) for port in ports])
        else:
            self.send_to_each(program)

    def send_to_each(self, program: Switch) -> None:
        """From now on, a copy of each result for each worker."""
        program.multicast_group(self.group, [(self.port(rank), rank + 1) for rank in range(self.workers)])

    def frame(self, header: Inagg, words: Sequence[int] = (), tail: bytes = b"") -> bytes:
        """A contribution of the header's rank."""
        payload = header.encode() + b"".join(w.to_bytes(WORD_BYTES, "big") for w in words)
        datagram = udp(self.udp_port(header.rank), INAGG_PORT, payload)
        packet = ipv4(self.ip(header.rank), AGGREGATOR_IP, datagram)
        return ethernet(AGGREGATOR_MAC, self.mac(header.rank), 0x0800, packet) + tail

    def data(self, rank: int, chunk: int, words: Sequence[int], **fields: int) -> bytes:
        header = Inagg(job=self.number, epoch=self.epoch, rank=rank, chunk=chunk)
        return self.frame(header._replace(**fields), words)

    def query(self, rank: int, chunk: int, number: int, kind: int = DATA) -> bytes:
        """A query of the header's rank, about a chunk of that kind."""
        header = Inagg(kind=kind | QUERY, job=self.number, epoch=self.epoch, rank=rank, chunk=chunk)
        return self.frame(header._replace(checksum=number))

    def exponent(self, rank: int, chunk: int, **fields: int) -> bytes:
        header = Inagg(kind=EXPONENT, job=self.number, epoch=self.epoch, rank=rank, chunk=chunk)
        return self.frame(header._replace(**fields))
