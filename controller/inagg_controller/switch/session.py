# SPDX-License-Identifier: Apache-2.0
"""A connection to a P4Runtime server: p4runtime-shell's client with deadlines and with errors as SwitchError.

The shell's client is made for an interactive prompt: it exits the process where a library raises, and waits without a
deadline. `Session` raises instead and gives every RPC a deadline. It does not check the files of TLS: `probe` does.
"""

import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import p4runtime_sh.shell as sh
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4runtime_sh.p4runtime import (
    P4RuntimeClient,
    P4RuntimeException,
    SSLOptions,
)

from inagg_controller.errors import (
    ConfigurationError,
    SwitchError,
    SwitchRefusedError,
    SwitchTakenError,
    SwitchUnreachableError,
)
from inagg_controller.switch.program import Program
from inagg_controller.tls import SwitchTls
from inagg_p4runtime.cells import CounterCell, RegisterCell, read_counters, read_registers
from inagg_p4runtime.names import THREADS

# Higher than the shell's default of (1, 0), so that a shell that a person attaches becomes a backup. Fixed, so that a
# second controller for the same switch is refused and does not wipe out the first one's jobs. A higher one is used only
# if nobody is primary and a client with a higher one was primary before.
ELECTION_ID = (1 << 32, 0)
_LAST_ELECTION_ID = (1 << 128) - 1

_CONNECT_TIMEOUT_S = 2.0
_HANDSHAKE_TIMEOUT_S = 5.0
_RPC_TIMEOUT_S = 10.0
# The switch may compile the program first.
_PUSH_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 2.0

_LOCAL = "unix:"

# Status codes of a lost connection, not of a wrong request.
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


