# SPDX-License-Identifier: Apache-2.0
"""Checks parsers: states, transitions and value sets."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.arguments import compile_time
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.check.expressions import expression, set_of
from inagg_switch.compiler.check.functions import check_parameters, no_type_parameters
from inagg_switch.compiler.check.names import declare
from inagg_switch.compiler.check.statements import check_sequence, check_statement
from inagg_switch.compiler.check.tables import one_by_one, set_parts
from inagg_switch.compiler.check.types import set_fields, type_of
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError


def check_parser(checker: Checker, d: syntax.Parser) -> None:
    no_type_parameters(checker, d)
    failures = checker.failures
    names, others = {"accept", "reject"}, {local.name for local in d.locals}
    for state in d.states:
        if state.name in names | others:
            raise CompileError(f"state `{state.name}` is already declared", state.at)
        names.add(state.name)
    if "start" not in names:
        raise CompileError(f"parser {d.name} has no `start` state", d.at)
    with checker.inner_scope():
        check_parameters(checker, d.constructor_parameters)
        check_parameters(checker, d.parameters)
        checker.inside = "parser"
        with checker.inner_scope():
            for local in d.locals:
                with checker.recovering(local):
                    if isinstance(local, syntax.ValueSet):
                        _value_set(checker, local)
                    else:
                        check_statement(checker, local)
            for state in d.states:
                with checker.recovering():
                    _state(checker, state, names)
        checker.inside = "top"
    if checker.failures == failures and not _can_end(d):
        raise CompileError(f"parser {d.name} reaches neither accept nor reject", d.at)
    declare(checker, d)


def _value_set(checker: Checker, local: syntax.ValueSet) -> None:
    local.type = t.SetType(type_of(checker, local.ref))
    for name, type_, _ in set_fields(local.type):
        if not _can_be_selected(type_):
            what = f"field `{name}`" if name else "the element"
            raise CompileError(f"{what} of a value set must be bits, bool or an enum, not {type_}", local.at)
    local.size = rvalue(checker, local.size)
    declare(checker, local)


def _state(checker: Checker, state: syntax.State, names: set[str]) -> None:
    with checker.inner_scope():
        check_sequence(checker, state.body)
        if isinstance(state.transition, str):
            if state.transition not in names:
                raise CompileError(f"state `{state.transition}` is not declared", state.transition_at)
        elif state.transition is not None:
            _select(checker, state.transition, names)


def _select(checker: Checker, select: syntax.Select, names: set[str]) -> None:
    select.subjects = [rvalue(checker, s) for s in select.subjects]
    for subject in select.subjects:
        if not _can_be_selected(subject.type):
            raise CompileError(f"`select` needs bits, found {describe(subject)}", subject.start)
    for case in select.cases:
        with checker.recovering():
            _case(checker, case, select, names)


def _case(checker: Checker, case: syntax.SelectCase, select: syntax.Select, names: set[str]) -> None:
    if case.state not in names:
        raise CompileError(f"state `{case.state}` is not declared", case.at)
    if _is_value_set(checker, case, select):
        return
    case.keys = one_by_one(case.keys, len(select.subjects), case.at)
    if len(case.keys) != len(select.subjects):
        raise CompileError(f"`select` has {len(select.subjects)} values, the case {len(case.keys)}", case.at)
    case.keys = [set_of(checker, k, s.type) for k, s in zip(case.keys, select.subjects, strict=True)]
    for part in (part for key in case.keys for part in set_parts(key)):
        if not compile_time(part):
            raise CompileError("a value of a select case must be known at compile time", part.start)


def _is_value_set(checker: Checker, case: syntax.SelectCase, select: syntax.Select) -> bool:
    """True if the case is a single value set: it matches all subjects, one with each field."""
    if len(case.keys) != 1:
        return False
    key = expression(checker, case.keys[0]) if isinstance(case.keys[0], syntax.Name) else None
    if not (isinstance(key, syntax.Name) and isinstance(key.declaration, syntax.ValueSet)):
        return False
    wanted = [f for _, f, _ in set_fields(key.type)]
    have = [s.type for s in select.subjects]
    if [t.strip(w) for w in wanted] != [t.strip(h) for h in have]:
        raise CompileError(
            f"the value set has elements {', '.join(map(str, wanted))}, `select` {', '.join(map(str, have))}",
            case.at,
        )
    case.keys = [key]
    return True


def _can_end(d: syntax.Parser) -> bool:
    """True if some path leads to accept or reject."""
    following = {state.name: _following(state) for state in d.states}
    reached = {"start"}
    todo = ["start"]
    while todo:
        for name in following[todo.pop()] - reached:
            if name in ("accept", "reject"):
                return True
            reached.add(name)
            todo.append(name)
    return False


def _following(state: syntax.State) -> set[str]:
    if not isinstance(state.transition, syntax.Select):
        return {state.transition or "reject"}
    cases = state.transition.cases
    always = any(all(isinstance(k, syntax.Anything | syntax.DefaultValue) for k in c.keys) for c in cases)
    return {c.state for c in cases} | (set() if always else {"reject"})


def _can_be_selected(type_: t.Type) -> bool:
    bits = t.strip(type_)
    return isinstance(bits, t.BitType | t.EnumType) or bits in (t.BOOL, t.ERROR)
