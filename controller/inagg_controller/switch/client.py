# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the switch's tables, groups and counters over P4Runtime, with p4runtime-shell.

The shell builds messages with a P4Info that it keeps in a module global. Here each batch of messages is built under a
lock, with the global set to its switch's P4Info, so that a process may have several switches. No call to a switch is
made under the lock. Each of the shell's exceptions becomes a SwitchError.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import p4runtime_sh.shell as sh
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.context import Context

from inagg_contract.counters import PORT_COUNTERS
from inagg_controller.errors import SwitchError, SwitchRefusedError, SwitchUnreachableError
from inagg_controller.switch.entries import ADMISSION, DISPLACEMENT, Entity, MulticastGroup, TableEntry
from inagg_controller.switch.program import Program
from inagg_controller.switch.session import Session, probe, taken, translated
from inagg_controller.tls import SwitchTls
from inagg_p4runtime.registers import find, registers_of

_context_lock = threading.Lock()  # of sh.context
sh.global_options["verbose"] = False


class Count(NamedTuple):
    """One cell of a counter."""

    packets: int
    bytes: int


class SlotVersion(NamedTuple):
    """What a slot version holds (docs/protocol.md, 5.2). members: a bit for each contribution that is in it."""

    epoch: int
    members: int


class Switch(Protocol):
    """A switch, for the service. Methods block and are called by one thread at a time.

    All raise SwitchUnreachableError if the connection is lost, SwitchRefusedError if the switch answers an error.
    threads: of the switch; each has the packets of some runs of chunks (docs/protocol.md, 6.1). Known after connect().
    """

    threads: int

    def connect(
        self,
        on_lost: Callable[[SwitchUnreachableError], None],
        on_packet: Callable[[bytes], None] = lambda _: None,
        *,
        keep: bool = False,
    ) -> bool:
        """Connect and push the program, which clears tables and registers.

        keep: do not if the switch runs this program already. Returns whether it does.
        Both are called on any thread: on_lost when the connection ends, and with SwitchTakenError when another
        controller becomes primary; on_packet with each frame that the program sends to the controller.
        """

    def send(self, frames: Sequence[bytes]) -> None:
        """Have the program process frames as from the CPU port, if the switch is connected. Any thread may call it."""

    def read(self) -> Sequence[Entity]:
        """All entries of tables, and all multicast groups."""

    def insert(self, entities: Sequence[Entity]) -> None:
        """Insert a batch. After a failure, remove() removes the part that was inserted."""

    def modify(self, entities: Sequence[Entity]) -> None:
        """Modify existing entries."""

    def remove(self, entities: Sequence[Entity]) -> None:
        """Remove a batch, except entries that are not in the switch."""

    def read_counters(
        self, ports: Sequence[int], names: Sequence[str] | None = None
    ) -> Mapping[str, Mapping[int, Count]]:
        """The indexed counters without zeros: name -> index -> count. Those by port are read at these ports.

        names: of the counters; None: all of the program.
        """

    def read_admitted(self) -> Mapping[tuple[int, int], Count]:
        """(job, rank) -> the contributions that the admission table has admitted."""

    def read_displaced(self) -> Mapping[tuple[int, bool], Count]:
        """(job, whether its sum had expired; else it was evicted) -> the contributions that took a slot from it."""

    def read_slots(self, versions: Sequence[int]) -> Mapping[int, SlotVersion]:
        """What some slot versions hold, by index. BMv2 refuses it. The packets of a sum may change them meanwhile."""

    def close(self) -> None:
        """End the connection, if there is one."""


