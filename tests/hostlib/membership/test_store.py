# SPDX-License-Identifier: Apache-2.0
"""Ranks exchange words through the store while a group is made. They do not wait for ever for a silent rank."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from ipaddress import IPv4Address
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore

from inagg.errors import JobError
from inagg.groups import create
from inagg.membership import join
from inagg.membership.assembly import Assembly
from inagg.membership.store import exchange, value_of
from inagg.membership.watch import Watch
from inagg.options import Options

SOON = timedelta(milliseconds=50)
SERVER = """
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
input()
"""


def test_exchange_returns_the_words_of_all_ranks() -> None:
    store = HashStore()
    store.set("words/2", '["there", 1]')
    assert exchange(store, "words", 0, [0, 2], "here", SOON) == ["here", ["there", 1]]


def test_exchange_names_the_ranks_that_did_not_come() -> None:
    store = HashStore()
    store.set("words/2", "0")
    with pytest.raises(dist.DistStoreError, match=r"ranks 1, 3 did not come within 0\.05 s"):
        exchange(store, "words", 0, range(4), 0, SOON)


def test_exchange_returns_words_that_a_rank_sent_before_it_failed() -> None:
    store = HashStore()

    def fail() -> None:
        store.set("words/1", '"there"')
        raise JobError("rank 1 has failed")

    assert exchange(store, "words", 0, range(2), "here", SOON, fail) == ["here", "there"]
    with pytest.raises(JobError, match="rank 1 has failed"):
        exchange(store, "other words", 0, range(2), "here", SOON, fail)


def test_if_another_rank_does_not_make_the_group_its_own_timeout_applies_not_the_store_s() -> None:
    store = HashStore()
    store.set_timeout(timedelta(minutes=30))
    wanted = SimpleNamespace(
        store=store, global_ranks_in_group=[3, 5], group_rank=0, group_size=2, timeout=SOON
    )
    with pytest.raises(dist.DistStoreError, match=r"rank 5 did not come within 0\.05 s"):
        create(wanted, Options(controller="http://127.0.0.1:9"))


def test_a_rank_waits_for_the_words_of_a_silent_rank_as_long_as_joining_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = Options(controller="http://127.0.0.1:9", address=IPv4Address("127.0.0.1"), setup_timeout_s=0.01)
    with pytest.raises(dist.DistStoreError, match=r"rank 0 did not come within 0\.03 s"):
        join.join(Assembly(HashStore(), 1, 2, SOON), options)


def test_a_value_is_not_waited_for_after_its_server_has_stopped() -> None:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        minutes = timedelta(minutes=30)
        store = TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False, timeout=minutes)
        store.set("words", "here")
        watch = Watch(store, 0, 1, "127.0.0.1")
        assert store.check(["words"])
        os.kill(server.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)  # until then its threads may answer
        try:
            start = time.monotonic()
            with pytest.raises(dist.DistNetworkError):
                value_of(store, "words")
            assert time.monotonic() - start < 10
        finally:
            os.kill(server.pid, signal.SIGCONT)
        watch.close()
        server.communicate("")
