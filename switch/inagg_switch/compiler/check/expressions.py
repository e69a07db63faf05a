# SPDX-License-Identifier: Apache-2.0
"""Types and constant values of expressions."""

from collections.abc import Callable
from typing import Any

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.conversions import convert, describe, is_bits, plain_bits
from inagg_switch.compiler.check.operators import binary, cast, conditional, unary
from inagg_switch.compiler.check.types import type_of
from inagg_switch.compiler.check.values import constant_value, rvalue
from inagg_switch.compiler.diagnostics import FollowUpError
from inagg_switch.compiler.parse.lexer import MAX_WIDTH
from inagg_switch.errors import CompileError


def expression(checker: Checker, e: syntax.Expression) -> syntax.Expression:
    """The checked expression. It may be another node, because conversions are added."""
    return _CHECKERS[type(e)](checker, e)


# --- leaves


def _integer(checker: Checker, e: syntax.Integer) -> syntax.Expression:
    e.type = t.INTEGER if e.width is None else t.BitType(e.width, e.signed)
    e.value = fold.wrap(e.number, e.type)
    return e


def _boolean(checker: Checker, e: syntax.Boolean) -> syntax.Expression:
    e.type, e.value = t.BOOL, e.truth
    return e


def _string(checker: Checker, e: syntax.String) -> syntax.Expression:
    e.type, e.value = t.STRING, e.text
    return e


def _untyped(checker: Checker, e: syntax.Expression) -> syntax.Expression:
    e.type = t.ANYTHING
    return e


def _name(checker: Checker, e: syntax.Name) -> syntax.Expression:
    found = checker.scope.find(e.name, absolute=e.absolute)
    if found is None:
        raise CompileError(f"`{e.name}` is not declared", e.at)
    if isinstance(found, list):
        e.declaration = found[0]
        e.type = t.CallableType(f"function {e.name}")
        return e
    if isinstance(found, t.Type | syntax.TypeDeclaration):
        return _type_expression(
            checker, syntax.TypeExpression(e.at, syntax.NamedTypeRef(e.at, e.name, absolute=e.absolute))
        )
    e.declaration = found
    if isinstance(found, syntax.Constant):
        e.type, e.value = found.type, found.value.value
    elif isinstance(found, syntax.Variable | syntax.Parameter | syntax.Instantiation | syntax.ValueSet):
        e.type = found.type
    elif isinstance(found, syntax.Action | syntax.Table):
        e.type = t.CallableType(f"{type(found).__name__.lower()} {e.name}")
    else:
        raise CompileError(f"`{e.name}` is not a value", e.at)
    return e


def _type_expression(checker: Checker, e: syntax.TypeExpression) -> syntax.Expression:
    e.type = type_of(checker, e.ref)
    return e


# --- parts


def _member(checker: Checker, e: syntax.Member) -> syntax.Expression:
    e.base = expression(checker, e.base)
    if isinstance(e.base, syntax.TypeExpression):
        return _type_member(checker, e, e.base.type)
    base = e.base.type
    if isinstance(base, t.StructType):
        if e.name not in base.fields:
            raise CompileError(f"{base.kind} {base} has no field `{e.name}`", e.at)
        e.type = base.fields[e.name]
        if e.type == t.BROKEN:
            raise FollowUpError
        if e.base.value is not None:
            e.value = e.base.value[list(base.fields).index(e.name)]
        return e
    if isinstance(base, t.StackType) and t.is_stack(base):
        return _stack_member(checker, e, base)
    if isinstance(base, t.ApplyResultType) and e.name in ("hit", "miss", "action_run"):
        e.type = t.ActionListType(base.table) if e.name == "action_run" else t.BOOL
        return e
    raise CompileError(f"{describe(e.base)} has no member `{e.name}`", e.at)


def _type_member(checker: Checker, e: syntax.Member, base: t.Type) -> syntax.Expression:
    if base == t.ERROR:
        members = checker.errors
    elif isinstance(base, t.EnumType):
        members = dict(base.members)
    else:
        raise CompileError(f"type {base} has no members", e.at)
    if e.name not in members:
        raise CompileError(f"{base} has no member `{e.name}`", e.at)
    e.type, e.value = base, members[e.name]
    return e


def _stack_member(checker: Checker, e: syntax.Member, base: t.StackType) -> syntax.Expression:
    if e.name == "size":
        e.type, e.value = t.BitType(32), base.size
    elif e.name in ("lastIndex", "next", "last"):
        if checker.inside != "parser":
            raise CompileError(f"`{e.name}` of a header stack exists in parsers only", e.at)
        e.type = t.BitType(32) if e.name == "lastIndex" else base.element
    else:
        raise CompileError(f"a header stack has no member `{e.name}`", e.at)
    return e


def _index(checker: Checker, e: syntax.Index) -> syntax.Expression:
    e.base = rvalue(checker, e.base)
    e.index = rvalue(checker, e.index)
    base = e.base.type
    if isinstance(base, t.TupleType):
        size = len(base.elements)
        if not isinstance(e.index.value, int):
            raise CompileError("the index of a tuple must be known at compile time", e.index.start)
    elif isinstance(base, t.StackType):
        size = base.size
        if not (e.index.type == t.INTEGER or is_bits(t.strip(e.index.type))):
            raise CompileError(f"expected a number as index, found {describe(e.index)}", e.index.start)
    else:
        raise CompileError(f"{describe(e.base)} has no elements", e.at)
    if e.index.value is not None and not 0 <= e.index.value < size:
        raise CompileError(f"index {e.index.value} is outside {base}", e.index.at)
    if isinstance(base, t.TupleType):
        e.type = base.elements[e.index.value]
        if e.base.value is not None:
            e.value = e.base.value[e.index.value]
        return e
    e.type = base.element
    return e


