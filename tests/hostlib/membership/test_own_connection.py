# SPDX-License-Identifier: Apache-2.0
"""A store's second connection, also when the process that serves the store has ended."""

import multiprocessing
import time
from datetime import timedelta
from multiprocessing.connection import Connection

from torch._C._distributed_c10d import PrefixStore, TCPStore

from inagg.membership.store import own_connection


def serve(ready: Connection) -> None:
    """Serve a store until killed."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ready.send(store.port)
    ready.recv()


def test_a_server_that_has_ended_is_not_waited_for() -> None:
    """torch would try for the store's time-out to connect again."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,))
    server.start()
    store = TCPStore("127.0.0.1", here.recv(), is_master=False, timeout=timedelta(seconds=60))
    second = own_connection(PrefixStore("inner", store))
    second.set("key", "value")
    assert store.get("inner/key") == b"value"
    server.kill()
    server.join()
    began = time.monotonic()
    prefixed = PrefixStore("inner", store)
    assert own_connection(prefixed) is prefixed
    assert time.monotonic() - began < 10
