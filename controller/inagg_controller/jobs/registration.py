# SPDX-License-Identifier: Apache-2.0
"""Checks a worker that registers against its job."""

from dataclasses import replace

from inagg_controller.errors import ConflictError, InvalidRequestError
from inagg_controller.jobs.job import Job, Registered


def relevant(job: Job, member: Registered) -> Registered:
    """A worker without the port of a server that is not one of the job's. Raises InvalidRequestError."""
    servers = job.placement.servers
    if servers is None or not servers.serves(member.rank):
        return replace(member, server_udp_port=None)
    if member.server_udp_port is None:
        raise InvalidRequestError(
            f"server_udp_port is missing: rank {member.rank} of job {job.id} runs one of its servers"
        )
    if member.server_udp_port == member.udp_port:
        raise InvalidRequestError(
            f"server_udp_port and udp_port are both {member.udp_port}; the server needs another port"
        )
    return member


def check_endpoints(job: Job, member: Registered) -> None:
    """Raise ConflictError if a worker or server of the job already has the address and UDP port of this one."""
    taken = _endpoints(job)
    for endpoint in _endpoints_of(member):
        if endpoint in taken:
            raise ConflictError(f"{taken[endpoint]} already has this address and UDP port")


def _endpoints_of(member: Registered) -> list[tuple[int, int]]:
    """The addresses and UDP ports of a worker and of its server."""
    own = [(member.ip, member.udp_port)]
    if member.server_udp_port is not None:
        own.append((member.ip, member.server_udp_port))
    return own


def _endpoints(job: Job) -> dict[tuple[int, int], str]:
    """The addresses and UDP ports of a job's workers and servers, and whose they are."""
    taken = {}
    for member in job.members.values():
        for endpoint, what in zip(_endpoints_of(member), ("", "the server of "), strict=False):
            taken[endpoint] = f"{what}rank {member.rank} of job {job.id}"
    if job.placement.servers is not None:
        for server in job.placement.servers.registered:
            taken[server.ip, server.udp_port] = f"server {server.name} of job {job.id}"
    return taken
