# SPDX-License-Identifier: Apache-2.0
"""What a rank knows of its own pauses if its beats go over TLS."""

import threading
import time
from collections.abc import Iterator

import httpx

from inagg.membership.presence import HttpsPresence
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
