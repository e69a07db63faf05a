# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime server behind real gRPC, which keeps its entries in memory: for the controller's P4Runtime client."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Self, TypeVar

import grpc
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

ElectionId = tuple[int, int]  # high, low
Key = TypeVar("Key")
Value = TypeVar("Value")


class Session:
    """One StreamChannel of FakeP4Runtime. The last of `answers` is None."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[p4runtime_pb2.StreamMessageResponse | None] = queue.SimpleQueue()
        self.election_id: ElectionId | None = None


class FakeP4Runtime(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]  # p4runtime has no types
    """A P4Runtime server that checks entities against P4Info and keeps them.

    groups: multicast group -> (port, replication id) pairs. refused_tables: names of tables that are full.
    pipeline_error, write_error: messages of errors that end these calls. counts: (counter id, index) -> (packets,
    bytes). writes: the type and key of each update. going: while not set, writes and reads wait. standing: one has had
    to.
    """

    def __init__(self) -> None:
        self.config: p4runtime_pb2.ForwardingPipelineConfig | None = None
        self.entries: dict[tuple[object, ...], p4runtime_pb2.TableEntry] = {}
        self.groups: dict[int, list[tuple[int, int]]] = {}
        self.pushes = 0
        self.primary: ElectionId | None = None
        self.highest: ElectionId = (0, 0)
        self.refused_tables: set[str] = set()
        self.pipeline_error: str | None = None
        self.write_error: str | None = None
        self.counts: dict[tuple[int, int], tuple[int, int]] = {}
        self.writes: list[tuple[int, object]] = []
        self.going = threading.Event()
        self.going.set()
        self.standing = threading.Event()
        self._sessions: list[Session] = []
        self._lock = threading.Lock()

    def StreamChannel(  # noqa: N802
        self, requests: Iterator[p4runtime_pb2.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        mine = Session()
        with self._lock:
            self._sessions.append(mine)
        threading.Thread(target=self._read, args=(requests, mine), daemon=True).start()
        try:
            while (answer := mine.answers.get()) is not None:
                yield answer
        finally:
            with self._lock:
                self._sessions.remove(mine)
                if self.primary == mine.election_id:
                    self.primary = None

    def _read(self, requests: Iterator[p4runtime_pb2.StreamMessageRequest], mine: Session) -> None:
        with contextlib.suppress(grpc.RpcError):
            for request in requests:
                election = request.arbitration.election_id
                with self._lock:
                    mine.election_id = (election.high, election.low)
                    if mine.election_id >= self.highest:
                        self.highest = self.primary = mine.election_id
                    mine.answers.put(self._arbitration(mine))
        mine.answers.put(None)

    def _arbitration(self, session: Session) -> p4runtime_pb2.StreamMessageResponse:
        answer = p4runtime_pb2.StreamMessageResponse()
        answer.arbitration.device_id = 1
        answer.arbitration.election_id.high, answer.arbitration.election_id.low = self.highest
        backup = code_pb2.NOT_FOUND if self.primary is None else code_pb2.ALREADY_EXISTS
        answer.arbitration.status.code = code_pb2.OK if session.election_id == self.primary else backup
        return answer

    def take_over(self, election_id: ElectionId) -> None:
        """Act as if another controller had become primary."""
        with self._lock:
            self.highest = self.primary = election_id
            for session in self._sessions:
                session.answers.put(self._arbitration(session))

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        self._check_primary(request, context)
        if self.pipeline_error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.pipeline_error)
        self.config = request.config
        self.entries.clear()
        self.groups.clear()
        self.pushes += 1
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        return p4runtime_pb2.GetForwardingPipelineConfigResponse(config=self.config)

    def Write(  # noqa: N802
        self, request: p4runtime_pb2.WriteRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.WriteResponse:
        self._stand()
        self._check_primary(request, context)
        if self.write_error:
            self._write_one(request.updates[0])
            context.abort(grpc.StatusCode.INTERNAL, self.write_error)
        results = [self._write_one(update) for update in request.updates]
        if any(results):
            status = status_pb2.Status(code=code_pb2.UNKNOWN)
            for code in results:
                status.details.add().Pack(
                    p4runtime_pb2.Error(canonical_code=code, message="as the test asked")
                )
            context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return p4runtime_pb2.WriteResponse()

    def Read(  # noqa: N802
        self, request: p4runtime_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.ReadResponse]:
        self._stand()
        response = p4runtime_pb2.ReadResponse()
        for entity in request.entities:
            if entity.HasField("counter_entry"):
                number = entity.counter_entry.counter_id
                size = next(one.size for one in self._p4info.counters if one.preamble.id == number)
                asked = range(size)
                if entity.counter_entry.HasField("index"):
                    asked = range(entity.counter_entry.index.index, entity.counter_entry.index.index + 1)
                if asked.stop > size:
                    context.abort(grpc.StatusCode.UNKNOWN, f"counter {number} has {size} cells")
                for index in asked:
                    found = response.entities.add().counter_entry
                    found.counter_id, found.index.index = number, index
                    found.data.packet_count, found.data.byte_count = self.counts.get((number, index), (0, 0))
            elif entity.HasField("table_entry"):
                assert entity.table_entry.table_id == 0, "all tables"
                for entry in list(self.entries.values()):
                    response.entities.add().table_entry.CopyFrom(entry)
            elif entity.HasField("packet_replication_engine_entry"):
                for number, replicas in self.groups.items():
                    entry = response.entities.add().packet_replication_engine_entry.multicast_group_entry
                    entry.multicast_group_id = number
                    for port, instance in reversed(replicas):
                        entry.replicas.add(egress_port=port, instance=instance)
            else:
                for entry in self._of_table(entity.direct_counter_entry.table_entry.table_id):
                    found = response.entities.add().direct_counter_entry
                    found.table_entry.CopyFrom(entry)
                    found.data.packet_count, found.data.byte_count = 7, 700
        yield response

    def table(self, name: str) -> dict[tuple[int, ...], tuple[str, dict[str, int]]]:
        """The entries of a table: {(match values): (action, {parameter: value})}."""
        p4info = self._p4info
        (number,) = (table.preamble.id for table in p4info.tables if table.preamble.name == name)
        actions = {action.preamble.id: action for action in p4info.actions}
        found = {}
        for entry in self._of_table(number):
            action = actions[entry.action.action.action_id]
            names = {param.id: param.name for param in action.params}
            match = tuple(
                int.from_bytes(field.exact.value, "big")
                for field in sorted(entry.match, key=lambda field: field.field_id)
            )
            found[match] = (
                action.preamble.name,
                {names[p.param_id]: int.from_bytes(p.value, "big") for p in entry.action.action.params},
            )
        return found

    def _stand(self) -> None:
        if not self.going.is_set():
            self.standing.set()
            self.going.wait()

    @property
    def _p4info(self) -> p4info_pb2.P4Info:
        assert self.config is not None, "no pipeline was pushed"
        return self.config.p4info

    def _of_table(self, number: int) -> list[p4runtime_pb2.TableEntry]:
        return [entry for entry in list(self.entries.values()) if entry.table_id == number]

    def _check_primary(
        self,
        request: p4runtime_pb2.WriteRequest | p4runtime_pb2.SetForwardingPipelineConfigRequest,
        context: grpc.ServicerContext,
    ) -> None:
        if (request.election_id.high, request.election_id.low) != self.primary:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")

    def _write_one(self, update: p4runtime_pb2.Update) -> int:
        """Carry out one update; returns its canonical code."""
        entity = update.entity
        if entity.HasField("table_entry"):
            entry = entity.table_entry
            table = next(t for t in self._p4info.tables if t.preamble.id == entry.table_id)
            if len(entry.match) != len(table.match_fields):
                return int(code_pb2.INVALID_ARGUMENT)
            if table.preamble.name in self.refused_tables:
                return int(code_pb2.RESOURCE_EXHAUSTED)
            fields = sorted((field.field_id, field.exact.value) for field in entry.match)
            return self._store(update.type, (entry.table_id, *fields), self.entries, entry)
        group = entity.packet_replication_engine_entry.multicast_group_entry
        replicas = [(replica.egress_port, replica.instance) for replica in group.replicas]
        return self._store(update.type, group.multicast_group_id, self.groups, replicas)

    def _store(self, kind: int, key: Key, store: dict[Key, Value], value: Value) -> int:
        self.writes.append((kind, key))
        if (kind == p4runtime_pb2.Update.INSERT) == (key in store):
            return int(code_pb2.ALREADY_EXISTS if key in store else code_pb2.NOT_FOUND)
        if kind == p4runtime_pb2.Update.DELETE:
            del store[key]
        else:
            store[key] = value
        return int(code_pb2.OK)


class FakeServer:
    """A gRPC server with a FakeP4Runtime, at a Unix socket and at a TCP port that stays the same over restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.servicer = FakeP4Runtime()
        self.port = 0
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start with an empty FakeP4Runtime."""
        self.servicer = FakeP4Runtime()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self.servicer, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