class P4RuntimeSwitch:
    """A switch behind a P4Runtime server at `address`, "host:port" or "unix:path".

    tls: for "host:port"; None: without encryption.
    """

    def __init__(self, address: str, device_id: int, program: Program, tls: SwitchTls | None = None) -> None:
        self.address = address
        self.threads = 1
        self._device_id = device_id
        self._program = program
        self._tls = tls
        self._client: Session | None = None
        self._context = Context()
        self._present: set[object] = set()

    def connect(
        self,
        on_lost: Callable[[SwitchUnreachableError], None],
        on_packet: Callable[[bytes], None] = lambda _: None,
        *,
        keep: bool = False,
    ) -> bool:
        """See Switch. Raises SwitchTakenError if another controller is primary."""
        self.close()
        probe(self.address, self._tls)
        with translated(self.address):
            client = Session(self._device_id, self.address, self._tls)
        try:
            with translated(self.address):
                kept = keep and client.cookie() == self._program.cookie
                if not kept:
                    client.push(self._program)
                self._context = Context()
                self._context.set_p4info(client.get_p4info())
                self.threads = client.threads()
        except SwitchError:
            client.end()
            raise
        self._present = set()
        self._client = client
        for watch, told in (
            (self._watch_stream, on_lost),
            (self._watch_role, on_lost),
            (self._watch_packets, on_packet),
        ):
            threading.Thread(target=watch, args=(client, told), name="inagg-stream", daemon=True).start()
        return kept

    def _watch_stream(self, client: Session, on_lost: Callable[[SwitchUnreachableError], None]) -> None:
        client.stream_recv_thread.join()
        if self._client is client:
            on_lost(SwitchUnreachableError(f"the switch at {self.address} closed the connection"))

    def _watch_role(self, client: Session, on_lost: Callable[[SwitchUnreachableError], None]) -> None:
        """Wait for the switch's notice that another controller has become primary."""
        notices = client.stream_in_q["arbitration"]
        while (notice := notices.get()) is not None:
            if notice.arbitration.status.code != code_pb2.OK:
                if self._client is client:
                    on_lost(taken(self.address, notice.arbitration))
                return

    @staticmethod
    def _watch_packets(client: Session, on_packet: Callable[[bytes], None]) -> None:
        packets = client.stream_in_q["packet"]
        while (message := packets.get()) is not None:
            on_packet(message.packet.payload)

    def send(self, frames: Sequence[bytes]) -> None:
        """See Switch."""
        client = self._client
        if client is None:
            return
        for frame in frames:
            client.stream_out_q.put(
                p4runtime_pb2.StreamMessageRequest(packet=p4runtime_pb2.PacketOut(payload=frame))
            )

    def read(self) -> Sequence[Entity]:
        """See Switch."""
        tables, groups = p4runtime_pb2.Entity(), p4runtime_pb2.Entity()
        tables.table_entry.SetInParent()  # id 0: all
        groups.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        with self._connected() as client:
            found = [_read_entity(self._context, entity) for entity in client.read([tables, groups])]
        entities = [entity for entity in found if entity is not None]
        self._present = set(map(_key, entities))
        return entities

    def insert(self, entities: Sequence[Entity]) -> None:
        """See Switch."""
        # Record them before sending: an error without details of single updates may hide some that succeeded.
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

    def read_counters(
        self, ports: Sequence[int], names: Sequence[str] | None = None
    ) -> Mapping[str, Mapping[int, Count]]:
        """See Switch."""
        counts: dict[str, dict[int, Count]] = {
            name: {} for name in self._program.counters if names is None or name in names
        }
        with self._connected() as client:
            by_id = {self._context.get_counter_id(name): name for name in counts}
            wanted = []
            for number, name in by_id.items():
                by_port = name in PORT_COUNTERS
                wanted += [_counter_cell(number, index) for index in (ports if by_port else (None,))]
            for cell in client.read_counters(wanted) if wanted else ():
                if cell.packets or cell.bytes:
                    counts[by_id[cell.counter_id]][cell.index] = Count(cell.packets, cell.bytes)
        return counts

    def read_admitted(self) -> Mapping[tuple[int, int], Count]:
        """See Switch."""
        return self._read_direct(ADMISSION, "job", "rank")

    def read_displaced(self) -> Mapping[tuple[int, bool], Count]:
        """See Switch."""
        counts = self._read_direct(DISPLACEMENT, "job", "expired")
        return {(job, bool(expired)): count for (job, expired), count in counts.items()}

    def _read_direct(self, table: str, first: str, second: str) -> dict[tuple[int, int], Count]:
        """The direct counter of a table, by two fields of its entries' keys."""
        counts = {}
        wanted = p4runtime_pb2.Entity()
        with self._connected() as client:
            wanted.direct_counter_entry.table_entry.table_id = self._context.get_table_id(table)
            fields = [self._context.get_mf_id(table, name) for name in (first, second)]
            for entity in client.read([wanted]):
                cell = entity.direct_counter_entry
                key = {field.field_id: field.exact.value for field in cell.table_entry.match}
                if key:  # the default entry has no key; that of admission counts refused packets
                    one, other = (int.from_bytes(key[number], "big") for number in fields)
                    counts[one, other] = Count(cell.data.packet_count, cell.data.byte_count)
        return counts

    def read_slots(self, versions: Sequence[int]) -> Mapping[int, SlotVersion]:
        """See Switch."""
        known = registers_of(self._program.p4info)
        try:
            epochs, members = find(known, "slot_epoch"), find(known, "slot_members")
        except KeyError as error:
            raise SwitchRefusedError(str(error)) from None
        found: dict[int, dict[int, int]] = {epochs.id: {}, members.id: {}}
        with self._connected() as client:
            entries = [register.entry(index) for register in (epochs, members) for index in versions]
            for cell in client.read_registers(entries) if entries else ():
                found[cell.register_id][cell.index] = int.from_bytes(cell.value, "big")
        return {
            index: SlotVersion(epoch, found[members.id][index]) for index, epoch in found[epochs.id].items()
        }

    def close(self) -> None:
        """See Switch."""
        client, self._client = self._client, None
        if client is not None:
            client.end()

    def _write(self, kind: int, entities: Sequence[Entity]) -> dict[int, Any]:
        """Write a batch; return index -> p4.v1.Error of each update that the switch refused."""
        if not entities:
            return {}
        with self._connected() as client:
            return client.write_batch(self._write_request(kind, entities))

    def _write_request(self, kind: int, entities: Sequence[Entity]) -> Any:
        request = p4runtime_pb2.WriteRequest()
        with _context_lock:
            sh.context = self._context
            for entity in entities:
                update = request.updates.add(type=kind)
                if isinstance(entity, MulticastGroup):
                    message = _group(entity, bare=kind == p4runtime_pb2.Update.DELETE).msg()
                    update.entity.packet_replication_engine_entry.CopyFrom(message)
                else:
                    update.entity.table_entry.CopyFrom(_table_entry(entity).msg())
        return request

    @contextmanager
    def _connected(self) -> Iterator[Session]:
        """The connection; its errors are raised as SwitchError."""
        with translated(self.address):
            if self._client is None:
                raise SwitchUnreachableError(f"the switch at {self.address} is not connected")
            yield self._client


