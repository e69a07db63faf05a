# SPDX-License-Identifier: Apache-2.0
"""Makes the ranks of a group members of one job."""

import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from torch.distributed import DistStoreError

from inagg._core import Transport, check_lanes
from inagg.errors import ConfigurationError, InaggError, JobError, JobRank
from inagg.membership.assembly import Assembly, describe
from inagg.membership.condition import give_up_on
from inagg.membership.control import ControlClient
from inagg.membership.interface import interface_of, source_address
from inagg.membership.joined import Joined
from inagg.membership.own_server import OwnServer, bind
from inagg.membership.packet_threads import packet_threads, sharers
from inagg.membership.pings import SwitchPings
from inagg.membership.room import create_job
from inagg.membership.session import Session
from inagg.membership.way import confined_to, sockets_of, way_of
from inagg.options import Options
from inagg.sums.reduction import Callback
from inagg_contract.aggregation import (
    COLOCATED,
    LEASED,
    SERVER,
    SHARED,
    changes_way,
    uses_servers,
    uses_switches,
)
from inagg_contract.documents import JobStatus, RegisteredWorker
from inagg_contract.ranks import name_job, name_ranks, place

_log = logging.getLogger(__name__)

_AGGREGATOR = "aggregator"  # of a switch of the controller: rank 0 asks for it, once for all ranks
_FEW_SLOTS = 16  # fewer packets in flight fill no link

# Between the beats of a presence, a part of the time after which its silence counts.
_BEATS_PART = 0.1

# After a rank has failed, the others need this long to see it and to report their outcome: three looks, on a busy
# machine.
_OUTCOMES_PATIENCE = timedelta(seconds=15)


def join(ranks: Assembly, options: Options, on_failure: Callback = lambda: None) -> Session:
    """Join a new job with all ranks of a process group.

    Each rank publishes its address. Rank 0 creates the job and publishes its number and its secret. Then the ranks
    exchange their outcomes, so that either all of them return or all of them raise. on_failure: see `Session`.

    Raises:
        InaggError: this rank could not join, or (a JobError that names it) another rank could not.
        DistStoreError: a rank did not report its outcome in time.
    """
    problem: InaggError | None = None
    address: str | None = None
    session: Session | None = None
    # Another rank mostly takes less: its requests, the wait for registrations, the wait for packets.
    patience = timedelta(seconds=3 * options.setup_timeout_s)
    with contextlib.ExitStack() as undo:
        try:
            with _telling_errors(ranks):
                client = _client(options)
                undo.callback(client.close)
                address = _tell_address(client, ranks, options, patience)
            agreed = _agree_on_job(client, ranks, options, patience)
            session = _enter(client, agreed, address, ranks, options, on_failure)
            undo.callback(session.close)
        except InaggError as error:
            if ranks.over:
                raise
            problem = error
        try:
            places = _compare_outcomes(ranks, problem, patience, place(options.own_host_name, address))
        finally:
            del problem  # its traceback refers to this frame, and to the group
        assert session is not None
        session.learn_places(places)
        undo.pop_all()
        return session


def _compare_outcomes(
    ranks: Assembly, problem: InaggError | None, patience: timedelta, here: str
) -> Mapping[int, str]:
    """Exchange the outcomes of all ranks. Raise if this rank or another could not join.

    problem: why this rank could not join; None if it has joined. here: its host and address.

    Returns:
        The hosts and addresses of all ranks.
    """
    try:
        if problem is not None:
            ranks.publish("trouble", [ranks.rank, describe(problem), here])
            patience = _OUTCOMES_PATIENCE
        try:
            mine = [None if problem is None else describe(problem), here]
            outcomes = ranks.exchange("outcome", mine, patience)
        except DistStoreError:
            if problem is None:
                raise
            ranks.over = True  # a rank that is stopped may be the cause: it can agree to nothing
            raise problem from None
        if problem is not None:
            raise problem
        places = {rank: where for rank, (_, where) in enumerate(outcomes)}
        for rank, (outcome, _) in enumerate(outcomes):
            if outcome is not None:
                raise JobError(f"{name_ranks([rank], places)} could not join: {outcome}", rank=ranks.rank)
        return places
    finally:
        del problem  # its traceback refers to this frame


def all_fall_back(ranks: Assembly, options: Options) -> bool:
    """Whether gloo does the sums, after `join` has raised an InaggError at all ranks. All ranks call it.

    Raises:
        ConfigurationError: this rank has `options.fallback` ``"inner"``, another has not.
    """
    wishes = ranks.exchange("fallback", options.fallback)
    other = next((rank for rank, wish in enumerate(wishes) if wish != "inner"), None)
    if options.fallback == "inner" and other is not None:
        raise ConfigurationError(
            "there is no job, and fallback must be the same at all ranks: it is inner at rank "
            f"{ranks.rank}, {wishes[other]} at rank {other}"
        )
    return other is None


def _client(options: Options) -> ControlClient:
    assert options.controller is not None  # Options.resolve makes sure
    return ControlClient(
        options.controller,
        setup_s=options.setup_timeout_s,
        # A controller may start again meanwhile. A group that gloo can serve does not wait for that.
        absent_s=None if options.fallback == "inner" else options.setup_timeout_s,
        authority=options.controller_ca,
    )


