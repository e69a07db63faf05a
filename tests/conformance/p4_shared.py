# SPDX-License-Identifier: Apache-2.0
"""Shared slots on the P4 program, compiled and run in this process, between the workers and servers of several jobs.

Worker r of the job with number j in the fabric is at port 64 j + r + 1, its server s at port 256 + 16 j + s.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inagg_switch.switch import Switch
from inagg_switch.vectors.format import Insert, Key
from tests.conformance.p4_switch import AGGREGATOR, HEADERS_BYTES, RESULT_GROUP, Station, headers, packed_ip
from tests.conformance.reference import decode
from tests.conformance.shared_fabric import SharedJob

OUTCOMES = (
    "slot_taken",
    "slot_added",
    "slot_combined",
    "slot_flushed",
    "slot_evicted",
    "slot_expired",
    "slot_collided",
    "slot_freed",
    "passed",
    "query_forwarded",
    "result_forwarded",
    "no_server",
    "answer_unexpected",
    "not_admitted",
    "malformed",
    "wrong_epoch",
)


def worker_port(job: int, rank: int) -> int:
    return 64 * job + rank + 1


def server_port(job: int, server: int) -> int:
    return 256 + 16 * job + server


def station(port: int) -> Station:
    """Of the host at a port; a server's UDP port is its own."""
    return Station(
        f"02:00:00:00:{port >> 8:02x}:{port & 255:02x}", f"10.0.{port >> 8}.{port & 255}", 40000 + port
    )


@dataclass
class P4SharedSwitch:
    """The jobs' entries on the program. base, size: of the shared slots. expiry_us: of what a slot holds."""

    program: Switch
    jobs: Sequence[SharedJob]
    base: int = 0
    size: int = 4
    expiry_us: int = 20_000
    counters: Counter[str] = field(default_factory=Counter)
    clock: Callable[[], float] = lambda: 0.0  # seconds

    def __post_init__(self) -> None:
        for number, one in enumerate(self.jobs):
            copies = [(worker_port(number, rank), rank + 1) for rank in range(one.workers)]
            self.program.multicast_group(RESULT_GROUP + number, copies)
            for entry in self._inserts(number, one):
                assert isinstance(entry.action, str)
                self.program.insert(entry.table, entry.match, entry.action, entry.params)

    def remove(self) -> None:
        """Remove the entries; the slots keep what they have."""
        for number, one in enumerate(self.jobs):
            for entry in self._inserts(number, one):
                self.program.delete(entry.table, entry.match)
            self.program.multicast_group(RESULT_GROUP + number, [])

    def _inserts(self, number: int, one: SharedJob) -> list[Insert]:
        lease = {
            "all": (1 << one.workers) - 1,
            "slot_base": 0,
            "slot_mask": 0,
            "epoch": one.epoch,
            "result_group": RESULT_GROUP + number,
        }
        match: dict[str, Key] = {"job": one.job}
        params = {
            "base": self.base,
            "mask": self.size - 1,
            "offset": one.offset,
            "servers": one.servers,
            "job_priority": one.priority,
            "expiry_us": self.expiry_us,
        }
        made = [Insert(table="sharing", match=match, action="share", params=params)]
        for server in range(one.servers):
            port = server_port(number, server)
            host = station(port)
            match = {"job": one.job, "server": server}
            params = {"port": port, **host.params, "udp_port": host.udp_port}
            made.append(Insert(table="server", match=match, action="send", params=params))
            match = {"port": port, "source": packed_ip(host.ip), "job": one.job}
            params = {**lease, **AGGREGATOR.params, "first_port": worker_port(number, 0)}
            made.append(Insert(table="parent", match=match, action="accept_result", params=params))
        for rank in range(one.workers):
            port = worker_port(number, rank)
            host = station(port)
            match = {"port": port, "source": packed_ip(host.ip), "job": one.job, "rank": rank}
            params = {"member": 1 << rank, **lease, "parents": 0}
            made.append(Insert(table="admission", match=match, action="admit", params=params))
            match = {"job": one.job, "rank": rank}
            params = {**host.params, "udp_port": host.udp_port}
            made.append(Insert(table="receiver", match=match, action="deliver", params=params))
        return made

    def up(self, job: int, rank: int, datagram: bytes) -> list[tuple[int, int, bytes]]:
        """See SharingSwitch. Checks every outer header."""
        out = []
        for port, left in self._process(worker_port(job, rank), datagram):
            to_job, server = divmod(port - 256, 16)
            payload = left[HEADERS_BYTES:]
            to = station(port)
            assert left == headers(AGGREGATOR, to, len(payload), decode(payload).chunk & 0xFFFF) + payload
            out.append((to_job, server, payload))
        return out

    def down(self, job: int, server: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """See SharingSwitch."""
        out = []
        for port, left in self._process(server_port(job, server), datagram):
            to_job, rank = divmod(port - 1, 64)
            payload = left[HEADERS_BYTES:]
            to = station(port)
            assert left == headers(AGGREGATOR, to, len(payload), decode(payload).chunk & 0xFFFF) + payload
            assert to_job == job
            out.append((rank, payload))
        return out

    def _process(self, port: int, datagram: bytes) -> list[tuple[int, bytes]]:
        before = self._outcomes(port)
        left = self.program.process(
            port, headers(station(port), AGGREGATOR, len(datagram)) + datagram, self.clock()
        )
        self.counters += Counter(self._outcomes(port)) - Counter(before)
        return list(left)

    def _outcomes(self, port: int) -> dict[str, int]:
        return {name: self.program.counter(name)[port][0] for name in OUTCOMES}
