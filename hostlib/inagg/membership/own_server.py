# SPDX-License-Identifier: Apache-2.0
"""The aggregation server that a process runs for the jobs of its groups (docs/protocol.md, 5.6).

The groups of a process at one address share a server: its socket and its thread. It runs while a group needs it.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from typing import Self

from inagg._core import JobShape, ServedPart, Server
from inagg.errors import ConfigurationError, InaggError, JobError
from inagg.membership.control import ControlClient
from inagg_contract.documents import JobServer, JobStatus
from inagg_contract.racks import Racks
from inagg_contract.sizes import server_memory

_log = logging.getLogger(__name__)

# The largest job that the process may be given to serve, and how many of them.
_MOST_SLOTS, _MOST_WORDS, _MOST_JOBS = 1 << 16, 255, 1 << 16
# How long ranks that have left still serve those that have not: they may lack their last results. Later, their leaving
# is a failure for those anyway (heartbeat.py).
_LINGER_S = 3.0
_FIRST_PAUSE_S = 0.05


class _Shared:
    """A server, and how many groups use it."""

    def __init__(self, address: str) -> None:
        udp = bind(address)
        self.udp_port: int = udp.getsockname()[1]
        memory = _MOST_JOBS * server_memory(_MOST_SLOTS, 1, _MOST_WORDS)
        self.server = Server(socket_fd=udp.detach(), memory=memory)
        self.users = 0


class OwnServer:
    """One group's use of the server of this process.

    address: of this host. controller: its URL; it numbers the jobs, so groups of another one have another server. cpus:
    of the group's threads, as `Options.cpus`; groups with others have another server.

    Raises:
        ConfigurationError: this host does not have the address.
    """

    def __init__(self, address: str, controller: str = "", cpus: str | None = None) -> None:
        self._key = (os.getpid(), address, controller, cpus)
        with _sharing:
            shared = _shared.get(self._key)
            if shared is None or shared.server.failure is not None:
                shared = _shared[self._key] = _Shared(address)
            self._shared = shared
            self._shared.users += 1
        self.udp_port = self._shared.udp_port
        self._jobs: list[tuple[int, int]] = []  # number and epoch; what it serves, the last one now
        self._chunks: dict[str, int] | None = None
        self._closed = False

    def serve(self, job: JobStatus, index: int) -> None:
        """Admit the packets of a job that all ranks have registered in. index: of this server among the job's.

        Raises:
            JobError: the server has ended.
        """
        try:
            self._shared.server.serve(shape_of(job), _parts_of(job, index), servers=len(job.servers))
        except RuntimeError as error:
            raise JobError(f"this process cannot serve the job: {error}", job=job.id) from error
        self._jobs.append((job.id, job.epoch))

    def drop_earlier(self) -> None:
        """Stop serving the job on its earlier ways."""
        while len(self._jobs) > 1:
            with contextlib.suppress(RuntimeError):  # it has failed, or the interpreter's exit has closed it
                self._shared.server.drop(*self._jobs.pop(0))

    @property
    def server(self) -> Server:
        """The server itself."""
        return self._shared.server

    @property
    def failure(self) -> str | None:
        """Why the server sums no more though nobody closed it; None if it works."""
        return self._shared.server.failure

    def chunks(self) -> dict[str, int] | None:
        """How many chunks of the job this server has completed, by where they were summed; None if it serves none."""
        # After it has ended, and in a child process, they stay as they were.
        with contextlib.suppress(RuntimeError):
            if self._jobs and not self._closed:
                self._chunks = self._shared.server.chunks(*self._jobs[-1])
        return self._chunks

    def linger(self, client: ControlClient, job: int) -> None:
        """Go on while the job runs for ranks that have not left it, for some seconds at most."""
        end, pause = time.monotonic() + _LINGER_S, _FIRST_PAUSE_S
        try:
            while self.failure is None and client.status(job).state == "running" and time.monotonic() < end:
                time.sleep(pause)
                pause *= 1.5
        except InaggError as error:
            _log.debug("job %d: cannot see whether other ranks still need this server: %s", job, error)

    def close(self) -> None:
        """Stop serving the job. The server ends with the last group that uses it. Closing twice changes nothing."""
        self.chunks()
        if self._closed or self._key[0] != os.getpid():
            return
        self._closed = True
        for job in self._jobs:
            with contextlib.suppress(RuntimeError):  # it has failed, or the interpreter's exit has closed it
                self._shared.server.drop(*job)
        with _sharing:
            self._shared.users -= 1
            if self._shared.users > 0:
                return
            if _shared.get(self._key) is self._shared:
                del _shared[self._key]
        self._shared.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shape_of(job: JobStatus) -> JobShape:
    """What the core has to know of a job at all its ends."""
    return JobShape(
        number=job.id,
        epoch=job.epoch,
        first_chunk=job.first_chunk,
        slots=job.slots,
        words=job.words,
        workers=job.workers,
    )


def servers_of(job: JobStatus, rank: int) -> tuple[JobServer, ...]:
    """The servers that a rank sends to, or those behind its switch, by way of the chunks."""
    racks = _racks_of(job)
    if racks is None:
        return job.servers
    return tuple(job.servers[racks.server(rank, way)] for way in range(len(job.servers)))


def silent_servers(job: JobStatus, rank: int, way: int) -> tuple[JobServer, ...]:
    """Those of which one is silent if a rank gets no answer about a chunk of this way.

    A server below another answers for itself, but for its member of the lowest rank, whose queries it passes up.
    """
    racks = _racks_of(job)
    root = job.servers[way]
    if racks is None or racks.server(rank, way) == way:
        return (root,)
    asked = racks.server(rank, way)
    (served,) = (one for one in racks.served_by(asked) if one.way == way)
    if rank != min(served.members):
        return (job.servers[asked],)
    return (root,) if asked == rank else (job.servers[asked], root)


def _parts_of(job: JobStatus, index: int) -> list[ServedPart]:
    """What a server of this job sums. index: of the server."""
    workers = {member.rank: (member.ip, member.udp_port) for member in job.members}
    racks = _racks_of(job)
    if racks is None:
        relay = None if job.relay is None else (job.relay.ip, job.relay.udp_port)
        home = job.servers[index].rank if is_at_home(job) else None
        return [ServedPart(workers, index=index, relay=relay, home=home)]
    servers = [(server.ip, server.udp_port) for server in job.servers]
    parts = []
    for way, members, above in racks.served_by(index):
        senders = {
            rank: workers[rank] if racks.server(rank, way) == index else servers[rank] for rank in members
        }
        up = None if above is None else (index, servers[above])
        parts.append(ServedPart(senders, index=way, above=up))
    return parts


def _racks_of(job: JobStatus) -> Racks | None:
    """The racks of a job on the servers of its ranks; None for another."""
    if job.relay is not None or any(server.rank is None for server in job.servers):
        return None
    return Racks([member.rack for member in job.members], len(job.servers))


def is_at_home(job: JobStatus) -> bool:
    """Whether no switch is between ranks and the servers in their own processes (docs/protocol.md, 5.7).

    There is none on servers alone, and ranks send past the switch on shared slots of one switch.
    """
    return job.relay is None or len(job.tree) == 1


def bind(address: str) -> socket.socket:
    """A UDP socket at any free port of `address`. Raises ConfigurationError if this host does not have it."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.bind((address, 0))
    except OSError as error:
        udp.close()
        raise ConfigurationError(f"{address} is not an address of this host: {error.strerror}") from error
    return udp


_sharing = threading.Lock()  # guards what follows, and the users of each
_shared: dict[tuple[int, str, str, str | None], _Shared] = {}  # by process, and the arguments of OwnServer


def _forget_all() -> None:
    """A forked child has no server. Its copies close no socket of the parent's, and nobody may hold the lock."""
    global _sharing
    _sharing = threading.Lock()


os.register_at_fork(after_in_child=_forget_all)
