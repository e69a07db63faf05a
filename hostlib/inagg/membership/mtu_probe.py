# SPDX-License-Identifier: Apache-2.0
"""Finds out whether packets of full size pass between a rank and the switch or the servers."""

import time
from collections.abc import Mapping

import numpy as np

from inagg._core import Transport
from inagg.errors import InaggError, JobRank, NetworkTimeoutError, PeerLostError
from inagg.membership.control import ControlClient
from inagg.membership.own_server import servers_of, silent_servers
from inagg.sums.reduction import Callback
from inagg_contract.aggregation import INNER, SERVER
from inagg_contract.constants import INAGG_HEADER_BYTES, WORD_BYTES
from inagg_contract.documents import JobStatus, Policy
from inagg_contract.ranks import place
from inagg_contract.sizes import FRAME_HEADERS_BYTES, HEADERS_BYTES, data_mtu, run_chunks, way_of

_BLOCKS = 4  # of the sum, at least
_FULL_SIZE_S = 6.0  # time for a packet of full size once small packets pass; it is sent eight times
_COUNTERS_S = 1.0  # a job that another rank has just ended has no counters for a moment
_LOOK_S = 0.05
_LATER = 17 / 16
_CHECK_S = 0.1  # between calls of `check`


def silent_s(policy: Policy) -> float:
    """How long a switch or server that has answered before may leave queries unanswered. The controller is first to see
    that a process is stopped, and names it to all ranks."""
    return _LATER * policy.heartbeat_timeout_s


def blocks_of(status: JobStatus) -> int:
    """Blocks of a job's first sum: each server, or root of the tree, sums one at least."""
    ways = len(status.servers) or status.roots
    run = run_chunks(status.slots, ways)
    # Where the slots begin again, a run's way may not be the next one if their number is no power of two.
    runs = ways if ways.bit_count() == 1 else 2 * ways
    return max(_BLOCKS, min(runs * run, status.slots) if ways > 1 else 0)


class MtuProbe:
    """The first sum of a job, whose data take packets of full size (docs/protocol.md, 7).

    status: of the job, with its servers and members.
    """

    def __init__(self, transport: Transport, client: ControlClient, status: JobStatus, rank: int) -> None:
        self._transport = transport
        self._client = client
        self._who = JobRank(status.id, status.name, rank)
        self._words = status.words
        self._slots = status.slots
        self._status = status
        self._roots = status.servers  # by way
        self._asked = servers_of(status, rank)
        # Of a job on servers alone.
        self._servers = self._asked if status.aggregation == SERVER else ()
        self._blocks = blocks_of(status)

    def run(self, timeout_s: float, check: Callback) -> None:
        """Do the sum, resending lost packets. check: called every _CHECK_S; what it raises ends the wait.

        Raises:
            NetworkTimeoutError: no small packet came back within `timeout_s`; or after one had, no packet of full size
                came back within _FULL_SIZE_S.
            EngineError: the job has failed.
        """
        start, end = time.monotonic(), time.monotonic() + timeout_s
        small_passed = False
        # Results without words: of each server if there are several, which data of the others do not replace.
        small = min(self._blocks, self._slots) if self._servers else 1
        ticket = self._transport.submit(
            np.zeros(self._blocks * self._words * WORD_BYTES // 4, dtype=np.float32)
        )
        while not self._transport.wait(ticket, _CHECK_S):
            check()
            now = time.monotonic()
            if not small_passed and self._small_results() >= small:
                small_passed, start, end = True, now, now + _FULL_SIZE_S
            if now >= end:
                raise self.silence(int(small_passed), round(now - start, 1), small_passed)

    def _small_results(self) -> int:
        """The results without words that have come."""
        stats = self._transport.stats()
        words = stats["bytes_received"] - stats["packets_received"] * INAGG_HEADER_BYTES
        return stats["packets_received"] - words // (self._words * WORD_BYTES)

    def silence(self, chunk: int, waited_s: float, small_passed: bool = False) -> NetworkTimeoutError:
        """The error for a switch that has not answered for `waited_s` seconds.

        small_passed: it has answered packets without words.
        """
        return NetworkTimeoutError(
            chunk,
            waited_s=waited_s,
            packet_bytes=data_mtu(self._words),
            passed_bytes=HEADERS_BYTES if small_passed else None,
            narrow=self._narrow_paths() if small_passed and not self._servers else None,
            aggregator=self._aggregator(chunk, small_passed),
            **self._who._asdict(),
        )

    def unanswered(
        self, chunk: int, waited_s: float, places: Mapping[int, str]
    ) -> PeerLostError | NetworkTimeoutError:
        """The error for a chunk whose switch or server has answered before, and no query for `waited_s` seconds.

        places: rank -> its host and address.
        """
        if not self._roots or any(server.rank is None for server in self._roots):
            return self.silence(chunk, waited_s)
        silent = silent_servers(self._status, self._who.rank, self._way_of(chunk))
        ips = {server.rank: server.ip for server in silent if server.rank is not None}
        at = " or ".join(f"{server.ip}:{server.udp_port}" for server in silent)
        its, process = ("its", "its process") if len(silent) == 1 else ("their", "one of their processes")
        return PeerLostError(
            list(ips),
            reason=f"{its} server at {at} has not answered rank {self._who.rank} for {waited_s:g} s: {process} is "
            "stopped, or the network between the two is broken",
            places={rank: places.get(rank) or place(None, ip) for rank, ip in ips.items()},
            **self._who._asdict(),
            chunk=chunk,
        )

    def _way_of(self, chunk: int) -> int:
        return way_of(chunk, self._slots, len(self._roots))

    def _aggregator(self, chunk: int, small_passed: bool) -> str:
        """What has not answered."""
        if self._status.aggregation == INNER:
            return "some rank"
        if not self._servers:
            return "the switch"
        if small_passed or chunk == 0:  # of any chunk of the first sum
            names = dict.fromkeys(
                f"{server.name} ({server.ip}:{server.udp_port})" for server in (*self._asked, *self._roots)
            )
            return f"{'one of the servers' if len(names) > 1 else 'the server'} {', '.join(names)}"
        silent = silent_servers(self._status, self._who.rank, self._way_of(chunk))
        return " or ".join(f"the server {server.name} ({server.ip}:{server.udp_port})" for server in silent)

    def _narrow_paths(self) -> Mapping[int, str] | None:
        """The ranks whose path to the switch loses large packets, by the switch's counters, with their hosts and
        addresses; None: no counters.

        If all large packets reach the switch, the path back to this rank loses them, so it is this rank.
        """
        end = time.monotonic() + _COUNTERS_S
        try:
            while not (counters := (status := self._client.status(self._who.job)).counters):
                if time.monotonic() >= end:
                    return None
                time.sleep(_LOOK_S)
        except InaggError:
            return None
        without_large = (
            rank
            for rank, count in sorted(counters.items())
            if count.bytes <= count.packets * FRAME_HEADERS_BYTES
        )
        places = {each.rank: place(each.host, each.ip) for each in status.ranks}
        return {rank: places.get(rank, "") for rank in tuple(without_large) or (self._who.rank,)}