def _raise_first(failed: Mapping[int, Any], entities: Sequence[Entity]) -> None:
    for index, error in sorted(failed.items()):
        code = code_pb2.Code.Name(error.canonical_code)
        raise SwitchRefusedError(
            f"{len(failed)} of {len(entities)} writes refused, the first with {code}: {error.message} "
            f"({entities[index]})"
        )


def _key(entity: Entity) -> object:
    return (entity.table, tuple(sorted(entity.match))) if isinstance(entity, TableEntry) else entity.group


def _table_entry(entity: TableEntry) -> Any:
    entry = sh.TableEntry(entity.table)(action=entity.action)
    for name, value in entity.match:
        entry.match[name] = str(value)
    for name, value in entity.params:
        entry.action[name] = str(value)
    return entry


def _read_entity(context: Context, message: Any) -> Entity | None:
    """What a switch has; None for the default entry of a table."""
    if message.HasField("packet_replication_engine_entry"):
        group = message.packet_replication_engine_entry.multicast_group_entry
        replicas = tuple((_port(replica), replica.instance) for replica in group.replicas)
        return MulticastGroup(group.multicast_group_id, replicas)
    entry = message.table_entry
    if entry.is_default_action or not entry.match:
        return None
    table, action = context.get_name_from_id(entry.table_id), entry.action.action
    name = context.get_name_from_id(action.action_id)
    match = ((context.get_mf_name(table, field.field_id), field.exact.value) for field in entry.match)
    params = ((context.get_param_name(name, param.param_id), param.value) for param in action.params)
    return TableEntry(table, _integers(match), name, _integers(params))


def _integers(named: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, int], ...]:
    return tuple((name, int.from_bytes(value, "big")) for name, value in named)


def _port(replica: Any) -> int:
    """The port of a replica, as a number or, since P4Runtime 1.4, as bytes."""
    return int.from_bytes(replica.port, "big") if replica.port else int(replica.egress_port)


def _group(entity: MulticastGroup, *, bare: bool) -> Any:
    entry = sh.MulticastGroupEntry(entity.group)
    for port, instance in () if bare else entity.replicas:
        entry.add(port, instance)
    return entry


def _counter_cell(number: int, index: int | None) -> Any:
    """A cell of a counter; None: all its cells."""
    entry = p4runtime_pb2.CounterEntry(counter_id=number)
    if index is not None:
        entry.index.index = index
    return entry