@contextlib.contextmanager
def _telling_errors(ranks: Assembly) -> Iterator[None]:
    """Publish an error in the block where the other ranks wait for this one."""
    try:
        yield
    except InaggError as error:
        for name in (_AGGREGATOR, "job") if ranks.rank == 0 else (_address_of(ranks.rank),):
            if ranks.peek(name) is None:
                ranks.publish(name, {"error": describe(error)})
        raise


def _tell_address(client: ControlClient, ranks: Assembly, options: Options, patience: timedelta) -> str:
    """Publish this host's address towards its switch, by which the controller knows the switch; return it."""
    for name, lane_bits in (("lane_bits", options.lane_bits), ("half_lane_bits", options.half_lane_bits)):
        try:
            if lane_bits is not None:
                check_lanes(lane_bits, ranks.size)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from error
    if ranks.rank == 0:
        aggregator = None if options.aggregation == SERVER else client.health().aggregator
        ip = None if aggregator is None else aggregator.ip
        ranks.publish(_AGGREGATOR, {"ip": ip, "asked": _aggregation(options)})
    address = str(options.address or source_address(_destination(client, ranks, options, patience)))
    ranks.publish(_address_of(ranks.rank), {"ip": address, "wait_s": options.wait_s})
    return address


def _destination(client: ControlClient, ranks: Assembly, options: Options, patience: timedelta) -> str:
    """A host in the network of the sums: the aggregator of a switch, or the controller's host."""
    if options.aggregation != SERVER:
        told = ranks.receive(_AGGREGATOR, 0, patience)
        if "error" in told:
            raise _not_created(ranks, told["error"])
        _check_asked(ranks, options, told["asked"])
        if told["ip"] is not None:
            return str(told["ip"])
    if options.aggregation in (LEASED, SHARED):
        raise ConfigurationError(
            f"the controller at {client.base_url} has no switch: set aggregation to server "
            "(INAGG_AGGREGATION=server)"
        )
    return urlsplit(client.base_url).hostname or ""


def _address_of(rank: int) -> str:
    return f"address {rank}"


def _addresses(ranks: Assembly, patience: timedelta) -> list[str]:
    """The address of each rank's host. Raises JobError if a rank has none, ConfigurationError if they do not fit."""
    addresses, waits = [], []
    for rank in range(ranks.size):
        told = ranks.receive(_address_of(rank), rank, patience)
        if "error" in told:
            raise JobError(f"rank {rank} could not join: {told['error']}", rank=ranks.rank)
        addresses.append(told["ip"])
        waits.append(told["wait_s"])
        if waits[rank] != waits[0]:
            raise ConfigurationError(
                f"wait_s must be the same at all ranks: it is {waits[rank]:g} at rank {rank}, {waits[0]:g} at rank 0"
            )
    local = [rank for rank, address in enumerate(addresses) if address.startswith("127.")]
    if 0 < len(local) < ranks.size:
        raise ConfigurationError(
            f"the address of {name_ranks(local)} is {addresses[local[0]]}, which no other host can reach: give the "
            "controller's URL with an address of the network, or set address (INAGG_ADDRESS)"
        )
    return addresses


class _Agreed(NamedTuple):
    """A job's number, and what sums for it."""

    job: int
    aggregation: str


def _agree_on_job(client: ControlClient, ranks: Assembly, options: Options, patience: timedelta) -> _Agreed:
    if ranks.rank == 0:
        try:
            job = create_job(client, options, _addresses(ranks, patience), ranks.check)
            if job.slots < min(options.slots, _FEW_SLOTS):
                _log.warning(
                    "inagg: %s got %d of the %d slots that it asked for; so few make its sums slow",
                    name_job(job.id, job.name),
                    job.slots,
                    options.slots,
                )
            secret = client.secret(job.id)
        except InaggError as error:
            ranks.publish("job", {"error": describe(error)})
            raise
        created = {"id": job.id, "secret": secret, "aggregation": job.aggregation}
        ranks.publish("job", created | {"asked": _aggregation(options), "fallback": options.fallback})
        return _Agreed(job.id, job.aggregation)
    created = ranks.receive("job", 0, patience + timedelta(seconds=options.wait_s))
    if "error" in created:
        raise _not_created(ranks, created["error"])
    _check_asked(ranks, options, created["asked"])
    if (
        created["fallback"] == "server" != options.fallback
        and created["aggregation"] == SERVER != options.aggregation
    ):
        raise ConfigurationError(
            "the switch has no room for this group, and fallback must be the same at all ranks: it is "
            f"{options.fallback} at rank {ranks.rank}, server at rank 0"
        )
    number = int(created["id"])
    client.learn_secret(number, created["secret"])
    return _Agreed(number, created["aggregation"])


def _check_asked(ranks: Assembly, options: Options, asked: str) -> None:
    """Raise ConfigurationError if rank 0 asks for another aggregation than this rank."""
    if asked != _aggregation(options):
        raise ConfigurationError(
            f"aggregation and servers must be the same at all ranks: they are {_aggregation(options)} at rank "
            f"{ranks.rank}, {asked} at rank 0"
        )


