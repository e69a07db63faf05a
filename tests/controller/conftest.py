# SPDX-License-Identifier: Apache-2.0
"""What stands in for the switch here: P4Info by hand, a switch object, and a P4Runtime server, all in memory."""

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import httpx
import pytest
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from inagg_controller.errors import SwitchRefusedError, SwitchUnreachableError
from inagg_controller.http.api import create_app
from inagg_controller.jobs.job import Limits, Policy
from inagg_controller.jobs.table import JobTable
from inagg_controller.service import Network, Service
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import (
    ADMISSION,
    BOUND_PORT,
    SOURCE_IP,
    SOURCE_MAC,
    STATION,
    Binding,
    MulticastGroup,
)
from inagg_controller.switch.program import load_program

WORDS = 4
SLOT_VERSIONS = 64
OPERATORS_TOKEN = "the-token-of-the-operator-of-these-tests"

GUARD = "InaggIngress.source_guard"

# table -> ({match field: bits}, action, {parameter: bits}), as in p4/include/*.p4
TABLES = {
    "InaggIngress.ingress_loss.ingress_loss": (
        {"port": 9, "aggregation": 1},
        "InaggIngress.ingress_loss.inject_ingress_loss",
        {"threshold": 32},
    ),
    "InaggEgress.egress_loss.egress_loss": (
        {"port": 9, "aggregation": 1},
        "InaggEgress.egress_loss.inject_egress_loss",
        {"threshold": 32},
    ),
    "InaggIngress.arp_responder.arp_responder": (
        {"ip": 32},
        "InaggIngress.arp_responder.answer",
        {"mac": 48},
    ),
    "InaggIngress.ping_responder.ping_responder": (
        {"ip": 32},
        "InaggIngress.ping_responder.answer_ping",
        {"mac": 48},
    ),
    SOURCE_MAC: ({"mac": 48}, f"{GUARD}.mac_of_port", {"port": 9}),
    SOURCE_IP: ({"ip": 32}, f"{GUARD}.ip_of_host", {"port": 9, "mac": 48}),
    BOUND_PORT: ({"port": 9}, f"{GUARD}.refuse_stranger", {}),
    STATION: ({"mac": 48}, "InaggIngress.l2.to_port", {"port": 9}),
    ADMISSION: (
        {"port": 9, "source": 32, "job": 16, "rank": 8},
        "InaggIngress.admission.admit",
        {"worker": 64, "all": 64, "slot_base": 32, "slot_mask": 32, "epoch": 32, "result_group": 16},
    ),
    "InaggEgress.delivery.receiver": (
        {"job": 16, "rank": 8},
        "InaggEgress.delivery.deliver",
        {"mac": 48, "ip": 32, "udp_port": 16},
    ),
}
# The second actions of some.
OTHER_ACTIONS = {SOURCE_MAC: f"{GUARD}.mac_of_aggregator", SOURCE_IP: f"{GUARD}.ip_of_aggregator"}
COUNTERS = ("InaggIngress.slots.started", "InaggEgress.delivery.result_sent")


def build_p4info():
    """The P4Info of inagg.p4, as far as the controller looks."""
    p4info = p4info_pb2.P4Info()
    for number, (name, (match, action, params)) in enumerate(TABLES.items(), start=1):
        table = p4info.tables.add(size=4096)
        table.preamble.id, table.preamble.name = 0x02000000 + number, name
        for index, (field, bits) in enumerate(match.items(), start=1):
            table.match_fields.add(
                id=index, name=field, bitwidth=bits, match_type=p4info_pb2.MatchField.EXACT
            )
        table.action_refs.add(id=0x01000000 + number)
        described = p4info.actions.add()
        described.preamble.id, described.preamble.name = 0x01000000 + number, action
        for index, (param, bits) in enumerate(params.items(), start=1):
            described.params.add(id=index, name=param, bitwidth=bits)
        if name in OTHER_ACTIONS:
            table.action_refs.add(id=0x01000100 + number)
            other = p4info.actions.add()
            other.preamble.id, other.preamble.name = 0x01000100 + number, OTHER_ACTIONS[name]
        if name == ADMISSION:
            counter = p4info.direct_counters.add(direct_table_id=table.preamble.id)
            counter.preamble.id, counter.preamble.name = 0x13000001, "InaggIngress.admission.admitted"
            counter.spec.unit = p4info_pb2.CounterSpec.BOTH
            table.direct_resource_ids.append(0x13000001)
    for number, name in enumerate(COUNTERS, start=1):
        counter = p4info.counters.add(size=512)
        counter.preamble.id, counter.preamble.name = 0x12000000 + number, name
        counter.spec.unit = p4info_pb2.CounterSpec.BOTH
    for number, (name, size) in enumerate(
        (("slot_epoch", SLOT_VERSIONS), ("pool", SLOT_VERSIONS * WORDS)), start=1
    ):
        register = p4info.registers.add(size=size)
        register.preamble.id, register.preamble.name = 0x16000000 + number, f"InaggIngress.slots.{name}"
    return p4info


@pytest.fixture
def p4info():
    return build_p4info()


