# SPDX-License-Identifier: Apache-2.0
"""Sums through the transports of all ranks of a job, in one process."""

import threading
from collections.abc import Sequence

import numpy as np

from inagg._core import Transport
from inagg_simulator import reference
from inagg_simulator.virtual_device import Device, run

PATIENCE_S = 60.0


def check_sum(transports: Sequence[Transport], elements: int, *, words: int) -> None:
    """Sum random floats: every rank gets the bits of the reference."""
    draws = np.random.default_rng(elements)
    inputs = draws.standard_normal((len(transports), elements), dtype=np.float32)
    outputs = inputs.copy()
    tickets = [one.submit(row) for one, row in zip(transports, outputs, strict=True)]
    assert all(one.wait(ticket, PATIENCE_S) for one, ticket in zip(transports, tickets, strict=True))
    expected = reference.all_reduce_array(inputs, lane_bits=32, words=words)
    assert all(np.array_equal(row, expected) for row in outputs)


def sum_at_once(transports: list[Transport], arrays: list[np.ndarray], devices: dict[int, Device]) -> None:
    """Runs devices in threads of their own, and submits the arrays of the other ranks."""
    threads = [threading.Thread(target=run, args=(transports[r], d)) for r, d in devices.items()]
    for thread in threads:
        thread.start()
    for rank, transport in enumerate(transports):
        if rank not in devices:
            assert transport.wait(transport.submit(arrays[rank]), PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
