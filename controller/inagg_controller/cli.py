# SPDX-License-Identifier: Apache-2.0
"""The command inagg-controller.

Logging is the standard library's: gRPC, uvicorn and p4runtime-shell, whose lines belong in the same log, use it.
"""

import asyncio
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

import inagg_p4runtime.quiet  # noqa: F401  before grpc is imported
from inagg_contract.addresses import format_mac, parse_ip, parse_mac
from inagg_contract.constants import INAGG_PORT
from inagg_contract.documents import DEFAULT_PORT
from inagg_controller.errors import ConfigurationError, SwitchError
from inagg_controller.http.api import create_app
from inagg_controller.http.connections import Connections, limited_protocol, open_file_limit
from inagg_controller.jobs.job import Limits, Policy
from inagg_controller.jobs.table import JobTable
from inagg_controller.logs import log_to_stderr
from inagg_controller.service import Network, Service, port_list
from inagg_controller.switch.client import P4RuntimeSwitch
from inagg_controller.switch.entries import Binding
from inagg_controller.switch.program import Program, load_program
from inagg_controller.tokens import default_token_file, operators_token

# INAGG_PORT in p4/include/constants.p4, which P4Info does not tell.

_HIGHEST_PORT = 511
_EPOCHS_BEGIN = 1735689600
_SHUTDOWN_S = 2

