# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server: one device, one gRPC address, one set of ports."""

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import grpc

from inagg_switch.errors import SwitchError
from inagg_switch.p4runtime.calls import Calls
from inagg_switch.p4runtime.controllers import MAX_STREAMS
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.pipeline import Pipeline
from inagg_switch.p4runtime.requests import MAX_MESSAGE_BYTES
from inagg_switch.p4runtime.service import MAX_READS, P4RuntimeService
from inagg_switch.ports import Ports
from inagg_switch.program_log import ProgramLog
from inagg_switch.switch import Switch

logger = logging.getLogger(__name__)

_THREADS = MAX_STREAMS + MAX_READS + 32  # 32 are left for other requests; Writes have threads of calls.py
_MAX_CALLS = 1024  # with those that wait for a thread; further calls end with RESOURCE_EXHAUSTED
# A client that has vanished silently keeps its threads for this time.
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_IDLE_MS = 300_000  # after which a connection without calls is closed; clients reopen it when needed
_STOP_GRACE_S = 0.5


class ServerError(SwitchError):
    """The gRPC server cannot serve at its address."""


def host_and_port(address: str) -> tuple[str, int]:
    """Parse "HOST:PORT" or "[IPV6]:PORT". Raises ServerError for anything else."""
    # gRPC would use another port: 443 for a missing one, and the low 16 bits of a larger number.
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 0xFFFF
    if not (host and is_port) or (":" in host and not host.startswith("[")):
        raise ServerError(f"cannot serve at {address}: expected HOST:PORT, [IPV6]:PORT or unix:PATH")
    return host.strip("[]"), int(port)


def _check_unix_socket(address: str) -> None:
    # gRPC would silently replace a server that still listens there.
    path = address.removeprefix("unix:").removeprefix("//")
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise ServerError(f"cannot serve at {address}: another server listens there")


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS files in PEM form. With `client_ca`, only clients with a certificate of that authority are served."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """The server's credentials. Raises ServerError if a file cannot be read or has other contents."""
        authority = self._read(self.client_ca) if self.client_ca is not None else None
        key, certificate = self._read(self.key), self._read(self.certificate)
        self._check()
        return grpc.ssl_server_credentials(
            [(key, certificate)],
            root_certificates=authority,
            require_client_auth=authority is not None,
        )

    def _check(self) -> None:
        # gRPC would only report that it cannot listen.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(
                self.certificate, self.key, password=""
            )  # without a password it would prompt for one
        except ssl.SSLError as error:
            raise ServerError(
                f"TLS: {self.certificate} and {self.key} are not a certificate and its key in PEM form: {error}"
            ) from None
        try:
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except ssl.SSLError as error:
            raise ServerError(f"TLS: {self.client_ca} has no certificate in PEM form: {error}") from None

    @staticmethod
    def _read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise ServerError(f"TLS: {path}: {error.strerror}") from None


class SwitchServer:
    """Serves P4Runtime for the program that runs on `ports`. Owns the ports: stop() stops them too."""

    def __init__(
        self,
        ports: Ports,
        *,
        device_id: int,
        address: str,
        tls: Tls | None = None,
        on_trace: Callable[[str], None] | None = None,
    ) -> None:
        """Bind the address ("HOST:PORT" or "unix:PATH"). Raises ServerError.

        on_trace: receives the lines of packets' paths, on its own thread; programs are then compiled with tracing.
        """
        self._ports = ports
        self._address = address
        self._log = ProgramLog()
        self._trace = ProgramLog(on_trace) if on_trace is not None else None
        self._pipeline = Pipeline(self._compile, ports.set_program, ports.now)
        if ports.cpu_port is None:
            self._service = P4RuntimeService(device_id, self._pipeline)
        else:
            cpu_port = ports.cpu_port
            self._service = P4RuntimeService(
                device_id, self._pipeline, lambda frame: ports.inject(cpu_port, frame)
            )
        self._notify = threading.Thread(
            target=self._service.run_notifications, name="inagg-p4runtime-notify", daemon=True
        )
        self._to_cpu = threading.Thread(target=self._bring_packets, name="inagg-packet-in", daemon=True)
        self.calls = Calls(self._service)
        self._patience = threading.Thread(
            target=self.calls.patience.run, name="inagg-p4runtime-patience", daemon=True
        )
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="p4runtime"),
            handlers=(self.calls.handlers(),),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        if address.startswith("unix:"):
            _check_unix_socket(address)
        else:
            host_and_port(address)
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, tls.credentials())
        except RuntimeError as error:
            raise ServerError(
                f"cannot serve at {address}: the address is in use, or not an address of this machine, or its port is "
                "below net.ipv4.ip_unprivileged_port_start"
            ) from error

    def _compile(self, source: str) -> Switch:
        program = Switch.from_source(
            source,
            traced=self._trace is not None,
            threads=self._ports.threads,
            or_one=self._ports.chose_threads,
        )
        self._listen(program)
        return program

    def _listen(self, program: Switch) -> None:
        if program.threads < self._ports.threads:
            logger.info("one thread runs the program: %s", program.one_thread)
        program.on_log(self._log.write)
        if self._trace is not None:
            program.on_trace(self._trace.write)

    def _bring_packets(self) -> None:
        while (frame := self._ports.next_to_cpu()) is not None:
            try:
                self._service.packet_in(frame)
            except Exception:  # a defect of ours; later packets must still reach the controller
                logger.exception("packet-in of %d bytes lost", len(frame))

    @property
    def running(self) -> Target | None:
        """The program that processes packets; None before the first."""
        return self._pipeline.running

    @property
    def loads(self) -> int:
        """Number of programs that have been started."""
        return self._pipeline.loads

    def load(self, program: Switch) -> None:
        """Run a program that did not come through P4Runtime; clients see it as the pipeline config.

        Its messages go to the log. With `on_trace` it must be compiled with tracing.
        """
        self._listen(program)
        self._pipeline.start_with(program, program.source)

    def exclusive(self, there: Callable[[], bool] = lambda: True) -> AbstractContextManager[Target]:
        """Hold the lock of the control plane in a block; yields the running program.

        there: asked while another has the lock. Raises RequestError if the client has gone then, or no program runs.
        """
        return self._service.exclusive(there)

    def restart(self) -> None:
        """Run the program again, from its initial state. Call it inside exclusive()."""
        self._pipeline.restart()

    def start(self) -> None:
        """Start the ports and all threads, then serve."""
        self._log.start()
        if self._trace is not None:
            self._trace.start()
        self._ports.start()
        self._to_cpu.start()
        self._notify.start()
        self._patience.start()
        self._server.start()

    def stop(self) -> None:
        """End streams and requests, then stop the ports; their statistics stay readable."""
        self.calls.patience.stop()
        self._service.close_streams()
        self._server.stop(_STOP_GRACE_S).wait()
        self.calls.writers.shutdown(wait=False)
        self._ports.stop()
        self._log.stop()
        if self._trace is not None:
            self._trace.stop()
        for thread in (self._to_cpu, self._notify, self._patience):
            if thread.is_alive():
                thread.join()
        if self._address.startswith("unix:"):
            Path(self._address.removeprefix("unix:").removeprefix("//")).unlink(missing_ok=True)
