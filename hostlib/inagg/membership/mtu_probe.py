# SPDX-License-Identifier: Apache-2.0
"""Which packets get through between a rank and the switch."""

import time

import numpy as np

from inagg._core import Transport
from inagg.errors import InaggError, NetworkTimeoutError
from inagg.membership.control import ControlClient
from inagg.sums.reduction import Callback
from inagg_contract.sizes import FRAME_HEADERS_BYTES, HEADERS_BYTES, data_mtu

_FULL_SIZE_S = 6.0  # once small packets pass, for one of full size: eight sendings
_TELLING_S = 1.0  # a job that another rank has just ended has no counts for a moment
_LOOK_S = 0.05
_CHECK_S = 0.1  # between calls of `check`


class MtuProbe:
    """The first sum of a job, whose data take one packet of full size (docs/protocol.md, 7).

    words: 256-byte words in a packet.
    """

    def __init__(self, transport: Transport, client: ControlClient, job: int, rank: int, words: int) -> None:
        self._transport = transport
        self._client = client
        self._job = job
        self._rank = rank
        self._words = words

    def run(self, timeout_s: float, check: Callback) -> None:
        """Do the sum. A packet that is lost is sent again, as ever. check: called now and then; what it raises ends
        the wait.

        Raises:
            NetworkTimeoutError: it has not come back, or small packets have not within `timeout_s`.
            EngineError: the job has failed.
        """
        start, end = time.monotonic(), time.monotonic() + timeout_s
        small_passed = False
        ticket = self._transport.submit(np.zeros(1, dtype=np.float32))
        while not self._transport.wait(ticket, _CHECK_S):
            check()
            now = time.monotonic()
            if not small_passed and self._transport.stats()["packets_received"] > 0:
                small_passed, start, end = True, now, now + _FULL_SIZE_S
            if now >= end:
                raise self.silence(int(small_passed), round(now - start, 1), small_passed)

    def silence(self, chunk: int, waited_s: float, small_passed: bool = False) -> NetworkTimeoutError:
        """The switch has not answered for `waited_s`. small_passed: packets without words it has answered."""
        return NetworkTimeoutError(
            chunk,
            waited_s=waited_s,
            packet_bytes=data_mtu(self._words),
            passed_bytes=HEADERS_BYTES if small_passed else None,
            narrow=self._narrow_ways() if small_passed else None,
            job=self._job,
            rank=self._rank,
        )

    def _narrow_ways(self) -> tuple[int, ...] | None:
        """The ranks whose way to the switch takes small packets only; if there is none, the way back to this rank
        does. None: the controller does not tell."""
        end = time.monotonic() + _TELLING_S
        try:
            while not (counters := self._client.status(self._job).counters):
                if time.monotonic() >= end:
                    return None
                time.sleep(_LOOK_S)
        except InaggError:
            return None
        heard_little = (
            rank
            for rank, count in sorted(counters.items())
            if count.bytes <= count.packets * FRAME_HEADERS_BYTES
        )
        return tuple(heard_little) or (self._rank,)
