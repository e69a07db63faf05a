# SPDX-License-Identifier: Apache-2.0
"""The same ranks make a group again under the same name, with a store that keeps the keys of the first one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, Store

from inagg.errors import JobError
from inagg.membership.assembly import Assembly
from inagg.membership.generation import Generation
from inagg.membership.store import agree_on_members, forget_members

LIMIT = timedelta(seconds=20)
SOON = timedelta(milliseconds=50)


def test_ranks_that_make_a_group_equally_often_have_the_same_keys_and_never_older_ones() -> None:
    store = HashStore()
    for number in (1, 2, 3):
        first, second = (Generation(store, rank, 2) for rank in range(2))
        assert first.number == second.number == number
        assert not first.store.check(["word"])
        first.store.set("word", "here")
        assert second.store.get("word") == b"here"


def test_groups_of_different_sizes_have_different_keys() -> None:
    store = HashStore()
    Generation(store, 0, 2).store.set("word", "here")
    assert not Generation(store, 0, 3).store.check(["word"])


def test_a_rank_that_was_not_there_before_takes_the_newest_generation() -> None:
    store = HashStore()
    for _ in range(3):  # rank 0 fails twice before rank 1 begins
        newest = Generation(store, 0, 2)
    late = Generation(store, 1, 2)
    assert late.number == newest.number == 3
    assert [Generation(store, rank, 2).number for rank in range(2)] == [4, 4]


def test_a_rank_that_waits_while_another_begins_again_gets_an_error_that_says_so() -> None:
    store = HashStore()
    ours = Assembly(store, 0, 2, LIMIT)
    Assembly(store, 1, 2, LIMIT)  # is killed
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(ours.exchange, "words", "here")
        Assembly(store, 1, 2, LIMIT)  # is started again
        with pytest.raises(JobError, match="another rank has begun to make this group again"):
            waiting.result(timeout=5)
    assert ours.over


def test_the_keys_of_a_failed_attempt_do_not_end_the_next_one() -> None:
    store = HashStore()
    for rank in range(2):
        with pytest.raises(OSError, match="no memory"), Assembly(store, rank, 2, LIMIT):
            raise OSError("no memory")
    again = [Assembly(store, rank, 2, LIMIT) for rank in range(2)]
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(again[1].exchange, "words", "there")
        assert again[0].exchange("words", "here") == ["here", "there"] == theirs.result(timeout=5)


@pytest.mark.parametrize("open_store", [lambda _: HashStore(), lambda path: FileStore(path, -1)])
def test_the_members_of_an_earlier_group_of_this_name_are_forgotten(
    tmp_path: Path, open_store: Callable[[str], Store]
) -> None:
    store = open_store(str(tmp_path / "store"))
    for members in ([0, 1], [1, 2]):
        with ThreadPoolExecutor(2) as ranks:
            list(ranks.map(lambda rank, all_=members: agree_on_members(store, rank, all_, LIMIT), members))
        for rank in members:
            forget_members(store, rank)
    with pytest.raises(dist.DistStoreError, match="rank 2 did not come"):
        agree_on_members(store, 1, [1, 2], SOON)
