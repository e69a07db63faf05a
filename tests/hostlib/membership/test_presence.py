# SPDX-License-Identifier: Apache-2.0
"""What a rank knows of its own pauses if its beats go over TLS."""

import socket
import threading
import time
from collections.abc import Iterator

import httpx

from inagg.membership.presence import HttpsPresence, TcpPresence
from tests.waiting import wait_until


def test_a_process_that_does_not_go_on_while_it_sends_a_beat_is_paused() -> None:
    goes_on = threading.Event()

    def post(beats: Iterator[bytes]) -> httpx.Response:
        next(beats)
        goes_on.wait()
        return httpx.Response(200)

    presence = HttpsPresence(post, interval_s=0.01)
    wait_until(lambda: presence.pause(0.2) != "", "it has noticed")
    goes_on.set()
    presence.close()


def test_a_controller_that_wants_no_more_beats_is_no_pause() -> None:
    def post(beats: Iterator[bytes]) -> httpx.Response:
        next(beats)
        next(beats)
        answered.set()
        return httpx.Response(200)

    answered = threading.Event()
    presence = HttpsPresence(post, interval_s=0.01)
    assert answered.wait(10)
    time.sleep(0.3)
    assert presence.pause(0.2) == ""
    presence.close()


def test_a_connection_that_cannot_be_made_again_is_no_pause() -> None:
    broke = threading.Event()

    def post(beats: Iterator[bytes]) -> httpx.Response:
        if broke.is_set():
            again.set()
            ends.wait()
            return httpx.Response(200)
        next(beats)
        broke.set()
        raise httpx.WriteError("reset")

    again, ends = threading.Event(), threading.Event()
    presence = HttpsPresence(post, interval_s=0.01)
    assert again.wait(10)
    time.sleep(0.3)
    assert presence.pause(0.2) == ""
    ends.set()
    presence.close()


def test_a_controller_that_takes_no_more_connections_is_not_flooded() -> None:
    made = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def connect() -> socket.socket:
            nonlocal made
            made += 1
            connection = socket.create_connection(listener.getsockname())
            other, _ = listener.accept()
            other.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            others.append(other)
            return connection

        others: list[socket.socket] = []
        presence = TcpPresence(connect, "/presence", {}, interval_s=0.1)
        wait_until(lambda: made >= 3, "it connects again")
        began, before = time.monotonic(), made
        wait_until(lambda: made >= before + 3, "and again")
        assert time.monotonic() - began > 0.9
        presence.close()
        for other in others:
            other.close()
