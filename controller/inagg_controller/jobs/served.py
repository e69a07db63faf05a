# SPDX-License-Identifier: Apache-2.0
"""What servers report, and which jobs they are to serve. It decides and does no I/O."""

from collections.abc import Iterable, Mapping

from inagg_contract.addresses import format_ip
from inagg_controller.errors import ConflictError
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.placement import Placement
from inagg_controller.jobs.servers import TIMEOUT_S, JobKey, Server, Servers, ServerShare, Summed, give_back
from inagg_controller.jobs.states import JobStates


class ServedJobs:
    """The registered servers and their jobs, and the servers in ranks' processes."""

    def __init__(self, states: JobStates, servers: Servers) -> None:
        self._states = states
        self._servers = servers

    @property
    def by_name(self) -> Mapping[str, Server]:
        """The registered servers."""
        return self._servers.by_name

    def register(self, name: str, ip: int, udp_port: int, memory: int, now: float) -> Server:
        """Register a start of a server. An earlier one at its address is gone with its sums.

        Raises ConflictError if a server at another address has this name.
        """
        rivals = self._servers.rivals(name, ip, udp_port)
        for rival in rivals:
            if (rival.ip, rival.udp_port) != (ip, udp_port):
                raise ConflictError(
                    f"a server at {format_ip(rival.ip)}:{rival.udp_port} has the name {name}: give this one another"
                )
        for rival in rivals:
            self._drop(rival, f"server {rival.name} was started again: the sums in its memory are gone", now)
        self._states.note_change()
        return self._servers.add(name, ip, udp_port, memory, now)

    def heartbeat(
        self,
        name: str,
        instance: int,
        now: float,
        serving: Iterable[JobKey] = (),
        refused: Mapping[JobKey, str] | None = None,
        counted: Mapping[JobKey, Summed] | None = None,
        unknown: int = 0,
    ) -> None:
        """Record that a server lives, and which jobs it serves. refused: those that it cannot serve, and why. counted:
        what it has summed for jobs, also for those that it no longer serves. unknown: see ServerBeat.

        Raises UnknownServerError.
        """
        server = self._servers.find(name, instance)
        server.last_seen, server.unknown = now, unknown
        listed = frozenset(serving)
        if listed != server.serving:
            server.serving = listed
            self._states.note_change()
        for job, placement, share in self._leased_from(server):
            reason = (refused or {}).get(placement.key)
            if reason is not None and share.seats and job.uses(placement):
                self._states.lose_way(job, f"server {name}: {reason}", now, move_on=True)
            if counted is not None and placement.key in counted:
                share.hear(share.registered.index(server), counted[placement.key])
            self._compare(job, placement, share, server, now)

    def orders(self, name: str, instance: int) -> list[Job]:
        """The jobs that a server is to serve. Raises UnknownServerError."""
        server = self._servers.find(name, instance)
        return [
            job for job, placement, _ in self._leased_from(server) if job.uses(placement) and placement.in_use
        ]

    def stop(self, name: str, instance: int, now: float) -> None:
        """Forget a server that stops; its jobs change their way or fail. Raises UnknownServerError."""
        self._drop(self._servers.find(name, instance), f"server {name} was stopped", now)

    def tick(self, now: float, stall: float) -> None:
        """Lose silent servers. stall: seconds since the last tick in which the controller did not run."""
        for server in self._servers.silent(now, stall):
            place = f"{format_ip(server.ip)}:{server.udp_port}"
            self._drop(
                server, f"server {server.name} at {place} was lost: no heartbeat for {TIMEOUT_S:g} s", now
            )

    def serve(self, job: Job, rank: int, now: float) -> None:
        """Record that the server in a rank's process serves the job. Raises ConflictError."""
        share = share_of(job, rank)
        if job.ended:
            return
        if not share.seats:
            raise ConflictError(f"ranks {job.missing} of job {job.id} have not registered yet")
        self._count_in(job, share, rank, now)

    def _leased_from(self, server: Server) -> list[tuple[Job, Placement, ServerShare]]:
        """The placements to which a server leases memory."""
        leased = []
        for key in server.leases:
            found = self._states.placement(*key)
            assert found is not None  # a lease ends before its placement does
            job, placement = found
            assert placement.servers is not None
            leased.append((job, placement, placement.servers))
        return leased

    def _drop(self, server: Server, reason: str, now: float) -> None:
        """Forget a server; its jobs change their way or fail."""
        del self._servers.by_name[server.name]
        self._states.note_change()
        leased = self._leased_from(server)
        server.leases.clear()
        for job, placement, _ in leased:
            if job.uses(placement):
                self._states.lose_way(job, reason, now)
            else:
                self._states.release(job, placement)

    def _compare(
        self, job: Job, placement: Placement, share: ServerShare, server: Server, now: float
    ) -> None:
        """Compare a placement with what a server's heartbeat says."""
        index = share.registered.index(server)
        if placement.key in server.serving:
            if job.uses(placement) and placement.in_use:
                self._count_in(job, share, index, now)
            return
        served = index in share.serving
        if served:
            share.serving.discard(index)
            self._states.note_change(job)
        if served and job.active and job.uses(placement):
            self._states.lose_way(job, f"server {server.name} no longer serves it", now)
        if not job.uses(placement):  # perhaps since the line before
            give_back([server], placement.key)
            self._states.release(job, placement)

    def _count_in(self, job: Job, share: ServerShare, index: int, now: float) -> None:
        """Record that a server serves a job, which runs when all do."""
        if index in share.serving:
            return
        share.serving.add(index)
        self._states.note_change(job)
        self._states.begin_if_ready(job, now)


def share_of(job: Job, rank: int) -> ServerShare:
    """A job's share of servers, of which one is in a rank's process. Raises ConflictError."""
    share = job.placement.servers
    if share is None or not share.serves(rank):
        raise ConflictError(f"rank {rank} of job {job.id} runs no server of it")
    return share
