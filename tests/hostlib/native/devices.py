# SPDX-License-Identifier: Apache-2.0
"""Sums of ranks with a device and of ranks without, through transports of one process."""

import threading

import numpy as np

from inagg._core import Transport
from inagg_simulator.virtual_device import Device, run

PATIENCE_S = 20.0


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