@pytest.fixture
def program_files(tmp_path, p4info):
    """(P4Info file, device config file)"""
    p4info_path, config_path = tmp_path / "inagg.p4info.txtpb", tmp_path / "inagg.p4"
    p4info_path.write_text(text_format.MessageToString(p4info))
    config_path.write_text("// a device config\n")
    return p4info_path, config_path


@pytest.fixture
def program(program_files):
    return load_program(*program_files)


def wait_until(condition, timeout_s=10.0):
    """Wait for a condition that another thread or process brings about."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)
    return value


@pytest.fixture(name="wait_until")
def wait_until_fixture():
    return wait_until


class MemorySwitch:
    """A switch object that keeps what it is given. `refuse`, `refuse_removal`, `away`: make its calls fail."""

    def __init__(self):
        self.entities = {}
        self.connections = 0
        self.refuse = lambda entity: False
        self.refuse_removal = lambda entity: False
        self.away = False
        self.admitted = {}
        self.calls = []
        self.on_lost = None

    def connect(self, on_lost):
        self._check()
        self.entities.clear()
        self.connections += 1
        self.on_lost = on_lost

    def insert(self, entities):
        for entity in entities:
            self._check(self.refuse(entity))
            assert self._key(entity) not in self.entities
            self.entities[self._key(entity)] = entity
            self.calls.append(("insert", entity))

    def modify(self, entities):
        for entity in entities:
            self._check(self.refuse(entity))
            assert self._key(entity) in self.entities
            self.entities[self._key(entity)] = entity

    def remove(self, entities):
        for entity in entities:
            self._check(self.refuse_removal(entity))
            if self.entities.pop(self._key(entity), None) is not None:
                self.calls.append(("remove", entity))

    def read_counters(self, ports):
        self._check()
        return {"started": {port: Count(port, 100 * port) for port in ports if port < 3}}

    def read_admitted(self):
        self._check()
        return self.admitted

    def close(self):
        pass

    def restart(self):
        """Lose everything, as a switch process that ends does."""
        self.entities.clear()
        self.on_lost(SwitchUnreachableError("the switch closed the connection"))

    def in_table(self, table):
        return [entity for entity in self.entities.values() if getattr(entity, "table", None) == table]

    @property
    def groups(self):
        return sorted(entity.group for entity in self.entities.values() if isinstance(entity, MulticastGroup))

    @staticmethod
    def _key(entity):
        return entity.group if isinstance(entity, MulticastGroup) else (entity.table, entity.match)

    def _check(self, refused=False):
        if self.away:
            raise SwitchUnreachableError("the switch is away")
        if refused:
            raise SwitchRefusedError("the switch is full")


@pytest.fixture
def memory_switch():
    return MemorySwitch()


NETWORK = Network(
    ports=(1, 2, 3, 4, 255),
    hosts={0x0A000001: 1, 0x0A000002: 2, 0x0A000003: 3},
    bindings=(Binding(ip=0x0A000003, mac=0x0200000000BB, port=3),),
    aggregator_ip=0x0A0000FD,
    aggregator_mac=0x024941000001,
    aggregator_udp_port=18753,
    words=WORDS,
)


@pytest.fixture
def network():
    return NETWORK


@pytest.fixture
def serving(memory_switch):
    """An asynchronous context: (client of the API, as its operator, service, clock), with virtual time for the job
    table."""

    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    @contextlib.asynccontextmanager
    async def serve(policy=None, on_crash=lambda: None, **limits):
        clock = Clock()
        table = JobTable(
            Limits(slot_versions=SLOT_VERSIONS, **limits), policy or Policy(), first_epoch=100, now=clock()
        )
        service = Service(table, memory_switch, NETWORK, clock=clock, on_crash=on_crash)
        await service.start()
        transport = httpx.ASGITransport(create_app(service, OPERATORS_TOKEN))
        operator = {"Authorization": f"Bearer {OPERATORS_TOKEN}"}
        try:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://controller", headers=operator
            ) as client:
                yield client, service, clock
        finally:
            await service.stop()

    return serve


class Session:
    """One StreamChannel of FakeP4Runtime."""

    def __init__(self):
        self.answers = queue.SimpleQueue()
        self.election_id = None


class FakeP4Runtime(p4runtime_pb2_grpc.P4RuntimeServicer):
    """A P4Runtime server that checks what it is sent against P4Info and keeps it."""

    def __init__(self):
        self.config = None
        self.entries = {}
        self.groups = {}
        self.pushes = 0
        self.primary = None
        self.highest = (0, 0)
        self._sessions = []
        self.refused_tables = set()
        self.pipeline_error = None
        self.write_error = None
        self.counts = {}
        self.writes = []
        self._lock = threading.Lock()

    def StreamChannel(self, requests, context):  # noqa: N802
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

    def _read(self, requests, mine):
        with contextlib.suppress(grpc.RpcError):
            for request in requests:
                election = request.arbitration.election_id
                with self._lock:
                    mine.election_id = (election.high, election.low)
                    if mine.election_id >= self.highest:
                        self.highest = self.primary = mine.election_id
                    mine.answers.put(self._arbitration(mine))
        mine.answers.put(None)

    def _arbitration(self, session):
        answer = p4runtime_pb2.StreamMessageResponse()
        answer.arbitration.device_id = 1
        answer.arbitration.election_id.high, answer.arbitration.election_id.low = self.highest
        backup = code_pb2.NOT_FOUND if self.primary is None else code_pb2.ALREADY_EXISTS
        answer.arbitration.status.code = code_pb2.OK if session.election_id == self.primary else backup
        return answer

    def take_over(self, election_id):
        """As if another controller had become primary."""
        with self._lock:
            self.highest = self.primary = election_id
            for session in self._sessions:
                session.answers.put(self._arbitration(session))

    def SetForwardingPipelineConfig(self, request, context):  # noqa: N802
        self._check_primary(request, context)
        if self.pipeline_error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.pipeline_error)
        self.config = request.config
        self.entries.clear()
        self.groups.clear()
        self.pushes += 1
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request, context):  # noqa: N802
        return p4runtime_pb2.GetForwardingPipelineConfigResponse(config=self.config)

    def Write(self, request, context):  # noqa: N802
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

    def Read(self, request, context):  # noqa: N802
        response = p4runtime_pb2.ReadResponse()
        for entity in request.entities:
            if entity.HasField("counter_entry"):
                cell = entity.counter_entry
                packets, size = self.counts.get((cell.counter_id, cell.index.index), (0, 0))
                found = response.entities.add().counter_entry
                found.CopyFrom(cell)
                found.data.packet_count, found.data.byte_count = packets, size
            else:
                for entry in self._of_table(entity.direct_counter_entry.table_entry.table_id):
                    found = response.entities.add().direct_counter_entry
                    found.table_entry.CopyFrom(entry)
                    found.data.packet_count, found.data.byte_count = 7, 700
        yield response

    def table(self, name):
        """The entries of a table: {(match values): (action, {parameter: value})}."""
        p4info = self.config.p4info
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

    def _of_table(self, number):
        return [entry for entry in list(self.entries.values()) if entry.table_id == number]

    def _check_primary(self, request, context):
        if (request.election_id.high, request.election_id.low) != self.primary:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")

    def _write_one(self, update):
        entity = update.entity
        if entity.HasField("table_entry"):
            entry = entity.table_entry
            table = next(t for t in self.config.p4info.tables if t.preamble.id == entry.table_id)
            if len(entry.match) != len(table.match_fields):
                return code_pb2.INVALID_ARGUMENT
            if table.preamble.name in self.refused_tables:
                return code_pb2.RESOURCE_EXHAUSTED
            fields = sorted((field.field_id, field.exact.value) for field in entry.match)
            key, store, value = (entry.table_id, *fields), self.entries, entry
        else:
            group = entity.packet_replication_engine_entry.multicast_group_entry
            key, store = group.multicast_group_id, self.groups
            value = [(replica.egress_port, replica.instance) for replica in group.replicas]
        self.writes.append((update.type, key))
        if (update.type == p4runtime_pb2.Update.INSERT) == (key in store):
            return code_pb2.ALREADY_EXISTS if key in store else code_pb2.NOT_FOUND
        if update.type == p4runtime_pb2.Update.DELETE:
            del store[key]
        else:
            store[key] = value
        return code_pb2.OK


class FakeServer:
    """A FakeP4Runtime behind a real gRPC server on a port that stays the same over restarts."""

    def __init__(self, path):
        self.path = path
        self.servicer = None
        self._server = None
        self.port = 0

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        self.servicer = FakeP4Runtime()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(self.servicer, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self):
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None


@pytest.fixture
def fake_server(tmp_path):
    server = FakeServer(tmp_path / "p4runtime")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def operators_token():
    return OPERATORS_TOKEN


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "controller.token"
    path.write_text(OPERATORS_TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture
def command_line(program_files, fake_server, free_port, token_file):
    """Good options: command_line(**options that replace some of them) -> words."""

    def words(**changes):
        options = {
            "switch": fake_server.address,
            "p4info": program_files[0],
            "device-config": program_files[1],
            "listen": f"127.0.0.1:{free_port}",
            "ports": "1,2,255",
            "aggregator-ip": "10.0.0.253",
            "host": "10.0.0.1=1",
            "switch-timeout-s": 1,
            "token-file": token_file,
        } | {name.replace("_", "-"): value for name, value in changes.items()}
        pairs = [
            (name, value)
            for name, given in options.items()
            for value in (given if isinstance(given, list) else [given])
        ]
        return [word for name, value in pairs for word in (f"--{name}", str(value))]

    return words


@pytest.fixture
def launch(command_line):
    """Starts inagg-controller: launch(**options that replace the good ones) -> process; launch.processes: all."""
    processes = []

    def start(**changes):
        process = subprocess.Popen(
            [sys.executable, "-m", "inagg_controller", *command_line(**changes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    start.processes = processes
    yield start
    for process in processes:
        process.kill()
        process.communicate()