def _slice(checker: Checker, e: syntax.Slice) -> syntax.Expression:
    e.base = rvalue(checker, e.base)
    base = t.strip(e.base.type)
    known = base == t.INTEGER and isinstance(e.base.value, int)
    if not (known or isinstance(base, t.BitType)):
        raise CompileError(f"only bits can be sliced, not {describe(e.base)}", e.at)
    high, low = (
        constant_value(checker, e.high, "a slice bound"),
        constant_value(checker, e.low, "a slice bound"),
    )
    if e.counted:
        high += low - 1
        e.high, e.counted = syntax.Integer(e.high.at, high, None, False, str(high)), False
    width = base.width if isinstance(base, t.BitType) else MAX_WIDTH
    if not 0 <= low <= high < width:
        raise CompileError(f"[{high}:{low}] is not a slice of {base}", e.at)
    e.high.value, e.low.value = high, low
    e.type = t.BitType(high - low + 1)
    if e.base.value is not None:
        e.value = fold.slice_value(e.base.value, high, low)
    return e


# --- lists and sets


def _list(checker: Checker, e: syntax.ListExpression) -> syntax.Expression:
    e.items = [rvalue(checker, i) for i in e.items]
    e.type = t.TupleType(tuple(i.type for i in e.items), exact=False)
    e.value = tuple(i.value for i in e.items) if all(i.value is not None for i in e.items) else None
    return e


def _record(checker: Checker, e: syntax.StructExpression) -> syntax.Expression:
    names = [n for n, _ in e.fields]
    for name, value in e.fields:
        if names.count(name) > 1:
            raise CompileError(f"field `{name}` is given twice", value.at)
    e.fields = [(n, rvalue(checker, v)) for n, v in e.fields]
    e.type = t.RecordType(tuple((n, v.type) for n, v in e.fields))
    return e


def _mask(checker: Checker, e: syntax.Mask) -> syntax.Expression:
    e.left, e.mask = rvalue(checker, e.left), rvalue(checker, e.mask)
    e.type = t.SetType(e.left.type)
    return e


def _range(checker: Checker, e: syntax.Range) -> syntax.Expression:
    e.low, e.high = rvalue(checker, e.low), rvalue(checker, e.high)
    e.type = t.SetType(e.low.type)
    return e


def set_of(checker: Checker, e: syntax.Expression, type_: t.Type) -> syntax.Expression:
    """Checks a set of values of the type: a value, a mask, a range, or `_`."""
    checked = expression(checker, e)
    if isinstance(checked, syntax.Mask):
        checked.left, checked.mask = (
            convert(plain_bits(p), _set_bits(type_, p)) for p in (checked.left, checked.mask)
        )
    elif isinstance(checked, syntax.Range):
        checked.low, checked.high = (
            convert(plain_bits(p), _set_bits(type_, p)) for p in (checked.low, checked.high)
        )
    elif isinstance(checked, syntax.Anything | syntax.DefaultValue):
        pass
    elif isinstance(checked.type, t.SetType):
        if checked.type.element != type_:
            raise CompileError(f"expected a set of {type_}, found a set of {checked.type.element}", e.at)
        return checked
    else:
        checked = convert(checked, type_)
    checked.type = checked.type if not isinstance(checked.type, t.SetType) else t.SetType(type_)
    return checked


def _set_bits(type_: t.Type, e: syntax.Expression) -> t.Type:
    bits = t.strip(type_)
    if not isinstance(bits, t.BitType):
        raise CompileError(f"masks and ranges need bits, not {type_}", e.at)
    return bits


_CHECKERS: dict[type[syntax.Expression], Callable[[Checker, Any], syntax.Expression]] = {
    syntax.Integer: _integer,
    syntax.Boolean: _boolean,
    syntax.String: _string,
    syntax.Name: _name,
    syntax.TypeExpression: _type_expression,
    syntax.Member: _member,
    syntax.Index: _index,
    syntax.Slice: _slice,
    syntax.Unary: unary,
    syntax.Binary: binary,
    syntax.Conditional: conditional,
    syntax.Cast: cast,
    syntax.Call: lambda checker, e: checker.checkers.call(checker, e),
    syntax.ListExpression: _list,
    syntax.StructExpression: _record,
    syntax.DefaultValue: _untyped,
    syntax.InvalidHeader: _untyped,
    syntax.Anything: _untyped,
    syntax.Mask: _mask,
    syntax.Range: _range,
}


# --- l-values


def lvalue(checker: Checker, e: syntax.Expression) -> syntax.Expression:
    """The checked expression, which must be assignable. Raises CompileError if it is not."""
    checked = rvalue(checker, e)
    problem = _not_assignable(checked)
    if problem:
        raise CompileError(problem, e.start)
    return checked


def _not_assignable(e: syntax.Expression) -> str:
    if isinstance(e, syntax.Name):
        declaration = e.declaration
        if isinstance(declaration, syntax.Variable):
            return ""
        if isinstance(declaration, syntax.Parameter):
            if declaration.direction in ("out", "inout"):
                return ""
            how = f"an `{declaration.direction}`" if declaration.direction else "a directionless"
            return f"`{e.name}` is {how} parameter and cannot be assigned to"
        return f"{describe(e)} cannot be assigned to"
    if isinstance(e, syntax.Member) and e.name not in ("lastIndex", "size", "hit", "miss", "action_run"):
        return _not_assignable(e.base)
    if isinstance(e, syntax.Member) and isinstance(e.base.type, t.StructType):
        return _not_assignable(e.base)
    if isinstance(e, syntax.Index | syntax.Slice):
        return _not_assignable(e.base)
    return f"{describe(e)} cannot be assigned to"
