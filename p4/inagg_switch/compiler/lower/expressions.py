"""Expressions: checked syntax to IR."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from inagg_switch.compiler import fold, ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.diagnostics import FollowUpError
from inagg_switch.compiler.lower.integers import Integers
from inagg_switch.compiler.names import Namespace
from inagg_switch.errors import CompileError, Position

Value = ir.Expr | ir.Object | ir.Block | Any


class _Values(dict[int, Value]):
    """What each declaration stands for, by its id. `wrong`: those that have an error."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: set[int] = set()

    def get(self, declaration: int, default: Value = None) -> Value:
        """Raises FollowUpError for a declaration that is wrong."""
        if declaration in self.wrong:
            raise FollowUpError
        return super().get(declaration, default)


class ExpressionLowerer:
    """Lowers the expressions of one block. `values` says what each declaration stands for in this instance."""

    def __init__(self, use_type: Callable[[t.Type, Position], None]) -> None:
        self.use_type = use_type
        self.values = _Values()
        self.namespace = Namespace()
        self.locals: set[str] = set()  # variables that no other body of the block can see
        self.in_field_list = False  # of a checksum: tuples may occur
        self.pending: list[ir.Stmt] = []  # what must run before the statement that is being lowered
        self.known: dict[int, ir.Expr] = {}  # expressions that are lowered already, by the node's id
        self._integers = Integers(self.expression, self._evaluate)
        self._lowerers: dict[type, Callable[[Any], ir.Expr]] = {
            syntax.Name: self._name,
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
            syntax.DefaultValue: lambda e: zero(e.type),
            syntax.InvalidHeader: lambda e: zero(e.type),
        }

    def call(self, e: syntax.Call) -> ir.Expr:
        raise NotImplementedError

    def expression(self, e: syntax.Expression) -> ir.Expr:
        if id(e) in self.known:
            return self.known[id(e)]
        if e.value is not None and not isinstance(e, syntax.Call):
            return constant(e.value, e.type)
        if isinstance(e, syntax.Call) and e.value is not None and e.type == t.INTEGER:
            return constant(e.value, e.type)
        if _of_int(e):
            return self._of_integers(e)
        return self._lowerers[type(e)](e)

    def _of_integers(self, e: syntax.Expression) -> ir.Expr:
        known = self._evaluate(e)
        if known is not None:
            return constant(known, e.type)
        if isinstance(e, syntax.Cast):
            return self._integers.cast(e.operand, e.type)
        if isinstance(e, syntax.Binary) and e.type == t.BOOL:
            return self._integers.compared(e)
        raise CompileError("this number must be known at compile time, or have a width", e.start)

    def _name(self, e: syntax.Name) -> ir.Expr:
        value = self.values.get(id(e.declaration))
        if not isinstance(value, ir.Expr):
            raise CompileError(f"`{e.name}` cannot be used as a value here", e.at)
        return value

    def _member(self, e: syntax.Member) -> ir.Expr:
        base = e.base.type
        if isinstance(base, t.ApplyResultType):
            apply = self.expression(e.base)
            assert isinstance(apply, ir.TableApply)
            if e.name == "action_run":
                return ir.Operation(t.BitType(32), "action_run", (apply,))
            return ir.TableHit(t.BOOL, apply, e.name == "miss")
        lowered = self.expression(e.base)
        if isinstance(base, t.StackType):
            if e.name == "next":
                return ir.StackNext(e.type, lowered)
            if e.name == "last":
                return ir.StackLast(e.type, lowered)
            return ir.Operation(e.type, "last_index", (lowered,))
        return ir.Field(e.type, lowered, e.name)

    def _index(self, e: syntax.Index) -> ir.Expr:
        base = self.expression(e.base)
        if isinstance(e.base.type, t.TupleType):
            return ir.Part(e.type, base, e.index.value)
        if e.index.type == t.INTEGER and self._evaluate(e.index) is None:
            return ir.Element(e.type, base, self._integers.cast(e.index, t.BitType(64, True)))
        if e.index.type == t.INTEGER:
            place = self.number(e.index, "the index")
            assert isinstance(e.base.type, t.StackType)
            if not 0 <= place < e.base.type.size:
                raise CompileError(f"index {place} is outside {e.base.type}", e.index.at)
            return ir.Element(e.type, base, ir.Const(t.BitType(32), place))
        return ir.Element(e.type, base, self.expression(e.index))

    def _slice(self, e: syntax.Slice) -> ir.Expr:
        return ir.Slice(e.type, self.expression(e.base), e.high.value, e.low.value)

    def _unary(self, e: syntax.Unary) -> ir.Expr:
        operand = self.expression(e.operand)
        if e.operator == "+":
            return operand
        return ir.Operation(e.type, "neg" if e.operator == "-" else e.operator, (operand,))

    def _binary(self, e: syntax.Binary) -> ir.Expr:
        if e.operator in ("/", "%"):
            return self._divided(e)
        return ir.Operation(e.type, e.operator, (self.expression(e.left), self._shift_distance(e)))

    def _divided(self, e: syntax.Binary) -> ir.Expr:
        """BMv2 has no division: what p4c takes is one by a power of two, or of values that it knows."""
        known = self._evaluate(e)
        if known is not None:
            return constant(known, e.type)
        if self._evaluate(e.left) == 0:
            # What the divisor calls is still called.
            return ir.Operation(e.type, "&", (ir.Const(e.type, 0), self.expression(e.right)))
        divisor = self._evaluate(e.right)
        if not isinstance(divisor, int) or divisor <= 0 or divisor & (divisor - 1):
            raise CompileError(
                f"`{e.operator}` needs values known at compile time, or a power of two on its right", e.at
            )
        left = self.expression(e.left)
        if e.operator == "%":
            return ir.Operation(e.type, "&", (left, ir.Const(e.type, divisor - 1)))
        return ir.Operation(e.type, ">>", (left, ir.Const(t.BitType(32), divisor.bit_length() - 1)))

    def _shift_distance(self, e: syntax.Binary) -> ir.Expr:
        if e.operator in ("<<", ">>") and e.right.type == t.INTEGER:
            distance = self.number(e.right, "the distance of a shift")
            if distance < 0:
                raise CompileError("shift by a negative number", e.right.at)
            return ir.Const(t.BitType(32), min(distance, fold.MAX_SHIFT))
        return self.expression(e.right)

    def _conditional(self, e: syntax.Conditional) -> ir.Expr:
        if e.condition.value is not None:
            return self.expression(e.then if e.condition.value else e.otherwise)
        return ir.Operation(
            e.type, "conditional", tuple(self.expression(x) for x in (e.condition, e.then, e.otherwise))
        )

    def _cast(self, e: syntax.Cast) -> ir.Expr:
        operand = self.expression(e.operand)
        if t.strip(e.type) == t.strip(e.operand.type):
            return operand
        return ir.Operation(e.type, "cast", (operand,))

    def _list(self, e: syntax.ListExpression) -> ir.Expr:
        if isinstance(e.type, t.StructType | t.StackType):
            self.use_type(e.type, e.at)
        else:
            self._check_widths(e.items)
        return ir.Construct(e.type, tuple(self.expression(i) for i in e.items))

    def _check_widths(self, items: Iterable[syntax.Expression]) -> None:
        for item in items:
            if item.type == t.INTEGER:
                raise CompileError("the width of this number is not known; write it as in 8w1", item.start)

    def _record(self, e: syntax.StructExpression) -> ir.Expr:
        if isinstance(e.type, t.RecordType):
            self._check_widths(v for _, v in e.fields)
            return ir.Construct(
                t.TupleType(tuple(f for _, f in e.type.fields)),
                tuple(self.expression(v) for _, v in e.fields),
            )
        self.use_type(e.type, e.at)
        return ir.Construct(e.type, tuple(self.expression(v) for _, v in e.fields))

    def stable(self, target: ir.Expr, at: Position) -> ir.Expr:
        """The l-value with its indices computed beforehand where computing them changes something."""
        if isinstance(target, ir.Field | ir.Slice | ir.Part):
            return replace(target, base=self.stable(target.base, at))
        if isinstance(target, ir.Element):
            base, index = self.stable(target.base, at), target.index
            if ir.impure(index):
                self.pending.append(ir.Declare(self.temporary(index.type, at, "index"), index.type, index))
                index = ir.Var(index.type, self.pending[-1].name)  # type: ignore[attr-defined]
            return ir.Element(target.type, base, index)
        return target

    def temporary(self, type_: t.Type, at: Position, name: str) -> str:
        """A new name for a variable that the source does not have."""
        self.use_type(type_, at)
        name = self.namespace.unique(name)
        self.locals.add(name)
        return name

    # --- numbers that the program's structure depends on

    def fixed(self, e: syntax.Expression, what: str) -> Any:
        """The value of an expression of constants and constructor parameters."""
        value = self._evaluate(e)
        if value is None:
            raise CompileError(f"{what} must be known at compile time", e.start)
        return value

    def number(self, e: syntax.Expression, what: str) -> int:
        """The value of an expression of constants and constructor parameters."""
        value = self._evaluate(e)
        if isinstance(value, bool) or not isinstance(value, int):
            raise CompileError(f"{what} must be a number known at compile time", e.at)
        return value

    def member(self, e: syntax.Expression, what: str) -> str:
        """The name of the member of an enum that such an expression is."""
        if not isinstance(e.type, t.EnumType):
            raise CompileError(f"{what} must be a member of an enum", e.start)
        name: str = list(e.type.members)[self.fixed(e, what)]
        return name

    def _evaluate(self, e: syntax.Expression) -> Any:
        if e.value is not None:
            return e.value
        if isinstance(e, syntax.Name):
            known = self.values.get(id(e.declaration))
            return known.value if isinstance(known, ir.Const) else None
        if isinstance(e, syntax.Cast):
            inner = self._evaluate(e.operand)
            return None if inner is None else fold.cast_value(inner, e.type)
        if isinstance(e, syntax.Slice):
            inner = self._evaluate(e.base)
            high, low = self.number(e.high, "the bounds"), self.number(e.low, "the bounds")
            return None if inner is None else fold.slice_value(inner, high, low)
        if isinstance(e, syntax.Unary):
            inner = self._evaluate(e.operand)
            return None if inner is None else fold.fold_unary(e.operator, inner, e.type)
        if isinstance(e, syntax.Conditional):
            condition = self._evaluate(e.condition)
            return None if condition is None else self._evaluate(e.then if condition else e.otherwise)
        if isinstance(e, syntax.Binary):
            left, right = self._evaluate(e.left), self._evaluate(e.right)
            if left is None or right is None:
                return None
            try:
                return fold.fold_binary(e.operator, left, right, e.left.type, e.right.type)
            except fold.FoldError as error:
                raise CompileError(str(error), e.at) from None
        return None

    # --- arguments

    def variable(self, declaration: syntax.Declaration, type_: t.Type) -> str:
        """A new name for a variable or parameter of this block."""
        self.use_type(type_, declaration.at)
        name = self.namespace.unique(declaration.name)
        self.values[id(declaration)] = ir.Var(type_, name)
        return name

    def arguments(
        self,
        parameters: list[syntax.Parameter],
        bound: dict[str, syntax.Expression | None],
        private: bool,
        in_block: bool = False,
    ) -> tuple[ir.CallArgument, ...]:
        """Copy-in and copy-out, or references where nobody can tell the difference.

        `private`: the callee sees nothing of this block but its parameters. Otherwise only the caller's own
        variables may be referred to, because the callee might see the rest under another name.

        `in_block`: the callee is a parser or control. To others p4c gives new headers: of one that is invalid the
        callee sees no fields, and what is written to one while it is invalid does not come back. Blocks are
        inlined: only arguments that overlap get temporaries.
        """
        lowered = [
            (p, None if bound.get(p.name) is None else self.expression(bound[p.name]))  # type: ignore[arg-type]
            for p in parameters
        ]
        result: list[ir.CallArgument] = []
        for parameter, expr in lowered:
            how = "value"
            direction = parameter.direction or "in"
            whole = isinstance(parameter.type, t.StructType | t.StackType | t.TupleType | t.ExternType)
            if direction != "in" or whole:
                # What is only read is copied, if it overlaps: an inout stays where it is. An out cannot, as it is
                # cleared before the others are read.
                others = [
                    e
                    for p, e in lowered
                    if p is not parameter
                    and e is not None
                    and (direction != "inout" or p.direction in ("out", "inout") or ir.impure(e))
                ]
                anew = not in_block and t.has_header(t.strip(parameter.type))
                alone = expr is not None and not anew and self._can_refer(expr, others, private)
                how = "reference" if alone or isinstance(parameter.type, t.ExternType) else "copy"
                if how == "copy" and in_block and expr is not None and _overlaps(expr, others):
                    how = "temporary"
            if how in ("copy", "temporary") and direction == "in":
                how = "value"
            result.append(ir.CallArgument(how, direction, parameter.type, expr))
        return tuple(result)

    def _can_refer(self, e: ir.Expr, others: list[ir.Expr], private: bool) -> bool:
        path = path_of(e)
        if path is None:
            return False
        if not private and path[0] not in self.locals:
            return False
        return not _overlaps(e, others)


