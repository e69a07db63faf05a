# SPDX-License-Identifier: Apache-2.0
"""What a rank has once it has joined a job."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inagg._core import Transport
from inagg.errors import JobRank
from inagg.membership.control import ControlClient
from inagg.membership.own_server import OwnServer
from inagg.membership.pings import SwitchPings
from inagg.membership.presence import Presence
from inagg.membership.rounds import Reducing, Rounds
from inagg_contract.documents import JobStatus


@dataclass
class Joined:
    """Belongs to one session, which closes it. A change of way replaces status, pings, server, beside and rounds.

    status: of the job, with its servers. pings: of the job's switches; without them this rank does not notice that a
    switch is down, but the controller does. link_rate: of the interface, in bits per second; None: unknown. server: of
    this process, if it serves a share of the job or may have to. udp: the sockets of the packet threads, which have
    duplicates, at the registered address. cpus: as `Options.cpus`. control_address: at which this host reaches the
    controller, if that is not the registered one. beside: the socket there, while the way is beside the switches.
    rounds: those in which the ranks themselves sum, while they do. connect: connects the ranks for the rounds on the
    way of an epoch; all ranks call it. behind: the epochs of the ways that the job has lost.
    """

    client: ControlClient
    status: JobStatus
    rank: int
    transport: Transport
    presence: Presence | None = None
    pings: SwitchPings | None = None
    link_rate: float | None = None
    server: OwnServer | None = None
    udp: Sequence[socket.socket] = ()
    cpus: str | None = None
    control_address: str | None = None
    beside: socket.socket | None = None
    rounds: Rounds | None = None
    connect: Callable[[int], Reducing] | None = None
    behind: set[int] = field(default_factory=set)

    @property
    def who(self) -> JobRank:
        """The rank, in errors and in the log."""
        return JobRank(self.status.id, self.status.name, self.rank)

    @property
    def broken(self) -> str:
        """What of this process sums no more though it should; empty if nothing is known to be broken."""
        if self.server is not None and (why := self.server.failure) is not None:
            return f"the server in its process has ended: {why}"
        if self.rounds is not None and (why := self.rounds.failure) is not None:
            return f"its rounds with the other ranks have ended: {why}"
        return ""
