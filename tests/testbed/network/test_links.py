# SPDX-License-Identifier: Apache-2.0
"""Link descriptions: their rates, delays and queues, and the arguments of tc."""

import pytest

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.links import QUEUE_BYTES, LinkSpec
from inagg_testbed.network.switches import words_for_mtu


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 100_000_000),
        ("1gbit", 10**9),
        ("2.5gbit", 2_500_000_000),
        ("64kbit", 64_000),
        ("unshaped", None),
    ],
)
def test_a_name_gives_the_rate(text: str, rate: int | None) -> None:
    assert LinkSpec.parse(text).rate_bps == rate


@pytest.mark.parametrize("text", ["", "fast", "0mbit", "100", "100Mb/s", "-1gbit", "1gbit; reboot"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="100mbit"):
        LinkSpec.parse(text)


@pytest.mark.parametrize("mtu", [0, 575, 9001])
def test_an_mtu_out_of_range_is_refused(mtu: int) -> None:
    with pytest.raises(ConfigurationError, match="MTU"):
        LinkSpec.parse("unshaped", mtu=mtu)


def test_the_bucket_holds_four_milliseconds_of_the_rate() -> None:
    assert LinkSpec.parse("100mbit").burst_bytes == 50_000


def test_the_bucket_of_a_slow_link_still_holds_two_full_frames() -> None:
    assert LinkSpec.parse("64kbit").burst_bytes == 2 * 1514


@pytest.mark.parametrize("mtu", [1500, 8240, 9000])
@pytest.mark.parametrize("rate", ["1mbit", "100mbit", "1gbit", "10gbit"])
def test_a_window_fits_the_queue_of_a_bucket(rate: str, mtu: int) -> None:
    link = LinkSpec.parse(rate, mtu=mtu)
    payload = 256 * words_for_mtu(mtu)
    assert link.slots * payload * 1.05 >= 64_000
    assert link.slots * (payload + 62) <= QUEUE_BYTES


def test_a_shaped_link_sets_mtu_offloads_and_a_token_bucket() -> None:
    assert LinkSpec.parse("100mbit", mtu=9000, offloads=False).commands("eth9") == [
        "ip link set dev eth9 mtu 9000",
        "ethtool -K eth9 tx off rx off sg off tso off gso off gro off >/dev/null",
        "tc qdisc add dev eth9 root tbf rate 100000000bit burst 50000 limit 524288",
    ]


def test_an_unshaped_link_with_offloads_is_left_as_the_kernel_makes_it() -> None:
    assert LinkSpec.parse("unshaped").commands("eth9") == ["ip link set dev eth9 mtu 1500"]


@pytest.mark.parametrize(
    ("mtu", "words"), [(9000, 32), (8240, 32), (8239, 4), (1500, 4), (1072, 4)]
)  # 48 bytes of headers and 256 a word
def test_packets_are_as_large_as_the_mtu_allows(mtu: int, words: int) -> None:
    assert words_for_mtu(mtu) == words


def test_an_mtu_too_small_for_any_packet_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="MTU 1071: a DATA packet of 4 words needs 1072 bytes"):
        words_for_mtu(1071)
