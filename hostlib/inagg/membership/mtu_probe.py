# SPDX-License-Identifier: Apache-2.0
"""Which packets get through between the ranks of a job and the switch."""

import time

from inagg import _core
from inagg.errors import InaggError
from inagg.membership.control import ControlClient

# Of an IP packet without words, and of the frame that carries it.
SMALL_BYTES = sum(_core.CONSTANTS[f"{layer}_HEADER_BYTES"] for layer in ("IPV4", "UDP", "INAGG"))
_SMALL_FRAME_BYTES = 14 + SMALL_BYTES

_TELLING_S = 1.0  # a job that another rank has just ended has no counts for a moment
_LOOK_S = 0.05


def full_bytes(words: int) -> int:
    """Of an IP packet with words."""
    return SMALL_BYTES + words * _core.CONSTANTS["WORD_BYTES"]


def narrow_ways(client: ControlClient, job: int, rank: int) -> tuple[int, ...] | None:
    """The ranks whose way to the switch takes small packets alone; if there is none, it is the way back to `rank` that
    does. None: the controller does not tell."""
    end = time.monotonic() + _TELLING_S
    try:
        while not (counters := client.status(job).counters):
            if time.monotonic() >= end:
                return None
            time.sleep(_LOOK_S)
    except InaggError:
        return None
    heard_little = (
        other for other, (count, size) in sorted(counters.items()) if size <= count * _SMALL_FRAME_BYTES
    )
    return tuple(heard_little) or (rank,)
