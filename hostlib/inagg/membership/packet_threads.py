# SPDX-License-Identifier: Apache-2.0
"""How many packet threads a rank has, and the sockets of those beyond the first."""

import contextlib
import logging
import os
import socket
from collections.abc import Mapping

from inagg.options import Options, parse_cpus
from inagg_contract.aggregation import LEASED
from inagg_contract.constants import RUN_CHUNKS

_log = logging.getLogger(__name__)

# One packet thread sums 11 to 19 Gbit/s, so below this rate, in bits per second, it is enough.
_ENOUGH_BELOW = 10e9
# A second thread pays off if it has a processor of its own. The switch and other ranks may be on this machine too.
_PROCESSORS_EACH = 8
_LOCAL_RANKS = "LOCAL_WORLD_SIZE"  # as torchrun sets it


def suitable_packet_threads(
    processors: int, link_rate: float | None, environment: Mapping[str, str] = os.environ
) -> int:
    """Two if this machine has processors for them, and the link may need them; else one.

    processors: on which they may run. link_rate: in bits per second; None: unknown.
    """
    text = environment.get(_LOCAL_RANKS, "")
    ranks = max(1, int(text)) if text.isdecimal() else 1
    fast = link_rate is None or link_rate >= _ENOUGH_BELOW
    return 2 if fast and processors // ranks >= _PROCESSORS_EACH else 1


def packet_threads(options: Options, aggregation: str, slots: int, link_rate: float | None) -> int:
    """The number for a job with so many slots. A number that the user asks for and cannot have is lowered, with a
    warning."""
    allowed = os.sched_getaffinity(0)
    if options.cpus is not None:
        allowed &= parse_cpus(options.cpus)
    wanted = options.packet_threads or suitable_packet_threads(len(allowed), link_rate)
    most = max(1, slots // RUN_CHUNKS) if aggregation == LEASED else 1
    if options.packet_threads is not None and wanted > most:
        why = (
            f"the job has {slots} slots, {RUN_CHUNKS} for each"
            if aggregation == LEASED
            else "servers take part"
        )
        _log.warning("packet_threads is %d, but %s: this rank has %d", wanted, why, most)
    return min(wanted, most)


def sharers(first: socket.socket, count: int) -> list[socket.socket]:
    """Sockets that share the address of a bound one, for this many packet threads with it. The caller closes them."""
    with contextlib.ExitStack() as undo:
        sockets = []
        if count > 1:
            # Not before it is bound: the kernel may give a port to several sockets that would share it.
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(1, count):
            another = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            another.bind(first.getsockname())
            sockets.append(another)
        undo.pop_all()
        return sockets
