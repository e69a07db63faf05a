# SPDX-License-Identifier: Apache-2.0
"""Finds what decides whether two copies of a multicast leave as the same bytes: the fields that egress may write and
that the checksum update or the deparser may read. Where these are equal, one deparsed packet serves both copies."""

from collections.abc import Iterable, Iterator

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.untouched import Code, codes, mentioned_fields, parts
from inagg_switch.compiler.names import spell_field
from inagg_switch.compiler.primitives import (
    Assert,
    Count,
    Emit,
    ExecuteMeter,
    Hash,
    LogMsg,
    MarkToDrop,
    Random,
    RegisterRead,
    RegisterWrite,
    SetInvalid,
    SetValid,
    UpdateChecksum,
)

# The names of a field of a struct and, in a header, of the field in it. Empty: the struct.
Path = tuple[str, ...]

_MOST_BITS = 512  # comparing more takes as long as deparsing

_CONTROL = (ir.Declare, ir.Evaluate, ir.Group, ir.If, ir.Switch, ir.Jump)
# Statements that do the same each time they run with the same headers and metadata, and nothing else; but see
# _repeatable().
_REPEATABLE = (*_CONTROL, ir.Assign, SetValid, SetInvalid, UpdateChecksum, Emit)
# Statements that write nothing by themselves, only through the calls in them.
_WRITES_NOTHING = (*_CONTROL, ir.Loop, ir.CountLoop, Count, RegisterWrite, LogMsg, Assert)
# The operand that a statement writes. Other statements may write all that they mention.
_RESULT: dict[type[ir.Stmt], str] = {
    ir.Assign: "target",
    RegisterRead: "result",
    ExecuteMeter: "result",
    Random: "result",
    Hash: "result",
    SetValid: "header",
    SetInvalid: "header",
    MarkToDrop: "standard",
}


def outcome(program: ir.Program) -> dict[str, t.Type] | None:
    """The C++ paths of these fields, and their types. None: copies cannot be compared, or not fast."""
    metadata = t.strip(program.metadata)
    read = mentioned_fields(metadata, codes(program, "update"))
    if program.makes_requests() or read is None or metadata is program.headers:
        return None
    if not _repeatable(codes(program, "update", "deparser")):
        return None
    egress = codes(program, "egress")
    found = dict(_scalars("headers", program.headers, _written(program.headers, egress)))
    assert isinstance(metadata, t.StructType)
    written = _written(metadata, egress)
    found |= _scalars("metadata", metadata, {path for path in written if not path or path[0] in read})
    fast = all(_is_small(type_) for type_ in found.values())
    return found if fast and sum(map(t.bit_width, found.values())) <= _MOST_BITS else None


def _scalars(name: str, struct: t.StructType, paths: Iterable[Path]) -> Iterator[tuple[str, t.Type]]:
    """What is at these paths, with a header in its parts."""
    for path in sorted(paths):
        type_: t.Type = struct
        for part in path:
            assert isinstance(type_, t.StructType)
            type_ = type_.fields[part]
        at = ".".join((name, *map(spell_field, path)))
        if isinstance(type_, t.StructType) and t.is_header(type_):
            yield f"{at}.valid", t.BOOL
            yield from ((f"{at}.{spell_field(field)}", inside) for field, inside in type_.fields.items())
        else:
            yield at, type_


def _repeatable(code: Iterable[Code]) -> bool:
    nodes = [node for one in code for part in parts(one) for node in ir.walk(part)]
    return not any(
        isinstance(node, ir.TableApply)
        or (isinstance(node, ir.Stmt) and not isinstance(node, _REPEATABLE))
        or (isinstance(node, UpdateChecksum) and node.algorithm == "random")
        for node in nodes
    )


def _written(struct: t.StructType, code: Iterable[Code]) -> set[Path]:
    """What the code may write in objects of this type."""
    places = [place for one in code for place in _places(one, struct)]
    return {path for path in (_path(place, struct) for place in places) if path is not None}


def _places(code: Code, struct: t.StructType) -> Iterator[ir.Expr]:
    """The expressions that the code may write."""
    for node in (node for part in parts(code) for node in ir.walk(part)):
        if isinstance(node, ir.CallArgument):
            # If the whole struct is passed, the callee's code decides. An `out` argument is cleared before.
            passed = node.mode == "reference" and node.direction != "out"
            decided_there = passed and t.strip(node.type) is struct
            if node.mode != "value" and node.expr is not None and not decided_there:
                yield node.expr
        elif isinstance(node, ir.Stmt):
            if (result := _RESULT.get(type(node))) is not None:
                yield getattr(node, result)
            elif not isinstance(node, _WRITES_NOTHING):
                yield from (inner for inner in ir.walk(node) if isinstance(inner, ir.Expr))
    for table in code.tables if isinstance(code, ir.Block) else ():
        if table.direct_meter is not None and table.direct_meter.target is not None:
            yield table.direct_meter.target


def _path(place: ir.Expr, struct: t.StructType) -> Path | None:
    """Where the place is in the struct; None if it is elsewhere."""
    names: list[str] = []
    while t.strip(place.type) is not struct:
        if isinstance(place, ir.Field):
            names.insert(0, place.name)
        elif isinstance(place, ir.Element | ir.StackNext | ir.StackLast):
            names.clear()
        elif not isinstance(place, ir.Slice | ir.Part):
            return None
        place = place.base
    in_header = bool(names) and t.is_header(struct.fields[names[0]])
    return tuple(names[: 2 if in_header else 1])


def _is_small(type_: t.Type) -> bool:
    """True for a number that fits a register of the processor."""
    bits = t.strip(type_)
    return bits == t.BOOL or (isinstance(bits, t.BitType) and bits.width <= 64)
