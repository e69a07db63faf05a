"""IR statements to C++."""

from collections.abc import Callable, Iterable
from typing import Any

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.expressions import ExpressionEmitter, number, width_of
from inagg_switch.compiler.emit.primitives import PrimitiveEmitter


class StatementEmitter(PrimitiveEmitter, ExpressionEmitter):
    """Writes lines. `leave` is how the body that is being written returns early."""

    def __init__(self, struct_names: dict[int, str]) -> None:
        super().__init__(struct_names)
        self.lines: list[str] = []
        self._level = 0
        self.leave = "return;"
        self._writers: dict[type, Callable[[Any], None]] = {
            ir.Declare: self._declare,
            ir.Assign: self._assign,
            ir.Evaluate: self._evaluate,
            ir.Group: self._group,
            ir.If: self._if,
            ir.Switch: self._switch,
            ir.Loop: self._loop,
            ir.CountLoop: self._count_loop,
            ir.Jump: self._jump,
            ir.Primitive: self.primitive,
        }

    # --- lines

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self._level + text if text else "")

    def open(self, text: str) -> None:
        self.line(text)
        self._level += 1

    def close(self, text: str = "}") -> None:
        self._level -= 1
        self.line(text)

    def write(self, statement: ir.Stmt) -> None:
        self._writers[type(statement)](statement)

    def inside(self, statement: ir.Stmt) -> None:
        """The statements of a body whose braces are written already."""
        for part in statement.body if isinstance(statement, ir.Group) else (statement,):
            self.write(part)

    def body(self, statements: Iterable[ir.Stmt]) -> None:
        for statement in statements:
            self.write(statement)

    # --- statements

    def _group(self, s: ir.Group) -> None:
        if not s.body:
            return
        self.open("{")
        self.body(s.body)
        self.close()

    def _check_exit(self, e: ir.Expr | None) -> None:
        if e is not None and ir.exits(e):
            self.line(f"if (program.exited) {self.leave}")

    def _declare(self, s: ir.Declare) -> None:
        if s.value is None or (isinstance(s.value, ir.Const) and s.value.value is None):
            self.line(f"{self.type(s.type)} {s.name}{{}};")
        else:
            self.line(f"{self.type(s.type)} {s.name} = {self.copied(s.value)};")
            self._check_exit(s.value)

    def _assign(self, s: ir.Assign) -> None:
        if isinstance(s.target, ir.Field) and t.is_union(s.target.base.type):
            self._assign_union_member(s, s.target)
            return
        if ir.exits(s.value) or (ir.impure(s.value) and not isinstance(s.target, ir.Var)):
            self.open("{")
            self.line(f"const {self.type(s.value.type)} value = {self.expr(s.value)};")
            self._check_exit(s.value)
            self.line(self.assign(s.target, "value") + ";")
            self.close()
            return
        self.line(self.assign_expr(s.target, s.value) + ";")

    def _assign_union_member(self, s: ir.Assign, target: ir.Field) -> None:
        """A valid header in a union makes its siblings invalid."""
        self.line(self.assign(target, self.expr(s.value)) + ";")
        self.open(f"if ({self.expr(target)}.valid) {{")
        self.invalidate_siblings(target)
        self.close()

    def _evaluate(self, s: ir.Evaluate) -> None:
        if not isinstance(s.expr, ir.Call):
            self.line(f"{self.expr(s.expr)};")
            self._check_exit(s.expr)
            return
        before, call, after = self.call_parts(s.expr)
        scoped = any(not text.endswith("= {};") for text in before)
        if scoped:
            self.open("{")
        for text in (*before, f"{call};", *after):
            self.line(text)
        if scoped:
            self.close()
        self._check_exit(s.expr)

    def _if(self, s: ir.If) -> None:
        condition = self.expr(s.condition)
        scoped = ir.exits(s.condition)
        if scoped:
            self.open("{")
            self.line(f"const bool condition = {condition};")
            self._check_exit(s.condition)
            condition = "condition"
        self._branches(condition, s)
        if scoped:
            self.close()

    def _branches(self, condition: str, s: ir.If) -> None:
        if condition.startswith("(") and condition.endswith(")") and _encloses(condition):
            condition = condition[1:-1]
        self.open(f"if ({condition}) {{")
        self.inside(s.then)
        otherwise = s.otherwise
        if otherwise is not None and not (isinstance(otherwise, ir.Group) and not otherwise.body):
            self.close("} else {")
            self._level += 1
            self.inside(otherwise)
        self.close()

    def _switch(self, s: ir.Switch) -> None:
        self.open("{")
        self.line(f"const auto subject = {self.expr(s.subject)};")
        self._check_exit(s.subject)
        width = (
            1
            if s.subject.type == t.BOOL
            else width_of(s.subject)
            if not isinstance(s.subject.type, t.ActionListType)
            else 32
        )
        first = True
        if _may_run_nothing(s.subject):
            # Where an entry of a table with an action profile has no action, no case is taken.
            self.line("if (subject == kNoAction) {}")
            first = False
        for case in s.cases:
            tests = " || ".join(f"subject == {self._label(v, width)}" for v in case.values)
            if case.values:
                self.open(f"if ({tests}) {{" if first else f"else if ({tests}) {{")
            else:
                self.open("{" if first else "else {")
            self.inside(case.body)
            self.close()
            first = False
        self.close()

    def _label(self, value: int, width: int) -> str:
        return number(value) if width <= 64 else self.expr(ir.Const(t.BitType(width), value))

    def _loop(self, s: ir.Loop) -> None:
        self.open("{")
        self.body(s.start)
        updates = ", ".join(self._as_expression(u) for u in s.update)
        condition = self.expr(s.condition)
        if not s.bounded:
            condition = f"{condition} && program.go_round()"
        self.open(f"for (; {condition}; {updates}) {{")
        self.inside(s.body)
        self.close()
        self.close()

    def _as_expression(self, s: ir.Stmt) -> str:
        if isinstance(s, ir.Assign) and not ir.exits(s.value):
            return self.assign_expr(s.target, s.value)
        outer, self.lines = self.lines, []
        self.write(s)
        text = " ".join(line.strip() for line in self.lines)
        self.lines = outer
        return f"[&] {{ {text} }}()"

    def _count_loop(self, s: ir.CountLoop) -> None:
        type_ = self.type(s.type)
        counter = ir.Var(s.type, "next_value")
        last = ir.Var(s.type, "last_value")
        self.open("{")
        self.line(f"{type_} next_value = {self.expr(s.low)};")
        self.line(f"const {type_} last_value = {self.expr(s.high)};")
        self.line(f"bool more = {self.expr(ir.Operation(t.BOOL, '<=', (counter, last)))};")
        self.open("while (more) {")
        self.line(f"{type_} {s.name} = next_value;")
        self.line("more = !(next_value == last_value);")
        step = ir.Operation(s.type, "+", (counter, ir.Const(s.type, 1)))
        self.line(f"next_value = {self.expr(step)};")
        self.write(s.body)
        self.close()
        self.close()

    def _jump(self, s: ir.Jump) -> None:
        if s.what == "exit":
            self.line("program.exited = true;")
            self.line(self.leave)
        elif s.what != "return":
            self.line(f"{s.what};")
        elif s.value is not None:
            self.line(f"return {self.item(s.value)};")
        else:
            self.line(self.leave)


def _may_run_nothing(subject: ir.Expr) -> bool:
    return (
        isinstance(subject, ir.Operation)
        and subject.name == "action_run"
        and isinstance(subject.operands[0], ir.TableApply)
        and subject.operands[0].table.profile is not None
    )


def _encloses(text: str) -> bool:
    """The first bracket closes at the end."""
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position == len(text) - 1
    return False
