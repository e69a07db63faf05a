# SPDX-License-Identifier: Apache-2.0
"""Handles and uuids of groups that are formed again: which are accepted, and what a refusal leaves as it was."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from inagg.errors import ConfigurationError, JobError
from inagg.membership.formations import Formations, Handle, by_rank
from inagg.options import Options
from inagg.process_group import ProcessGroup
from inagg.torch_versions import waits_for_reconfigure
from tests.waiting import wait_until

NOBODY = Options(controller="http://127.0.0.1:9")


def options(uuid: int, handles: Any, timeout_s: float | None = None) -> Any:
    """torch's ReconfigureOptions, which releases before 2.14 lack."""
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    return SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={})


def alone(store: HashStore, rank: int = 0) -> ProcessGroup:
    group = ProcessGroup(store, rank, 3, timedelta(seconds=30), NOBODY, formed=False)
    group.reconfigure(options(100 + rank, [group.get_reconfigure_handle()])).wait()
    return group


def total(group: ProcessGroup) -> float:
    tensor = torch.tensor([1.5])
    group.allreduce([tensor]).wait()
    return tensor.item()


def test_a_list_gives_the_ranks_and_a_set_their_first_numbers() -> None:
    second, tenth, first = "inagg:2:5:bb", "inagg:10:5:aa", "inagg:1:-1:cc"
    assert by_rank([second, tenth, first]) == [second, tenth, first]
    assert by_rank({second, tenth, first}) == [first, second, tenth]


@pytest.mark.parametrize(
    ("handles", "match"),
    [
        ([], "at least one rank"),
        (["inagg:0:-1:aa", "inagg:0:-1:aa"], "each rank's handle once"),
        (["gloo:0:-1:0:"], "'gloo:0:-1:0:' is not a handle of an inagg group"),
        (["inagg:0:-1"], "is not a handle"),
        (["inagg:zero:-1:aa"], "is not a handle"),
        ([""], "is not a handle"),
        (["inagg:0:-1:aa"], "is not one of"),
        (None, "a list or a set of what get_reconfigure_handle.* got None"),
        ("inagg:0:-1:aa", "got 'inagg:0:-1:aa'"),
        ([b"inagg:0:-1:aa"], "got "),
        ([5], r"got \[5\]"),
        (iter(["inagg:0:-1:aa"]), "got <list_iterator"),
    ],
)
def test_bad_handles_leave_the_group_as_it_was(handles: Any, match: str) -> None:
    group = alone(HashStore())
    before = group.get_reconfigure_handle()
    with pytest.raises(ConfigurationError, match=match):
        group.reconfigure(options(7, handles))
    assert group.get_reconfigure_handle() == before
    assert total(group) == 1.5
    group.shutdown()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"uuid": "four"}, "an integer as its uuid, got 'four'"),
        ({"uuid": 4.0}, r"got 4\.0"),
        ({"uuid": None}, "got None"),
        ({"uuid": -1}, "another uuid than -1"),
        ({"timeout": 30}, "a timedelta or None as its timeout, got 30"),
    ],
)
def test_arguments_of_other_types_leave_the_group_as_it_was(changes: dict[str, Any], match: str) -> None:
    group = alone(HashStore())
    before = group.get_reconfigure_handle()
    given = options(7, [before])
    vars(given).update(changes)
    with pytest.raises(ConfigurationError, match=match):
        group.reconfigure(given)
    assert group.get_reconfigure_handle() == before
    assert total(group) == 1.5
    group.reconfigure(options(7, [before]))
    assert total(group) == 1.5
    group.shutdown()


def test_a_uuid_may_be_any_type_of_integer() -> None:
    group = alone(HashStore())
    for uuid in (torch.tensor(7), True):
        group.reconfigure(options(uuid, [group.get_reconfigure_handle()]))  # type: ignore[arg-type]
        assert Handle.parse(group.get_reconfigure_handle()).uuid == int(uuid)
    group.shutdown()


