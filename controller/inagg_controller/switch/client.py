# SPDX-License-Identifier: Apache-2.0
"""The switch, through P4Runtime. The only module that knows p4runtime-shell.

The shell keeps its client and its P4Info in module globals and was written for a person at a prompt: it exits the
process where a library raises, waits without a deadline, and prints. All of that ends here. Every use of it takes
one lock and sets the globals to its own switch's, so that a process may drive several; `_Client` raises instead of
exiting and gives every RPC a deadline; and each of the shell's exceptions leaves as a SwitchError.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import grpc
import p4runtime_sh.shell as sh
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4runtime_sh.context import Context
from p4runtime_sh.p4runtime import (
    P4RuntimeClient,
    P4RuntimeException,
)

from inagg_controller.errors import SwitchError, SwitchRefusedError, SwitchTakenError, SwitchUnreachableError
from inagg_controller.switch.entries import ADMISSION, Entity, MulticastGroup, TableEntry
from inagg_controller.switch.program import Program

_log = logging.getLogger(__name__)

# Above the shell's default of (1, 0): a person may attach a shell to look, and it becomes a backup. Fixed, so that
# a second controller for the same switch is refused instead of wiping out the first one's jobs. Only where nobody is
# primary, but somebody with a higher one has been, a higher one is taken.
ELECTION_ID = (1 << 32, 0)
_LAST_ELECTION_ID = (1 << 128) - 1

_CONNECT_TIMEOUT_S = 2.0
_HANDSHAKE_TIMEOUT_S = 5.0
_RPC_TIMEOUT_S = 10.0
# The switch may compile the program first.
_PUSH_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 2.0

# These say that the connection is gone, not that the request was wrong.
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)

_shell_lock = threading.Lock()
sh.global_options["verbose"] = False


class Count(NamedTuple):
    """One cell of a counter."""

    packets: int
    bytes: int


class Switch(Protocol):
    """What the service needs of a switch. Methods block and are called by one thread at a time.

    All raise SwitchUnreachableError when the connection is lost and SwitchRefusedError when the switch says no.
    """

    def connect(self, on_lost: Callable[[SwitchUnreachableError], None]) -> None:
        """Connect and start the program afresh; on_lost is called, on any thread, when the connection ends, or with
        SwitchTakenError when another controller becomes the primary one."""

    def insert(self, entities: Sequence[Entity]) -> None:
        """Insert a batch. What was inserted before a failure is remembered, for remove."""

    def modify(self, entities: Sequence[Entity]) -> None:
        """Change entries that are there."""

    def remove(self, entities: Sequence[Entity]) -> None:
        """Remove a batch; entries that are not there are passed over."""

    def read_counters(self, ports: Sequence[int]) -> Mapping[str, Mapping[int, Count]]:
        """The indexed counters that are not zero at these ports: name -> port -> count."""

    def read_admitted(self) -> Mapping[tuple[int, int], Count]:
        """(job, rank) -> what the admission table has let in."""

    def close(self) -> None:
        """End the connection. Safe at any time."""


class P4RuntimeSwitch:
    """A switch behind a P4Runtime server at `address`, "host:port" or "unix:path"."""

    def __init__(self, address: str, device_id: int, program: Program) -> None:
        self.address = address
        self._device_id = device_id
        self._program = program
        self._client: _Client | None = None
        self._context = Context()
        self._present: set[object] = set()

    def connect(self, on_lost: Callable[[SwitchUnreachableError], None]) -> None:
        """See Switch. Raises SwitchUnreachableError, also when another controller has the switch."""
        self.close()
        _probe(self.address)
        with _translated(self.address):
            client = _Client(self._device_id, self.address)
        try:
            with _translated(self.address):
                client.set_fwd_pipe_config(
                    str(self._program.p4info_path), str(self._program.device_config_path)
                )
                self._context = Context()
                self._context.set_p4info(client.get_p4info())
        except SwitchError:
            client.end()
            raise
        self._present = set()
        self._client = client
        for watch in (self._watch_stream, self._watch_role):
            threading.Thread(target=watch, args=(client, on_lost), name="inagg-stream", daemon=True).start()

    def _watch_stream(self, client: "_Client", on_lost: Callable[[SwitchUnreachableError], None]) -> None:
        client.stream_recv_thread.join()
        if self._client is client:
            on_lost(SwitchUnreachableError(f"the switch at {self.address} closed the connection"))

    def _watch_role(self, client: "_Client", on_lost: Callable[[SwitchUnreachableError], None]) -> None:
        """The switch tells all its controllers when another one becomes primary."""
        notices = client.stream_in_q["arbitration"]
        while (notice := notices.get()) is not None:
            if notice.arbitration.status.code != code_pb2.OK:
                if self._client is client:
                    on_lost(_taken(self.address, notice.arbitration))
                return

    def insert(self, entities: Sequence[Entity]) -> None:
        """See Switch."""
        # Noted before they are sent: an answer that says nothing of single updates may hide some that succeeded.
        new = {key for key in map(_key, entities) if key not in self._present}
        self._present |= new
        failed = self._write(p4runtime_pb2.Update.INSERT, entities)
        self._present -= new & {_key(entities[index]) for index in failed}
        _raise_first(failed, entities)

    def modify(self, entities: Sequence[Entity]) -> None:
        """See Switch."""
        _raise_first(self._write(p4runtime_pb2.Update.MODIFY, entities), entities)

    def remove(self, entities: Sequence[Entity]) -> None:
        """See Switch."""
        present = [entity for entity in entities if _key(entity) in self._present]
        failed = {
            index: error
            for index, error in self._write(p4runtime_pb2.Update.DELETE, present).items()
            if error.canonical_code != code_pb2.NOT_FOUND
        }
        self._present -= {_key(entity) for index, entity in enumerate(present) if index not in failed}
        _raise_first(failed, present)

    def read_counters(self, ports: Sequence[int]) -> Mapping[str, Mapping[int, Count]]:
        """See Switch."""
        counts: dict[str, dict[int, Count]] = {name: {} for name in self._program.counters}
        with self._shell() as client:
            names = {self._context.get_counter_id(name): name for name in counts}
            wanted = [_counter_cell(number, port) for number in names for port in ports]
            for entity in client.read(wanted):
                cell = entity.counter_entry
                if cell.data.packet_count or cell.data.byte_count:
                    counts[names[cell.counter_id]][cell.index.index] = _count(cell.data)
        return counts

    def read_admitted(self) -> Mapping[tuple[int, int], Count]:
        """See Switch."""
        counts = {}
        wanted = p4runtime_pb2.Entity()
        with self._shell() as client:
            wanted.direct_counter_entry.table_entry.table_id = self._context.get_table_id(ADMISSION)
            job_id = self._context.get_mf_id(ADMISSION, "job")
            rank_id = self._context.get_mf_id(ADMISSION, "rank")
            for entity in client.read([wanted]):
                cell = entity.direct_counter_entry
                key = {field.field_id: field.exact.value for field in cell.table_entry.match}
                if key:  # the default entry, which counts what was refused, has none
                    job, rank = (int.from_bytes(key[number], "big") for number in (job_id, rank_id))
                    counts[job, rank] = _count(cell.data)
        return counts

    def close(self) -> None:
        """See Switch."""
        client, self._client = self._client, None
        if client is not None:
            client.end()

    def _write(self, kind: int, entities: Sequence[Entity]) -> dict[int, Any]:
        """Write a batch; returns index -> p4.v1.Error of what the switch refused."""
        if not entities:
            return {}
        with self._shell() as client:
            request = p4runtime_pb2.WriteRequest()
            for entity in entities:
                update = request.updates.add(type=kind)
                if isinstance(entity, MulticastGroup):
                    message = _group(entity, bare=kind == p4runtime_pb2.Update.DELETE).msg()
                    update.entity.packet_replication_engine_entry.CopyFrom(message)
                else:
                    update.entity.table_entry.CopyFrom(_table_entry(entity).msg())
            return client.write_batch(request)

    @contextmanager
    def _shell(self) -> Iterator["_Client"]:
        """The shell's globals, set to this switch's, while the lock is held."""
        with _shell_lock, _translated(self.address):
            if self._client is None:
                raise SwitchUnreachableError(f"the switch at {self.address} is not connected")
            sh.client, sh.context = self._client, self._context
            yield self._client


class _Client(P4RuntimeClient):  # type: ignore[misc]
    """The shell's client with deadlines, and with exceptions where it would leave the process."""

    def __init__(self, device_id: int, address: str) -> None:
        self._address = address
        super().__init__(device_id, address, ELECTION_ID)

    def set_up_stream(self) -> None:
        """Start the stream; the one call that may last."""
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(grpc.intercept_channel(self.channel, _Deadlines()))
        try:
            super().set_up_stream()
        except SwitchError:
            self.end()
            raise

    def handshake(self) -> None:
        """Become the switch's primary controller, or raise SwitchUnreachableError.

        A switch remembers the highest election id it has seen. Where nobody is primary, as the controller that had it
        has gone, it takes a higher one to succeed that.
        """
        answer = self._arbitrate()
        if answer.status.code == code_pb2.NOT_FOUND:
            highest = answer.election_id.high << 64 | answer.election_id.low
            if highest == _LAST_ELECTION_ID:
                raise SwitchUnreachableError(
                    f"the switch at {self._address} has had a controller with the highest election id there is, and "
                    "lets none succeed it: restart the switch"
                )
            self.election_id = (highest + 1) >> 64, (highest + 1) & (1 << 64) - 1
            answer = self._arbitrate()
        if answer.status.code != code_pb2.OK:
            raise _taken(self._address, answer)

    def _arbitrate(self) -> Any:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)
        answer = self.get_stream_packet("arbitration", timeout=_HANDSHAKE_TIMEOUT_S)
        if answer is None:
            raise SwitchUnreachableError(
                f"the switch at {self._address} did not accept a session for device {self.device_id}: is that its "
                "device id, and is no other controller connected?"
            )
        return answer.arbitration

    def write_batch(self, request: Any) -> dict[int, Any]:
        """Write updates; returns index -> p4.v1.Error of those the switch refused.

        Takes the place of the shell's write(), which loops for ever over the errors of a batch in which any update
        succeeded before the first that failed.
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

    def read(self, entities: Iterable[Any]) -> Iterator[Any]:
        """Read entities, wildcards included, in one request."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id)
        request.entities.extend(entities)
        for response in self.stub.Read(request):
            yield from response.entities

    def end(self) -> None:
        """Close the stream as the server expects it; cut it off when the server does not follow."""
        self.stream_out_q.put(None)
        self.stream_recv_thread.join(_CLOSE_TIMEOUT_S)
        self.stream.cancel()
        self.tear_down()


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Deadlines(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Gives every call a deadline, except the stream."""

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


def _probe(address: str) -> None:
    """Fail at once when nothing listens: gRPC would go through its own backoff first."""
    kind, _, path = address.partition(":")
    host, _, port = address.rpartition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        else:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise SwitchUnreachableError(f"no switch at {address}: {error.strerror or error}") from error


@contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except P4RuntimeException as error:
        raise _switch_error(address, error.grpc_error) from error
    except grpc.RpcError as error:
        raise _switch_error(address, error) from error
    except sh.UserError as error:
        raise SwitchRefusedError(f"the program of the switch at {address} differs: {error}") from error


def _taken(address: str, arbitration: Any) -> SwitchTakenError:
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


def _raise_first(failed: Mapping[int, Any], entities: Sequence[Entity]) -> None:
    for index, error in sorted(failed.items()):
        code = code_pb2.Code.Name(error.canonical_code)
        raise SwitchRefusedError(
            f"{len(failed)} of {len(entities)} writes refused, the first with {code}: {error.message} "
            f"({entities[index]})"
        )


def _key(entity: Entity) -> object:
    return (entity.table, entity.match) if isinstance(entity, TableEntry) else entity.group


def _table_entry(entity: TableEntry) -> Any:
    entry = sh.TableEntry(entity.table)(action=entity.action)
    for name, value in entity.match:
        entry.match[name] = str(value)
    for name, value in entity.params:
        entry.action[name] = str(value)
    return entry


def _group(entity: MulticastGroup, *, bare: bool) -> Any:
    entry = sh.MulticastGroupEntry(entity.group)
    for port, instance in () if bare else entity.replicas:
        entry.add(port, instance)
    return entry


def _counter_cell(number: int, port: int) -> Any:
    entity = p4runtime_pb2.Entity()
    entity.counter_entry.counter_id = number
    entity.counter_entry.index.index = port
    return entity


def _count(data: Any) -> Count:
    return Count(data.packet_count, data.byte_count)
