# SPDX-License-Identifier: Apache-2.0
"""Checks statements."""

from collections.abc import Callable
from typing import Any

from inagg_switch.compiler import fold, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.arguments import compile_time
from inagg_switch.compiler.check.calls import construct
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.conversions import convert, describe
from inagg_switch.compiler.check.expressions import expression, lvalue
from inagg_switch.compiler.check.names import declare
from inagg_switch.compiler.check.operators import typed_binary
from inagg_switch.compiler.check.types import type_of
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError

_STRIPE_BITS = 32


def check_statement(checker: Checker, s: syntax.Statement) -> None:
    _STATEMENTS[type(s)](checker, s)


def check_block(checker: Checker, s: syntax.Block) -> None:
    if s.stripe is not None:
        s.stripe = _stripe_number(checker, s.stripe)
    with checker.inner_scope():
        check_sequence(checker, s.statements)


def _stripe_number(checker: Checker, stripe: syntax.Expression) -> syntax.Expression:
    if checker.inside not in ("control", "action"):
        raise CompileError(
            f"@stripe stands in a control or an action, not in a {checker.inside}", stripe.start
        )
    number = rvalue(checker, stripe)
    if number.type == t.INTEGER:
        number = convert(number, t.BitType(_STRIPE_BITS), "the number of a stripe")
    bits = t.strip(number.type)
    if not isinstance(bits, t.BitType) or bits.signed or bits.width > _STRIPE_BITS:
        raise CompileError(
            f"the number of a stripe is a bit<N> of at most {_STRIPE_BITS} bits, not {number.type}",
            number.start,
        )
    return number


def check_sequence(checker: Checker, statements: list[syntax.Statement]) -> None:
    """Checks the statements of a block or parser state. Their declarations must not hide a parameter."""
    for statement in statements:
        declaration = statement if isinstance(statement, syntax.Declaration) else None
        with checker.recovering(declaration):
            if declaration is not None and isinstance(checker.scope.find(declaration.name), syntax.Parameter):
                raise CompileError(f"`{declaration.name}` hides a parameter of that name", declaration.at)
            check_statement(checker, statement)


# --- declarations that are statements


def _variable(checker: Checker, s: syntax.Variable) -> None:
    s.type = type_of(checker, s.ref)
    if s.type in (t.INTEGER, t.STRING, t.VOID, t.MATCH_KIND) or isinstance(
        s.type, t.ExternType | t.BlockType | t.TypeVariable
    ):
        raise CompileError(f"a variable cannot be of type {s.type}", s.at)
    if s.value is not None:
        s.value = rvalue(checker, s.value, s.type, f"variable `{s.name}`")
    declare(checker, s)


def _constant(checker: Checker, s: syntax.Constant) -> None:
    s.type = type_of(checker, s.ref)
    s.value = rvalue(checker, s.value, s.type, f"constant `{s.name}`")
    if s.value.value is None:
        raise CompileError(f"the value of constant `{s.name}` must be known at compile time", s.value.start)
    declare(checker, s)


def _instantiation(checker: Checker, s: syntax.Instantiation) -> None:
    type_ = type_of(checker, s.ref)
    s.type, s.bound = construct(checker, type_, [], s.arguments, s.at)
    if checker.inside in ("action", "function", "block"):
        raise CompileError("an instance cannot be declared here", s.at)
    declare(checker, s)


# --- simple statements


def _assign(checker: Checker, s: syntax.Assign) -> None:
    s.target = lvalue(checker, s.target)
    if s.operator is None:
        s.value = rvalue(checker, s.value, s.target.type, "the value of an assignment")
        return
    # `a += b` is `a = a + b`. Calls inside `a` run once, because both places use the same node.
    combined = syntax.Binary(s.at, s.operator, s.target, rvalue(checker, s.value))
    s.value = convert(typed_binary(combined), s.target.type)


def _call_statement(checker: Checker, s: syntax.CallStatement) -> None:
    checked = expression(checker, s.call)
    if isinstance(checked, syntax.Call) and isinstance(checked.target, targets.ConstructorTarget):
        raise CompileError("the instance is not used; name it in a declaration", s.at)
    s.call = checked


def _exit(checker: Checker, s: syntax.Exit) -> None:
    if checker.inside in ("parser", "function"):
        raise CompileError(f"`exit` is not allowed in a {checker.inside}", s.at)