def _not_created(ranks: Assembly, why: str) -> JobError:
    return JobError(f"rank 0 could not create the job: {why}", rank=ranks.rank)


def _aggregation(options: Options) -> str:
    return (
        options.aggregation if options.aggregation == LEASED else f"{options.aggregation}, {options.servers}"
    )


@dataclass(frozen=True)
class _Ends:
    """Where a rank's packets leave and come: its address, its socket, the server in its process.

    link_rate: of the interface, in bits per second; None: unknown.
    """

    address: str
    udp: socket.socket
    own: OwnServer | None
    link_rate: float | None


def _enter(
    client: ControlClient,
    agreed: _Agreed,
    address: str,
    ranks: Assembly,
    options: Options,
    on_failure: Callback,
) -> Session:
    """Register, become a member, wait for the other ranks, and check that packets pass."""
    rank, (job, aggregation) = ranks.rank, agreed
    interface = interface_of(address)
    with contextlib.ExitStack() as undo:
        udp = undo.enter_context(bind(address))
        own: OwnServer | None = None
        if uses_servers(aggregation) and options.servers == COLOCATED:
            with confined_to(options.cpus):
                own = undo.enter_context(OwnServer(address, client.base_url, options.cpus))
        status = client.register(
            job,
            rank,
            ip=address,
            mac=interface.mac if uses_switches(aggregation) else None,
            mtu=interface.mtu,
            udp_port=udp.getsockname()[1],
            port=options.switch_port if uses_switches(aggregation) else None,
            server_udp_port=None if own is None else own.udp_port,
            host=options.own_host_name,
            rack=options.rack or "",
        )
        who = JobRank(job, status.name, rank)
        check = partial(_check_others, ranks, who)
        # A rank whose registration was refused must not fail the job: another process has this rank.
        session: Session | None = None
        try:
            ends = _Ends(address, udp, own, options.link_rate or interface.rate)
            session = Session(_begin(client, status, ends, options, check), on_failure)
            undo.pop_all()  # the session has them
            client.wait_running(job, timeout_s=options.setup_timeout_s, check=check)
            session.try_path(options.setup_timeout_s, check)
        except BaseException as error:
            if session is None:
                give_up_on(client, who, describe(error))
            else:
                session.fail(describe(error))
                session.close()  # and the client with it
            raise
        return session


def _check_others(ranks: Assembly, who: JobRank) -> None:
    """Raise if a rank has failed, or cannot join. A rank that cannot join still runs: gloo may do the sums."""
    ranks.check()
    if (trouble := ranks.peek("trouble")) is not None:
        failed, reason, where = trouble
        title = name_ranks([failed], {failed: where})
        raise JobError(f"{title} could not join: {reason}", **who._asdict())


def _begin(
    client: ControlClient,
    status: RegisteredWorker,
    ends: _Ends,
    options: Options,
    check: Callback,
) -> Joined:
    """Start the presence and the transport of a registered rank. They take over its socket."""
    policy, rank = status.policy, status.rank
    threads = packet_threads(options, status.aggregation, status.slots, ends.link_rate)
    with contextlib.ExitStack() as undo:
        presence = client.attend(
            status.id, rank, max(policy.heartbeat_interval_s, _BEATS_PART * policy.heartbeat_timeout_s)
        )
        undo.callback(presence.close)
        if uses_servers(status.aggregation):
            job = _reach_servers(client, status, ends.own, options.setup_timeout_s, check)
            status = status.model_copy(update={"servers": job.servers, "members": job.members})
        udp = [ends.udp, *(undo.enter_context(one) for one in sharers(ends.udp, threads))]
        # No result comes before this rank has contributed to it.
        with sockets_of(client, status, rank, udp) as sockets, confined_to(options.cpus):
            transport = Transport(
                **way_of(status, ends.own),
                rank=rank,
                sockets=sockets,
                spin_s=options.spin_us * 1e-6,
                keeps_results=changes_way(status.on_path_loss),
            )
        undo.pop_all()
    return Joined(
        client,
        status,
        rank,
        transport,
        presence,
        SwitchPings.of(status),
        ends.link_rate,
        ends.own,
        udp,
        options.cpus,
        _control_address(client, ends.address),
    )


def _control_address(client: ControlClient, registered: str) -> str | None:
    """The address at which this host reaches the controller, if it is another, which other hosts can reach."""
    try:
        address = source_address(urlsplit(client.base_url).hostname or "")
    except ConfigurationError:
        return None
    return None if address == registered or address.startswith("127.") else address


def _reach_servers(
    client: ControlClient,
    status: RegisteredWorker,
    own: OwnServer | None,
    timeout_s: float,
    check: Callback,
) -> JobStatus:
    """The job, when its servers are known. If one of them is this rank's, it serves the job from now on."""
    job = client.wait_running(status.id, until="registered", timeout_s=timeout_s, check=check)
    for index, server in enumerate(job.servers):
        if own is not None and server.rank == status.rank:
            own.serve(job, index)
            client.serving(job.id, status.rank)
    return job
