# SPDX-License-Identifier: Apache-2.0
"""The dissector for Wireshark, run by tshark: each field of each conformance vector is what the reference decodes."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from inagg_contract import constants
from inagg_simulator import reference
from inagg_wire import DISSECTOR
from tests.conformance.vector_files import VECTORS, load
from tests.wire.capturing import EPOCH, answer, contribution, query, result

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is missing: apt-get install tshark"
)
FIELDS = reference.Header._fields


def every_datagram() -> list[bytes]:
    """All datagrams of all vectors, also those that a switch drops."""

    def within(value: Any) -> list[str]:
        if isinstance(value, list):
            return [found for each in value for found in within(each)]
        if not isinstance(value, dict):
            return []
        own = [value["datagram"]] if "datagram" in value else []
        return own + [found for each in value.values() for found in within(each)]

    return [
        bytes.fromhex(text) for path in sorted(VECTORS.glob("*.json")) for text in within(load(path.name))
    ]


def framed(datagram: bytes, port: int = constants.INAGG_PORT) -> Ether:
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / (
        IP(src="10.0.0.1", dst="10.0.0.253") / UDP(sport=40000, dport=port, chksum=0) / datagram
    )


def dissected(path: Path, frames: list[Ether], *fields: str) -> list[list[list[str]]]:
    """For each frame, for each field, its values: one for each packet in the frame."""
    capture = path / "frames.pcap"
    wrpcap(str(capture), frames)
    return read(capture, *fields)


def read(capture: Path, *fields: str) -> list[list[list[str]]]:
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", str(capture), "-T", "fields"]
    command += ["-E", "separator=/t", "-E", "aggregator=;"]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "Lua" not in done.stderr, done.stderr
    return [
        [each.split(";") if each else [] for each in line.split("\t")] for line in done.stdout.splitlines()
    ]


def test_its_constants_are_the_contracts() -> None:
    text = DISSECTOR.read_text()
    stated = {
        name: int(value) for name, value in re.findall(r"^local ([A-Z_]+) = (\d+)$", text, re.MULTILINE)
    }
    of_hosts = {f"FLAG_{name}": getattr(reference, name) for name in ("SPECIAL", "NOT_READY", "WIDE")}
    known = vars(constants) | of_hosts
    own = {"MOST_WORDS"}
    assert stated.keys() - own <= known.keys()
    assert len(stated) > 15
    assert {name: known[name] for name in stated.keys() - own} == {
        name: stated[name] for name in stated.keys() - own
    }


@needs_tshark
def test_each_field_of_each_vector_is_what_the_reference_decodes(tmp_path: Path) -> None:
    datagrams = every_datagram()
    assert len(datagrams) > 200
    names = [f"inagg.{name}" for name in FIELDS]
    rows = dissected(
        tmp_path, [framed(one) for one in datagrams], *names, "inagg.words", "_ws.expert.message"
    )
    assert len(rows) == len(datagrams)
    malformed = 0
    for datagram, row in zip(datagrams, rows, strict=True):
        *values, words, notes = row
        plain = reference.decode(datagram)
        if len(values[2]) == 0:
            assert "Not a packet of this version of the protocol" in notes
            malformed += 1
            continue
        assert {
            name: [int(each, 0) for each in found] for name, found in zip(FIELDS, values, strict=True)
        } == {name: [value] for name, value in plain._asdict().items()}
        assert words == ([datagram[20:].hex()] if len(datagram) > 20 else [])
        assert ("Check fields do not match" in notes) == (not plain.agrees)
    assert 0 < malformed < 20  # rows of 5.1 in slots.json


@needs_tshark
def test_packets_of_one_message_are_shown_one_by_one(tmp_path: Path) -> None:
    message = b"".join(contribution(1, chunk, words=4) for chunk in range(60, 68)) + contribution(
        1, 68, kind=reference.EXPONENT
    )
    (row,) = dissected(tmp_path, [framed(message)], "inagg.chunk", "inagg.kind", "_ws.col.Info")
    assert row[0] == [str(chunk) for chunk in range(60, 69)]
    assert row[1] == ["2"] * 8 + ["1"]
    assert row[2] == ["DATA, rank 1, chunk 60 ... EXPONENT, rank 1, chunk 68 (9 packets)"]


@needs_tshark
def test_the_info_column_reads_well(tmp_path: Path) -> None:
    asked = query(2, 7, 5)
    flagged = reference.contribution(
        kind=reference.DATA, rank=0, job=3, epoch=EPOCH, chunk=9, flags=reference.SPECIAL | reference.WIDE
    )
    frames = [
        asked,
        answer(asked, reference.AGAIN),
        answer(asked, 0),
        result(8),
        flagged.encode() + bytes(256),
    ]
    rows = dissected(tmp_path, [framed(each) for each in frames], "_ws.col.Protocol", "_ws.col.Info")
    assert [row[0] for row in rows] == [["inagg"]] * 5
    assert [row[1][0] for row in rows] == [
        "DATA query, rank 2, chunk 7",
        "DATA answer, rank 2, chunk 7: again",
        "DATA answer, rank 2, chunk 7: held",
        "DATA result, rank 0, chunk 8",
        "DATA, rank 0, chunk 9, special, wide",
    ]


@needs_tshark
def test_packets_at_the_ports_of_servers_are_recognised(tmp_path: Path) -> None:
    damaged = bytearray(contribution(0, 7))
    damaged[7] ^= 1
    frames = [
        framed(contribution(0, 7), 45000),
        framed(bytes(damaged), 45000),
        framed(b"Other traffic", 45000),
    ]
    rows = dissected(tmp_path, frames, "inagg.chunk", "_ws.col.Protocol")
    assert rows == [[["7"], ["inagg"]], [[], ["UDP"]], [[], ["UDP"]]]


@needs_tshark
def test_bits_of_ranks_are_fields(tmp_path: Path) -> None:
    whole = contribution(1, 7)
    bits = (5).to_bytes(8, "big")
    frames = [framed(whole[:20] + bits + whole[20:]), framed(query(1, 7, 9) + bits + bytes(8))]
    rows = dissected(tmp_path, frames, "inagg.members", "inagg.waits_with", "inagg.words")
    assert [[[int(each, 16) for each in field] for field in row[:2]] for row in rows] == [
        [[5], []],
        [[5], [0]],
    ]
    assert rows[0][2] == [whole[20:].hex()]


@needs_tshark
def test_cut_frames_still_show_their_header(tmp_path: Path) -> None:
    frame = framed(contribution(1, 7, words=4))
    cut = Ether(bytes(frame)[:96])
    cut.wirelen = len(frame)
    (row,) = dissected(tmp_path, [cut], "inagg.chunk", "inagg.words", "_ws.col.Info")
    assert row[0] == ["7"]
    assert row[1] == [(bytes([1]) * 34).hex()]


@needs_tshark
def test_beacons_are_dissected(tmp_path: Path) -> None:
    body = bytes.fromhex("0065 0007") + bytes(range(16)) + bytes.fromhex("0002") + bytes(24)
    frame = Ether(dst="01:80:c2:00:00:0e", src="02:49:41:00:00:01", type=constants.ETHERTYPE_BEACON) / body
    names = ("out_port", "in_port", "secret", "switch")
    (row,) = dissected(tmp_path, [frame], *(f"inagg_beacon.{name}" for name in names))
    assert row == [["101"], ["7"], [bytes(range(16)).hex()], ["2"]]


def test_vectors_have_damaged_packets() -> None:
    """Without them the comparison above says nothing about expert infos."""
    assert json.dumps(load("slots.json")).count("malformed") > 5
    assert any(not reference.decode(one).agrees for one in every_datagram())
