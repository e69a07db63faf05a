# SPDX-License-Identifier: Apache-2.0
"""Finds whether several threads may run a program, and which frames each should have.

Threads share registers and nothing else that changes. `@stripe(n) {...}` says that, while a thread is in it, no block
with another n uses the same register cells: the runtime lets one thread at a time into a stripe. A header field with
`@steer(n)` tells frames apart: those whose field is the same without its last n bits should go to the same thread, so
that its registers stay in that processor's cache. Frames that the parser does not follow to that field go to thread 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from inagg_switch.compiler import ir, primitives
from inagg_switch.compiler import types as t
from inagg_switch.errors import CompileError


@dataclass(frozen=True)
class Steering:
    """The frames of which each byte in `conditions` has its value under its mask have the field at `offset`.

    offset, bytes: in bytes, the field is big-endian. shift: how many of its low bits do not count.
    """

    conditions: tuple[tuple[int, int, int], ...]  # (offset, mask, value)
    offset: int
    bytes: int
    shift: int


def one_thread(program: ir.Program) -> str | None:
    """Why one thread alone may run the program; None if several may. Raises CompileError for a wrong @steer."""
    steered = steering(program)
    reason = _Uses(program).reason()
    if reason is None and steered is None:
        return "no header field that its parser always finds at the same place has @steer(n)"
    return reason


# --- stripes


class _Uses:
    """Walks the pipeline, inside and outside of stripes."""

    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._callees: dict[str, ir.Block | ir.Function] = {b.name: b for b in program.blocks}
        self._callees |= {f.name: f for f in program.functions}
        self._seen: set[tuple[int, bool]] = set()
        self._reasons: list[str] = []

    def reason(self) -> str | None:
        for made in self._program.objects:
            if isinstance(made, ir.Meter | ir.DirectMeter):
                return f"meter {made.full_name} counts all packets in one place"
        for block in self._program.pipeline.values():
            self._code(block, striped=False)
        return self._reasons[0] if self._reasons else None

    def _is_new(self, code: ir.Block | ir.Function | ir.Action | ir.Table, *, striped: bool) -> bool:
        known = (id(code), striped) in self._seen
        self._seen.add((id(code), striped))
        return not known

    def _code(self, code: ir.Block | ir.Function, *, striped: bool) -> None:
        if not self._is_new(code, striped=striped):
            return
        if isinstance(code, ir.Function):
            self._node(code.body, {}, striped=striped)
            return
        actions = {action.name: action for action in code.actions}
        parts: list[ir.Node] = [*code.members, code.body]
        for state in code.states:
            parts += [*state.body, *state.subjects]
        for node in parts:
            self._node(node, actions, striped=striped)

    def _node(self, node: ir.Node, actions: dict[str, ir.Action], *, striped: bool) -> None:
        """Visits a node of a block with these actions."""
        if isinstance(node, ir.Striped):
            if striped:
                self._reasons.append("it has a @stripe inside a @stripe")
            self._node(node.number, actions, striped=striped)
            self._node(node.body, actions, striped=True)
            return
        if isinstance(node, primitives.RegisterRead | primitives.RegisterWrite) and not striped:
            self._reasons.append(f"register {node.object.full_name} is used outside of any @stripe")
        if isinstance(node, ir.TableApply):
            self._table(node.table, actions, striped=striped)
        if isinstance(node, ir.Call):
            if node.callee in actions:
                self._action(actions[node.callee], actions, striped=striped)
            elif node.callee in self._callees:
                self._code(self._callees[node.callee], striped=striped)
        for child in ir.children(node):
            self._node(child, actions, striped=striped)

    def _table(self, table: ir.Table, actions: dict[str, ir.Action], *, striped: bool) -> None:
        if not self._is_new(table, striped=striped):
            return
        for node in (*(key.expr for key in table.keys), *table.selector):
            self._node(node, actions, striped=striped)
        for use in table.actions:
            self._action(use.action, actions, striped=striped)
            for argument in use.bound:
                self._node(argument, actions, striped=striped)

    def _action(self, action: ir.Action, actions: dict[str, ir.Action], *, striped: bool) -> None:
        if self._is_new(action, striped=striped):
            self._node(action.body, actions, striped=striped)


# --- steering


def steering(program: ir.Program) -> Steering | None:
    """How to find the field with @steer in a frame; None without such a field, or if the parser has no way to it that
    always reads the same number of bits. Raises CompileError."""
    steered = _steered(program)
    if steered is None:
        return None
    states = {state.name: state for state in program.pipeline["parser"].states}
    for at, conditions in _places(states, "state_start", _Way(), steered.header):
        offset = at + _offset(steered.header, steered.field)
        width = t.bit_width(steered.header.fields[steered.field])
        ordered = tuple((byte, *conditions[byte]) for byte in sorted(conditions))
        return Steering(ordered, offset // 8, width // 8, steered.shift)
    return None


@dataclass(frozen=True)
class _Steered:
    """A field with @steer(shift)."""

    header: t.StructType
    field: str
    shift: int


def _steered(program: ir.Program) -> _Steered | None:
    found = [
        (struct, declared.name, annotation)
        for struct in program.structs
        for declared in struct.declaration.fields
        if (annotation := declared.annotation("steer")) is not None
    ]
    if not found:
        return None
    if len(found) > 1:
        raise CompileError("a program has one field with @steer", found[1][2].at)
    struct, name, annotation = found[0]
    bits = t.strip(struct.fields[name])
    width = bits.width if struct.kind == "header" and isinstance(bits, t.BitType) else 0
    if width not in (8, 16, 32) or _offset(struct, name) % 8 != 0:
        raise CompileError(
            "@steer is for a field of 8, 16 or 32 bits that begins at a byte of a header", annotation.at
        )
    if len(annotation.arguments) != 1 or not 0 <= annotation.arguments[0] < width:
        raise CompileError(f"@steer takes one number, from 0 to {width - 1}", annotation.at)
    return _Steered(struct, name, annotation.arguments[0])


def _offset(header: t.StructType, name: str) -> int:
    """The bits in front of a field."""
    names = list(header.fields)
    return sum(t.bit_width(header.fields[one]) for one in names[: names.index(name)])


# By byte of the frame: (mask, value).
_Conditions = Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class _Way:
    """How the parser came to a state: the bits that it has read, the headers that it has found, the bytes that it has
    compared, the states on the way."""

    bits: int = 0
    headers: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    conditions: _Conditions = field(default_factory=dict)
    states: frozenset[str] = frozenset()


def _places(
    states: Mapping[str, ir.State], name: str, way: _Way, wanted: t.StructType
) -> Iterator[tuple[int, _Conditions]]:
    """Where the parser finds a header of a type, from a state on: its first bit in the frame, and the conditions for
    that."""
    if name not in states or name in way.states:
        return
    state = states[name]
    way = replace(way, states=way.states | {name})
    for s in _flat(state.body):
        if isinstance(s, primitives.Extract):
            path = _path(s.header)
            header = s.header.type
            if path is None or s.bits is not None or not isinstance(header, t.StructType):
                return
            if header is wanted:
                yield way.bits, way.conditions
                return
            way = replace(way, bits=way.bits + t.bit_width(header), headers={**way.headers, path: way.bits})
        elif isinstance(s, primitives.Advance | primitives.Parse):
            return
    for case in state.cases:
        conditions = _compared(way, state.subjects, case)
        if conditions is not None:
            yield from _places(states, case.state, replace(way, conditions=conditions), wanted)


def _flat(body: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
    for s in body:
        if isinstance(s, ir.Group):
            yield from _flat(s.body)
        else:
            yield s


def _path(e: ir.Expr) -> tuple[str, ...] | None:
    """The names of a header; None for an element of a stack."""
    if isinstance(e, ir.Var):
        return (e.name,)
    base = _path(e.base) if isinstance(e, ir.Field) else None
    return None if base is None or not isinstance(e, ir.Field) else (*base, e.name)


def _compared(way: _Way, subjects: tuple[ir.Expr, ...], case: ir.Case) -> _Conditions | None:
    """The conditions with those of a case: of its subjects that are fields and are compared with a number. None if they
    contradict each other. A frame that another case takes although it meets them does no harm: it is steered."""
    conditions = dict(way.conditions)
    for subject, match in zip(subjects, case.matches, strict=False):
        place = _bits_of(way, subject)
        if match is None or place is None or match.kind not in ("value", "mask"):
            continue
        first, width = place
        numbers = [operand.value for operand in match.operands if isinstance(operand, ir.Const)]
        if len(numbers) < len(match.operands):
            continue
        mask = numbers[1] if match.kind == "mask" else (1 << width) - 1
        for byte, byte_mask, value in _bytes(first, width, mask, numbers[0]):
            known_mask, known = conditions.get(byte, (0, 0))
            if (known ^ value) & known_mask & byte_mask:
                return None
            conditions[byte] = (known_mask | byte_mask, known | value)
    return conditions


def _bits_of(way: _Way, e: ir.Expr) -> tuple[int, int] | None:
    """The first bit in the frame and the width of a field or a slice of one; None for other expressions."""
    if isinstance(e, ir.Slice):
        inner = _bits_of(way, e.base)
        return None if inner is None else (inner[0] + inner[1] - 1 - e.high, e.high - e.low + 1)
    if not isinstance(e, ir.Field) or not isinstance(e.base.type, t.StructType):
        return None
    path = _path(e.base)
    if path is None or path not in way.headers:
        return None
    return way.headers[path] + _offset(e.base.type, e.name), t.bit_width(e.type)


def _bytes(first: int, width: int, mask: int, value: int) -> Iterator[tuple[int, int, int]]:
    """(byte, mask, value) of each byte that holds some of `width` bits from bit `first` on."""
    last = first + width
    behind = -last % 8
    mask, value = mask << behind, (value & mask) << behind
    for byte in range(first // 8, (last + 7) // 8):
        shift = 8 * ((last + 7) // 8 - 1 - byte)
        if mask >> shift & 0xFF:
            yield byte, mask >> shift & 0xFF, value >> shift & 0xFF
