# SPDX-License-Identifier: Apache-2.0
"""Aggregation servers in host memory: those that have registered, and what a job has of servers.

A job with servers has either those that its first ranks run in their own processes (colocated), or registered ones. A
registered server gets orders in the answers to its heartbeats, and each heartbeat lists the jobs that it serves. It
leases memory to a job until the job has ended and the server no longer serves it: until then its sums may be there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inagg_contract.sizes import server_memory
from inagg_controller.errors import UnavailableError, UnknownServerError
from inagg_controller.jobs.accounts import Account, Owner
from inagg_controller.jobs.leases import FEWEST_SLOTS
from inagg_controller.switch.entries import Member

# The longest time between two heartbeats of a server, and the silence after which it is lost.
INTERVAL_S = 1.0
TIMEOUT_S = 5.0

# A server keeps a set of ranks in 64 bits.
MOST_RANKS = 64
MOST_SERVERS = 64
# The numbers of servers that a job may have; on shared slots the switch finds a chunk's server with a mask.
ANY_COUNT = range(1, MOST_SERVERS + 1)
POWERS_OF_TWO = tuple(1 << power for power in range(MOST_SERVERS.bit_length()))
# The most slots that the documents can express.
_MOST_SLOTS = 1 << 16


class JobKey(NamedTuple):
    """Names a job among all that a server has ever served."""

    id: int
    epoch: int


class Summed(NamedTuple):
    """How many chunks of DATA are complete, by where they were summed (docs/protocol.md, 5.7)."""

    switches: int = 0
    both: int = 0
    servers: int = 0


class MemoryLease(NamedTuple):
    """What a server gives to a job."""

    size: int
    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker of a job on servers alone.

    server_udp_port: of the server in its process; None: it runs none. rack: within which servers sum first; empty if it
    is not known. host: its name, for messages.
    """

    rank: int
    ip: int
    udp_port: int
    server_udp_port: int | None = None
    rack: str = ""
    host: str = field(default="", compare=False)


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """One start of a registered server. memory: bytes for jobs. serving, unknown: of its last heartbeat."""

    name: str
    ip: int
    udp_port: int
    memory: int
    instance: int
    last_seen: float
    leases: dict[JobKey, MemoryLease] = field(default_factory=dict)
    serving: frozenset[JobKey] = frozenset()
    unknown: int = 0

    @property
    def free(self) -> int:
        """Bytes that are not leased."""
        return self.memory - sum(lease.size for lease in self.leases.values())

    def free_for(self, creator: str | None, host_share: float) -> int:
        """Bytes that a job of `creator` may have."""
        if creator is None:
            return self.free
        held = sum(lease.size for lease in self.leases.values() if lease.owner.creator == creator)
        return min(self.free, int(host_share * self.memory) - held)


@dataclass(frozen=True, slots=True)
class Seat:
    """A server of a job. rank: of the worker in whose process it runs; None: it is a registered one."""

    name: str
    ip: int
    udp_port: int
    rank: int | None = None


@dataclass(slots=True, kw_only=True)
class ServerShare:
    """What a job has of servers.

    count: number of its servers. registered: by index; empty if they are colocated. memory: bytes in each registered
    server. seats: by index, known once all ranks have registered; the servers may have the job's orders from then on.
    serving: indices of the servers that serve the job. counted: what each has summed, by index. beside: where the ranks
    are, by rank, if that is not where they have registered.
    """

    slots: int
    count: int
    registered: tuple[Server, ...] = ()
    memory: int = 0
    seats: tuple[Seat, ...] = ()
    serving: set[int] = field(default_factory=set)
    counted: dict[int, Summed] = field(default_factory=dict)
    beside: dict[int, Worker] = field(default_factory=dict)

    def serves(self, rank: int) -> bool:
        """Whether a rank's process runs one of the servers."""
        return not self.registered and rank < self.count

    def assign(self, workers: Mapping[int, Worker | Member]) -> None:
        """Make the seats known. workers: all of the job, by rank."""
        if self.registered:
            self.seats = tuple(Seat(server.name, server.ip, server.udp_port) for server in self.registered)
            return
        seats = []
        for rank in range(self.count):
            port = workers[rank].server_udp_port
            assert port is not None
            seats.append(Seat(f"rank {rank}", workers[rank].ip, port, rank))
        self.seats = tuple(seats)

    @property
    def complete(self) -> bool:
        """Whether every server serves the job."""
        return len(self.serving) == self.count

    @property
    def missing(self) -> list[str]:
        """The names of the servers that do not serve the job."""
        return [seat.name for index, seat in enumerate(self.seats) if index not in self.serving]

    def hear(self, index: int, summed: Summed) -> None:
        """Record what a server has summed so far. Reports may arrive out of order, or twice."""
        self.counted[index] = Summed(*map(max, self.counted.get(index, Summed()), summed))

    @property
    def summed(self) -> Summed:
        """What all servers have summed."""
        return Summed(*map(sum, zip(Summed(), *self.counted.values(), strict=True)))

    def holds(self, key: JobKey) -> bool:
        """Whether a registered server still leases memory to the job."""
        return any(key in server.leases for server in self.registered)