def test_a_used_uuid_is_refused_and_leaves_the_group_as_it_was() -> None:
    group = alone(HashStore())
    with pytest.raises(JobError, match="uuid 100 was already used"):
        group.reconfigure(options(100, [group.get_reconfigure_handle()]))
    assert total(group) == 1.5
    group.shutdown()


def test_a_handle_from_before_a_formation_is_refused() -> None:
    group = alone(HashStore())
    before = group.get_reconfigure_handle()
    group.reconfigure(options(1, [before]))
    with pytest.raises(ConfigurationError, match="holds until the group is formed again"):
        group.reconfigure(options(2, [before]))
    group.shutdown()


def test_a_process_and_its_replacement_have_different_handles() -> None:
    store = HashStore()
    assert Formations(store, 1).handle != Formations(store, 1).handle


def test_ranks_that_pass_different_handles_under_one_uuid_get_an_error() -> None:
    store = HashStore()
    first, second = Formations(store, 0), Formations(store, 1)
    handles = [str(first.handle), str(second.handle)]
    assert first.begin(1, handles)[1:] == (0, 2)
    with pytest.raises(JobError, match="all ranks must pass the same handles"):
        second.begin(1, handles[::-1])
    assert second.begin(1, handles)[1:] == (1, 2)


def test_a_group_that_could_not_be_formed_says_so_and_can_be_formed_later() -> None:
    store = HashStore()
    group, other = alone(store), Formations(store, 1)
    handles = [group.get_reconfigure_handle(), str(other.handle)]
    late = r"rank 1 did not come within 0\.1 s .*Every rank whose handle was passed must call reconfigure"
    with pytest.raises(RuntimeError, match=late):
        group.reconfigure(options(1, handles, timeout_s=0.1))
    assert (group.path, group.size(), group.timeout_s) == ("none", 1, 30.0)
    with pytest.raises(JobError, match=r"could not be formed again.*did not come"):
        group.allreduce([torch.ones(1)])
    with pytest.raises(JobError, match="call reconfigure with a new uuid"):
        group.barrier()
    group.reconfigure(options(2, [group.get_reconfigure_handle()]))
    assert total(group) == 1.5
    group.shutdown()


def test_more_ranks_than_one_need_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INAGG_CONTROLLER", raising=False)
    store = HashStore()
    group = ProcessGroup.create(store, 0, 1)
    handles = [group.get_reconfigure_handle(), str(Formations(store, 1).handle)]
    with pytest.raises(ConfigurationError, match="no controller is given"):
        group.reconfigure(options(1, handles))
    assert total(group) == 1.5
    group.shutdown()


def test_after_abort_collectives_fail_until_the_group_is_formed_again() -> None:
    group = alone(HashStore())
    group.abort()
    with pytest.raises(JobError, match="aborted the group"):
        group.allreduce([torch.ones(1)]).wait()
    group.reconfigure(options(1, [group.get_reconfigure_handle()]))
    assert total(group) == 1.5
    group.barrier().wait()
    group.shutdown()


@contextmanager
def waiting_for_another_rank() -> Iterator[ProcessGroup]:
    """A group that is being formed in another thread, and that waits for a rank that does not come. At the end of the
    block `abort` ends this."""
    store = HashStore()
    group, other = alone(store), Formations(store, 1)
    handles = [group.get_reconfigure_handle(), str(other.handle)]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(group.reconfigure, options(1, handles, timeout_s=60))
        wait_until(lambda: group.path == "none", "the group is being formed")
        yield group
        group.abort()
        with pytest.raises(JobError, match="aborted the group"):
            waiting.result(timeout=20)


def test_abort_ends_a_reconfigure_that_waits_for_another_rank() -> None:
    with waiting_for_another_rank() as group:
        pass
    with pytest.raises(JobError, match=r"could not be formed again.*aborted the group"):
        group.barrier()
    group.reconfigure(options(2, [group.get_reconfigure_handle()]))
    assert total(group) == 1.5
    group.shutdown()


