"""A compiled P4 program in this process: no ports, no root, time as an argument.

    sw = Switch.from_p4("p4/inagg.p4")
    sw.insert("admission", {"port": 1, ...}, "admit", {"worker": 1, ...})
    sw.process(1, frame) -> [(port, frame), ...]

Names are those of P4Info; a unique ending of one, at a dot, will do.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch import _abi
from inagg_switch._values import MatchValue, encode, encode_match, encode_params, find
from inagg_switch.compiler import Compiled, compile_file, compile_source
from inagg_switch.errors import EntryError, SwitchError

_REASONS = {
    errno.ENOENT: "it is not there",
    errno.EEXIST: "an equal entry is there",
    errno.ENOSPC: "the table is full",
    errno.EINVAL: "the match, priority or parameters do not fit",
    errno.EPERM: "the program does not allow it",
    errno.ENOMEM: "out of memory",
}


@dataclass(frozen=True)
class TableEntry:
    """An entry as the program has it. Match values are what insert() takes; don't-care keys are left out."""

    match: Mapping[str, MatchValue]
    action: str
    params: Mapping[str, int]
    priority: int
    packets: int
    bytes: int
    is_const: bool


class Counter:
    """An indexed counter: counter[i] is (packets, bytes)."""

    def __init__(self, program: "Switch", info: pb.Counter) -> None:
        self._program = program
        self._info = info

    def __len__(self) -> int:
        return int(self._info.size)

    def __getitem__(self, index: int) -> tuple[int, int]:
        packets, count = ctypes.c_uint64(), ctypes.c_uint64()
        with self._program.locked() as (api, handle):
            result = api.counter_read(
                handle, self._info.preamble.id, _index(index, len(self)), packets, count
            )
        _check(result, f"counter {self._info.preamble.name}[{index}]")
        return packets.value, count.value

    def __setitem__(self, index: int, value: tuple[int, int]) -> None:
        with self._program.locked() as (api, handle):
            result = api.counter_write(handle, self._info.preamble.id, _index(index, len(self)), *value)
        _check(result, f"counter {self._info.preamble.name}[{index}]")


