# SPDX-License-Identifier: Apache-2.0
"""Staged collectives (design.md, D11) over UDP on 127.0.0.1."""

import gc
import socket
import struct
import threading
import weakref

import numpy as np
import pytest

from inagg._core import EngineError, Staging
from inagg_simulator import reference
from inagg_simulator.virtual_device import Device
from tests.conformance.loopback_switch import SLOTS, WORDS, group, make_transport, silent_peer
from tests.hostlib.native.sums import sum_at_once

UDP_GRO = 104  # udp(7)
PATIENCE_S = 20.0


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_ranks_with_and_without_a_device_get_the_same_bits(loss: float) -> None:
    draws = np.random.default_rng(1)
    with group(3, loss=loss) as transports:
        for elements in (0, 1, 257, 20_000):
            inputs = draws.standard_normal((3, elements), dtype=np.float32)
            inputs[1, 256:elements:1000] = np.inf
            outputs = inputs.copy()
            devices = {rank: Device(outputs[rank], workers=3, words=WORDS) for rank in (0, 1)}
            sum_at_once(transports, list(outputs), devices)
            expected = reference.all_reduce_array(inputs, lane_bits=32, words=WORDS)
            assert all(np.array_equal(row, expected) for row in outputs)


def test_blocks_in_a_row_leave_in_one_piece() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        peer.settimeout(PATIENCE_S)
        transport = make_transport(peer.getsockname())
        device = Device(np.ones(SLOTS * 256, np.float32), workers=1, words=WORDS)
        device.submit(transport)
        transport.scanned(device.staging, *device.scan())

        def receive(segment: int) -> list[int]:
            """Receive SLOTS datagrams; answer those without words. Returns the number of datagrams in each piece."""
            pieces: list[int] = []
            while sum(pieces) < SLOTS:
                data, control, _, address = peer.recvmsg(65536, socket.CMSG_SPACE(4))
                if control:
                    assert struct.unpack("=i", control[0][2][:4]) == (segment,)
                pieces.append(len(data) // segment)
                for first in range(0, len(data) if segment == 20 else 0, 20):
                    header = reference.decode(data[first : first + 20])
                    peer.sendto(header._replace(kind=0x9).encode(), address)
            return pieces

        receive(20)
        assert transport.progress(device.staging, SLOTS - 1, SLOTS, PATIENCE_S) == (SLOTS, 0)
        transport.packed(device.staging, device.pack(SLOTS))
        assert receive(20 + WORDS * 256) == [SLOTS // 4] * 4
        transport.close()


def test_waiting_for_progress_ends_after_the_timeout_and_with_a_failure() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        device = Device(np.ones(10, np.float32), workers=1, words=WORDS)
        device.submit(transport)
        assert transport.progress(device.staging, 0, 0, 0.01) is None
        errors: list[EngineError] = []

        def wait() -> None:
            try:
                transport.progress(device.staging, 0, 0)
            except EngineError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        transport.fail("rank 3 was lost")
        thread.join(PATIENCE_S)
        assert [error.code for error in errors] == ["failed"]
        with pytest.raises(EngineError, match="rank 3 was lost"):
            transport.scanned(device.staging, *device.scan())
        with pytest.raises(EngineError, match="rank 3 was lost"):
            transport.packed(device.staging, 0)
        transport.close()


def test_an_array_may_be_filled_after_its_submission() -> None:
    with group(2) as transports:
        arrays = [np.full(5000, np.nan, np.float32) for _ in transports]
        tickets = [
            transport.submit(array, filled=False) for transport, array in zip(transports, arrays, strict=True)
        ]
        behind = [np.ones(10, np.float32) for _ in transports]
        last = [transport.submit(array) for transport, array in zip(transports, behind, strict=True)]
        assert not transports[0].wait(last[0], 0.05)
        for transport, array, ticket in zip(transports, arrays, tickets, strict=True):
            array[:] = 2
            transport.filled(ticket)
        for transport, ticket in zip(transports, last, strict=True):
            assert transport.wait(ticket, PATIENCE_S)
        assert all((array == 4).all() for array in arrays)
        assert all((array == 2).all() for array in behind)
        with pytest.raises(ValueError, match="there is no ticket 9"):
            transports[0].filled(9)
        staged = Device(np.ones(10, np.float32), workers=2, words=WORDS).submit(transports[0])
        with pytest.raises(ValueError, match="collective 3 has no array to fill"):
            transports[0].filled(staged)
        transports[0].fail("rank 3 was lost")
        with pytest.raises(EngineError, match="rank 3 was lost"):
            transports[0].filled(tickets[0])


def test_memory_lives_as_long_as_its_collective() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        memory = np.empty(Staging.bytes_needed(10, lane_bits=32, words=WORDS), np.uint8)
        alive = weakref.ref(memory)
        transport.submit_staged(Staging(10, lane_bits=32, workers=1, words=WORDS, memory=memory))
        del memory
        gc.collect()
        assert alive() is not None
        transport.close()
        gc.collect()
        assert alive() is None


def test_a_staging_belongs_to_the_transport_it_was_submitted_to() -> None:
    with silent_peer() as peer:
        here, there = make_transport(peer), make_transport(peer)
        staging = Staging(10, lane_bits=32, workers=1, words=WORDS)
        with pytest.raises(ValueError, match="was not submitted here"):
            here.progress(staging, 0, 0, 0.0)
        here.submit_staged(staging)
        with pytest.raises(ValueError, match="was not submitted here"):
            there.packed(staging, 0)
        with pytest.raises(ValueError, match="submitted before"):
            there.submit_staged(staging)
        with pytest.raises(ValueError, match="is not done"):
            here.special_sums(staging)
        here.close()
        there.close()
