# SPDX-License-Identifier: Apache-2.0
"""A rank's way: where its packets go, and the sockets for them."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TypedDict

from inagg._core import JobShape, RetransmissionPolicy, Route, Server, Sockets
from inagg._core import Rounds as RoundsCore
from inagg.errors import ConfigurationError, JobRank
from inagg.membership.control import ControlClient
from inagg.membership.mtu_probe import silent_s
from inagg.membership.multicast import open_socket
from inagg.membership.own_server import OwnServer, is_at_home, servers_of, shape_of
from inagg.membership.rounds import Rounds
from inagg.options import parse_cpus
from inagg_contract.aggregation import LEASED
from inagg_contract.documents import JobStatus, Policy, RegisteredWorker

_log = logging.getLogger(__name__)


class Way(TypedDict):
    """What the core has to know of a way: arguments of Transport and of its go_on()."""

    job: JobShape
    member: int
    route: Route
    own_server: Server | RoundsCore | None
    policy: RetransmissionPolicy


def way_of(status: RegisteredWorker, own: OwnServer | None, rounds: Rounds | None = None) -> Way:
    """The way of a rank whose job has its servers. own: of this process, which serves the job if it is to. rounds: in
    which the ranks themselves sum; None: they do not."""
    rank, policy = status.rank, retransmission(status.policy)
    if rounds is not None:
        route = Route(servers=[rounds.core.local_address])
        return Way(job=shape_of(status), member=0, route=route, own_server=rounds.core, policy=policy)
    aggregator = None if status.aggregator is None else (status.aggregator.ip, status.aggregator.udp_port)
    own_server: Server | None = None
    if status.aggregation == LEASED:
        route = Route(aggregator=aggregator, roots=status.roots, threads=status.threads)
    else:
        servers = [(server.ip, server.udp_port) for server in servers_of(status, rank)]
        route = Route(aggregator=aggregator, servers=servers, threads=status.threads)
        if own is not None and index_of(status, rank) is not None and is_at_home(status):
            own_server = own.server
    return Way(
        job=shape_of(status),
        member=status.member,
        route=route,
        own_server=own_server,
        policy=policy,
    )


def index_of(job: JobStatus, rank: int) -> int | None:
    """The index of the server in a rank's process; None if that is none of the job's."""
    return next((index for index, server in enumerate(job.servers) if server.rank == rank), None)


def retransmission(policy: Policy) -> RetransmissionPolicy:
    """The timers of a job, for the core."""
    return RetransmissionPolicy(
        rto_initial_s=policy.rto_initial_s,
        rto_min_s=policy.rto_min_s,
        rto_max_s=policy.rto_max_s,
        give_up_s=policy.give_up_s,
        silent_s=silent_s(policy),
    )


@contextlib.contextmanager
def sockets_of(
    client: ControlClient, status: JobStatus, rank: int, udp: Sequence[socket.socket]
) -> Iterator[Sockets]:
    """The sockets of each packet thread: a duplicate of one of `udp`, and one for what comes to the group address.

    They are for a transport, which takes them over if the block does not raise.
    """
    with contextlib.ExitStack() as undo:
        own = [undo.enter_context(one.dup()) for one in udp]
        results = _join_multicast(client, status, rank, udp, undo)
        (own_fd, results_fd), *more = zip_longest(
            (one.fileno() for one in own), (one.fileno() for one in results)
        )
        yield Sockets(socket_fd=own_fd, results_fd=results_fd, more=more)
        for one in (*own, *results):
            one.detach()


def _join_multicast(
    client: ControlClient,
    status: JobStatus,
    rank: int,
    udp: Sequence[socket.socket],
    undo: contextlib.ExitStack,
) -> list[socket.socket]:
    """A socket for the job's results for each packet thread. If this host cannot have them, there are none, and the job
    changes to unicast."""
    if status.results is None or status.aggregator is None:
        return []
    aggregator = (status.aggregator.ip, status.aggregator.udp_port)
    with contextlib.ExitStack() as mine:
        try:
            results = [
                mine.enter_context(open_socket(status.results, one.getsockname()[0], aggregator))
                for one in udp
            ]
        except OSError as error:
            _log.warning(
                "%s: cannot receive multicast at %s (%s), so the switch sends a copy of each result to each worker",
                JobRank(status.id, status.name, rank),
                status.results.ip,
                error.strerror,
            )
            client.unicast(status.id, timeout_s=client.setup_s)
            return []
        undo.push(mine.pop_all())
        return results


@contextlib.contextmanager
def confined_to(cpus: str | None) -> Iterator[None]:
    """Threads that start in the block run on these processors. At its end the calling thread gets its own back.

    cpus: as `Options.cpus`; None changes nothing.

    Raises:
        ConfigurationError: this process may run on none of them.
    """
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, parse_cpus(cpus))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"cpus: this process may run on none of the processors {cpus!r}; choose from {sorted(before)}"
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