class Register:
    """A register array: register[i] reads and writes numbers (int<W> in two's complement)."""

    def __init__(self, program: "Switch", info: pb.Register) -> None:
        self._program = program
        self._info = info
        bits = info.type_spec.bitstring
        self._width = bits.bit.bitwidth or bits.int.bitwidth

    def __len__(self) -> int:
        return int(self._info.size)

    def __getitem__(self, index: int) -> int:
        buffer = ctypes.create_string_buffer((self._width + 7) // 8)
        with self._program.locked() as (api, handle):
            result = api.register_read(handle, self._info.preamble.id, _index(index, len(self)), buffer)
        _check(result, f"register {self._info.preamble.name}[{index}]")
        return int.from_bytes(buffer.raw, "big")

    def __setitem__(self, index: int, value: int) -> None:
        what = f"register {self._info.preamble.name}[{index}]"
        data = encode(value, self._width, what)
        with self._program.locked() as (api, handle):
            result = api.register_write(handle, self._info.preamble.id, _index(index, len(self)), data)
        _check(result, what)


class Switch:
    """One running program. Safe to use from several threads; close() or the end of a `with` frees it."""

    def __init__(self, compiled: Compiled, seed: int = 0) -> None:
        self._compiled = compiled
        self._on_trace: Callable[[str], None] | None = None
        self._write_trace = _abi.TextFunction(self._trace_line)
        self._api = _abi.load(compiled.artifact.library)
        handle = self._api.create(seed & (1 << 64) - 1)
        if not handle:
            raise SwitchError("out of memory for the program's state")
        self._handle: int | None = handle
        self._out: list[tuple[int, bytes]] = []
        self._emit = _abi.EmitFunction(self._collect)
        self._process_lock = threading.Lock()
        self._trace_lock = threading.Lock()

    @classmethod
    def from_p4(
        cls,
        path: Path | str,
        defines: Mapping[str, str] | None = None,
        seed: int = 0,
        include_paths: Sequence[Path] = (),
        *,
        traced: bool = False,
    ) -> "Switch":
        """Compiles a P4 file, or finds it in the cache. `traced`: for trace() and on_trace(); it is slower then.
        Raises CompileError or ToolchainError."""
        return cls(compile_file(path, defines, include_paths, traced=traced), seed)

    @classmethod
    def from_source(
        cls, source: str, seed: int = 0, name: str = "<source>", *, traced: bool = False
    ) -> "Switch":
        """The same from preprocessed text, such as another program's `source`."""
        return cls(compile_source(source, name, traced=traced), seed)

    def close(self) -> None:
        """Frees the program's state. Every later call raises SwitchError."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._api.destroy(handle)

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    # --- what it is

    @property
    def p4info(self) -> pb.P4Info:
        """The program's P4Info, as p4c would write it."""
        return self._compiled.artifact.p4info

    @property
    def source(self) -> str:
        """Preprocessed text that compiles to this program: what P4Runtime carries as the device config."""
        return self._compiled.source

    @property
    def constants(self) -> Mapping[str, int | bool | str]:
        """Values of the program's top-level constants, by name."""
        return self._compiled.artifact.constants

    @property
    def generated(self) -> Path:
        """The C++ that the program was compiled to."""
        return self._compiled.artifact.cpp

    @property
    def api_address(self) -> int:
        """Address of the isw_api (native/program.h), for native callers; valid while the process lives."""
        return ctypes.addressof(self._api)

    @property
    def handle(self) -> int:
        """The `void* program` of the isw_api, valid until close()."""
        if self._handle is None:
            raise SwitchError("the program is closed")
        return self._handle

    @contextmanager
    def locked(self) -> Iterator[tuple[_abi.Api, int]]:
        """The function table and handle, with the program's mutex held."""
        handle = self.handle
        self._api.lock(handle)
        try:
            yield self._api, handle
        finally:
            self._api.unlock(handle)

    # --- tables

    def insert(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str,
        params: Mapping[str, int | bytes] | None = None,
        priority: int = 0,
    ) -> None:
        """Adds an entry. Match values by kind: exact and optional a number (or bytes), lpm (value, prefix length),
        ternary (value, mask), range (low, high). Tables with ternary, range or optional keys need a priority > 0;
        the highest wins. Raises EntryError or UnknownName."""
        self._change("insert", table, match, action, params or {}, priority)

    def modify(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str,
        params: Mapping[str, int | bytes] | None = None,
        priority: int = 0,
    ) -> None:
        """Gives an entry another action or other parameters; its direct counter goes on."""
        self._change("modify", table, match, action, params or {}, priority)

    def _change(
        self,
        how: str,
        table: str,
        match: Mapping[str, MatchValue],
        action: str,
        params: Mapping[str, int | bytes],
        priority: int,
    ) -> None:
        info = find(self.p4info.tables, table, "table")
        action_info = self._action_of(info, action)
        key = encode_match(info, match)
        data = encode_params(action_info, params)
        with self.locked() as (api, handle):
            call = api.table_insert if how == "insert" else api.table_modify
            result = call(handle, info.preamble.id, key, priority, action_info.preamble.id, data, len(data))
        _check(result, f"cannot {how} {dict(match)} in table {info.preamble.name}")

    def _action_of(self, table: pb.Table, name: str) -> pb.Action:
        allowed = {ref.id for ref in table.action_refs}
        return find(
            (a for a in self.p4info.actions if a.preamble.id in allowed),
            name,
            f"action of table {table.preamble.name}",
        )

    def delete(self, table: str, match: Mapping[str, MatchValue], priority: int = 0) -> None:
        """Removes an entry. Raises EntryError when it is not there."""
        info = find(self.p4info.tables, table, "table")
        key = encode_match(info, match)
        with self.locked() as (api, handle):
            result = api.table_delete(handle, info.preamble.id, key, priority)
        _check(result, f"cannot delete {dict(match)} in table {info.preamble.name}")

    def set_default(
        self, table: str, action: str | None, params: Mapping[str, int | bytes] | None = None
    ) -> None:
        """Changes the default action; None puts back the one that the program declares."""
        info = find(self.p4info.tables, table, "table")
        identity, data = 0, b""
        if action is not None:
            action_info = self._action_of(info, action)
            identity, data = action_info.preamble.id, encode_params(action_info, params or {})
        with self.locked() as (api, handle):
            result = api.table_set_default(handle, info.preamble.id, identity, data, len(data))
        _check(result, f"cannot set the default action of table {info.preamble.name}")

    def entries(self, table: str) -> list[TableEntry]:
        """All entries, in no particular order."""
        info = find(self.p4info.tables, table, "table")
        found: list[TableEntry] = []
        visit = _abi.EntryFunction(lambda _, entry: found.append(self._shown(info, entry.contents)))
        with self.locked() as (api, handle):
            api.table_entries(handle, info.preamble.id, visit, None)
        return found

    def default_entry(self, table: str) -> TableEntry:
        """The default action in force."""
        info = find(self.p4info.tables, table, "table")
        found: list[TableEntry] = []
        visit = _abi.EntryFunction(lambda _, entry: found.append(self._shown(info, entry.contents)))
        with self.locked() as (api, handle):
            api.table_default(handle, info.preamble.id, visit, None)
        return found[0]

    def _shown(self, table: pb.Table, entry: _abi.Entry) -> TableEntry:
        action = next(a for a in self.p4info.actions if a.preamble.id == entry.action)
        data = ctypes.string_at(entry.params, entry.params_length) if entry.params_length else b""
        params: dict[str, int] = {}
        for param in action.params:
            size = (param.bitwidth + 7) // 8
            params[param.name], data = int.from_bytes(data[:size], "big"), data[size:]
        match: dict[str, MatchValue] = {}
        for number, field in enumerate(table.match_fields[: entry.match_count]):
            value = _shown_match(field, entry.match[number])
            if value is not None:
                match[field.name] = value
        return TableEntry(
            match,
            action.preamble.name,
            params,
            entry.priority,
            entry.packets,
            entry.bytes,
            bool(entry.is_const),
        )

    # --- the rest of the control plane

    def multicast_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Sets the (port, replication id) pairs of a group; none deletes it."""
        array = (_abi.Replica * max(1, len(replicas)))(*(_abi.Replica(*r) for r in replicas))
        with self.locked() as (api, handle):
            result = api.multicast_set(handle, group, array, len(replicas))
        _check(result, f"cannot set multicast group {group}")

    def counter(self, name: str) -> Counter:
        """An indexed counter."""
        return Counter(self, find(self.p4info.counters, name, "counter"))

    def direct_counter(
        self, table: str, match: Mapping[str, MatchValue], priority: int = 0
    ) -> tuple[int, int]:
        """(packets, bytes) of a table entry."""
        info = find(self.p4info.tables, table, "table")
        key = encode_match(info, match)
        packets, count = ctypes.c_uint64(), ctypes.c_uint64()
        with self.locked() as (api, handle):
            result = api.direct_counter_read(handle, info.preamble.id, key, priority, packets, count)
        _check(result, f"direct counter of {dict(match)} in table {info.preamble.name}")
        return packets.value, count.value

    def register(self, name: str) -> Register:
        """A register array."""
        return Register(self, find(self.p4info.registers, name, "register"))

    # --- packets

    def process(self, port: int, frame: bytes, now: float = 0.0) -> list[tuple[int, bytes]]:
        """Runs one received frame. `now` is monotonic, in seconds. Returns (port, frame) of every frame that leaves,
        in the order in which they do."""
        with self._process_lock, self.locked() as (api, handle):
            self._out = []
            api.process(handle, port, frame, len(frame), int(now * 1e6), self._emit, None)
            return self._out

    def trace(self, port: int, frame: bytes, now: float = 0.0) -> tuple[list[str], list[tuple[int, bytes]]]:
        """process(), and before its result the frame's path, line by line: parser states, look-ups, actions, writes,
        drops. Needs a program compiled with `traced`."""
        lines: list[str] = []
        with self._trace_lock:
            before = self._on_trace
            self.on_trace(lines.append)
            try:
                return lines, self.process(port, frame, now)
            finally:
                self.on_trace(before)

    def on_trace(self, write: Callable[[str], None] | None) -> None:
        """Gives `write` every line of every packet's path from now on, also of those that ports bring; None ends that.
        It is called while the packet is processed, so it may not use this switch."""
        with self.locked() as (api, handle):
            if api.trace(handle, self._write_trace if write is not None else _abi.TextFunction(), None) != 0:
                raise SwitchError("the program does not tell its packets' paths: compile it with traced=True")
            self._on_trace = write

    def _trace_line(self, _: int, text: "ctypes._Pointer[ctypes.c_char]", length: int) -> None:
        if self._on_trace is not None:
            self._on_trace(ctypes.string_at(text, length).decode())

    def _collect(self, _: int, port: int, frame: "ctypes._Pointer[ctypes.c_uint8]", length: int) -> None:
        self._out.append((port, ctypes.string_at(frame, length)))


def _shown_match(field: pb.MatchField, match: _abi.ShownMatch) -> MatchValue:
    if not match.value:
        return None
    size = (field.bitwidth + 7) // 8
    value = int.from_bytes(ctypes.string_at(match.value, size), "big")
    if field.match_type == pb.MatchField.LPM:
        return value, match.prefix_length
    if match.mask_or_high:
        return value, int.from_bytes(ctypes.string_at(match.mask_or_high, size), "big")
    return value


def _index(index: int, size: int) -> int:
    if not 0 <= index < size:
        raise EntryError(f"index {index} is outside 0..{size - 1}")
    return index


def _check(result: int, what: str) -> None:
    if result != 0:
        raise EntryError(f"{what}: {_REASONS.get(-result, os.strerror(-result))}")