def test_only_one_thread_forms_the_group() -> None:
    with waiting_for_another_rank() as group:
        own = group.get_reconfigure_handle()
        with pytest.raises(JobError, match="another thread forms this group"):
            group.reconfigure(options(2, [own]))
    group.reconfigure(options(2, [own]))  # the uuid is still free
    assert total(group) == 1.5
    group.shutdown()


def test_abort_ends_a_reconfigure_that_leaves_the_job() -> None:
    group = alone(HashStore())
    group.before_leaving.append(lambda *_: group.abort())
    with pytest.raises(JobError, match="aborted the group"):
        group.reconfigure(options(1, [group.get_reconfigure_handle()]))
    assert group.path == "none"
    group.reconfigure(options(2, [group.get_reconfigure_handle()]))
    assert total(group) == 1.5
    group.shutdown()


def pair(store: HashStore, threads: ThreadPoolExecutor) -> list[ProcessGroup]:
    """Two ranks in this process, which gloo connects and which have no job."""

    def make(rank: int) -> ProcessGroup:
        return ProcessGroup(store, rank, 2, timedelta(seconds=30), NOBODY, without_job="a test")

    return list(threads.map(make, range(2)))


def test_no_collective_of_another_thread_begins_while_the_group_is_formed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gloo, which is connected before the job is joined, would pair it with another one at the other rank."""
    connected, go_on = threading.Semaphore(0), threading.Event()

    def join_late(*_: object) -> str:
        connected.release()
        assert go_on.wait(30)
        return "a test"

    store = HashStore()
    groups = [ProcessGroup(store, rank, 2, timedelta(seconds=30), NOBODY, formed=False) for rank in range(2)]
    handles = [group.get_reconfigure_handle() for group in groups]
    monkeypatch.setattr("inagg.process_group.join_or_fall_back", join_late)
    with ThreadPoolExecutor(2) as threads:
        forming = [threads.submit(group.reconfigure, options(1, handles)) for group in groups]
        try:
            assert all(connected.acquire(timeout=30) for _ in groups)
            for begin in (lambda: groups[0].allreduce([torch.ones(1)]), groups[0].barrier):
                with pytest.raises(JobError, match="the group is being formed"):
                    begin()
        finally:
            go_on.set()
        for rank in forming:
            rank.result(timeout=30)
        assert list(threads.map(total, groups)) == [3.0, 3.0]
        for group in groups:
            group.abort()
            group.shutdown()


def test_abort_ends_a_split_that_waits_for_another_rank() -> None:
    with ThreadPoolExecutor() as threads:
        groups = pair(HashStore(), threads)
        waiting = threads.submit(groups[0].split_group, [0, 1])
        wait_until(lambda: groups[0]._splits, "the split has begun")
        groups[0].abort()
        with pytest.raises(JobError, match="aborted the group"):
            waiting.result(timeout=20)
        for group in groups:
            group.shutdown()


def test_abort_in_a_forked_child_leaves_the_parent_in_the_group() -> None:
    with ThreadPoolExecutor(2) as threads:
        groups = pair(HashStore(), threads)
        child = os.fork()
        if child == 0:
            try:
                groups[0].abort()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(threads.map(total, groups)) == [3.0, 3.0]
        for group in groups:
            group.abort()
            group.shutdown()


def test_a_group_that_was_never_formed_ends() -> None:
    group = ProcessGroup(HashStore(), 1, 3, timedelta(seconds=30), NOBODY, formed=False)
    assert (group.rank(), group.size(), group.path) == (1, 3, "none")
    assert group.stats()["aggregation"] == "none"
    group.abort()
    group.shutdown()


def test_only_newer_releases_of_torch_ask_for_it() -> None:
    assert not waits_for_reconfigure(SimpleNamespace())
    assert not waits_for_reconfigure(SimpleNamespace(enable_reconfigure=False))
    assert waits_for_reconfigure(SimpleNamespace(enable_reconfigure=True))