class Session(P4RuntimeClient):  # type: ignore[misc]
    """A P4Runtime client that is the switch's primary controller. All methods raise grpc.RpcError; see `translated`."""

    def __init__(self, device_id: int, address: str, tls: SwitchTls | None = None) -> None:
        self._address = address
        options = None
        if tls is not None and not _is_local(address):
            own = (None if path is None else str(path) for path in (tls.certificate, tls.key))
            options = SSLOptions(False, str(tls.authority), *own)
        super().__init__(device_id, address, ELECTION_ID, ssl_options=options)

    def set_up_stream(self) -> None:
        """Start the stream, the only call without a deadline."""
        self._limited_channel = grpc.intercept_channel(self.channel, _Deadlines())
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._limited_channel)
        try:
            super().set_up_stream()
        except SwitchError:
            self.end()
            raise

    def handshake(self) -> None:
        """Become the switch's primary controller, or raise SwitchError.

        A switch remembers the highest election id that it has seen. If the controller with that id is gone and nobody
        is primary, only a client with a higher id becomes primary.
        """
        answer = self._arbitrate()
        if answer.status.code == code_pb2.NOT_FOUND:
            highest = answer.election_id.high << 64 | answer.election_id.low
            if highest == _LAST_ELECTION_ID:
                raise SwitchUnreachableError(
                    f"the switch at {self._address} has had a controller with the highest possible election id and "
                    "accepts no other: restart the switch"
                )
            self.election_id = (highest + 1) >> 64, (highest + 1) & (1 << 64) - 1
            answer = self._arbitrate()
        if answer.status.code != code_pb2.OK:
            raise taken(self._address, answer)

    def _arbitrate(self) -> Any:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)
        answer = self.get_stream_packet("arbitration", timeout=_HANDSHAKE_TIMEOUT_S)
        if answer is None:
            raise self._unanswered()
        return answer.arbitration

    def _unanswered(self) -> SwitchError:
        """Why the switch has not answered an arbitration message."""
        switch = f"the switch at {self._address}"
        if self.stream.is_active():
            return SwitchUnreachableError(
                f"{switch} has accepted the connection and did not answer within {_HANDSHAKE_TIMEOUT_S:g} s: it is "
                "still starting, or carries out a request of another client"
            )
        code, details = self.stream.code(), self.stream.details()
        if code == grpc.StatusCode.NOT_FOUND:
            return SwitchRefusedError(f"{switch} refuses the device id {self.device_id}: {details}")
        if code == grpc.StatusCode.INVALID_ARGUMENT:  # of what it checks, only the election id can be wrong
            return SwitchTakenError(f"{switch} refuses the session, another controller has one: {details}")
        if code == grpc.StatusCode.UNAVAILABLE and _expects_tls(self._address):
            return SwitchRefusedError(
                f"{switch} expects TLS: give the controller --p4runtime-ca, --p4runtime-cert and --p4runtime-key"
            )
        return SwitchUnreachableError(f"{switch} has ended the session: {code.name}: {details}")

    def write_batch(self, request: Any) -> dict[int, Any]:
        """Write updates; return index -> p4.v1.Error of each update that the switch refused.

        Replaces the shell's write(), which loops forever over the errors of a batch in which an update succeeded before
        the first that failed.
        """
        request.device_id = self.device_id
        request.election_id.high, request.election_id.low = self.election_id
        try:
            self.stub.Write(request)
        except grpc.RpcError as error:
            failed = _failed_updates(error)
            if not failed:
                raise
            return failed
        return {}

    def push(self, program: Program) -> None:
        """Have the switch run a program, with empty tables and registers."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.election_id.high, request.election_id.low = self.election_id
        request.action = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request.config.p4info.CopyFrom(program.p4info)
        request.config.p4_device_config = program.device_config
        request.config.cookie.cookie = program.cookie
        self.stub.SetForwardingPipelineConfig(request)

    def cookie(self) -> int:
        """That of the running program; 0 without one."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.response_type = p4runtime_pb2.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        try:
            return int(self.stub.GetForwardingPipelineConfig(request).config.cookie.cookie)
        except grpc.RpcError as error:
            if error.code() in _UNREACHABLE:
                raise
            return 0

    def threads(self) -> int:
        """How many threads of the switch divide the packets of the running program."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.response_type = p4runtime_pb2.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        _, call = self.stub.GetForwardingPipelineConfig.with_call(request)
        return next((int(value) for key, value in call.trailing_metadata() if key == THREADS), 1)

    def read(self, entities: Iterable[Any]) -> Iterator[Any]:
        """Read entities, wildcards included, in one request."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id)
        request.entities.extend(entities)
        for response in self.stub.Read(request):
            yield from response.entities

    def read_counters(self, entries: Iterable[Any]) -> Iterator[CounterCell]:
        """Read cells of indexed counters in one request."""
        return read_counters(self._limited_channel, self.device_id, entries)

    def read_registers(self, entries: Iterable[Any]) -> Iterator[RegisterCell]:
        """Read cells of registers in one request."""
        return read_registers(self._limited_channel, self.device_id, entries)

    def end(self) -> None:
        """Close the stream; cancel it if the server does not close its side in time."""
        self.stream_out_q.put(None)
        self.stream_recv_thread.join(_CLOSE_TIMEOUT_S)
        self.stream.cancel()
        self.tear_down()
        for messages in self.stream_in_q.values():  # ends the threads that read them
            messages.put(None)


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Deadlines(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Gives every call except the stream a deadline."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(_limited(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(_limited(details), request)


def _limited(details: Any) -> _CallDetails:
    push = details.method.endswith("/SetForwardingPipelineConfig")
    return _CallDetails(
        details.method,
        _PUSH_TIMEOUT_S if push else _RPC_TIMEOUT_S,
        details.metadata,
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )


def probe(address: str, tls: SwitchTls | None = None) -> None:
    """Raise SwitchUnreachableError at once if nothing listens; gRPC would back off first.

    With TLS, raise SwitchRefusedError if one side refuses the other's certificate, which gRPC would not explain. A
    switch that closes the connection before it has shown its certificate is unreachable: it may be starting. An address
    of this machine's file system needs no TLS.
    """
    try:
        if _is_local(address):
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(address.removeprefix(_LOCAL))
            return
        with _connect(address) as connection:
            if tls is not None:
                _shake_hands(connection, address, tls)
    except OSError as error:
        raise SwitchUnreachableError(f"no switch at {address}: {error.strerror or error}") from error


def _is_local(address: str) -> bool:
    return address.startswith(_LOCAL)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _connect(address: str) -> socket.socket:
    return socket.create_connection((_host(address), int(address.rpartition(":")[2])), _CONNECT_TIMEOUT_S)


def _shake_hands(connection: socket.socket, address: str, tls: SwitchTls) -> None:
    """Raise SwitchError if there is no TLS session with the switch."""
    switch, known = f"the switch at {address}", False
    try:
        with tls.context().wrap_socket(connection, server_hostname=_host(address)) as secured:
            known = True
            # In TLS 1.3 a server refuses the client's certificate after the client's part of the handshake, and gRPC's
            # server does so without an alert. If it does not refuse it, it begins to speak (RFC 9113, 3.4).
            if secured.recv(1):
                return
            problem = "it closes the connection"
    except ConfigurationError as error:  # a file has changed since the controller began
        raise SwitchRefusedError(f"{switch}: {error}") from error
    except ssl.SSLCertVerificationError as error:
        raise SwitchRefusedError(
            f"the certificate of {switch} is not valid here: {error.verify_message.rstrip('.')} (--p4runtime-ca "
            f"{tls.authority})"
        ) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
        if not known:
            raise SwitchUnreachableError(
                f"{switch} closes the connection before it has shown a certificate: it is starting, or another service "
                "has its port"
            ) from error
        problem = error.strerror or "it closes the connection"
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            raise SwitchRefusedError(f"{switch} does not speak TLS: leave out --p4runtime-ca") from error
        problem = str(error.reason or error)
    own = (
        "it was given no --p4runtime-cert"
        if tls.certificate is None
        else f"--p4runtime-cert {tls.certificate}"
    )
    raise SwitchRefusedError(f"{switch} refuses the controller's certificate ({own}): {problem}")


def _expects_tls(address: str) -> bool:
    """Whether a TLS server listens at HOST:PORT."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connect(address) as connection, context.wrap_socket(connection):
            return True
    except (OSError, ValueError):  # ssl.SSLError is an OSError; ValueError: a UNIX socket's path
        return False


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Raise the block's errors of gRPC and of the shell as SwitchError."""
    try:
        yield
    except P4RuntimeException as error:
        raise _switch_error(address, error.grpc_error) from error
    except grpc.RpcError as error:
        raise _switch_error(address, error) from error
    except sh.UserError as error:
        raise SwitchRefusedError(f"the program of the switch at {address} differs: {error}") from error


def taken(address: str, arbitration: Any) -> SwitchTakenError:
    """The error for an arbitration notice that names another primary controller."""
    high, low = arbitration.election_id.high, arbitration.election_id.low
    return SwitchTakenError(
        f"another controller is in charge of the switch at {address}, with the election id ({high}, {low})"
    )


def _switch_error(address: str, error: Any) -> SwitchError:
    code, details = error.code(), error.details()
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return SwitchTakenError(f"lost the switch at {address}: {code.name}: {details}")
    if code in _UNREACHABLE:
        return SwitchUnreachableError(f"lost the switch at {address}: {code.name}: {details}")
    return SwitchRefusedError(f"the switch at {address} answered {code.name}: {details}")


def _failed_updates(error: Any) -> dict[int, Any]:
    """The errors of single updates in a failed Write (P4Runtime specification, "Error Reporting Messages")."""
    failed = {}
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for index, packed in enumerate(status_pb2.Status.FromString(value).details):
                update_error = p4runtime_pb2.Error()
                if packed.Unpack(update_error) and update_error.canonical_code != code_pb2.OK:
                    failed[index] = update_error
    return failed
