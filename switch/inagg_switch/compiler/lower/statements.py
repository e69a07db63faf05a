# SPDX-License-Identifier: Apache-2.0
"""Lowers statements."""

from collections.abc import Callable
from typing import Any

from inagg_switch.compiler import fold, ir, primitives, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.arguments import paths_in
from inagg_switch.compiler.lower.calls import call_statement, lookahead
from inagg_switch.compiler.lower.constants import known_value
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.lower.expressions import expression, stable
from inagg_switch.compiler.lower.loops import ends
from inagg_switch.errors import CompileError, Position


def lower_statement(scope: Scope, s: syntax.Statement) -> ir.Stmt:
    """Lowers a statement, with the statements in front that its expressions need."""
    lowerer = _STATEMENTS.get(type(s))
    if lowerer is None:
        raise CompileError("this statement is not supported here", s.at)
    before, scope.pending = scope.pending, []
    lowered: ir.Stmt = ir.Group(())
    with scope.recovering(s):
        lowered = lowerer(scope, s)
    needed, scope.pending = scope.pending, before
    return ir.Group((*needed, lowered)) if needed else lowered


def lower_sequence(scope: Scope, body: list[syntax.Statement]) -> tuple[ir.Stmt, ...]:
    result: list[ir.Stmt] = []
    for s in body:
        lowered = lower_statement(scope, s)
        # A declaration must stay in its own block.
        if isinstance(lowered, ir.Group) and isinstance(s, syntax.Variable):
            result.extend(lowered.body)
        else:
            result.append(lowered)
    return tuple(result)


def lower_body(scope: Scope, s: syntax.Block) -> ir.Stmt:
    if s.stripe is None:
        return ir.Group(lower_sequence(scope, s.statements))
    number = expression(scope, s.stripe)
    return ir.Striped(number, ir.Group(lower_sequence(scope, s.statements)))


def _assign(scope: Scope, s: syntax.Assign) -> ir.Stmt:
    target = stable(scope, expression(scope, s.target), s.target.at)
    if s.operator is not None:
        scope.known[id(s.target)] = target
    ahead = _header_lookahead(s.value)
    if ahead is not None and paths_in(target)[0][0] not in scope.locals:
        value = lookahead(scope, s.value, ahead)
        return ir.Group((primitives.SetValid(target), ir.Assign(target, value)))
    value = expression(scope, s.value)
    if isinstance(value, ir.Construct) and isinstance(value.type, t.StackType):
        return _assign_elements(scope, target, value, s.at)
    return ir.Assign(target, value)


def _assign_elements(scope: Scope, target: ir.Expr, value: ir.Construct, at: Position) -> ir.Stmt:
    """Assigns a list to a stack, element by element, so that the stack keeps its `next`."""
    stack = value.type
    assert isinstance(stack, t.StackType)
    made = ir.Var(stack, scope.temporary(stack, at, "elements"))

    def element(base: ir.Expr, i: int) -> ir.Expr:
        return ir.Element(stack.element, base, ir.Const(t.BitType(32), i))

    copies = (ir.Assign(element(target, i), element(made, i)) for i in range(stack.size))
    return ir.Group((ir.Declare(made.name, stack, value), *copies))


def _variable(scope: Scope, s: syntax.Variable) -> ir.Stmt:
    value = None if s.value is None else expression(scope, s.value)
    name = scope.variable(s, s.type)
    scope.locals.add(name)
    return ir.Declare(name, s.type, value)


def _return(scope: Scope, s: syntax.Return) -> ir.Stmt:
    return ir.Jump("return", None if s.value is None else expression(scope, s.value))


def _if(scope: Scope, s: syntax.If) -> ir.Stmt:
    if s.condition.value is not None:
        taken = s.then if s.condition.value else s.otherwise
        return ir.Group(()) if taken is None else lower_statement(scope, taken)
    condition = expression(scope, s.condition)
    return ir.If(
        condition,
        lower_statement(scope, s.then),
        None if s.otherwise is None else lower_statement(scope, s.otherwise),
    )


