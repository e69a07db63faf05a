# SPDX-License-Identifier: Apache-2.0
"""What an impairment does to packets, in virtual time; and its text."""

import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import pytest

from inagg_switch.impairment import Impairment, ImpairmentError, PortImpairment, parse_or_off
from tests.switch.ports.sanitized import build

PACKETS = 20_000
BYTES = 64
ETHERNET_BYTES = 14
HOLD_BACK_US = 1000


@dataclass
class Left:
    """What has left: (when in us, the packet); and the counters."""

    packets: list[tuple[int, bytes]]
    counted: dict[str, int]

    @property
    def numbers(self) -> list[int]:
        return [
            int.from_bytes(packet[ETHERNET_BYTES : ETHERNET_BYTES + 4], "big") for _, packet in self.packets
        ]


Send = Callable[..., Left]


@pytest.fixture(scope="module")
def send(tmp_path_factory: pytest.TempPathFactory) -> Send:
    """Sends packets through an impairment; see impairment_driver.cpp."""
    binary = build(tmp_path_factory.mktemp("impairment"), "impairment_driver.cpp", ["ports/impairment"])

    def sent(
        text: str, packets: int = PACKETS, every_us: int = 10, room: int = 1 << 30, release_at: int = 0
    ) -> Left:
        *probabilities, seed = Impairment.parse(text).native(number=1, port=1, direction="in", thread=0)
        arguments = (*probabilities, seed, packets, every_us, BYTES, room, release_at)
        command = [str(binary), *map(str, arguments)]
        lines = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
        pairs = [line.split() for line in lines]
        left = [(int(when), bytes.fromhex(packet)) for when, packet in pairs[:-5]]
        return Left(left, {name: int(count) for name, count in pairs[-5:]})

    return sent


def near(found: int, probability: float, draws: int = PACKETS) -> bool:
    """Whether a binomial count is within five standard deviations."""
    return abs(found - draws * probability) < 5 * sqrt(draws * probability * (1 - probability))


@pytest.mark.parametrize("percent", [1, 5, 50])
def test_packets_are_lost_at_the_rate(send: Send, percent: int) -> None:
    left = send(f"loss={percent}%")
    assert near(left.counted["lost"], percent / 100)
    assert len(left.packets) == PACKETS - left.counted["lost"]
    assert left.numbers == sorted(set(left.numbers))


def test_all_packets_can_be_lost(send: Send) -> None:
    assert send("loss=100%", packets=100).packets == []


def test_a_duplicate_follows_its_packet(send: Send) -> None:
    left = send("duplicate=3%")
    assert near(left.counted["duplicated"], 0.03)
    assert Counter(Counter(left.numbers).values()) == {
        1: PACKETS - left.counted["duplicated"],
        2: left.counted["duplicated"],
    }
    assert left.numbers == sorted(left.numbers)