class Servers:
    """The registered servers, by name.

    words: 256-byte words in a DATA packet. max_slots: maximum number for a job. host_share: the share of a server's
    memory that the jobs of one host may have together. next_instance: the number of the next one that registers.
    """

    def __init__(self, *, words: int, max_slots: int, host_share: float) -> None:
        self.by_name: dict[str, Server] = {}
        self._words = words
        self._max_slots = min(1 << (max_slots.bit_length() - 1), _MOST_SLOTS)
        self._host_share = host_share
        self.next_instance = 1

    def add(self, name: str, ip: int, udp_port: int, memory: int, now: float) -> Server:
        """Register a server. Neither its name nor its address may be another's (`rivals`)."""
        server = Server(
            name=name,
            ip=ip,
            udp_port=udp_port,
            memory=memory,
            instance=self.next_instance,
            last_seen=now,
        )
        self.next_instance += 1
        self.by_name[name] = server
        return server

    def rivals(self, name: str, ip: int, udp_port: int) -> list[Server]:
        """The servers with this name or this address."""
        return [
            server
            for server in self.by_name.values()
            if server.name == name or (server.ip, server.udp_port) == (ip, udp_port)
        ]

    def find(self, name: str, instance: int) -> Server:
        """A server by its name and instance. Raises UnknownServerError."""
        server = self.by_name.get(name)
        if server is None or server.instance != instance:
            raise UnknownServerError(
                f"there is no server {name} with instance {instance}: it was lost, stopped or started again, or the "
                "controller has restarted; register it again"
            )
        return server

    def silent(self, now: float, stall: float) -> list[Server]:
        """The servers that are lost. stall: seconds since the last call in which the controller did not run."""
        for server in self.by_name.values():
            server.last_seen += max(0.0, stall)
        return [server for server in self.by_name.values() if now - server.last_seen >= TIMEOUT_S]

    def colocated(self, workers: int, slots: int, counts: Sequence[int] = ANY_COUNT) -> ServerShare:
        """The share of a job whose first ranks serve. counts: as in `choose`."""
        slots = min(slots, self._max_slots)
        return ServerShare(slots=slots, count=max(count for count in counts if count <= min(workers, slots)))

    def held(self, account: Account) -> int:
        """Bytes that the servers together lease to jobs of an account."""
        leases = (lease for server in self.by_name.values() for lease in server.leases.values())
        return sum(lease.size for lease in leases if account.owns(lease.owner))

    def choose(
        self,
        slots: int,
        creator: str | None,
        accounts: Sequence[Account],
        counts: Sequence[int] = ANY_COUNT,
        usable: Callable[[Server], bool] = lambda server: True,
    ) -> ServerShare:
        """A share of all registered servers with enough memory; fewer slots only if no server has enough.

        It leases nothing (`lease`). creator, accounts: of the job. counts: the numbers of servers that it may have.
        usable: whether it may have a server. Raises UnavailableError.
        """
        if not self.by_name:
            raise UnavailableError(
                "no aggregation server has registered: start inagg-server, or use servers = colocated"
            )
        among = [server for server in self.by_name.values() if usable(server)]
        if not among:
            raise UnavailableError(
                f"no switch of the job has the aggregation servers {', '.join(self.by_name)}: name their hosts, with "
                "their MAC addresses, in --host IP=PORT,MAC or the topology file, at a switch of the job"
            )
        slots = min(slots, self._max_slots)
        quotas = [(each.memory - self.held(each), each) for each in accounts if each.memory is not None]
        most, scarcest = min(quotas, key=lambda quota: quota[0], default=(None, None))
        while slots >= FEWEST_SLOTS:
            chosen = self._with_room(among, slots, creator, counts, most)
            if chosen:
                memory = server_memory(slots, len(chosen), self._words)
                return ServerShare(slots=slots, count=len(chosen), registered=chosen, memory=memory)
            slots //= 2
        allowed = self._with_room(among, FEWEST_SLOTS, creator, counts)
        if allowed and scarcest is not None:
            needed = len(allowed) * server_memory(FEWEST_SLOTS, len(allowed), self._words)
            raise UnavailableError(scarcest.memory_refusal(self.held(scarcest), needed))
        if self._with_room(among, FEWEST_SLOTS, None, counts):
            raise UnavailableError(
                f"the jobs of {creator} have all memory of the servers that one host may have; wait until one ends"
            )
        needed = server_memory(FEWEST_SLOTS, min(FEWEST_SLOTS, len(among)), self._words)
        freest = max(server.free for server in among)
        raise UnavailableError(
            f"no aggregation server has enough free memory: a job needs {needed} bytes, and at most {freest} are free; "
            "wait until a job ends, start another inagg-server, or use servers = colocated"
        )

    def _with_room(
        self,
        among: Iterable[Server],
        slots: int,
        creator: str | None,
        counts: Sequence[int],
        most: int | None = None,
    ) -> tuple[Server, ...]:
        """As many servers as can share a job of `slots` slots, in the order of their registration.

        most: bytes that they may have for it together.
        """
        free = {server: server.free_for(creator, self._host_share) for server in among}
        roomiest = sorted(free, key=lambda server: -free[server])
        for count in sorted(counts, reverse=True):
            if count > min(len(roomiest), slots):
                continue
            memory = server_memory(slots, count, self._words)
            if free[roomiest[count - 1]] >= memory and (most is None or count * memory <= most):
                return tuple(sorted(roomiest[:count], key=lambda server: server.instance))
        return ()


def lease(share: ServerShare, key: JobKey, owner: Owner) -> None:
    """Lease the memory of a share to a job."""
    for server in share.registered:
        server.leases[key] = MemoryLease(share.memory, owner)


def give_back(servers: Iterable[Server], key: JobKey) -> None:
    """End a job's leases at these servers; those that have none are ignored."""
    for server in servers:
        server.leases.pop(key, None)
