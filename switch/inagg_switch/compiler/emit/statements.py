# SPDX-License-Identifier: Apache-2.0
"""IR statements, as C++."""

from collections.abc import Callable, Sequence
from typing import Any

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.calls import call_parts
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import (
    assign,
    assign_expr,
    copied,
    cpp_type,
    exact,
    expr,
    number,
    width_of,
)
from inagg_switch.compiler.emit.primitives import invalidate_siblings, write_primitive, write_view
from inagg_switch.compiler.emit.views import viewed


def write(out: Emitter, statement: ir.Stmt) -> None:
    _WRITERS.get(type(statement), write_primitive)(out, statement)


def write_inside(out: Emitter, statement: ir.Stmt) -> None:
    """Writes the statements of a body, without its braces."""
    write_all(out, statement.body if isinstance(statement, ir.Group) else (statement,))


def write_all(out: Emitter, statements: Sequence[ir.Stmt]) -> None:
    views = viewed(statements)
    for place, statement in enumerate(statements):
        if place not in views:
            write(out, statement)
        elif (read := views[place]) is not None:
            write_view(out, read)


def _group(out: Emitter, s: ir.Group) -> None:
    if not s.body:
        return
    out.open("{")
    write_all(out, s.body)
    out.close()


def _striped(out: Emitter, s: ir.Striped) -> None:
    out.open("{")
    out.line(f"program.stripe.enter({exact(out, s.number)});")
    _check_exit(out, s.number)
    write_inside(out, s.body)
    out.close()


def _check_exit(out: Emitter, e: ir.Expr | None) -> None:
    if e is not None and ir.exits(e):
        out.line(f"if (program.exited) {out.leave}")


def _declare(out: Emitter, s: ir.Declare) -> None:
    if s.value is None or (isinstance(s.value, ir.Const) and s.value.value is None):
        out.line(f"{cpp_type(out, s.type)} {s.name}{{}};")
    else:
        out.line(f"{cpp_type(out, s.type)} {s.name} = {copied(out, s.value)};")
        _check_exit(out, s.value)


def _assign(out: Emitter, s: ir.Assign) -> None:
    if isinstance(s.target, ir.Field) and t.is_union(s.target.base.type):
        _assign_union_member(out, s, s.target)
        return
    if ir.exits(s.value) or (ir.impure(s.value) and not isinstance(s.target, ir.Var)):
        out.open("{")
        out.line(f"const {cpp_type(out, s.value.type)} value = {expr(out, s.value)};")
        _check_exit(out, s.value)
        out.line(assign(out, s.target, "value") + ";")
        out.close()
        return
    out.line(assign_expr(out, s.target, s.value) + ";")


def _assign_union_member(out: Emitter, s: ir.Assign, target: ir.Field) -> None:
    """Assigns a member of a union. If it becomes valid, the other members become invalid."""
    out.line(assign(out, target, expr(out, s.value)) + ";")
    out.open(f"if ({expr(out, target)}.valid) {{")
    invalidate_siblings(out, target)
    out.close()


def _evaluate(out: Emitter, s: ir.Evaluate) -> None:
    if not isinstance(s.expr, ir.Call):
        out.line(f"{expr(out, s.expr)};")
        _check_exit(out, s.expr)
        return
    before, call, after = call_parts(out, s.expr)
    scoped = any(not text.endswith("= {};") for text in before)
    if scoped:
        out.open("{")
    for text in (*before, f"{call};", *after):
        out.line(text)
    if scoped:
        out.close()
    _check_exit(out, s.expr)


def _if(out: Emitter, s: ir.If) -> None:
    condition = expr(out, s.condition)
    scoped = ir.exits(s.condition)
    if scoped:
        out.open("{")
        out.line(f"const bool condition = {condition};")
        _check_exit(out, s.condition)
        condition = "condition"
    _branches(out, condition, s)
    if scoped:
        out.close()


