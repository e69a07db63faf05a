# SPDX-License-Identifier: Apache-2.0
"""Runs the controller: the service, its connections to the switches, and the HTTP server, until a signal or a crash."""

import asyncio
import logging
import math
import signal
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import uvicorn

from inagg_controller.configuration import Configuration
from inagg_controller.errors import ConfigurationError
from inagg_controller.http.api import create_app
from inagg_controller.http.connections import Connections, limited_protocol, open_file_limit
from inagg_controller.http.secured import secured
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.record import RecordError
from inagg_controller.jobs.table import JobTable
from inagg_controller.jobs.tenants import Tenants
from inagg_controller.logs import RecentLines
from inagg_controller.service import Service
from inagg_controller.state_file import StateFile, UnwritableStateError
from inagg_controller.switch.client import P4RuntimeSwitch, Switch
from inagg_controller.tenants_file import TenantsFile

_SHUTDOWN_S = 2

_log = logging.getLogger(__name__)


async def serve(configuration: Configuration) -> bool:
    """Serve until SIGINT or SIGTERM, or until a task of the service crashes; return whether one crashed.

    Raises ConfigurationError if the address cannot be bound, the state file cannot be used, or a link is not as the
    topology says, SwitchError if a switch cannot be programmed at start.
    """
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

    listener = _listen(configuration.listen)
    state = _state_file(configuration)
    service = Service(
        _job_table(configuration, state),
        _switches(configuration),
        configuration.network,
        on_crash=crash,
        state=state,
    )
    lines = RecentLines()
    server = _http_server(configuration, service, lines)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if configuration.tenants is not None:
        loop.add_signal_handler(signal.SIGHUP, _read_again, configuration.tenants, service.jobs.tenants)
    try:
        with lines.listening():
            await service.start(configuration.switch_timeout_s)
            await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        _log.info("stopped before it had started")
    finally:
        listener.close()
        await service.stop()
        if state is not None:
            state.close()
    return crashed.is_set()


def _read_again(file: TenantsFile, tenants: Tenants) -> None:
    """Have the tenants that are in the file now; if it has a fault, stay with those that there are."""
    try:
        given = file.read()
    except ConfigurationError as error:
        _log.error("%s; the tenants stay as they were", error)
        return
    gone = sorted(tenants.by_name.keys() - {tenant.name for tenant in given})
    tenants.replace(given)
    names = ", ".join(tenants.by_name)
    _log.info("the tenants are %s%s", names, f"; no longer {', '.join(gone)}" if gone else "")


def _state_file(configuration: Configuration) -> StateFile | None:
    """The file of --state. Nothing keeps jobs if there can be no file at the default place."""
    if configuration.state is None:
        return None
    try:
        return StateFile(configuration.state)
    except UnwritableStateError as error:
        if configuration.state_given:
            raise
        _log.warning("%s; so a controller that starts again does not know the jobs of this one", error)
        return None


def _job_table(configuration: Configuration, state: StateFile | None) -> JobTable:
    """The job table, with the jobs that an earlier controller has left in the file."""
    now = time.monotonic()
    table = JobTable(
        configuration.network.topology,
        configuration.limits,
        configuration.policy,
        epochs=Epochs.fresh(),
        now=now,
        words=configuration.network.words,
        multicast=configuration.network.multicast,
        tenants=Tenants(() if configuration.tenants is None else configuration.tenants.read()),
    )
    if state is not None:
        try:
            table.restore(state.load(), now)
        except RecordError as error:
            raise ConfigurationError(
                f"--state {configuration.state}: {error}; move the file away to begin without its jobs"
            ) from error
        for job in table.jobs.values():
            if not job.ended:
                _log.info("%s goes on: %s, %d workers", job.title, job.state, job.workers)
    return table


def _switches(configuration: Configuration) -> Mapping[str, Switch]:
    """The switches of the topology by name; none without a program."""
    program = configuration.program
    if program is None:
        return {}
    return {
        switch.name: P4RuntimeSwitch(switch.address, switch.device_id, program, configuration.switch_tls)
        for switch in configuration.network.topology.switches
    }


def _http_server(configuration: Configuration, service: Service, lines: RecentLines) -> "_Server":
    """The HTTP server of a service, with its limits of connections. lines: the log's."""
    most = open_file_limit()
    connections = Connections(
        most=most,
        per_host=min(configuration.connections_per_host, most // 2),
        idle_s=configuration.idle_timeout_s,
    )
    protocol = limited_protocol(connections)
    return _Server(
        uvicorn.Config(
            create_app(service, configuration.operators_token, connections, lines),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=bool(configuration.proxies),
            forwarded_allow_ips=list(configuration.proxies),
            http=protocol if configuration.tls is None else secured(protocol, configuration.tls, connections),
            timeout_keep_alive=math.ceil(configuration.idle_timeout_s),
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )


class _Server(uvicorn.Server):
    """Prints "ready" when it serves. Leaves signals to `serve`, because uvicorn raises them again after a clean end."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture no signal."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving."""
        await super().startup(sockets)
        print("ready", flush=True)


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        listener = socket.create_server((host, port))
        # Connections inherit TCP_NODELAY. asyncio sets it only on listeners that it makes itself. Without it each
        # answer waits 40 ms for the delayed acknowledgement of its header.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Keepalive ends the connections of machines that have died.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return listener
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
