# SPDX-License-Identifier: Apache-2.0
"""How a rank compares its clock with rank 0's."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from inagg import tracing
from inagg.base_errors import ConfigurationError
from inagg.tracing import Clock, compare_clocks


def test_clocks_of_machines_are_compared_to_within_half_a_round_trip() -> None:
    store, ahead_s = HashStore(), {0: 0.0, 1: 100.0, 2: -7.5}

    def compare(rank: int) -> Clock:
        clock = lambda: time.monotonic() + ahead_s[rank]  # noqa: E731
        return compare_clocks(store, rank, 3, f"machine {rank}", clock)

    with ThreadPoolExecutor(3) as pool:
        clocks = list(pool.map(compare, range(3)))
    assert clocks[0] == Clock(0.0, 0.0)
    for rank in (1, 2):
        assert 0 < clocks[rank].error_s < 1
        assert clocks[rank].offset_s == pytest.approx(-ahead_s[rank], abs=clocks[rank].error_s)


def test_a_rank_that_is_not_traced_is_an_error_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_PATIENCE", timedelta(milliseconds=50))
    with pytest.raises(ConfigurationError, match="INAGG_TRACE must be set for all ranks"):
        compare_clocks(HashStore(), 1, 2, "one")


def test_ranks_of_one_machine_have_one_clock() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: compare_clocks(store, rank, 2, "one"), range(2))) == [Clock()] * 2