def test_one_bit_behind_the_ethernet_header_is_flipped(send: Send) -> None:
    left = send("corrupt=10%")
    assert near(left.counted["corrupted"], 0.1)
    flipped = Counter[int]()
    for number, (_, packet) in enumerate(left.packets):
        right = bytes(ETHERNET_BYTES) + number.to_bytes(4, "big") + b"\xaa" * (BYTES - ETHERNET_BYTES - 4)
        bits = [bit for bit in range(8 * BYTES) if (packet[bit // 8] ^ right[bit // 8]) >> bit % 8 & 1]
        assert len(bits) <= 1
        flipped.update(bits)
    assert flipped.total() == left.counted["corrupted"]
    assert min(flipped) >= 8 * ETHERNET_BYTES
    assert len(flipped) > 0.9 * 8 * (BYTES - ETHERNET_BYTES)  # everywhere


def test_a_delay_keeps_order_and_distance(send: Send) -> None:
    left = send("delay=5ms", packets=1000)
    assert [when for when, _ in left.packets] == [1 + 10 * n + 5000 for n in range(1000)]
    assert left.numbers == list(range(1000))


def test_jitter_is_uniform_around_the_delay_and_changes_the_order(send: Send) -> None:
    left = send("delay=5ms,jitter=1ms")
    delays = [when - (1 + 10 * n) for n, (when, _) in zip(left.numbers, left.packets, strict=True)]
    assert min(delays) in range(4000, 4010)
    assert max(delays) in range(5991, 6001)
    assert near(sum(delay < 4500 for delay in delays), 0.25)
    assert left.numbers != sorted(left.numbers)
    assert sorted(left.numbers) == list(range(PACKETS))


def test_jitter_less_than_the_distance_of_packets_keeps_the_order(send: Send) -> None:
    assert send("delay=5ms,jitter=1ms", packets=1000, every_us=2001).numbers == list(range(1000))


def test_with_a_delay_a_reordered_packet_is_not_delayed(send: Send) -> None:
    left = send("delay=5ms,reorder=2%")
    assert near(left.counted["reordered"], 0.02)
    waited = Counter(when - (1 + 10 * n) for n, (when, _) in zip(left.numbers, left.packets, strict=True))
    assert waited == {0: left.counted["reordered"], 5000: PACKETS - left.counted["reordered"]}


def test_without_a_delay_a_reordered_packet_is_held_back(send: Send) -> None:
    left = send("reorder=2%")
    assert near(left.counted["reordered"], 0.02)
    waited = Counter(when - (1 + 10 * n) for n, (when, _) in zip(left.numbers, left.packets, strict=True))
    assert waited == {0: PACKETS - left.counted["reordered"], HOLD_BACK_US: left.counted["reordered"]}
    assert left.numbers != sorted(left.numbers)


def test_what_waits_is_bounded(send: Send) -> None:
    left = send("delay=1s", packets=1000, room=16 * 1024)
    assert 16 * 1024 // (BYTES + 128) <= len(left.packets) <= 16 * 1024 // BYTES
    assert left.counted["overflowed"] == 1000 - len(left.packets)
    assert left.numbers == list(range(len(left.packets)))  # tail drop


def test_packets_that_are_released_leave_in_their_order(send: Send) -> None:
    left = send("delay=50ms,jitter=1ms", packets=1000, release_at=500)
    waiting = send("delay=50ms,jitter=1ms", packets=500)
    assert left.numbers[:500] == waiting.numbers
    assert sorted(left.numbers[500:]) == list(range(500, 1000))


EVERYTHING = "loss=5%,duplicate=5%,reorder=5%,corrupt=5%,delay=5ms,jitter=1ms"


def test_a_seed_repeats_every_draw(send: Send) -> None:
    first = send(f"{EVERYTHING},seed=3", packets=2000)
    assert send(f"{EVERYTHING},seed=3", packets=2000) == first
    assert send(f"{EVERYTHING},seed=4", packets=2000).packets != first.packets
    assert all(first.counted[name] > 0 for name in ("lost", "duplicated", "reordered", "corrupted"))


def test_switches_ports_directions_and_threads_draw_differently() -> None:
    impairment = Impairment.parse("loss=1%")
    seeds = {
        impairment.native(number=number, port=port, direction=direction, thread=thread)[-1]
        for number in (1, 2)
        for port in (1, 2, 12)
        for direction in ("in", "out")
        for thread in (0, 1)
    }
    assert len(seeds) == 2 * 3 * 2 * 2


@pytest.mark.parametrize(
    ("text", "impairment"),
    [
        ("loss=1%", Impairment(loss=0.01)),
        ("loss=0.01", Impairment(loss=0.01)),
        ("delay=5ms,jitter=200us", Impairment(delay=0.005, jitter=0.0002)),
        ("delay=0.1s", Impairment(delay=0.1)),
        (
            "duplicate=0.1%,reorder=1%,corrupt=0.01%,seed=7",
            Impairment(duplicate=0.001, reorder=0.01, corrupt=1e-4, seed=7),
        ),
        ("off", None),
    ],
)
def test_an_impairment_is_read_from_its_text_and_shown_as_it(
    text: str, impairment: Impairment | None
) -> None:
    assert parse_or_off(text) == impairment
    if impairment is not None:
        assert Impairment.parse(str(impairment)) == impairment


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not NAME=VALUE"),
        ("loss", "is not NAME=VALUE"),
        ("lost=1%", "is not NAME=VALUE with a name of loss, duplicate"),
        ("loss=1%,", "'' is not NAME=VALUE"),
        ("loss=1%,loss=2%", "loss is given twice"),
        ("loss=101%", "a probability is 0 to 1"),
        ("loss=-1%", "a probability is 0 to 1"),
        ("loss=nan", "expected a percentage"),
        ("delay=5", "expected a time such as 5ms"),
        ("delay=61s", "must be 0 to 60 s"),
        ("delay=1ms,jitter=2ms", "jitter 2ms is more than the delay"),
        ("seed=1.5", "expected a whole number"),
        ("seed=-1", "seed -1"),
    ],
)
def test_a_wrong_text_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ImpairmentError, match=reason):
        Impairment.parse(text)


def test_an_impairment_of_a_port_names_port_and_direction() -> None:
    assert PortImpairment.parse("3:out:loss=1%") == PortImpairment(3, "out", Impairment(loss=0.01))
    for wrong in ("3:loss=1%", "x:in:loss=1%", "3:both:loss=1%", "3:in:"):
        with pytest.raises(ImpairmentError, match="expected PORT:in:SPEC"):
            PortImpairment.parse(wrong)