_log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything the command line says, checked."""

    switch: str
    device_id: int
    switch_timeout_s: float
    listen: tuple[str, int]
    operators_token: str
    connections_per_host: int
    idle_timeout_s: float
    program: Program
    network: Network
    limits: Limits
    policy: Policy


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"inagg-controller {version('inagg')}")
        raise typer.Exit


@app.command()
def run(
    p4info: Annotated[Path, typer.Option(help="P4Info of inagg.p4, in text format.")],
    device_config: Annotated[Path, typer.Option(help="What the switch loads: P4 source, or BMv2's JSON.")],
    ports: Annotated[str, typer.Option(help="All switch ports, as 1,2,3.")],
    aggregator_ip: Annotated[str, typer.Option(help="IPv4 address that workers send to.")],
    aggregator_mac: Annotated[str, typer.Option(help="Its MAC address.")] = "02:49:41:00:00:01",
    switch: Annotated[
        str, typer.Option(help="The switch's P4Runtime server: HOST:PORT or unix:PATH.")
    ] = "127.0.0.1:9559",
    device_id: Annotated[int, typer.Option(help="Its P4Runtime device id.")] = 1,
    listen: Annotated[
        str, typer.Option(help="Address and port of the HTTP API.")
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The operator's token; made, with mode 600, if it is not there. [default: "
            "/var/lib/inagg/controller.token for root, else ~/.local/state/inagg/controller.token]"
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host and its switch port, as IP=PORT or IP=PORT,MAC: then bound to it; repeat."),
    ] = None,
    max_slots: Annotated[int, typer.Option(min=2, help="Most slots that one job gets.")] = 1024,
    rto_initial_s: Annotated[float, typer.Option(help="First retransmission timeout.")] = 0.1,
    rto_min_s: Annotated[float, typer.Option(help="Shortest retransmission timeout.")] = 0.01,
    rto_max_s: Annotated[float, typer.Option(help="Longest retransmission timeout.")] = 1.0,
    give_up_s: Annotated[float, typer.Option(help="Silence after which a worker gives up.")] = 120.0,
    heartbeat_interval_s: Annotated[float, typer.Option(help="Between two heartbeats.")] = 0.5,
    heartbeat_timeout_s: Annotated[float, typer.Option(help="Silence after which a rank is lost.")] = 30.0,
    join_timeout_s: Annotated[float, typer.Option(help="How long a job waits for its ranks.")] = 300.0,
    connections_per_host: Annotated[
        int, typer.Option(min=1, help="Most connections to the API from one address.")
    ] = 1024,
    idle_timeout_s: Annotated[
        float, typer.Option(min=1, help="How long such a connection may be without a request.")
    ] = 15.0,
    switch_timeout_s: Annotated[float, typer.Option(help="How long to wait for the switch at start.")] = 10.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Serve training jobs on one switch. Prints "ready" when jobs can be created."""
    try:
        program = load_program(p4info, device_config)
        options = Options(
            switch=switch,
            device_id=device_id,
            switch_timeout_s=switch_timeout_s,
            listen=_address(listen, "--listen"),
            operators_token=operators_token(token_file or default_token_file()),
            connections_per_host=connections_per_host,
            idle_timeout_s=idle_timeout_s,
            program=program,
            network=_network(program, ports, host or [], aggregator_ip, aggregator_mac),
            limits=Limits(
                slot_versions=program.slot_versions,
                max_workers=program.max_workers,
                max_members=program.max_members,
                max_slots=max_slots,
            ),
            policy=_policy(
                Policy(
                    rto_initial_s=rto_initial_s,
                    rto_min_s=rto_min_s,
                    rto_max_s=rto_max_s,
                    give_up_s=give_up_s,
                    heartbeat_interval_s=heartbeat_interval_s,
                    heartbeat_timeout_s=heartbeat_timeout_s,
                    join_timeout_s=join_timeout_s,
                )
            ),
        )
        if not math.isfinite(idle_timeout_s):
            raise ConfigurationError("--idle-timeout-s must be a number of seconds")
        if not switch.startswith("unix:"):
            _address(switch, "--switch")
        log_to_stderr(log_level)
        crashed = asyncio.run(_serve(options))
    except (ConfigurationError, SwitchError) as error:
        print(f"inagg-controller: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if crashed:
        print("inagg-controller: ended by an internal error; its log above has the details", file=sys.stderr)
        raise typer.Exit(1)


def main() -> None:
    """Entry point."""
    app()


async def _serve(options: Options) -> bool:
    """Run until SIGINT or SIGTERM, or until something crashes; returns whether it did."""
    crashed = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        service.stop_waiting()
        server.should_exit = True
        if not server.started:
            task.cancel()

    def crash() -> None:
        crashed.set()
        stop()

    listener = _listen(options.listen)
    service = Service(
        JobTable(options.limits, options.policy, first_epoch=_first_epoch(), now=time.monotonic()),
        P4RuntimeSwitch(options.switch, options.device_id, options.program),
        options.network,
        on_crash=crash,
    )
    most = open_file_limit()
    connections = Connections(
        most=most, per_host=min(options.connections_per_host, most // 2), idle_s=options.idle_timeout_s
    )
    server = _Server(
        uvicorn.Config(
            create_app(service, options.operators_token, connections),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=limited_protocol(connections),
            timeout_keep_alive=math.ceil(options.idle_timeout_s),
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        await service.start(options.switch_timeout_s)
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        _log.info("stopped before it had started")
    finally:
        listener.close()
        await service.stop()
    return crashed.is_set()


class _Server(uvicorn.Server):
    """Says when it is up, and leaves signals to _serve: uvicorn would raise them again after a clean end."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing to do."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving."""
        await super().startup(sockets)
        print("ready", flush=True)


def _first_epoch() -> int:
    """Quarters of a second since 2025, never 0.

    A restarted controller knows nothing of its predecessor's jobs, and a worker of such a job may still be sending.
    The slots do not matter, as the pipeline is pushed at every start and that clears them, but that worker's packets
    must not be admitted into a new job of the same number. So the calendar makes every start begin above whatever
    was given out before: it takes longer than a quarter of a second, and no controller creates more than four jobs
    a second for as long as it runs. 32 bits last until 2059.
    """
    return max(1, int((time.time() - _EPOCHS_BEGIN) * 4) % 2**32)


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        listener = socket.create_server((host, port))
        # Inherited by every connection. asyncio sets it only where it has made the listener itself; without it
        # each answer waits 40 ms for the delayed acknowledgement of its own header.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The connections of machines that have died, too, end some day.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return listener
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _network(program: Program, ports: str, hosts: list[str], ip: str, mac: str) -> Network:
    numbers = port_list(_number(port, "--ports", _HIGHEST_PORT) for port in ports.split(","))
    known, bindings = _hosts(hosts)
    strangers = sorted(set(known.values()) - set(numbers))
    if strangers:
        raise ConfigurationError(f"--host names ports {strangers}, which --ports does not")
    aggregator = (_parsed(parse_ip, ip, "--aggregator-ip"), _parsed(parse_mac, mac, "--aggregator-mac"))
    if any(binding.mac == aggregator[1] for binding in bindings) or aggregator[0] in known:
        raise ConfigurationError("--host names an address of the aggregator")
    return Network(
        ports=numbers,
        hosts=known,
        bindings=bindings,
        aggregator_ip=aggregator[0],
        aggregator_mac=aggregator[1],
        aggregator_udp_port=INAGG_PORT,
        words=program.words,
    )


def _hosts(texts: list[str]) -> tuple[dict[int, int], tuple[Binding, ...]]:
    """IPv4 address -> port of all, and the bindings of those whose MAC address is given."""
    known: dict[int, int] = {}
    bindings = []
    for text in texts:
        host_ip, separator, place = text.partition("=")
        port_text, with_mac, mac_text = place.partition(",")
        if not separator:
            raise ConfigurationError(
                f"--host {text} is not of the form 10.0.0.1=1 or 10.0.0.1=1,02:00:00:00:00:01"
            )
        ip, port = _parsed(parse_ip, host_ip, "--host"), _number(port_text, "--host", _HIGHEST_PORT)
        if ip in known:
            raise ConfigurationError(f"--host names {host_ip} twice")
        known[ip] = port
        if with_mac:
            bindings.append(Binding(ip=ip, mac=_parsed(parse_mac, mac_text, "--host"), port=port))
    ports: dict[int, int] = {}
    for binding in bindings:
        if ports.setdefault(binding.mac, binding.port) != binding.port:
            raise ConfigurationError(f"--host names {format_mac(binding.mac)} at two ports")
    return known, tuple(bindings)


def _policy(policy: Policy) -> Policy:
    for name in policy.__slots__:
        if not 0 < getattr(policy, name) < math.inf:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be positive")
    if not policy.rto_min_s <= policy.rto_initial_s <= policy.rto_max_s:
        raise ConfigurationError("--rto-min-s, --rto-initial-s and --rto-max-s must be in this order")
    if policy.heartbeat_timeout_s < 2 * policy.heartbeat_interval_s:
        raise ConfigurationError("--heartbeat-timeout-s must be at least twice --heartbeat-interval-s")
    return policy


def _address(text: str, option: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host:
        raise ConfigurationError(f"{option} {text} is not of the form 127.0.0.1:{DEFAULT_PORT}")
    return host.strip("[]"), _number(port, option, 65535)


def _number(text: str, option: str, highest: int) -> int:
    if not text.strip().isdecimal() or int(text) > highest:
        raise ConfigurationError(f"{option}: {text!r} is not a number from 0 to {highest}")
    return int(text)


def _parsed(parse: Callable[[str], int], text: str, option: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from error
