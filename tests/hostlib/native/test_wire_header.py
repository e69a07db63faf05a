# SPDX-License-Identifier: Apache-2.0
"""The 20-byte header of protocol 2.1, and the constants that come from the P4 source."""

import re
from pathlib import Path

import pytest

from inagg._core import CONSTANTS, Header

CONSTANTS_P4 = Path(__file__).parents[3] / "p4" / "include" / "constants.p4"


def test_every_field_is_big_endian_at_its_offset() -> None:
    header = Header(
        kind=0xA,
        job=0x0102,
        rank=0x03,
        flags=0x01,
        exponent=0x105,
        epoch=0x06070809,
        chunk=0x0A0B0C0D,
        checksum=0x0E0F1011,
    )
    assert header.encode().hex(" ") == "4a 03 01 02 05 05 06 5a 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11"


def test_decoding_gives_back_what_was_encoded() -> None:
    encoded = bytes.fromhex("41020001050009550000000500000007deadbeef")
    header = Header.decode(encoded + b"words")
    assert (header.kind, header.rank, header.job) == (0x1, 2, 1)
    assert (header.flags, header.exponent, header.flags_check, header.exponent_check) == (1, 0x100, 2, 0x155)
    assert (header.epoch, header.chunk, header.checksum) == (5, 7, 0xDEADBEEF)
    assert header.encode() == encoded


@pytest.mark.parametrize(
    "datagram",
    [
        pytest.param("", id="empty"),
        pytest.param("410200010000015500000005000000070000ff", id="one byte short"),
        pytest.param("1102000100000155000000050000000700000000", id="version 1"),
        pytest.param("2102000100000155000000050000000700000000", id="version 2"),
        pytest.param("3102000100000155000000050000000700000000", id="version 3"),
        pytest.param("4002000100000155000000050000000700000000", id="kind 0"),
        pytest.param("4302000100000155000000050000000700000000", id="kind 3"),
        pytest.param("4402000100000155000000050000000700000000", id="query for nothing"),
        pytest.param("4802000100000155000000050000000700000000", id="result of nothing"),
    ],
)
def test_what_is_no_header_is_refused(datagram: str) -> None:
    with pytest.raises(ValueError, match="not an inagg header"):
        Header.decode(bytes.fromhex(datagram))


def test_constants_are_those_of_the_p4_source() -> None:
    source = CONSTANTS_P4.read_text()
    in_p4 = {
        name: int(value, 0)
        for name, value in re.findall(
            r"^(?:const bit<\d+> |#define )(\w+) (?:= )?(\w+);?$", source, re.MULTILINE
        )
    }
    assert in_p4["INAGG_PORT"] == 18753
    assert in_p4.items() <= CONSTANTS.items()
