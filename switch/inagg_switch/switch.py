# SPDX-License-Identifier: Apache-2.0
"""A compiled P4 program in this process: no ports, no root, time as an argument.

    sw = Switch.from_p4("labels.p4")
    sw.insert("labels", {"h.label.value": 7}, "forward", {"port": 2, "label": 8})
    sw.process(1, frame) -> [(port, frame), ...]

Names are those of P4Info. The last parts of a name, from a dot on, are enough if they are unique.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch.compiler import Compiled, compile_file, compile_source
from inagg_switch.errors import EntryError, SwitchError
from inagg_switch.program import abi
from inagg_switch.program.arguments import (
    PORTS,
    compiler_arguments,
    frame_bytes,
    function,
    microseconds,
    replica_pairs,
    seed_bits,
    several,
    shown,
    text,
    whole,
)
from inagg_switch.program.arrays import (
    Counter,
    Meter,
    Register,
    check,
    meter_config,
    refusals,
)
from inagg_switch.program.entries import TableEntry, table_entry
from inagg_switch.program.externs import Externs
from inagg_switch.program.lock import ProgramLock
from inagg_switch.program.profiles import ActionProfile, Group, Member
from inagg_switch.program.values import (
    MatchValue,
    check_priority,
    encode_match,
    encode_params,
    fields_match,
    find,
    match_tuples,
    split_fields,
)

_MAX_DIGESTS = 10_000
_NO_QUEUES = abi.QueueFunction()


@dataclass(frozen=True)
class Digest:
    """A digest of the program. fields: of its struct; of a tuple by position; a single value has the name "value"."""

    name: str
    fields: Mapping[str, int]


class Switch:
    """One running program. Thread-safe. close() or the end of a `with` block frees it."""

    def __init__(self, compiled: Compiled, seed: int = 0, threads: int = 1, *, or_one: bool = False) -> None:
        """threads: how many native callers, such as ports, may run packets at once (docs/switch.md). or_one: one if the
        program cannot have several; without it that raises SwitchError."""
        self._compiled = compiled
        self._on_trace: Callable[[str], None] | None = None
        self._write_trace = abi.TextFunction(self._trace_line)
        self._api = abi.load(compiled.artifact.library)
        abi.check_threads(threads)
        if threads > 1 and self.one_thread is not None:
            if not or_one:
                raise SwitchError(f"{threads} threads cannot run this program: {self.one_thread}")
            threads = 1
        self.threads = threads
        self._next_thread = 0
        reasons: list[str] = []
        why = abi.TextFunction(
            lambda _, text, length: reasons.append(ctypes.string_at(text, length).decode())
        )
        handle = self._api.create(seed_bits(seed), threads, why, None)
        if not handle:
            raise SwitchError(f"the program cannot start: {reasons[0]}")
        self._out: list[tuple[int, bytes]] = []
        self._emit = abi.EmitFunction(self._collect)
        self._lock = ProgramLock(self._api, handle)
        self.externs = Externs(self._lock)
        self._digests: deque[tuple[int, bytes]] = deque(maxlen=_MAX_DIGESTS)
        if self.layout.digests:
            self.externs.on_digest(lambda digest, data: self._digests.append((digest, data)))
        self._trace_lock = threading.Lock()

    @classmethod
    def from_p4(
        cls,
        path: Path | str,
        defines: Mapping[str, str] | None = None,
        seed: int = 0,
        include_paths: Sequence[Path | str] = (),
        *,
        traced: bool = False,
        threads: int = 1,
        or_one: bool = False,
    ) -> "Switch":
        """Compile a P4 file, or load it from the cache. Raises CompileError, ToolchainError or SwitchError.

        traced: compile with support for trace() and on_trace(), which makes the program slower. threads and or_one: as
        above.
        """
        compiler_arguments(path, defines, include_paths)
        compiled = compile_file(path, defines, include_paths, traced=traced)
        return cls(compiled, seed, threads, or_one=or_one)

    @classmethod
    def from_source(
        cls,
        source: str,
        seed: int = 0,
        name: str = "<source>",
        *,
        traced: bool = False,
        threads: int = 1,
        or_one: bool = False,
    ) -> "Switch":
        """from_p4() with preprocessed text, such as another program's `source`."""
        text(source, "the source")
        text(name, "the name of the source")
        return cls(compile_source(source, name, traced=traced), seed, threads, or_one=or_one)

    def close(self) -> None:
        """Free the program's state. Every later call raises SwitchError."""
        self._lock.close()

    def __reduce__(self) -> NoReturn:
        # A copy would free the same state a second time.
        raise TypeError("a Switch cannot be copied or pickled: its state is in native code")

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    # --- the program

    @property
    def p4info(self) -> pb.P4Info:
        """The program's P4Info, as p4c would write it."""
        return self._compiled.artifact.p4info

    @property
    def layout(self) -> pb.P4Info:
        """The P4Info with the program's widths in place of those of @p4runtime_translation. The methods of this class
        use these widths."""
        return self._compiled.artifact.layout

    @property
    def source(self) -> str:
        """Preprocessed text that compiles to this program; P4Runtime's device config."""
        return self._compiled.source

    @property
    def constants(self) -> Mapping[str, int | bool | str]:
        """Values of the program's top-level constants, by name."""
        return self._compiled.artifact.constants

    @property
    def generated(self) -> Path:
        """The file with the generated C++."""
        return self._compiled.artifact.cpp

    @property
    def one_thread(self) -> str | None:
        """Why the program runs in one thread; None if several may run it."""
        reason: bytes | None = self._api.one_thread
        return None if reason is None else reason.decode()

    @property
    def api_address(self) -> int:
        """Address of the isw_api (runtime/program.h), for native callers; valid until the process ends."""
        return ctypes.addressof(self._api)

    @property
    def handle(self) -> int:
        """The `void* program` of the isw_api, valid until close()."""
        return self._lock.handle

    def locked(self) -> AbstractContextManager[tuple[abi.Api, int]]:
        """Hold the program's mutex in a block; yields the function table and the handle."""
        return self._lock.held()

    # --- tables

    def insert(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str | Member | Group,
        params: Mapping[str, int | bytes] | None = None,
        priority: int = 0,
    ) -> None:
        """Add an entry. Raises EntryError or UnknownName.

        match: by key. Exact and optional keys take a number (or bytes), lpm (value, prefix length), ternary (value,
        mask), range (low, high). A single value of the last three matches only itself. Bits outside a prefix or a mask
        are ignored. action: in a table with an action profile a Member or a Group. priority: tables with ternary, range
        or optional keys need one above 0; the highest wins.
        """
        self._change("insert", table, match, action, params, priority)

    def modify(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str | Member | Group,
        params: Mapping[str, int | bytes] | None = None,
        priority: int = 0,
    ) -> None:
        """Change the action or the parameters of an entry; its direct counter continues. Raises as insert()."""
        self._change("modify", table, match, action, params, priority)

    def _change(
        self,
        how: str,
        table: str,
        match: Mapping[str, MatchValue],
        action: str | Member | Group,
        params: Mapping[str, int | bytes] | None,
        priority: int,
    ) -> None:
        info = find(self.layout.tables, table, "table")
        what = f"cannot {how} {shown(match)} in table {info.preamble.name}"
        priority = whole(priority, f"{what}, priority", 1 << 31)
        check_priority(info, priority, what)
        if isinstance(action, Member | Group):
            self._refer(how, info, match, action, priority, what)
            return
        if info.implementation_id:
            raise EntryError(f"{what}: its actions are in an action profile: give a Member or a Group")
        action_info = self._action_of(info, action, what, elsewhere=pb.ActionRef.DEFAULT_ONLY)
        key = encode_match(info, match)
        data = encode_params(action_info, {} if params is None else params)
        with self.locked() as (api, handle):
            call = api.table_insert if how == "insert" else api.table_modify
            result = call(handle, info.preamble.id, key, priority, action_info.preamble.id, data, len(data))
        check(result, what)

    def _refer(
        self,
        how: str,
        table: pb.Table,
        match: Mapping[str, MatchValue],
        target: Member | Group,
        priority: int,
        what: str,
    ) -> None:
        """Insert or modify an entry that refers to an action profile."""
        identity = whole(target.id, f"{what}, id of the {type(target).__name__.lower()}")
        key = match_tuples(table, match)
        call = self.externs.insert_indirect if how == "insert" else self.externs.modify_indirect
        with refusals(what):
            call(table.preamble.id, key, priority, target.kind, identity)

    def _action_of(self, table: pb.Table, name: str, what: str, *, elsewhere: int) -> pb.Action:
        """An action of a table. elsewhere: the scope of actions that cannot be used here."""
        scopes = {ref.id: ref.scope for ref in table.action_refs}
        action = find(
            (a for a in self.layout.actions if a.preamble.id in scopes),
            name,
            "action",
            f"table {table.preamble.name}",
        )
        if scopes[action.preamble.id] == elsewhere:
            annotation = "@defaultonly" if elsewhere == pb.ActionRef.DEFAULT_ONLY else "@tableonly"
            raise EntryError(f"{what}: action {action.preamble.name} is {annotation} there")
        return action

    def delete(self, table: str, match: Mapping[str, MatchValue], priority: int = 0) -> None:
        """Remove an entry. Raises EntryError if it does not exist."""
        info = find(self.layout.tables, table, "table")
        what = f"cannot delete {shown(match)} in table {info.preamble.name}"
        priority = whole(priority, f"{what}, priority", 1 << 31)
        key = encode_match(info, match)
        with self.locked() as (api, handle):
            result = api.table_delete(handle, info.preamble.id, key, priority)
        check(result, what)

    def set_default(
        self,
        table: str,
        action: str | Member | Group | None,
        params: Mapping[str, int | bytes] | None = None,
    ) -> None:
        """Set the default action; None restores the one that the program declares. Raises as insert()."""
        info = find(self.layout.tables, table, "table")
        what = f"cannot set the default action of table {info.preamble.name}"
        if isinstance(action, Member | Group):
            referred = whole(action.id, f"{what}, id of the {type(action).__name__.lower()}")
            with refusals(what):
                self.externs.set_default_indirect(info.preamble.id, action.kind, referred)
            return
        identity, data = 0, b""
        if action is not None:
            action_info = self._action_of(info, action, what, elsewhere=pb.ActionRef.TABLE_ONLY)
            identity, data = (
                action_info.preamble.id,
                encode_params(action_info, {} if params is None else params),
            )
        with self.locked() as (api, handle):
            result = api.table_set_default(handle, info.preamble.id, identity, data, len(data))
        check(result, what)

    def entries(self, table: str) -> list[TableEntry]:
        """All entries, in no particular order."""
        info = find(self.layout.tables, table, "table")
        found: list[TableEntry] = []
        visit = abi.EntryFunction(
            lambda _, entry: found.append(table_entry(self.layout, info, entry.contents))
        )
        with self.locked() as (api, handle):
            api.table_entries(handle, info.preamble.id, 0, abi.ALL, visit, None)
        return found

    def default_entry(self, table: str) -> TableEntry:
        """The default entry."""
        info = find(self.layout.tables, table, "table")
        found: list[TableEntry] = []
        visit = abi.EntryFunction(
            lambda _, entry: found.append(table_entry(self.layout, info, entry.contents))
        )
        with self.locked() as (api, handle):
            api.table_default(handle, info.preamble.id, visit, None)
        return found[0]

    # --- the rest of the control plane

    def multicast_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Set the (port, replication id) pairs of a group; no pairs delete it. Raises EntryError."""
        what = f"cannot set multicast group {shown(group)}"
        group, pairs = whole(group, what, 1 << 16), replica_pairs(replicas, what)
        if group == 0:
            raise EntryError(f"{what}: packets with group 0 are not multicast")
        array = (abi.Replica * max(1, len(pairs)))(*(abi.Replica(*pair) for pair in pairs))
        with self.locked() as (api, handle):
            result = api.multicast_set(handle, group, array, len(pairs))
        check(result, what)

    def clone_session(
        self, session: int, replicas: Sequence[tuple[int, int]], truncate: int | None = None
    ) -> None:
        """Set the (port, replication id) pairs of a clone session; no pairs delete it. Raises EntryError.

        truncate: number of bytes after which clones are cut.
        """
        what = f"cannot set clone session {shown(session)}"
        session, pairs = whole(session, what, 1 << 15), replica_pairs(replicas, what)
        length = 0 if truncate is None else whole(truncate, f"{what}, truncate")
        with refusals(what):
            self.externs.clone_set(session, pairs, length)

    def value_set(self, name: str, members: Sequence[MatchValue | Mapping[str, MatchValue]]) -> None:
        """Replace the members of a parser value set by matches (by field if there are several fields)."""
        info = find(self.layout.value_sets, name, "value set")
        owner = f"value set {info.preamble.name}"
        rows = [
            fields_match(info.match, member, owner) for member in several(members, owner, "a list of members")
        ]
        with refusals(f"cannot set the members of {info.preamble.name}"):
            self.externs.value_set_write(info.preamble.id, rows)

    def profile(self, name: str) -> ActionProfile:
        """An action profile or selector."""
        return ActionProfile(self, find(self.layout.action_profiles, name, "action profile"))

    def meter(self, name: str) -> Meter:
        """An indexed meter."""
        return Meter(self, find(self.layout.meters, name, "meter"))

    def direct_meter(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        config: tuple[int, int, int, int] | None,
        priority: int = 0,
    ) -> None:
        """Configure the meter of a table entry: (cir, cburst, pir, pburst), or None: every packet is green."""
        info = find(self.layout.tables, table, "table")
        what = f"direct meter of {shown(match)} in table {info.preamble.name}"
        priority = whole(priority, f"{what}, priority", 1 << 31)
        given = meter_config(config, what)
        with refusals(what):
            self.externs.direct_meter_write(info.preamble.id, match_tuples(info, match), priority, given)

    def digests(self) -> list[Digest]:
        """The digests since the last call, oldest first; at most the last 10,000."""
        found = []
        while self._digests:
            identity, data = self._digests.popleft()
            info = next(d for d in self.layout.digests if d.preamble.id == identity)
            found.append(Digest(info.preamble.name, split_fields(self.layout, info.type_spec, data)))
        return found

    def on_log(self, write: Callable[[str], None] | None) -> None:
        """Pass the messages of log_msg() and of failed assertions to `write`.

        `write` is called while the packet is processed and must not use this switch. process() raises its exceptions.
        """
        function(write, "on_log")
        self.externs.on_log(write)

    def counter(self, name: str) -> Counter:
        """An indexed counter."""
        return Counter(self, find(self.layout.counters, name, "counter"))

    def direct_counter(
        self, table: str, match: Mapping[str, MatchValue], priority: int = 0
    ) -> tuple[int, int]:
        """(packets, bytes) of a table entry."""
        info = find(self.layout.tables, table, "table")
        what = f"direct counter of {shown(match)} in table {info.preamble.name}"
        priority = whole(priority, f"{what}, priority", 1 << 31)
        key = encode_match(info, match)
        packets, count = ctypes.c_uint64(), ctypes.c_uint64()
        with self.locked() as (api, handle):
            result = api.direct_counter_read(handle, info.preamble.id, key, priority, packets, count)
        check(result, what)
        return packets.value, count.value

    def register(self, name: str) -> Register:
        """A register array."""
        return Register(self, find(self.layout.registers, name, "register"))

    # --- packets

    def process(
        self,
        port: int,
        frame: bytes | bytearray | memoryview,
        now: float = 0.0,
        queues: Mapping[int, int] | None = None,
        thread: int | None = None,
    ) -> list[tuple[int, bytes]]:
        """Run one received frame; return (port, frame) of every frame that is sent, in order.

        now: monotonic, in seconds. queues: how many packets wait to leave through a port; 0 for ports not in it.
        thread: that runs it; None: each in turn. Raises SwitchError for a port beyond 9 bits, a time beyond 64 bits of
        microseconds or a thread that the switch does not have.
        """
        if thread is None:
            thread = self._next_thread
        elif not 0 <= thread < self.threads:
            raise SwitchError(f"there is no thread {thread}: the switch has {self.threads}")
        if type(port) is not int or not 0 <= port < PORTS:
            port = whole(port, "the port", PORTS)
        time_us = microseconds(now)
        data = frame if isinstance(frame, bytes) else frame_bytes(frame)
        lengths = _NO_QUEUES if queues is None else _queue_function(queues)
        with self.locked() as (api, handle), self._lock.raising():
            self._out = []
            self._next_thread = (thread + 1) % self.threads
            api.process(handle, thread, port, data, len(data), time_us, None, self._emit, lengths, None)
            return self._out

    def trace(
        self, port: int, frame: bytes | bytearray | memoryview, now: float = 0.0
    ) -> tuple[list[str], list[tuple[int, bytes]]]:
        """process(); returns the lines of the frame's path (parser states, look-ups, actions, writes, drops) and the
        result. Needs a program compiled with `traced`."""
        lines: list[str] = []
        self._lock.refuse_callback()
        with self._trace_lock:
            before = self._on_trace
            self.on_trace(lines.append)
            try:
                return lines, self.process(port, frame, now)
            finally:
                self.on_trace(before)

    def on_trace(self, write: Callable[[str], None] | None) -> None:
        """Pass every line of every packet's path to `write`, packets of ports included; None stops that.

        `write` is called while the packet is processed and must not use this switch. process() raises its exceptions.
        """
        function(write, "on_trace")
        with self.locked() as (api, handle):
            if api.trace(handle, self._write_trace if write is not None else abi.TextFunction(), None) != 0:
                raise SwitchError("the program does not tell its packets' paths: compile it with traced=True")
            self._on_trace = write

    def _trace_line(self, _: int, text: "ctypes._Pointer[ctypes.c_char]", length: int) -> None:
        if self._on_trace is not None:
            with self._lock.callback():
                self._on_trace(ctypes.string_at(text, length).decode())

    def _collect(
        self,
        _: int,
        port: int,
        frame: "ctypes._Pointer[ctypes.c_uint8]",
        length: int,
        shared: int,
        copies: int,
        again: int,
        priority: int,
    ) -> None:
        self._out.append((port, ctypes.string_at(frame, length)))


def _queue_function(queues: Mapping[int, int]) -> Callable[[None, int], int]:
    lengths = {port: whole(length, f"queue of port {port}") for port, length in queues.items()}
    return abi.QueueFunction(lambda _, port: lengths.get(port, 0))