def _for(scope: Scope, s: syntax.For) -> ir.Stmt:
    start = lower_sequence(scope, s.start)
    outside, scope.pending = scope.pending, []
    condition = expression(scope, s.condition)
    if scope.pending:
        raise CompileError("lookahead is not supported in the condition of a loop", s.condition.at)
    scope.pending = outside
    bounded = ends(s)
    if not bounded:
        scope.stage.endless_loops = True
    return ir.Loop(start, condition, lower_sequence(scope, s.update), lower_statement(scope, s.body), bounded)


def _for_in(scope: Scope, s: syntax.ForIn) -> ir.Stmt:
    name = scope.variable(s.variable, s.variable.type)
    scope.locals.add(name)
    if isinstance(s.over, syntax.Range):
        low, high = expression(scope, s.over.low), expression(scope, s.over.high)
        return ir.CountLoop(name, s.variable.type, low, high, lower_statement(scope, s.body))
    stack_type = s.over.type
    assert isinstance(stack_type, t.StackType)
    counter = scope.namespace.unique(f"{s.variable.name}_index")
    index_type = t.BitType(32)
    index = ir.Var(index_type, counter)
    element = ir.Element(stack_type.element, expression(scope, s.over), index)
    body = ir.Group((ir.Declare(name, s.variable.type, element), lower_statement(scope, s.body)))
    return ir.CountLoop(
        counter, index_type, ir.Const(index_type, 0), ir.Const(index_type, stack_type.size - 1), body
    )


def _switch(scope: Scope, s: syntax.Switch) -> ir.Stmt:
    subject = expression(scope, s.subject)
    cases: list[ir.SwitchCase] = []
    values: list[int] = []
    seen: set[int] = set()
    default = False
    for case in s.cases:
        if case.label is None:
            default = True
        else:
            value = _label(scope, case.label, s.subject.type)
            if value not in seen:  # an instance can make labels equal: the first one counts
                values.append(value)
            seen.add(value)
        if case.body is None:
            continue  # falls through to the next case that has a body
        if default:
            cases.append(ir.SwitchCase((), lower_body(scope, case.body)))
        elif values:
            cases.append(ir.SwitchCase(tuple(values), lower_body(scope, case.body)))
        values = []
    return ir.Switch(subject, tuple(cases))


def _label(scope: Scope, label: syntax.Expression, type_: t.Type) -> int:
    if isinstance(type_, t.ActionListType):
        assert isinstance(label, syntax.Name)
        return next(i for i, a in enumerate(type_.table.actions) if a.name == label.name)
    value: int = fold.wrap(int(known_value(scope, label, "a switch label")), type_)
    bits = t.strip(type_)
    return value & ((1 << bits.width) - 1) if isinstance(bits, t.BitType) else value


_STATEMENTS: dict[type[syntax.Statement], Callable[[Scope, Any], ir.Stmt]] = {
    syntax.Empty: lambda scope, s: ir.Group(()),
    syntax.Block: lower_body,
    syntax.Assign: _assign,
    syntax.CallStatement: call_statement,
    syntax.If: _if,
    syntax.Switch: _switch,
    syntax.For: _for,
    syntax.ForIn: _for_in,
    syntax.Return: _return,
    syntax.Break: lambda scope, s: ir.Jump("break"),
    syntax.Continue: lambda scope, s: ir.Jump("continue"),
    syntax.Exit: lambda scope, s: ir.Jump("exit"),
    syntax.Variable: _variable,
    syntax.Constant: lambda scope, s: ir.Group(()),
}


def _header_lookahead(e: syntax.Expression) -> targets.MethodTarget | None:
    """The target of a lookahead at a header; None for other expressions."""
    if isinstance(e, syntax.Call) and isinstance(e.target, targets.MethodTarget) and t.is_header(e.type):
        return e.target if e.target.method.name == "lookahead" else None
    return None