def _branches(out: Emitter, condition: str, s: ir.If) -> None:
    if condition.startswith("(") and condition.endswith(")") and _encloses(condition):
        condition = condition[1:-1]
    out.open(f"if ({condition}) {{")
    write_inside(out, s.then)
    otherwise = s.otherwise
    if otherwise is not None and not (isinstance(otherwise, ir.Group) and not otherwise.body):
        out.close("} else {")
        out.level += 1
        write_inside(out, otherwise)
    out.close()


def _switch(out: Emitter, s: ir.Switch) -> None:
    out.open("{")
    out.line(f"const auto subject = {expr(out, s.subject)};")
    _check_exit(out, s.subject)
    width = (
        1
        if s.subject.type == t.BOOL
        else width_of(s.subject)
        if not isinstance(s.subject.type, t.ActionListType)
        else 32
    )
    first = True
    if _may_have_no_action(s.subject):
        # An entry of a table with an action profile may have no action: no case is taken then.
        out.line("if (subject == kNoAction) {}")
        first = False
    for case in s.cases:
        tests = " || ".join(f"subject == {_label(out, v, width)}" for v in case.values)
        if case.values:
            out.open(f"if ({tests}) {{" if first else f"else if ({tests}) {{")
        else:
            out.open("{" if first else "else {")
        write_inside(out, case.body)
        out.close()
        first = False
    out.close()


def _label(out: Emitter, value: int, width: int) -> str:
    return number(value) if width <= 64 else expr(out, ir.Const(t.BitType(width), value))


def _loop(out: Emitter, s: ir.Loop) -> None:
    out.open("{")
    write_all(out, s.start)
    updates = ", ".join(_as_expression(out, u) for u in s.update)
    condition = expr(out, s.condition)
    if not s.bounded:
        condition = f"{condition} && program.next_iteration()"
    out.open(f"for (; {condition}; {updates}) {{")
    write_inside(out, s.body)
    out.close()
    out.close()


def _as_expression(out: Emitter, s: ir.Stmt) -> str:
    if isinstance(s, ir.Assign) and not ir.exits(s.value):
        return assign_expr(out, s.target, s.value)
    outer, out.lines = out.lines, []
    write(out, s)
    text = " ".join(line.strip() for line in out.lines)
    out.lines = outer
    return f"[&] {{ {text} }}()"


def _count_loop(out: Emitter, s: ir.CountLoop) -> None:
    type_ = cpp_type(out, s.type)
    counter = ir.Var(s.type, "next_value")
    last = ir.Var(s.type, "last_value")
    out.open("{")
    out.line(f"{type_} next_value = {expr(out, s.low)};")
    out.line(f"const {type_} last_value = {expr(out, s.high)};")
    out.line(f"bool more = {expr(out, ir.Operation(t.BOOL, '<=', (counter, last)))};")
    out.open("while (more) {")
    out.line(f"{type_} {s.name} = next_value;")
    out.line("more = !(next_value == last_value);")
    step = ir.Operation(s.type, "+", (counter, ir.Const(s.type, 1)))
    out.line(f"next_value = {expr(out, step)};")
    write(out, s.body)
    out.close()
    out.close()


def _jump(out: Emitter, s: ir.Jump) -> None:
    if s.kind == "exit":
        out.line("program.exited = true;")
        out.line(out.leave)
    elif s.kind != "return":
        out.line(f"{s.kind};")
    elif s.value is not None:
        out.line(f"return {exact(out, s.value)};")
    else:
        out.line(out.leave)


def _may_have_no_action(subject: ir.Expr) -> bool:
    return (
        isinstance(subject, ir.Operation)
        and subject.name == "action_run"
        and isinstance(subject.operands[0], ir.TableApply)
        and subject.operands[0].table.profile is not None
    )


def _encloses(text: str) -> bool:
    """True if the first bracket closes at the end of the text."""
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return position == len(text) - 1
    return False


_WRITERS: dict[type[ir.Stmt], Callable[[Emitter, Any], None]] = {
    ir.Declare: _declare,
    ir.Assign: _assign,
    ir.Evaluate: _evaluate,
    ir.Group: _group,
    ir.Striped: _striped,
    ir.If: _if,
    ir.Switch: _switch,
    ir.Loop: _loop,
    ir.CountLoop: _count_loop,
    ir.Jump: _jump,
}
