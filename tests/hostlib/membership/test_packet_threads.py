# SPDX-License-Identifier: Apache-2.0
"""How many packet threads a rank has."""

import logging
import os
import socket

import pytest

from inagg.errors import ConfigurationError
from inagg.membership.packet_threads import packet_threads, sharers, suitable_packet_threads
from inagg.options import Options
from inagg_contract.aggregation import LEASED, SERVER, SHARED


@pytest.mark.parametrize(("processors", "link_rate", "local_ranks", "expected"), [
    (2, None, "", 1),
    (7, None, "", 1),
    (8, None, "", 2),
    (64, 10e9, "", 2),
    (64, 1e9, "", 1),  # one thread fills that link
    (64, None, "16", 1),
    (64, None, "8", 2),
    (64, None, "many", 2),
    (64, None, "0", 2),
])  # fmt: skip
def test_a_rank_has_two_where_there_are_processors_and_a_fast_link(
    processors: int, link_rate: float | None, local_ranks: str, expected: int
) -> None:
    assert suitable_packet_threads(processors, link_rate, {"LOCAL_WORLD_SIZE": local_ranks}) == expected


@pytest.mark.parametrize(("asked", "aggregation", "slots", "expected", "why"), [
    (4, LEASED, 256, 4, ""),
    (4, LEASED, 64, 2, "packet_threads is 4, but the job has 64 slots, 32 for each: this rank has 2"),
    (2, LEASED, 16, 1, "the job has 16 slots"),
    (1, LEASED, 2, 1, ""),
    (2, SHARED, 256, 1, "servers take part"),
    (2, SERVER, 256, 1, "servers take part"),
])  # fmt: skip
def test_what_a_job_cannot_have_is_lowered_and_said(
    asked: int, aggregation: str, slots: int, expected: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert packet_threads(Options(packet_threads=asked), aggregation, slots, None) == expected
    assert why in caplog.text
    assert bool(caplog.text) == bool(why)


def test_by_default_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert packet_threads(Options(), LEASED, 2, None) == 1
    allowed = suitable_packet_threads(len(os.sched_getaffinity(0)), None)
    assert packet_threads(Options(), LEASED, 256, None) == allowed
    assert packet_threads(Options(cpus="0"), LEASED, 256, None) == 1
    assert not caplog.text


@pytest.mark.parametrize("value", [0, 3, 128, True, "two"])
def test_the_option_is_a_power_of_two(value: object) -> None:
    with pytest.raises(ConfigurationError, match="packet_threads"):
        Options(packet_threads=value)


def test_sockets_of_one_rank_share_its_port_and_no_others_do() -> None:
    """The kernel would let another rank of this user have the port, if it asked before it is bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first:
        first.bind(("127.0.0.1", 0))
        more = sharers(first, 4)
        assert {udp.getsockname() for udp in more} == {first.getsockname()}
        assert len(more) == 3
        for udp in more:
            udp.close()
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another,
            pytest.raises(OSError, match="in use"),
        ):
            another.bind(first.getsockname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as alone:
        alone.bind(("127.0.0.1", 0))
        assert sharers(alone, 1) == []
        assert alone.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
