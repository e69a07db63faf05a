"""Types and constant values of expressions."""

from collections.abc import Callable
from typing import Any

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.conversions import describe, is_bits
from inagg_switch.compiler.check.operators import OperatorChecker
from inagg_switch.compiler.diagnostics import FollowUpError
from inagg_switch.compiler.parse.lexer import MAX_WIDTH
from inagg_switch.errors import CompileError


class ExpressionChecker(OperatorChecker):
    """expression() gives the checked expression, which may be another node: conversions are put in."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = "top"  # or parser, control, action, function, key
        self._checkers: dict[type, Callable[[Any], syntax.Expression]] = {
            syntax.Integer: self._integer,
            syntax.Boolean: self._boolean,
            syntax.String: self._string,
            syntax.Name: self._name,
            syntax.TypeExpression: self._type_expression,
            syntax.Member: self._member,
            syntax.Index: self._index,
            syntax.Slice: self._slice,
            syntax.Unary: self.unary,
            syntax.Binary: self.binary,
            syntax.Conditional: self.conditional,
            syntax.Cast: self.cast,
            syntax.Call: self.call,
            syntax.ListExpression: self._list,
            syntax.StructExpression: self._record,
            syntax.DefaultValue: self._untyped,
            syntax.InvalidHeader: self._untyped,
            syntax.Anything: self._untyped,
            syntax.Mask: self._mask,
            syntax.Range: self._range,
        }

    def call(self, e: syntax.Call) -> syntax.Expression:
        raise NotImplementedError

    def expression(self, e: syntax.Expression) -> syntax.Expression:
        return self._checkers[type(e)](e)

    def rvalue(self, e: syntax.Expression, to: t.Type | None = None, what: str = "") -> syntax.Expression:
        """An expression that has a value; converted to `to` if given."""
        checked = self.expression(e)
        if isinstance(checked, syntax.TypeExpression) or isinstance(checked.type, t.CallableType):
            raise CompileError(f"{describe(checked)} is not a value", checked.start)
        return checked if to is None else self.convert(checked, to, what)

    def constant(self, expression: syntax.Expression, what: str) -> int:
        checked = self.rvalue(expression)
        if isinstance(checked.value, bool) or not isinstance(checked.value, int):
            raise CompileError(f"{what} must be a number known at compile time", expression.start)
        return checked.value

    def structured(self, annotations: list[syntax.Annotation]) -> None:
        for annotation in annotations:
            if annotation.structured:
                annotation.expressions = [self._annotated(e, annotation) for e in annotation.expressions]

    def _annotated(self, e: syntax.Expression, annotation: syntax.Annotation) -> syntax.Expression:
        checked = self.rvalue(e)
        if checked.type not in (t.INTEGER, t.BOOL, t.STRING) or checked.value is None:
            raise CompileError(
                f"the values of @{annotation.name}[...] are constants of type int, bool or string", e.start
            )
        if checked.type == t.INTEGER and not -(1 << 63) <= checked.value < 1 << 63:
            raise CompileError(f"a number in @{annotation.name}[...] needs more than 64 bits", e.start)
        return checked

    # --- leaves

    def _integer(self, e: syntax.Integer) -> syntax.Expression:
        e.type = t.INTEGER if e.width is None else t.BitType(e.width, e.signed)
        e.value = fold.wrap(e.number, e.type)
        return e

    def _boolean(self, e: syntax.Boolean) -> syntax.Expression:
        e.type, e.value = t.BOOL, e.truth
        return e

    def _string(self, e: syntax.String) -> syntax.Expression:
        e.type, e.value = t.STRING, e.text
        return e

    def _untyped(self, e: syntax.Expression) -> syntax.Expression:
        e.type = t.ANYTHING
        return e

    def _name(self, e: syntax.Name) -> syntax.Expression:
        found = self.scope.find(e.name, absolute=e.absolute)
        if found is None:
            raise CompileError(f"`{e.name}` is not declared", e.at)
        if isinstance(found, list):
            e.declaration = found[0]
            e.type = t.CallableType(f"function {e.name}")
            return e
        if isinstance(found, t.Type | syntax.TypeDeclaration):
            return self._type_expression(
                syntax.TypeExpression(e.at, syntax.NamedTypeRef(e.at, e.name, absolute=e.absolute))
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

    def _type_expression(self, e: syntax.TypeExpression) -> syntax.Expression:
        e.type = self.type_of(e.ref)
        return e

    # --- parts

    def _member(self, e: syntax.Member) -> syntax.Expression:
        e.base = self.expression(e.base)
        if isinstance(e.base, syntax.TypeExpression):
            return self._type_member(e, e.base.type)
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
            return self._stack_member(e, base)
        if isinstance(base, t.ApplyResultType) and e.name in ("hit", "miss", "action_run"):
            e.type = t.ActionListType(base.table) if e.name == "action_run" else t.BOOL
            return e
        raise CompileError(f"{describe(e.base)} has no member `{e.name}`", e.at)

    def _type_member(self, e: syntax.Member, base: t.Type) -> syntax.Expression:
        if base == t.ERROR:
            members = self.errors
        elif isinstance(base, t.EnumType):
            members = dict(base.members)
        else:
            raise CompileError(f"type {base} has no members", e.at)
        if e.name not in members:
            raise CompileError(f"{base} has no member `{e.name}`", e.at)
        e.type, e.value = base, members[e.name]
        return e

    def _stack_member(self, e: syntax.Member, base: t.StackType) -> syntax.Expression:
        if e.name == "size":
            e.type, e.value = t.BitType(32), base.size
        elif e.name in ("lastIndex", "next", "last"):
            if self.inside != "parser":
                raise CompileError(f"`{e.name}` of a header stack exists in parsers only", e.at)
            e.type = t.BitType(32) if e.name == "lastIndex" else base.element
        else:
            raise CompileError(f"a header stack has no member `{e.name}`", e.at)
        return e

    def _index(self, e: syntax.Index) -> syntax.Expression:
        e.base = self.rvalue(e.base)
        e.index = self.rvalue(e.index)
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

    def _slice(self, e: syntax.Slice) -> syntax.Expression:
        e.base = self.rvalue(e.base)
        base = t.strip(e.base.type)
        known = base == t.INTEGER and isinstance(e.base.value, int)
        if not (known or isinstance(base, t.BitType)):
            raise CompileError(f"only bits can be sliced, not {describe(e.base)}", e.at)
        high, low = self.constant(e.high, "a slice bound"), self.constant(e.low, "a slice bound")
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

    # --- operators

    # --- lists and sets

    def _list(self, e: syntax.ListExpression) -> syntax.Expression:
        e.items = [self.rvalue(i) for i in e.items]
        e.type = t.TupleType(tuple(i.type for i in e.items), exact=False)
        e.value = tuple(i.value for i in e.items) if all(i.value is not None for i in e.items) else None
        return e

    def _record(self, e: syntax.StructExpression) -> syntax.Expression:
        names = [n for n, _ in e.fields]
        for name, value in e.fields:
            if names.count(name) > 1:
                raise CompileError(f"field `{name}` is given twice", value.at)
        e.fields = [(n, self.rvalue(v)) for n, v in e.fields]
        e.type = t.RecordType(tuple((n, v.type) for n, v in e.fields))
        return e

    def _mask(self, e: syntax.Mask) -> syntax.Expression:
        e.left, e.mask = self.rvalue(e.left), self.rvalue(e.mask)
        e.type = t.SetType(e.left.type)
        return e

    def _range(self, e: syntax.Range) -> syntax.Expression:
        e.low, e.high = self.rvalue(e.low), self.rvalue(e.high)
        e.type = t.SetType(e.low.type)
        return e

    def set_of(self, e: syntax.Expression, type_: t.Type) -> syntax.Expression:
        """A set of values of the type: a value, a mask, a range, or anything."""
        checked = self.expression(e)
        if isinstance(checked, syntax.Mask):
            checked.left, checked.mask = (
                self.convert(self.plain_bits(p), self._set_bits(type_, p))
                for p in (checked.left, checked.mask)
            )
        elif isinstance(checked, syntax.Range):
            checked.low, checked.high = (
                self.convert(self.plain_bits(p), self._set_bits(type_, p))
                for p in (checked.low, checked.high)
            )
        elif isinstance(checked, syntax.Anything | syntax.DefaultValue):
            pass
        elif isinstance(checked.type, t.SetType):
            if checked.type.element != type_:
                raise CompileError(f"expected a set of {type_}, found a set of {checked.type.element}", e.at)
            return checked
        else:
            checked = self.convert(checked, type_)
        checked.type = checked.type if not isinstance(checked.type, t.SetType) else t.SetType(type_)
        return checked

    def _set_bits(self, type_: t.Type, e: syntax.Expression) -> t.Type:
        bits = t.strip(type_)
        if not isinstance(bits, t.BitType):
            raise CompileError(f"masks and ranges need bits, not {type_}", e.at)
        return bits

    # --- l-values

    def lvalue(self, e: syntax.Expression) -> syntax.Expression:
        """An expression that can be assigned to."""
        checked = self.rvalue(e)
        problem = self._not_assignable(checked)
        if problem:
            raise CompileError(problem, e.start)
        return checked

    def _not_assignable(self, e: syntax.Expression) -> str:
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
            return self._not_assignable(e.base)
        if isinstance(e, syntax.Member) and isinstance(e.base.type, t.StructType):
            return self._not_assignable(e.base)
        if isinstance(e, syntax.Index | syntax.Slice):
            return self._not_assignable(e.base)
        return f"{describe(e)} cannot be assigned to"
