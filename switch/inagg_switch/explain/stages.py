# SPDX-License-Identifier: Apache-2.0
"""Computes the stages of a program, its tables, the memory of its state, its digests and the sizes of its headers.

The tables of a control get stages as in hardware: a table comes after every table whose actions write something that
it reads or writes, and after every table on whose result it depends. This needs the IR only, no machine code.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_switch.compiler import ir, lower_file
from inagg_switch.compiler import types as t
from inagg_switch.compiler.instrument import describe
from inagg_switch.compiler.primitives import Primitive

_COUNTER_BYTES = 16  # packets and bytes
_METER_BYTES = 72  # runtime/tables/meter.hpp: the configuration and two buckets
_PIPELINE = ("parser", "verify", "ingress", "egress", "update", "deparser")


@dataclass(frozen=True)
class Table:
    """`stage` counts from 1 within its control; `key_bits` and `entry_bytes` are the sizes of one entry."""

    name: str
    control: str
    stage: int
    keys: tuple[tuple[str, str, int], ...]  # name, match kind, bits
    actions: tuple[str, ...]
    default_action: str
    size: int
    key_bits: int
    entry_bytes: int
    const_entries: int


@dataclass(frozen=True)
class Memory:
    """An array of state; `bytes` is its memory in this switch. For direct counters and meters, `size` is that of the
    table: each entry has one."""

    name: str
    kind: str
    size: int
    bits: int
    bytes: int


@dataclass(frozen=True)
class Digest:
    """A digest to the controller. `bytes` is the size of one message, each field in whole bytes."""

    name: str
    fields: tuple[tuple[str, int], ...]  # name and bits
    bytes: int


@dataclass(frozen=True)
class Header:
    """A header of the program; `count` is the number of elements of a stack, or 1."""

    name: str
    type: str
    bits: int
    count: int


@dataclass(frozen=True)
class Part:
    """A block of the pipeline. `detail` has the states of a parser, or the tables of a control by stage."""

    stage: str
    name: str
    detail: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The explanation of a whole program. `packet_bytes` are the headers and metadata of one packet."""

    pipeline: tuple[Part, ...]
    tables: tuple[Table, ...]
    memory: tuple[Memory, ...]
    digests: tuple[Digest, ...]
    headers: tuple[Header, ...]
    metadata_bits: int
    packet_bytes: int
    state_bytes: int


def explain(
    path: Path | str, defines: dict[str, str] | None = None, include_paths: Sequence[Path] = ()
) -> Explanation:
    """Explains a P4 file. Raises CompileError."""
    program = lower_file(path, defines, include_paths)
    parts, tables = [], []
    for name in _PIPELINE:
        block = program.pipeline[name]
        if block.states:
            parts.append(Part(name, block.full_name, tuple(_state_name(s) for s in block.states)))
            continue
        rows = _Stager(program).tables(block)
        parts.append(
            Part(name, block.full_name, tuple(f"{stage}: {table.full_name}" for table, stage in rows))
        )
        tables += [_table(table, block.full_name, stage) for table, stage in rows]
    memory = [m for made in program.objects if (m := _memory(made)) is not None]
    headers = tuple(_headers(program.headers))
    metadata_bits = _bits(program.metadata)
    packet_bits = sum(h.bits * h.count for h in headers) + metadata_bits + _bits(program.standard)
    return Explanation(
        tuple(parts),
        tuple(tables),
        tuple(memory),
        tuple(_digest(made) for made in program.objects if isinstance(made, ir.Digest)),
        headers,
        metadata_bits,
        (packet_bits + 7) // 8,
        sum(m.bytes for m in memory),
    )


def _state_name(state: ir.State) -> str:
    return state.name.removeprefix("state_")


def _bits(type_: t.Type) -> int:
    try:
        return t.bit_width(type_)
    except TypeError:
        return 0


# --- memory and headers


def _memory(made: ir.Object) -> Memory | None:
    if isinstance(made, ir.Register):
        bits = _bits(made.type)
        return Memory(made.full_name, "register", made.size, bits, made.size * _cell_bytes(bits))
    if isinstance(made, ir.Counter):
        return _cells(made, "counter", made.size, _COUNTER_BYTES)
    if isinstance(made, ir.Meter):
        return _cells(made, "meter", made.size, _METER_BYTES)
    if isinstance(made, ir.DirectCounter) and made.table is not None:
        return _cells(made, "direct counter", made.table.size, _COUNTER_BYTES)
    if isinstance(made, ir.DirectMeter) and made.table is not None:
        return _cells(made, "direct meter", made.table.size, _METER_BYTES)
    return None


def _cells(made: ir.Object, kind: str, size: int, each: int) -> Memory:
    return Memory(made.full_name, kind, size, 8 * each, size * each)


def _cell_bytes(bits: int) -> int:
    """The bytes of a cell: the smallest integer that holds it, or limbs of 64 bits (runtime/values/bits.hpp)."""
    for width in (8, 16, 32, 64):
        if bits <= width:
            return width // 8
    return (bits + 63) // 64 * 8