def _of_int(e: syntax.Expression) -> bool:
    """Its operands are numbers without a width, which only constants and constructor parameters can be."""
    operand = e.left if isinstance(e, syntax.Binary) else getattr(e, "operand", None)
    return operand is not None and operand.type == t.INTEGER


def path_of(e: ir.Expr) -> tuple[str, ...] | None:
    """Variable and fields of an l-value that a reference can stand for."""
    if isinstance(e, ir.Var):
        return (e.name,)
    if isinstance(e, ir.Field):
        base = path_of(e.base)
        # A member of a header union is not independent of its siblings.
        return None if base is None or t.is_union(e.base.type) else (*base, e.name)
    if isinstance(e, ir.Part):
        base = path_of(e.base)
        return None if base is None else (*base, str(e.index))
    return None


def paths_in(e: ir.Expr) -> list[tuple[str, ...]]:
    """Every variable that an expression looks at."""
    own = path_of(e)
    if own is not None:
        return [own]
    parts: list[ir.Expr] = []
    for value in vars(e).values():
        if isinstance(value, ir.Expr):
            parts.append(value)
        elif isinstance(value, tuple):
            parts.extend(v for v in value if isinstance(v, ir.Expr))
            parts.extend(v.expr for v in value if isinstance(v, ir.CallArgument) and v.expr is not None)
    return [path for part in parts for path in paths_in(part)]


def _overlaps(e: ir.Expr, others: Iterable[ir.Expr]) -> bool:
    return any(_overlap(path, other) for path in paths_in(e) for e2 in others for other in paths_in(e2))


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def constant(value: Any, type_: t.Type) -> ir.Expr:
    """A known value as IR."""
    if isinstance(type_, t.StructType) and isinstance(value, tuple):
        return ir.Construct(
            type_, tuple(constant(v, f) for v, f in zip(value, type_.fields.values(), strict=True))
        )
    if isinstance(type_, t.StackType) and isinstance(value, tuple):
        return ir.Construct(type_, tuple(constant(v, type_.element) for v in value))
    if isinstance(type_, t.TupleType) and isinstance(value, tuple):
        return ir.Construct(type_, tuple(constant(v, f) for v, f in zip(value, type_.elements, strict=True)))
    return ir.Const(type_, value)


def zero(type_: t.Type) -> ir.Expr:
    """The default value of a type: zero, false, the first member, an invalid header."""
    return ir.Const(type_, None)