def _return(checker: Checker, s: syntax.Return) -> None:
    if checker.inside == "parser":
        raise CompileError("`return` is not allowed in a parser", s.at)
    wanted = checker.result if checker.inside == "function" else None
    if s.value is None:
        if wanted not in (None, t.VOID):
            raise CompileError(f"`return` needs a value of type {wanted}", s.at)
    elif wanted is None or wanted == t.VOID:
        raise CompileError("`return` cannot have a value here", s.value.start)
    else:
        s.value = rvalue(checker, s.value, wanted, "the returned value")


def _jump(checker: Checker, s: syntax.Statement) -> None:
    if not checker.loops:
        raise CompileError(f"`{type(s).__name__.lower()}` outside a loop", s.at)


# --- control flow


def _if(checker: Checker, s: syntax.If) -> None:
    with checker.recovering():
        s.condition = rvalue(checker, s.condition, t.BOOL, "the condition of `if`")
    for branch in (s.then, s.otherwise):
        if branch is not None:
            _branch(checker, branch)


def _branch(checker: Checker, s: syntax.Statement) -> None:
    with checker.inner_scope():
        check_statement(checker, s)


def _for(checker: Checker, s: syntax.For) -> None:
    with checker.inner_scope():
        for statement in s.start:
            check_statement(checker, statement)
        s.condition = rvalue(checker, s.condition, t.BOOL, "the condition of `for`")
        for statement in s.update:
            check_statement(checker, statement)
        _loop_body(checker, s.body)


def _loop_body(checker: Checker, body: syntax.Statement) -> None:
    checker.loops += 1
    _branch(checker, body)
    checker.loops -= 1


def _for_in(checker: Checker, s: syntax.ForIn) -> None:
    with checker.inner_scope():
        over = expression(checker, s.over)
        _variable(checker, s.variable)
        type_ = s.variable.type
        if isinstance(over, syntax.Range):
            if not isinstance(t.strip(type_), t.BitType):
                raise CompileError(f"a range of {type_} cannot be counted", s.variable.at)
            over.low, over.high = convert(over.low, type_), convert(over.high, type_)
        elif isinstance(over.type, t.StackType):
            if over.type.element != type_:
                raise CompileError(f"the elements are {over.type.element}, not {type_}", s.variable.at)
        else:
            raise CompileError(f"expected a range or a header stack, found {describe(over)}", s.over.start)
        s.over = over
        _loop_body(checker, s.body)


def _switch(checker: Checker, s: syntax.Switch) -> None:
    if checker.inside in ("parser", "action"):
        raise CompileError("`switch` is not allowed in a parser or an action", s.at)
    s.subject = rvalue(checker, s.subject)
    type_ = s.subject.type
    bits = t.strip(type_)
    if not isinstance(bits, t.BitType | t.EnumType | t.ActionListType):
        raise CompileError(
            f"`switch` needs bits, an enum or action_run, found {describe(s.subject)}", s.subject.start
        )
    seen: set[object] = set()
    for number, case in enumerate(s.cases):
        with checker.recovering():
            key = _label(checker, case, type_)
            if key in seen:
                raise CompileError("this label is used twice", case.at)
            seen.add(key)
            if case.label is None and number != len(s.cases) - 1:
                raise CompileError("`default` must be the last label", case.at)
        if case.body is not None:
            check_block(checker, case.body)


def _label(checker: Checker, case: syntax.SwitchCase, type_: t.Type) -> object:
    """A value that is equal for equal labels."""
    if case.label is None:
        return None
    if isinstance(type_, t.ActionListType):
        label = case.label
        names = {a.name for a in type_.table.actions}
        if not isinstance(label, syntax.Name) or label.name not in names:
            raise CompileError(f"expected an action of table {type_.table.name}", label.start)
        return label.name
    case.label = rvalue(checker, case.label, type_, "a switch label")
    if not compile_time(case.label):
        raise CompileError("a switch label must be known at compile time", case.label.start)
    return case if case.label.value is None else fold.wrap(case.label.value, type_)


_STATEMENTS: dict[type[syntax.Statement], Callable[[Checker, Any], None]] = {
    syntax.Empty: lambda checker, s: None,
    syntax.Block: check_block,
    syntax.Assign: _assign,
    syntax.CallStatement: _call_statement,
    syntax.If: _if,
    syntax.Switch: _switch,
    syntax.For: _for,
    syntax.ForIn: _for_in,
    syntax.Break: _jump,
    syntax.Continue: _jump,
    syntax.Return: _return,
    syntax.Exit: _exit,
    syntax.Variable: _variable,
    syntax.Constant: _constant,
    syntax.Instantiation: _instantiation,
}
