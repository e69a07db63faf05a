# SPDX-License-Identifier: Apache-2.0
"""The epochs of a controller never repeat, whatever it goes through."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inagg_controller.jobs.epochs import KEY_BYTES, Epochs
from inagg_controller.jobs.record import Saved
from inagg_controller.jobs.table import JobTable
from tests.controller.kinds import KINDS, create, table_for_all

KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
LAST = 2**32 - 1


@given(KEYS, st.integers(0, LAST - 64))
def test_epochs_are_distinct_32_bit_numbers_and_never_0(key: bytes, count: int) -> None:
    epochs = Epochs(key, count)
    taken = [epochs.take() for _ in range(64)]
    assert len({*taken}) == 64
    assert all(0 < epoch <= LAST for epoch in taken)


@given(KEYS, st.integers(0, LAST), st.integers(0, LAST))
def test_the_order_is_a_permutation(key: bytes, one: int, other: int) -> None:
    epochs = Epochs(key)
    assert (epochs._permuted(one) == epochs._permuted(other)) == (one == other)


@given(KEYS, KEYS, st.integers(0, LAST - 8))
def test_another_key_gives_another_order(key: bytes, other: bytes, count: int) -> None:
    mine, theirs = Epochs(key, count), Epochs(other, count)
    assert ([mine.take() for _ in range(4)] == [theirs.take() for _ in range(4)]) == (key == other)


@given(KEYS, st.integers(1, 2**31))
def test_epochs_that_an_earlier_version_has_counted_are_left_out(key: bytes, above: int) -> None:
    epochs = Epochs(key, above=above)
    assert all(epochs.take() > above for _ in range(32))


@given(KEYS, st.integers(1, LAST), st.integers(1, 16).map(lambda bits: 2**bits))
def test_a_first_chunk_is_a_multiple_of_2s_and_follows_from_key_and_epoch(
    key: bytes, epoch: int, slots: int
) -> None:
    first = Epochs(key).first_chunk(epoch, slots)
    assert 0 <= first < 2**32
    assert first % (2 * slots) == 0
    assert first == Epochs(key, 77).first_chunk(epoch, slots)


def test_first_chunks_differ() -> None:
    epochs = Epochs(bytes(KEY_BYTES))
    firsts = {epochs.first_chunk(epoch, 256) for epoch in range(1, 1001)}
    assert len(firsts) == 1000
    assert min(firsts) < 2**27 < 2**32 - 2**27 < max(firsts)


def test_after_the_last_epoch_none_is_left() -> None:
    epochs = Epochs(bytes(KEY_BYTES), LAST)
    assert not epochs.exhausted
    epochs.take()
    assert epochs.exhausted
    assert Epochs(bytes(KEY_BYTES), above=LAST - 1, count=LAST - 3).exhausted


def epochs_of(table: JobTable, count: int) -> set[int]:
    """The epochs of jobs that a table creates and ends."""
    found = set()
    for _ in range(count):
        job = create(table, KINDS[0])
        found.add(job.placement.epoch)
        table.end(job.id, 0.0)
        table.tick(1000.0)
    return found


def restarted(saved: Saved) -> JobTable:
    table = table_for_all()
    table.restore(saved, 0.0)
    return table


def test_no_epoch_repeats_over_restarts_even_if_the_file_lacks_the_last_moments() -> None:
    table = table_for_all()
    seen, count = epochs_of(table, 5), 5
    for _ in range(4):
        saved = Saved(numbers=table.changes().numbers, epoch_key=table.changes().epoch_key)
        seen |= epochs_of(table, 5)  # which are not saved
        table = restarted(saved)
        seen |= epochs_of(table, 5)
        count += 10
    assert len(seen) == count


def test_the_state_of_a_version_that_counted_epochs_loads() -> None:
    """Its next epoch was 241,000,000."""
    table = restarted(Saved(numbers={"epoch": 241_000_000, "job": 7}))
    numbers = table.changes().numbers
    assert (numbers["epoch"], numbers["job"]) == (241_000_000, 7)
    assert all(epoch >= 241_000_000 for epoch in epochs_of(table, 50))
    again = restarted(Saved(numbers=table.changes().numbers, epoch_key=table.changes().epoch_key))
    assert all(epoch >= 241_000_000 for epoch in epochs_of(again, 50))


def test_a_job_begins_where_it_began_before_a_restart_and_at_0_if_an_earlier_version_began_it() -> None:
    table = table_for_all()
    job = create(table, KINDS[0])
    saved = table.changes()
    restored = restarted(saved).job(job.id).placement
    assert (restored.epoch, restored.first_chunk) == (job.placement.epoch, job.placement.first_chunk)
    record = json.loads(saved.jobs[job.id])
    del record["placement"]["first_chunk"]
    old = replace(saved, jobs={job.id: json.dumps(record).encode()})
    assert restarted(old).job(job.id).placement.first_chunk == 0
