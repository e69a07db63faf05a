# SPDX-License-Identifier: Apache-2.0
"""Staged collectives (design.md, D11): the order of a device's work and of packets.

tests/conformance/test_network.py tests their sums on any network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inagg._core import EngineError, Staging
from inagg_simulator import reference
from inagg_simulator.virtual_device import SPECIAL, Device, drive
from inagg_simulator.virtual_network import failure_of, make_aggregator, make_network, make_workers

BLOCK = 64  # elements of 32 bits in one word
NONE = (np.empty(0, np.int64), np.empty((0, BLOCK), np.float32))


def ones(blocks: int) -> NDArray[np.float32]:
    return np.ones(blocks * BLOCK, np.float32)


def make_device(array: NDArray[np.float32]) -> Device:
    return Device(array, workers=1, words=1)


class Worker:
    """A job of one worker, whose switch answers each packet at once."""

    def __init__(self, slots: int) -> None:
        (self.engine,) = make_workers(
            1, slots=slots, words=1, rto_initial_s=1e3, rto_max_s=1e3, give_up_s=1e6
        )
        self._switch = make_aggregator(1, slots=slots, words=1)

    def sends(self) -> list[tuple[int, str]]:
        """(chunk, kind) of each packet that the worker sends now. `answer` delivers the results."""
        self._sent = self.engine.to_send(0.0)
        headers = [reference.decode(datagram) for datagram in self._sent]
        return [(header.chunk, {1: "exponent", 2: "data"}[header.kind]) for header in headers]

    def answer(self) -> None:
        for datagram in self._sent:
            ((_, result),) = self._switch.process(0, datagram)
            self.engine.receive(result, 0.0)

    def pack(self, device: Device, blocks: int) -> None:
        known, _ = self.engine.progress(device.staging)
        assert known >= blocks
        self.engine.packed(device.staging, device.pack(blocks))


def test_exponents_wait_for_the_scan_and_lanes_for_packing() -> None:
    worker = Worker(slots=4)
    device = make_device(ones(3))
    device.submit(worker.engine)
    assert worker.sends() == []
    assert worker.engine.deadline() is None
    worker.engine.scanned(device.staging, *device.scan())
    assert worker.sends() == [(0, "exponent"), (1, "exponent"), (2, "exponent")]
    assert worker.engine.progress(device.staging) == (0, 0)
    worker.answer()
    assert worker.engine.progress(device.staging) == (3, 0)
    assert worker.sends() == []
    worker.pack(device, 2)
    assert worker.sends() == [(3, "data"), (4, "data")]
    worker.answer()
    assert worker.engine.progress(device.staging) == (3, 2)
    worker.pack(device, 3)
    assert worker.sends() == [(5, "data")]
    worker.answer()
    assert worker.engine.completed() == [1]
    assert worker.engine.progress(device.staging) == (3, 3)


def test_a_block_that_is_packed_early_waits_for_its_slot() -> None:
    worker = Worker(slots=1)
    array = ones(3)
    device = make_device(array)
    device.submit(worker.engine)
    worker.engine.scanned(device.staging, *device.scan())
    chunks = []
    while sent := worker.sends():
        chunks += sent
        worker.answer()
        known, _ = worker.engine.progress(device.staging)
        worker.pack(device, known)
    assert chunks == [(0, "exponent"), (1, "data"), (2, "data"), (3, "data")]
    assert worker.engine.completed() == [1]


def test_one_that_is_scanned_in_time_is_announced_by_the_one_before() -> None:
    worker = Worker(slots=2)
    first, second = make_device(ones(2)), make_device(ones(1))
    for device in (first, second):
        device.submit(worker.engine)
    worker.engine.scanned(first.staging, *first.scan())
    assert worker.sends() == [(0, "exponent"), (1, "exponent")]
    worker.answer()
    worker.pack(first, 2)
    worker.engine.scanned(second.staging, *second.scan())
    assert worker.sends() == [(2, "data"), (3, "data")]
    worker.answer()
    # Without an EXPONENT chunk of its own.
    assert worker.engine.progress(second.staging) == (1, 0)
    worker.pack(second, 1)
    assert worker.sends() == [(4, "data")]


def test_one_that_is_scanned_late_is_not_announced_and_holds_up_those_behind_it() -> None:
    worker = Worker(slots=2)
    staged = make_device(ones(1))
    worker.engine.submit(ones(1))
    staged.submit(worker.engine)
    worker.engine.submit(ones(1))
    assert worker.sends() == [(0, "exponent")]
    worker.answer()
    assert worker.sends() == [(1, "data")]
    worker.answer()
    assert worker.engine.completed() == [1]
    assert worker.sends() == []
    worker.engine.scanned(staged.staging, *staged.scan())
    assert worker.sends() == [(2, "exponent")]
    worker.answer()
    worker.pack(staged, 1)
    # The lanes of block 0 announce the third collective.
    assert worker.sends() == [(3, "data")]
    worker.answer()
    assert worker.sends() == [(4, "data")]
    worker.answer()
    assert worker.engine.completed() == [2, 3]


def test_an_array_that_is_filled_late_is_not_read_before_and_holds_up_those_behind_it() -> None:
    worker = Worker(slots=2)
    late = np.full(BLOCK, np.nan, np.float32)
    worker.engine.submit(ones(1))
    ticket = worker.engine.submit(late, filled=False)
    worker.engine.submit(ones(1))
    assert worker.sends() == [(0, "exponent")]
    worker.answer()
    assert worker.sends() == [(1, "data")]
    worker.answer()
    assert worker.engine.completed() == [1]
    assert worker.sends() == []
    late[:] = 3
    worker.engine.filled(ticket)
    assert worker.sends() == [(2, "exponent")]
    worker.answer()
    # The lanes announce the third collective.
    assert worker.sends() == [(3, "data")]
    worker.answer()
    assert worker.sends() == [(4, "data")]
    worker.answer()
    assert worker.engine.completed() == [2, 3]
    assert late.tolist() == [3.0] * BLOCK


def test_a_staging_is_scanned_and_not_filled() -> None:
    worker = Worker(slots=2)
    device = make_device(ones(1))
    ticket = device.submit(worker.engine)
    with pytest.raises(ValueError, match="collective 1 has no array to fill: it is staged"):
        worker.engine.filled(ticket)
    assert worker.sends() == []


def test_an_array_that_is_filled_in_time_is_announced_by_the_one_before() -> None:
    worker = Worker(slots=2)
    late = np.zeros(BLOCK, np.float32)
    worker.engine.submit(ones(1))
    ticket = worker.engine.submit(late, filled=False)
    late[:] = 3
    worker.engine.filled(ticket)
    worker.engine.filled(ticket)
    assert worker.sends() == [(0, "exponent")]
    worker.answer()
    assert worker.sends() == [(1, "data")]
    worker.answer()
    assert worker.sends() == [(2, "data")]
    worker.answer()
    assert late.tolist() == [3.0] * BLOCK


def test_memory_is_the_caller_s_and_nothing_around_the_result_changes() -> None:
    needed = Staging.bytes_needed(3 * BLOCK, lane_bits=32, words=1)
    memory = np.full(needed + 100, 0x55, np.uint8)
    array = ones(3)
    network = make_network(1, slots=2, words=1)
    device = Device(array, workers=1, words=1, memory=memory)
    device.submit(network.engines[0])
    drive(network, 0, device)
    network.run(1, within=1.0)
    device.finish(network.engines[0])
    assert array.tolist() == [1.0] * array.size
    assert memory[needed:].tolist() == [0x55] * 100
    assert memory.ctypes.data == device.staging.datagrams.ctypes.data
    assert device.staging.datagrams.shape == (3, device.staging.stride) == (3, 20 + 256)


def test_views_outlive_their_staging() -> None:
    staging = Staging(BLOCK, lane_bits=32, workers=1, words=1)
    exponents = staging.exponents
    exponents[:] = 7
    del staging
    assert exponents.tolist() == [7]


@pytest.mark.parametrize("workers", [2, 64])
@pytest.mark.parametrize("lane_bits", [8, 32])
def test_specials_of_some_ranks_are_finished_for_all(workers: int, lane_bits: Any) -> None:
    inputs = np.random.default_rng(1).standard_normal((workers, 10 * 256 + 7), dtype=np.float32)
    inputs[0, 3] = np.nan
    inputs[1, [5, 300, 2561]] = np.inf
    inputs[0, 300] = -np.inf
    outputs = inputs.copy()
    network = make_network(workers, slots=4, words=1)
    devices = [
        Device(row, lane_bits=lane_bits, workers=workers, words=1, average=True) for row in outputs[::2]
    ]
    for rank, engine in enumerate(network.engines):
        if rank % 2 == 0:
            devices[rank // 2].submit(engine)
            drive(network, rank, devices[rank // 2])
        else:
            engine.submit(outputs[rank], lane_bits=lane_bits, average=True)
    network.run(1, within=10.0)
    for rank, device in enumerate(devices):
        device.finish(network.engines[2 * rank])
    expected = reference.all_reduce_array(inputs, lane_bits=lane_bits, words=1, average=True)
    for row in outputs:
        assert np.array_equal(row, expected, equal_nan=True)


@pytest.mark.parametrize("blocks", [5, 20])
def test_a_slow_device_makes_nobody_send_twice(blocks: int) -> None:
    network = make_network(2, slots=1024, words=1)
    plain, staged = network.engines
    device = Device(ones(10), workers=2, words=1)
    plain.submit(ones(10))
    device.submit(staged)
    drive(network, 1, device, step_s=0.02, step_blocks=1)
    for _ in range(20):
        for engine in network.engines:
            engine.submit(ones(blocks))
    network.run(21, within=1.0)
    assert plain.stats["retransmits"] == plain.stats["probes"] == 0


def test_an_empty_one_is_done_at_once() -> None:
    worker = Worker(slots=2)
    device = make_device(ones(0))
    assert device.submit(worker.engine) == 1
    assert worker.engine.completed() == [1]
    assert worker.engine.progress(device.staging) == (0, 0)
    device.finish(worker.engine)


def test_a_wrong_checksum_of_a_device_names_the_chunk_at_every_rank() -> None:
    network = make_network(2, slots=2, words=1)
    device = Device(ones(2), workers=2, words=1)
    device.submit(network.engines[0])
    network.engines[1].submit(ones(2))
    drive(network, 0, device, step_blocks=1)
    pack = device.pack

    def pack_wrongly(blocks: int) -> int:
        packed = pack(blocks)
        device.staging.checksums[1] ^= 1
        return packed

    device.pack = pack_wrongly  # type: ignore[method-assign]
    with pytest.raises(EngineError):
        network.run(1, within=1.0)
    network.drain()
    for engine in network.engines:
        assert (failure_of(engine).code, failure_of(engine).chunk) == ("checksum", 3)


def test_after_a_failure_no_memory_is_touched() -> None:
    worker = Worker(slots=4)
    device = make_device(ones(3))
    device.submit(worker.engine)
    worker.engine.scanned(device.staging, *device.scan())
    worker.sends()
    worker.answer()
    worker.pack(device, 2)
    worker.sends()
    worker.engine.fail("rank 1 was lost")
    datagrams, agreed = device.staging.datagrams.copy(), device.staging.agreed.copy()
    worker.answer()
    assert worker.engine.progress(device.staging) == (3, 0)
    assert worker.engine.completed() == []
    assert np.array_equal(device.staging.datagrams, datagrams)
    assert np.array_equal(device.staging.agreed, agreed)
    for call in (
        lambda: worker.engine.packed(device.staging, 3),
        lambda: make_device(ones(1)).submit(worker.engine),
    ):
        with pytest.raises(EngineError, match="rank 1 was lost"):
            call()


def scanned_device(worker: Worker) -> Device:
    """With the exponents of all three blocks agreed, and one block packed."""
    device = make_device(ones(3))
    device.submit(worker.engine)
    worker.engine.scanned(device.staging, *device.scan())
    worker.sends()
    worker.answer()
    worker.pack(device, 1)
    return device


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w, d: w.engine.packed(d.staging, 0), "had 1 blocks packed, and now 0"),
        (lambda w, d: w.engine.packed(d.staging, 4), "4 blocks cannot be packed.* exponents of 3 are agreed"),
        (lambda w, d: w.engine.scanned(d.staging, *NONE), "collective 1 has been scanned before"),
        (lambda w, d: d.submit(w.engine), "submitted before, as collective 1"),
        (lambda w, d: w.engine.special_sums(d.staging), "collective 1 is not done"),
        (lambda w, d: Worker(slots=4).engine.packed(d.staging, 2), "was not submitted here"),
        (lambda w, d: w.engine.progress(make_device(ones(1)).staging), "was not submitted here"),
    ],
)
def test_calls_out_of_order_are_refused_and_change_nothing(
    call: Callable[[Worker, Device], object], message: str
) -> None:
    worker = Worker(slots=4)
    device = scanned_device(worker)
    with pytest.raises(ValueError, match=message):
        call(worker, device)
    worker.pack(device, 3)
    worker.sends()
    worker.answer()
    assert worker.engine.completed() == [1]


@pytest.mark.parametrize(
    ("exponents", "special", "rows", "message"),
    [
        ([0, 1, 0], [], 0, "block 1 has the exponent code 1, which no block has"),
        ([0, SPECIAL | 1, 0], [1], 1, "block 1 has the exponent code 1,"),
        ([0, SPECIAL, 0], [], 0, "block 1 is marked as special, but is not the next of"),
        ([0, 0, 0], [1], 1, "block 1 is given as special, but its exponent is not marked"),
        ([SPECIAL, 0, SPECIAL], [2, 0], 2, "block 0 is marked as special, but is not the next of"),
        ([0, 0, 0], [3], 1, "not in ascending order, or beyond the last block"),
        ([SPECIAL, 0, 0], [0], 2, "special_elements has 2 rows for 1 special blocks"),
    ],
)
def test_a_scan_that_no_array_gives_is_refused_and_may_be_repeated(
    exponents: list[int], special: list[int], rows: int, message: str
) -> None:
    worker = Worker(slots=4)
    device = make_device(ones(3))
    device.submit(worker.engine)
    device.staging.exponents[:] = exponents
    with pytest.raises(ValueError, match=message):
        worker.engine.scanned(
            device.staging, np.array(special, np.int64), np.zeros((rows, BLOCK), np.float32)
        )
    assert worker.sends() == []
    worker.engine.scanned(device.staging, *device.scan())
    assert len(worker.sends()) == 3


def test_special_elements_have_a_row_of_whole_blocks() -> None:
    worker = Worker(slots=4)
    device = make_device(ones(1))
    device.submit(worker.engine)
    device.staging.exponents[:] = SPECIAL
    with pytest.raises(ValueError, match="1 special blocks have 64 elements, not 63"):
        worker.engine.scanned(device.staging, np.zeros(1, np.int64), np.zeros((1, 63), np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lane_bits": 12}, "lane_bits is 12"),
        ({"workers": 4097}, "workers is 4097"),
        ({"words": 0}, "words is 0"),
        ({"words": 256}, "words is 256"),
        ({"memory": np.zeros(283, np.uint8)}, "the memory has 283 bytes; staging 64 elements takes 284"),
        ({"memory": np.zeros(1000, np.uint8)[1:]}, "not aligned to 4 bytes"),
    ],
)
def test_impossible_staging_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Staging(BLOCK, **({"lane_bits": 32, "workers": 1, "words": 1} | arguments))


@pytest.mark.parametrize(("workers", "words"), [(2, 1), (1, 2)])
def test_staging_of_another_job_is_refused(workers: int, words: int) -> None:
    worker = Worker(slots=4)
    staging = Staging(BLOCK, lane_bits=32, workers=workers, words=words)
    with pytest.raises(ValueError, match="the job has 1 workers and 1 words"):
        worker.engine.submit_staged(staging)


def test_the_limits_of_special_blocks_are_there_before_anything_can_be_packed() -> None:
    worker = Worker(slots=4)
    array = ones(3)
    array[5], array[2 * BLOCK] = 1e30, np.nan
    device = make_device(array)
    device.submit(worker.engine)
    assert device.staging.limits.tolist() == [0x7FFFFFFF] * 3
    worker.engine.scanned(device.staging, *device.scan())
    # An outlier of the block is more than 20 binades above 1, the usual; 127 is the field of 1.
    assert device.staging.limits.tolist() == [((127 + 21) << 23) - 1, 0x7FFFFFFF, 0x7F7FFFFF]
