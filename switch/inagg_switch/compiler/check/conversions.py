# SPDX-License-Identifier: Apache-2.0
"""Implicit conversions, and the words for an expression in a message."""

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t
from inagg_switch.errors import CompileError, Position


def convert(e: syntax.Expression, to: t.Type, what: str = "") -> syntax.Expression:
    """The expression after the implicit conversions of P4-16, section 8.11.2. Raises CompileError if none fits."""
    have = e.type
    if have == to or to in (t.ANYTHING, t.BROKEN) or isinstance(to, t.TypeVariable):
        return e
    if isinstance(e, syntax.DefaultValue | syntax.InvalidHeader):
        return _default(e, to)
    if isinstance(e, syntax.Conditional) and isinstance(have, t.TupleType | t.RecordType):
        e.then, e.otherwise = convert(e.then, to, what), convert(e.otherwise, to, what)
        e.type = to
        return e
    if have == t.INTEGER and isinstance(t.strip(to), t.BitType) and not isinstance(to, t.EnumType):
        return converted(e, to)
    if isinstance(have, t.EnumType) and have.base is not None and have.base == to:
        return converted(e, to)
    if isinstance(e, syntax.ListExpression):
        made = _list_to(e, to)
        if made is not None:
            return made
    if isinstance(e, syntax.StructExpression) and isinstance(to, t.StructType):
        return _record_to(e, to)
    raise CompileError(f"expected {to}{what and ' for ' + what}, found {describe(e)}", e.start)


def converted(e: syntax.Expression, to: t.Type) -> syntax.Expression:
    cast = syntax.Cast(e.at, None, e)
    cast.type = to
    if e.value is not None:
        cast.value = fold.cast_value(e.value, to)
    return cast


def plain_bits(e: syntax.Expression) -> syntax.Expression:
    """The expression, as bits if it is a value of a serialisable enum."""
    if isinstance(e.type, t.EnumType) and e.type.base is not None:
        return converted(e, e.type.base)
    return e


def _default(e: syntax.Expression, to: t.Type) -> syntax.Expression:
    if isinstance(e, syntax.InvalidHeader) and not (t.is_header(to) or t.is_union(to)):
        raise CompileError(f"`{{#}}` is an invalid header, but {to} is not a header", e.at)
    e.type = to
    return e


def _list_to(e: syntax.ListExpression, to: t.Type) -> syntax.Expression | None:
    if isinstance(to, t.StructType):
        parts = list(to.fields.values())
    elif isinstance(to, t.TupleType):
        parts = list(to.elements)
    elif isinstance(to, t.StackType):
        parts = [to.element] * to.size
    else:
        return None
    items = list(e.items)
    if items and isinstance(items[-1], syntax.DefaultValue) and len(items) <= len(parts) + 1:
        items = items[:-1] + [_new_default(items[-1].at) for _ in parts[len(items) - 1 :]]
    if len(items) != len(parts):
        raise CompileError(f"{to} has {len(parts)} parts, the list {len(items)}", e.at)
    e.items = [convert(item, part) for item, part in zip(items, parts, strict=True)]
    e.type = to
    e.value = tuple(i.value for i in e.items) if all(i.value is not None for i in e.items) else None
    return e


def _new_default(at: Position) -> syntax.Expression:
    made = syntax.DefaultValue(at)
    made.type = t.ANYTHING
    return made


def _record_to(e: syntax.StructExpression, to: t.StructType) -> syntax.Expression:
    given = dict(e.fields)
    unknown = [n for n in given if n not in to.fields]
    if unknown:
        raise CompileError(f"{to} has no field `{unknown[0]}`", given[unknown[0]].at)
    missing = [n for n in to.fields if n not in given]
    if missing and not e.defaulted:
        raise CompileError(f"field `{missing[0]}` of {to} is not given", e.at)
    items = [convert(given.get(n) or _new_default(e.at), f) for n, f in to.fields.items()]
    e.fields = list(zip(to.fields, items, strict=True))
    e.type = to
    e.value = tuple(i.value for i in items) if all(i.value is not None for i in items) else None
    return e


def is_bits(type_: t.Type) -> bool:
    """True for bit<W> and int<W>."""
    return isinstance(type_, t.BitType)


def describe(e: syntax.Expression) -> str:
    if isinstance(e, syntax.Name):
        return f"`{e.name}` ({e.type})" if not isinstance(e.type, t.CallableType) else str(e.type)
    if isinstance(e, syntax.TypeExpression):
        return f"type {e.type}"
    if isinstance(e, syntax.String):
        return "a string"
    if isinstance(e, syntax.ListExpression | syntax.StructExpression):
        return "a list"
    if isinstance(e.type, t.CallableType):
        return str(e.type)
    return f"a value of type {e.type}"
