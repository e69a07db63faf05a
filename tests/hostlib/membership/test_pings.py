# SPDX-License-Identifier: Apache-2.0
"""Which switches a rank takes for dead, by their answers to its pings."""

import socket
import struct
import threading
import time
from typing import Any, Self

import pytest

from inagg.membership import pings
from inagg.membership.pings import SwitchPings

LEAF, SPINE, OTHER = "10.0.255.1", "10.0.255.3", "10.0.255.2"
TREE = {"spine1": SPINE, "leaf1": LEAF, "leaf2": OTHER}
WORDS = struct.Struct("!8H")


class Network:
    """Is a socket for pings. answering: the addresses that answer. raw: answers begin with an IP header."""

    def __init__(self) -> None:
        self.answering = set(TREE.values())
        self.raw = False
        self.asked: list[str] = []
        self._answers: list[tuple[bytes, str]] = []

    def __enter__(self) -> Self:
        self.asked.clear()
        self._answers.clear()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sendto(self, packet: bytes, to: tuple[str, int]) -> None:
        self.asked.append(to[0])
        if to[0] in self.answering:
            self.give(b"\0" + packet[1:], to[0])

    def give(self, packet: bytes, sender: str) -> None:
        self._answers.append((b"E" * 20 * self.raw + packet, sender))

    def settimeout(self, seconds: float) -> None:
        self._patience_s = seconds

    def recvfrom(self, _most: int) -> tuple[bytes, tuple[str, int]]:
        if self._answers:
            packet, sender = self._answers.pop(0)
            return packet, (sender, 0)
        time.sleep(self._patience_s)
        raise TimeoutError


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(pings, "_open", lambda: network)
    monkeypatch.setattr(pings, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(pings, "_PAUSE_S", 0.01)
    monkeypatch.setattr(pings, "_LEARNING_S", 0.2)
    return network


def down(switches: SwitchPings) -> tuple[str, ...]:
    return switches.down(threading.Event())


def learned(own: str = "leaf1") -> SwitchPings:
    switches = SwitchPings(own, TREE)
    switches.learn()
    return switches


@pytest.mark.parametrize("raw", [False, True])
def test_switches_that_answer_are_not_down(network: Network, raw: bool) -> None:
    network.raw = raw
    assert down(learned()) == ()


def test_a_switch_that_answers_no_more_is_down(network: Network) -> None:
    switches = learned()
    network.answering = {LEAF, OTHER}
    assert down(switches) == (f"spine1 ({SPINE})",)


def test_a_switch_that_is_down_is_asked_again_and_again(network: Network) -> None:
    switches = learned()
    network.answering = {LEAF, OTHER}
    down(switches)
    assert network.asked.count(SPINE) > 2
    assert network.asked.count(LEAF) == 1


def test_of_a_dead_switch_and_those_behind_it_all_are_named(network: Network) -> None:
    switches = learned()
    network.answering = {LEAF}
    assert down(switches) == (f"spine1 ({SPINE})", f"leaf2 ({OTHER})")


def test_if_the_ranks_own_switch_is_down_it_alone_is_named(network: Network) -> None:
    switches = learned()
    network.answering = set()
    assert down(switches) == (f"leaf1 ({LEAF})",)


def test_a_switch_that_has_never_answered_is_not_judged(network: Network) -> None:
    network.answering = {LEAF, OTHER}
    switches = learned()
    network.answering = {LEAF}
    assert down(switches) == (f"leaf2 ({OTHER})",)


def test_a_first_answer_that_was_lost_is_made_up_for_later(network: Network) -> None:
    network.answering = {LEAF, OTHER}
    switches = learned()
    network.answering = set(TREE.values())
    switches.learn()
    assert network.asked == [SPINE]
    network.answering = {LEAF, OTHER}
    assert down(switches) == (f"spine1 ({SPINE})",)


def test_a_switch_that_never_answers_is_asked_for_some_seconds_only(network: Network) -> None:
    network.answering = {LEAF, OTHER}
    switches = SwitchPings("leaf1", TREE)
    for _ in range(10):
        switches.learn()
    network.asked.clear()
    switches.learn()
    assert network.asked == []


def test_without_permission_to_ping_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pings, "_open", lambda: None)
    assert down(learned()) == ()


def test_without_a_socket_for_pings_no_switch_is_down(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = learned()
    network.answering = set()
    monkeypatch.setattr(pings, "_open", lambda: None)  # out of descriptors, say
    assert down(switches) == ()


def test_packets_that_answer_nothing_are_ignored(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    switches = learned()
    network.answering = {LEAF, OTHER}
    sent = network.sendto

    def send(packet: bytes, to: tuple[str, int]) -> None:
        sent(packet, to)
        if to[0] == SPINE:
            network.give(packet, SPINE)  # the request itself
            other = bytes([packet[-1] ^ 1])
            network.give(b"\0" + packet[1:-1] + other, SPINE)  # an answer to another program
            network.give(b"", SPINE)

    monkeypatch.setattr(network, "sendto", send)
    assert down(switches) == (f"spine1 ({SPINE})",)


def test_stopping_ends_a_search_without_a_result(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    switches = learned()
    network.answering = set()
    monkeypatch.setattr(pings, "_PATIENCE_S", 60.0)
    stopping = threading.Event()
    threading.Timer(0.05, stopping.set).start()
    assert switches.down(stopping) == ()


def test_a_request_is_an_icmp_echo_with_a_right_checksum() -> None:
    packet = pings._echo(b"12345678")
    assert packet[:2] == bytes([8, 0])
    total = sum(WORDS.unpack(packet))
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF  # RFC 1071


def test_the_kernel_of_this_host_answers_as_a_switch_does() -> None:
    opened: Any = pings._open()
    if opened is None:
        pytest.skip("this user may not ping: not root, and net.ipv4.ping_group_range excludes it")
    assert isinstance(opened, socket.socket)
    opened.close()
    switches = SwitchPings("here", {"here": "127.0.0.1"})
    switches.learn()
    assert switches._answering == {"here"}
