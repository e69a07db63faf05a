"""Types and constant values of expressions."""

from collections.abc import Callable
from typing import Any

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler._check_types import TypeChecker
from inagg_switch.errors import CompileError, Position

_ARITHMETIC = frozenset(["+", "-", "*", "/", "%", "&", "|", "^", "|+|", "|-|"])
_ORDER = frozenset(["<", "<=", ">", ">="])


def is_bits(type_: t.Type) -> bool:
    """bit<W> or int<W>."""
    return isinstance(type_, t.BitType)


class ExpressionChecker(TypeChecker):
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
            syntax.Unary: self._unary,
            syntax.Binary: self._binary,
            syntax.Conditional: self._conditional,
            syntax.Cast: self._cast,
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
            raise CompileError(f"{_describe(checked)} is not a value", checked.start)
        return checked if to is None else self.convert(checked, to, what)

    def constant(self, expression: syntax.Expression, what: str) -> int:
        checked = self.rvalue(expression)
        if isinstance(checked.value, bool) or not isinstance(checked.value, int):
            raise CompileError(f"{what} must be a number known at compile time", expression.start)
        return checked.value

    # --- conversions

    def convert(self, e: syntax.Expression, to: t.Type, what: str = "") -> syntax.Expression:
        """The implicit conversions of the specification's section 8.11.2; else an error."""
        have = e.type
        if have == to or to == t.ANYTHING or isinstance(to, t.TypeVariable):
            return e
        if isinstance(e, syntax.DefaultValue | syntax.InvalidHeader):
            return self._default(e, to)
        if isinstance(e, syntax.Conditional) and isinstance(have, t.TupleType | t.RecordType):
            e.then, e.otherwise = self.convert(e.then, to, what), self.convert(e.otherwise, to, what)
            e.type = to
            return e
        if have == t.INTEGER and isinstance(t.strip(to), t.BitType) and not isinstance(to, t.EnumType):
            return self._converted(e, to)
        if isinstance(have, t.EnumType) and have.base is not None and have.base == to:
            return self._converted(e, to)
        if isinstance(e, syntax.ListExpression):
            made = self._list_to(e, to)
            if made is not None:
                return made
        if isinstance(e, syntax.StructExpression) and isinstance(to, t.StructType):
            return self._record_to(e, to)
        raise CompileError(f"expected {to}{what and ' for ' + what}, found {_describe(e)}", e.start)

    def _converted(self, e: syntax.Expression, to: t.Type) -> syntax.Expression:
        if e.value is None:
            if e.type == t.INTEGER:
                raise CompileError("a number without a width must be known at compile time", e.start)
            value = None
        else:
            value = fold.cast_value(e.value, to)
        cast = syntax.Cast(e.at, None, e)
        cast.type, cast.value = to, value
        return cast

    def _default(self, e: syntax.Expression, to: t.Type) -> syntax.Expression:
        if isinstance(e, syntax.InvalidHeader) and not (t.is_header(to) or t.is_union(to)):
            raise CompileError(f"`{{#}}` is an invalid header, and {to} is not a header", e.at)
        e.type = to
        return e

    def _list_to(self, e: syntax.ListExpression, to: t.Type) -> syntax.Expression | None:
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
            items = items[:-1] + [self._another_default(items[-1].at) for _ in parts[len(items) - 1 :]]
        if len(items) != len(parts):
            raise CompileError(f"{to} has {len(parts)} parts, the list {len(items)}", e.at)
        e.items = [self.convert(item, part) for item, part in zip(items, parts, strict=True)]
        e.type = to
        e.value = tuple(i.value for i in e.items) if all(i.value is not None for i in e.items) else None
        return e

    def _another_default(self, at: Position) -> syntax.Expression:
        made = syntax.DefaultValue(at)
        made.type = t.ANYTHING
        return made

    def _record_to(self, e: syntax.StructExpression, to: t.StructType) -> syntax.Expression:
        given = dict(e.fields)
        unknown = [n for n in given if n not in to.fields]
        if unknown:
            raise CompileError(f"{to} has no field `{unknown[0]}`", given[unknown[0]].at)
        missing = [n for n in to.fields if n not in given]
        if missing and not e.defaulted:
            raise CompileError(f"field `{missing[0]}` of {to} is not given", e.at)
        items = [self.convert(given.get(n) or self._another_default(e.at), f) for n, f in to.fields.items()]
        e.fields = list(zip(to.fields, items, strict=True))
        e.type = to
        e.value = tuple(i.value for i in items) if all(i.value is not None for i in items) else None
        return e

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
        scope = self.scope.outermost() if e.absolute else self.scope
        found = scope.find(e.name)
        if found is None:
            raise CompileError(f"`{e.name}` is not declared", e.at)
        if isinstance(found, list):
            e.declaration = found[0]
            e.type = t.CallableType(f"function {e.name}")
            return e
        if isinstance(found, t.Type | syntax.TypeDeclaration):
            return self._type_expression(syntax.TypeExpression(e.at, syntax.NamedTypeRef(e.at, e.name)))
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
            if e.base.value is not None:
                e.value = e.base.value[list(base.fields).index(e.name)]
            return e
        if isinstance(base, t.StackType):
            return self._stack_member(e, base)
        if isinstance(base, t.ApplyResultType) and e.name in ("hit", "miss", "action_run"):
            e.type = t.ActionListType(base.table) if e.name == "action_run" else t.BOOL
            return e
        raise CompileError(f"{_describe(e.base)} has no member `{e.name}`", e.at)

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
                raise CompileError(f"expected a number as index, found {_describe(e.index)}", e.index.start)
        else:
            raise CompileError(f"{_describe(e.base)} has no elements", e.at)
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
        if not isinstance(base, t.BitType):
            raise CompileError(f"only bits can be sliced, not {_describe(e.base)}", e.at)
        high, low = self.constant(e.high, "a slice bound"), self.constant(e.low, "a slice bound")
        if not 0 <= low <= high < base.width:
            raise CompileError(f"[{high}:{low}] is not a slice of {base}", e.at)
        e.high.value, e.low.value = high, low
        e.type = t.BitType(high - low + 1)
        if e.base.value is not None:
            e.value = fold.slice_value(e.base.value, high, low)
        return e

    # --- operators

    def _unary(self, e: syntax.Unary) -> syntax.Expression:
        e.operand = self.rvalue(e.operand)
        if e.operator == "!":
            e.operand = self.convert(e.operand, t.BOOL, "operand of `!`")
            e.type = t.BOOL
        else:
            e.operand = self._plain_bits(e.operand)
            type_ = e.operand.type
            if not (is_bits(type_) or (type_ == t.INTEGER and e.operator != "~")):
                raise CompileError(f"`{e.operator}` needs bits, found {_describe(e.operand)}", e.at)
            e.type = type_
        if e.operand.value is not None:
            e.value = fold.fold_unary(e.operator, e.operand.value, e.type)
        return e

    def _plain_bits(self, e: syntax.Expression) -> syntax.Expression:
        """A serialisable enum's value as bits."""
        if isinstance(e.type, t.EnumType) and e.type.base is not None:
            return self._converted(e, e.type.base)
        return e

    def _binary(self, e: syntax.Binary) -> syntax.Expression:
        e.left, e.right = self.rvalue(e.left), self.rvalue(e.right)
        return self.typed_binary(e)

    def typed_binary(self, e: syntax.Binary) -> syntax.Expression:
        """The operands are checked already."""
        if e.operator in ("&&", "||"):
            e.left = self.convert(e.left, t.BOOL, f"operand of `{e.operator}`")
            e.right = self.convert(e.right, t.BOOL, f"operand of `{e.operator}`")
            e.type = t.BOOL
        elif e.operator in ("==", "!="):
            self._equality(e)
        elif e.operator in ("<<", ">>"):
            self._shift(e)
        elif e.operator == "++":
            e.left, e.right = self._plain_bits(e.left), self._plain_bits(e.right)
            left, right = e.left.type, e.right.type
            if not (isinstance(left, t.BitType) and isinstance(right, t.BitType)):
                raise CompileError(f"`++` needs bits of known width, found {left} and {right}", e.at)
            e.type = fold.concatenated(left, right)
        else:
            self._arithmetic(e)
        self._fold(e)
        return e

    def _fold(self, e: syntax.Binary) -> None:
        left, right = e.left.value, e.right.value
        if e.operator in ("&&", "||") and left is not None and right is None:
            # Short circuit: `false && x` is known whatever x is.
            e.value = left if left == (e.operator == "||") else None
            return
        if e.operator in ("/", "%") and right == 0:
            raise CompileError("division by zero", e.at)
        if left is None or right is None:
            return
        try:
            e.value = fold.fold_binary(e.operator, left, right, e.left.type, e.right.type)
        except fold.FoldError as error:
            raise CompileError(str(error), e.at) from None

    def _equality(self, e: syntax.Binary) -> None:
        e.type = t.BOOL
        left, right = e.left, e.right
        if isinstance(left, syntax.InvalidHeader | syntax.ListExpression | syntax.StructExpression):
            e.left = self.convert(left, right.type)
        elif left.type == t.INTEGER and right.type != t.INTEGER:
            e.left = self.convert(left, self._plain_bits(right).type, "operand of a comparison")
            e.right = self._plain_bits(right)
        elif right.type != left.type and isinstance(left.type, t.EnumType):
            e.left = self._plain_bits(left)
            e.right = self.convert(right, e.left.type, "operand of a comparison")
        else:
            e.right = self.convert(right, left.type, "operand of a comparison")
        type_ = e.left.type
        if isinstance(type_, t.CallableType | t.ExternType | t.BlockType) or type_ == t.STRING:
            raise CompileError(f"values of type {type_} cannot be compared", e.at)

    def _shift(self, e: syntax.Binary) -> None:
        e.left, e.right = self._plain_bits(e.left), self._plain_bits(e.right)
        left, right = e.left.type, e.right.type
        if left == t.INTEGER and e.right.value is None:
            raise CompileError("a number without a width can only be shifted by a constant", e.at)
        if not (is_bits(left) or left == t.INTEGER):
            raise CompileError(f"`{e.operator}` needs bits, found {_describe(e.left)}", e.at)
        if isinstance(right, t.BitType):
            if right.signed:
                raise CompileError("the distance of a shift must not be signed", e.right.at)
        elif right != t.INTEGER:
            raise CompileError(
                f"`{e.operator}` needs a number of bits, found {_describe(e.right)}", e.right.at
            )
        elif e.right.value < 0:
            raise CompileError("shift by a negative number", e.right.at)
        e.type = left

    def _arithmetic(self, e: syntax.Binary) -> None:
        e.left, e.right = self._plain_bits(e.left), self._plain_bits(e.right)
        if e.left.type == t.INTEGER and is_bits(e.right.type):
            e.left = self.convert(e.left, e.right.type)
        elif e.right.type == t.INTEGER and is_bits(e.left.type):
            e.right = self.convert(e.right, e.left.type)
        left, right = e.left.type, e.right.type
        if left != right or not (is_bits(left) or left == t.INTEGER):
            raise CompileError(
                f"`{e.operator}` needs two operands of the same bit type, found {left} and {right}", e.at
            )
        if (
            left == t.INTEGER
            and e.operator in ("|+|", "|-|", "&", "|", "^")
            and e.operator.strip("|") in ("+", "-")
        ):
            raise CompileError(f"`{e.operator}` needs operands with a width", e.at)
        if e.operator in ("/", "%") and isinstance(left, t.BitType) and left.signed:
            raise CompileError(f"`{e.operator}` is not defined for signed numbers", e.at)
        e.type = t.BOOL if e.operator in _ORDER else left

    def _conditional(self, e: syntax.Conditional) -> syntax.Expression:
        e.condition = self.rvalue(e.condition, t.BOOL, "condition of `?:`")
        e.then, e.otherwise = self.rvalue(e.then), self.rvalue(e.otherwise)
        if e.then.type == t.INTEGER or isinstance(e.then, syntax.ListExpression | syntax.StructExpression):
            e.then = self.convert(e.then, e.otherwise.type)
        e.otherwise = self.convert(e.otherwise, e.then.type, "second value of `?:`")
        e.type = e.then.type
        if e.condition.value is not None:
            e.value = e.then.value if e.condition.value else e.otherwise.value
        elif e.type == t.INTEGER:
            raise CompileError("the width of one of the values must be known, as in 8w1", e.then.start)
        return e

    def _cast(self, e: syntax.Cast) -> syntax.Expression:
        assert e.ref is not None
        to = self.type_of(e.ref)
        e.operand = self.rvalue(e.operand)
        have = e.operand.type
        if isinstance(e.operand, syntax.ListExpression | syntax.StructExpression | syntax.InvalidHeader):
            return self.convert(e.operand, to)
        if not _castable(have, to, e.operand.value):
            raise CompileError(f"cannot cast {_describe(e.operand)} to {to}", e.at)
        e.type = to
        if e.operand.value is not None:
            e.value = fold.cast_value(e.operand.value, to) if have != to else e.operand.value
        return e

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
                self.convert(self._plain_bits(p), self._set_bits(type_, p))
                for p in (checked.left, checked.mask)
            )
        elif isinstance(checked, syntax.Range):
            checked.low, checked.high = (
                self.convert(self._plain_bits(p), self._set_bits(type_, p))
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
            return f"{_describe(e)} cannot be assigned to"
        if isinstance(e, syntax.Member) and e.name not in ("lastIndex", "size", "hit", "miss", "action_run"):
            return self._not_assignable(e.base)
        if isinstance(e, syntax.Member) and isinstance(e.base.type, t.StructType):
            return self._not_assignable(e.base)
        if isinstance(e, syntax.Index | syntax.Slice):
            return self._not_assignable(e.base)
        return f"{_describe(e)} cannot be assigned to"


def _castable(have: t.Type, to: t.Type, value: Any) -> bool:
    if have == to:
        return True
    if (isinstance(have, t.NewType) and have.base == to) or (
        isinstance(to, t.NewType) and (to.base == have or have == t.INTEGER)
    ):
        return True
    if isinstance(have, t.NewType) and isinstance(to, t.NewType):
        return t.strip(have) == t.strip(to)
    source, target = t.strip(have), t.strip(to)
    if (isinstance(have, t.EnumType) and have.base is None) or (
        isinstance(to, t.EnumType) and to.base is None
    ):
        return False
    if source == t.INTEGER:
        return isinstance(target, t.BitType) or (target == t.BOOL and value in (0, 1))
    if source == t.BOOL:
        return target == t.BitType(1)
    if isinstance(source, t.BitType):
        if target == t.BOOL:
            return source == t.BitType(1)
        if target == t.INTEGER:
            return value is not None
        if isinstance(target, t.BitType):
            return source.signed == target.signed or source.width == target.width
    return False


def _describe(e: syntax.Expression) -> str:
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


describe = _describe
