# SPDX-License-Identifier: Apache-2.0
"""Chooses the ids in P4Info, as p4c does.

The high byte of an id is the type of the resource (P4Runtime specification, section 6.3). The other 24 bits are
Jenkins' one-at-a-time hash of the full name (p4c: control-plane/p4RuntimeSymbolTable.cpp). Names come in alphabetical
order; a name whose id is taken gets the next free one.
"""

from collections.abc import Iterator, Sequence

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler.reach import Reached
from inagg_switch.errors import CompileError

PREFIXES = {
    "action": 0x01,
    "table": 0x02,
    "value_set": 0x03,
    "controller_header": 0x04,
    "action_profile": 0x11,
    "counter": 0x12,
    "direct_counter": 0x13,
    "meter": 0x14,
    "direct_meter": 0x15,
    "register": 0x16,
    "digest": 0x17,
}

Ids = dict[tuple[str, str], int]


def assign_ids(program: ir.Program, found: Reached) -> Ids:
    """The ids of all resources, by (kind, full name). Resources that P4Info lists choose first. Raises CompileError for
    a name or an @id that is used twice."""
    taken: set[int] = set()
    ids: Ids = {}
    symbols = _symbols(program)
    _check_actions(program, found)
    listed = symbols_listed(program, found)
    for key, declaration in symbols.items():
        fixed = _fixed_id(declaration, key[0])
        if fixed is None:
            continue
        if fixed in taken:
            raise CompileError(f"@id of {key[1]} is already used", declaration.at)
        taken.add(fixed)
        ids[key] = fixed
    for kind, name in sorted(symbols, key=lambda k: (k not in listed, PREFIXES[k[0]], k[1].encode())):
        if (kind, name) in ids:
            continue
        number = one_at_a_time(name.encode())
        while (identity := PREFIXES[kind] << 24 | number & 0xFFFFFF) in taken:
            number += 1
        taken.add(identity)
        ids[kind, name] = identity
    return ids


def one_at_a_time(data: bytes) -> int:
    """Bob Jenkins' hash, 32 bits."""
    value = 0
    for byte in data:
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFFFF


_KINDS: dict[type, str] = {
    ir.Table: "table",
    ir.Counter: "counter",
    ir.DirectCounter: "direct_counter",
    ir.Register: "register",
    ir.ValueSet: "value_set",
    ir.Meter: "meter",
    ir.DirectMeter: "direct_meter",
    ir.Profile: "action_profile",
    ir.Digest: "digest",
}


def symbols_listed(program: ir.Program, found: Reached) -> set[tuple[str, str]]:
    """(kind, full name) of the resources that P4Info lists or that are only @hidden from it."""
    listed = {(_KINDS[type(o)], o.full_name) for o in program.objects if o in found}
    listed |= {("action", a.full_name) for block in program.blocks for a in block.actions if a in found}
    return listed | {("controller_header", h.name) for h in program.controller_headers}


def _symbols(program: ir.Program) -> dict[tuple[str, str], syntax.Declaration]:
    named: list[tuple[str, str, syntax.Declaration]] = [
        (_KINDS[type(o)], o.full_name, o.declaration) for o in program.objects
    ]
    named += [("controller_header", h.name, h.declaration) for h in program.controller_headers]
    symbols: dict[tuple[str, str], syntax.Declaration] = {}
    for kind, name, declaration in named:
        if (kind, name) in symbols:  # another declaration, or another instance of this one
            what = kind.replace("_", " ")
            raise CompileError(f"another {what} has the name `{name}` already", declaration.at)
        symbols[kind, name] = declaration
    for block in program.blocks:
        for action in block.actions:
            symbols.setdefault(("action", action.full_name), action.declaration)
    return symbols


def _check_actions(program: ir.Program, found: Reached) -> None:
    """Raises CompileError if two declarations of actions have one name, in a table or, like p4c, reachable."""
    known: dict[str, syntax.Action] = {}
    for action in _named_actions(program, found):
        if known.setdefault(action.full_name, action.declaration) is not action.declaration:
            raise CompileError(
                f"another action has the name `{action.full_name}` already", action.declaration.at
            )


def _named_actions(program: ir.Program, found: Reached) -> Iterator[ir.Action]:
    for table in program.objects:
        if isinstance(table, ir.Table):
            yield from (use.action for use in table.actions)
    for block in program.blocks:
        yield from (action for action in block.actions if action in found)


def _fixed_id(declaration: syntax.Declaration, kind: str) -> int | None:
    annotation = declaration.annotation("id")
    if annotation is None or not annotation.arguments:
        return None
    value = annotation.arguments[0]
    if not isinstance(value, int) or value >> 24 not in (0, PREFIXES[kind]):
        raise CompileError(f"@id of {declaration.name} is not an id of a {kind}", annotation.at)
    return value | PREFIXES[kind] << 24


def field_ids(annotated: Sequence[Sequence[syntax.Annotation]]) -> list[int]:
    """The ids of match fields, parameters or metadata: their @id, or else the next number from 1 that is not taken."""
    given = [_given_id(annotations) for annotations in annotated]
    ids: list[int] = []
    following = 1
    for fixed in given:
        if fixed is not None:
            ids.append(fixed)
            following += 1
            continue
        while following in ids or following in given:
            following += 1
        ids.append(following)
    return ids


def _given_id(annotations: Sequence[syntax.Annotation]) -> int | None:
    found = next((a for a in annotations if a.name == "id"), None)
    if found is None:
        return None
    value = found.arguments[0] if len(found.arguments) == 1 else None
    if not isinstance(value, int) or not 0 < value < 1 << 32:
        raise CompileError("@id needs a number from 1 to 2^32 - 1", found.at)
    return value
