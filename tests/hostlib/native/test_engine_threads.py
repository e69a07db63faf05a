# SPDX-License-Identifier: Apache-2.0
"""A worker whose switch has several threads: runs of chunks of one thread overtake those of another (protocol 6.1)."""

import socket
import struct

import numpy as np
import pytest

from inagg._core import Engine, Route, Sockets, Transport
from inagg_contract.constants import RUN_CHUNKS
from inagg_simulator import reference
from inagg_simulator.virtual_network import Impairment, Network, make_aggregator, make_shape, make_workers

SLOTS, LANES = 256, 64
RTT = 0.1
UDP_GRO = 104
EXPONENTS = 64  # that leave before the first result


class Full:
    """A job of one worker whose first DATA packets have left at 1.0. No result of them has come back."""

    def __init__(self, threads: int) -> None:
        (self.engine,) = make_workers(
            1, slots=SLOTS, words=1, threads=threads, rto_initial_s=50.0, rto_max_s=50.0
        )
        self.switch = make_aggregator(1, slots=SLOTS, words=1)
        self.engine.submit(np.ones(20 * SLOTS * LANES, np.float32))
        for exponents in self.engine.to_send(0.0):
            self.answer(exponents, 1.0)
        self.data = {reference.decode(packet).chunk: packet for packet in self.engine.to_send(1.0)}

    def answer(self, packet: bytes, now: float) -> None:
        ((_, result),) = self.switch.process(0, packet)
        self.engine.receive(result, now)


@pytest.mark.parametrize(("threads", "later", "overtakes"), [
    (1, 40, True),   # the next run
    (2, 40, False),  # of the other thread
    (2, 20, True),   # the same run
    (4, 40, False),
])  # fmt: skip
def test_results_of_one_thread_say_nothing_of_another_s(threads: int, later: int, overtakes: bool) -> None:
    full = Full(threads)
    first = min(full.data)
    assert first % RUN_CHUNKS == 0
    full.answer(full.data[first + later], 1.0 + RTT)
    # The RTT and a quarter of it for reordering; else the RTO: SRTT + 4 RTTVAR after the result.
    assert full.engine.deadline() == pytest.approx(1.0 + 1.25 * RTT if overtakes else 1.0 + RTT + 3 * RTT)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_message_is_for_one_thread(threads: int) -> None:
    """As a switch that tells frames apart by their first chunk receives them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        switch.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
        switch.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        switch.settimeout(10)
        transport = Transport(
            make_shape(1, slots=SLOTS, words=1),
            rank=0,
            route=Route(aggregator=switch.getsockname(), threads=threads),
            sockets=Sockets(local=("127.0.0.1", 0)),
        )
        transport.submit(np.ones(20 * SLOTS * LANES, np.float32))
        sizes: list[int] = []
        while sum(sizes) < EXPONENTS:
            message, controls, _, _ = switch.recvmsg(1 << 16, 64)
            size = struct.unpack("i", controls[0][2])[0] if controls else len(message)
            chunks = [reference.decode(message[at : at + size]).chunk for at in range(0, len(message), size)]
            assert len({chunk // RUN_CHUNKS % threads for chunk in chunks}) == 1
            sizes.append(len(chunks))
        transport.close()
    assert max(sizes) <= (RUN_CHUNKS if threads > 1 else SLOTS)
    assert max(sizes) > 1


@pytest.mark.parametrize("loss", [0.0, 0.02])
@pytest.mark.parametrize("threads", [1, 2, 4, 64])
def test_sums_do_not_depend_on_the_threads(threads: int, loss: float) -> None:
    engines = make_workers(3, slots=SLOTS, words=1, threads=threads)
    network = Network(engines, make_aggregator(3, slots=SLOTS, words=1), Impairment(delay=0.001, loss=loss))
    arrays = [np.arange(30_001, dtype=np.float32) * (rank + 1) for rank in range(3)]
    for engine, array in zip(engines, arrays, strict=True):
        engine.submit(array)
    network.run(1, within=60.0)
    for array in arrays:
        np.testing.assert_array_equal(array, arrays[0])
    np.testing.assert_allclose(arrays[0], 6 * np.arange(30_001, dtype=np.float32), rtol=1e-5, atol=0.1)


@pytest.mark.parametrize("threads", [0, 3, 128])
def test_the_number_of_threads_is_a_power_of_two(threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads is {threads}; it must be a power of two, at most 64"):
        Engine(make_shape(2, slots=SLOTS, words=1), rank=0, threads=threads)