def _digest(made: ir.Digest) -> Digest:
    fields = tuple(_scalars(made.type))
    return Digest(made.full_name, fields, sum((bits + 7) // 8 for _, bits in fields))


def _scalars(type_: t.Type, path: str = "") -> Iterator[tuple[str, int]]:
    """Name and bits of the scalars of a value. The names of a tuple's parts are their numbers."""
    bare = t.strip(type_)
    if isinstance(bare, t.StructType):
        parts = list(bare.fields.items())
    elif isinstance(bare, t.TupleType):
        parts = [(str(i), element) for i, element in enumerate(bare.elements)]
    else:
        yield path, _bits(type_)
        return
    for name, part in parts:
        yield from _scalars(part, f"{path}.{name}".removeprefix("."))


def _headers(type_: t.Type, path: str = "", count: int = 1) -> Iterator[Header]:
    if isinstance(type_, t.StackType):
        yield from _headers(type_.element, f"{path}[{type_.size}]", count * type_.size)
    elif t.is_header(type_):
        yield Header(path, str(type_), _bits(type_), count)
    elif isinstance(type_, t.StructType):
        for name, field in type_.fields.items():
            yield from _headers(field, f"{path}.{name}".removeprefix("."), count)


def _table(table: ir.Table, control: str, stage: int) -> Table:
    key_bits = sum(key.width for key in table.keys)
    params = max((sum(_bits(p.type) for p in _given(use)) for use in table.actions), default=0)
    masks = any(key.kind in ("ternary", "range") for key in table.keys)
    return Table(
        table.full_name,
        control,
        stage,
        tuple((key.name, key.kind, key.width) for key in table.keys),
        tuple(use.action.full_name for use in table.actions),
        table.actions[table.default_action].action.full_name,
        table.size,
        key_bits,
        (key_bits * (2 if masks else 1) + params + 7) // 8,
        len(table.entries),
    )


def _given(use: ir.ActionUse) -> list[ir.Parameter]:
    return use.action.parameters[len(use.bound) :]


# --- stages


class _Stager:
    """Walks a control in order. `_written` maps a field to the first stage that may use its new value."""

    def __init__(self, program: ir.Program) -> None:
        self._blocks = {block.name: block for block in program.blocks}
        self._actions = {action.name: action for block in program.blocks for action in block.actions}
        self._stages: dict[int, tuple[ir.Table, int]] = {}
        self._written: dict[str, int] = {}

    def tables(self, block: ir.Block) -> list[tuple[ir.Table, int]]:
        """The tables that a control and its callees apply, with their stage, by stage."""
        self._place(block.body, 1)
        return sorted(self._stages.values(), key=lambda placed: placed[1])

    def _place(self, node: ir.Node, least: int) -> int:
        """Places the tables in `node` from stage `least` on. Returns the least stage for code that depends on its
        result."""
        after = least
        for part in ir.outermost(node, (ir.If, ir.Switch, ir.Assign, ir.TableApply, ir.Call)):
            if isinstance(part, ir.TableApply):
                after = max(after, self._place_table(part.table, least) + 1)
            elif isinstance(part, ir.Call):
                after = max(after, self._place_call(part, least))
            elif isinstance(part, ir.If | ir.Switch):
                self._place_branches(part, least)
            elif isinstance(part, ir.Assign):
                self._place_assignment(part, least)
        return after

    def _place_branches(self, part: ir.If | ir.Switch, least: int) -> None:
        condition = part.condition if isinstance(part, ir.If) else part.subject
        decided = max(self._place(condition, least), self._ready(_names(condition)))
        if isinstance(part, ir.If):
            branches = [part.then] if part.otherwise is None else [part.then, part.otherwise]
        else:
            branches = [c.body for c in part.cases]
        for branch in branches:
            self._place(branch, decided)

    def _place_assignment(self, part: ir.Assign, least: int) -> None:
        decided = max(self._place(part.value, least), self._ready(_names(part.value)))
        for name in _names(part.target):
            self._written[name] = max(self._written.get(name, 1), decided)

    def _place_call(self, call: ir.Call, least: int) -> int:
        block, action = self._blocks.get(call.callee), self._actions.get(call.callee)
        if block is not None:
            return self._place(block.body, least)
        return self._place(action.body, least) if action is not None else least

    def _place_table(self, table: ir.Table, least: int) -> int:
        uses = {name for key in table.keys for name in _names(key.expr)}
        writes: set[str] = set()
        for use in table.actions:
            for node in ir.walk(use.action.body):
                if isinstance(node, ir.Assign):
                    writes |= _names(node.target)
                    uses |= _names(node.value)
                elif isinstance(node, Primitive):
                    names = {name for operand in ir.children(node) for name in _names(operand)}
                    uses |= names
                    writes |= names
        stage = max(least, self._ready(uses | writes), self._stages.get(id(table), (table, 1))[1])
        self._stages[id(table)] = (table, stage)
        for name in writes:
            self._written[name] = stage + 1
        return stage

    def _ready(self, names: Iterable[str]) -> int:
        return max((self._written[name] for name in names if name in self._written), default=1)


def _names(e: ir.Node) -> set[str]:
    """The names of the fields and variables in an expression."""
    return {describe(part) for part in ir.outermost(e, (ir.Field, ir.Var))}
