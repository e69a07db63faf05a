# SPDX-License-Identifier: Apache-2.0
"""Checks functions, and parameters of all kinds."""

import copy

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Binding, Checker, Scope
from inagg_switch.compiler.check.names import declare
from inagg_switch.compiler.check.statements import check_block
from inagg_switch.compiler.check.types import type_of
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError


def check_parameters(checker: Checker, parameters: list[syntax.Parameter]) -> None:
    """Finds the types of the parameters and declares their names in the present scope."""
    optional = False
    for parameter in parameters:
        with checker.recovering(parameter):
            parameter.type = t.BROKEN
            parameter.type = _parameter_type(checker, parameter)
            if parameter.default is not None:
                parameter.default = rvalue(checker, parameter.default, parameter.type)
                optional = True
            elif optional:
                raise CompileError("a parameter without a default follows one with a default", parameter.at)
            declare(checker, parameter)


def _parameter_type(checker: Checker, parameter: syntax.Parameter) -> t.Type:
    type_ = type_of(checker, parameter.ref)
    if type_ in (t.STRING, t.INTEGER) and parameter.direction:
        raise CompileError(f"a parameter of type {type_} cannot have a direction", parameter.at)
    if parameter.default is not None and parameter.direction in ("out", "inout"):
        raise CompileError(f"an `{parameter.direction}` parameter cannot have a default", parameter.at)
    return type_


def check_prototype(checker: Checker, d: syntax.Function) -> None:
    """Finds the types of a function's parameters and result. The caller opens the scope."""
    check_parameters(checker, d.parameters)
    d.result_type = t.VOID if d.result is None else type_of(checker, d.result)
    if d.result_type == t.INTEGER and d.body is not None:
        raise CompileError(f"function {d.name} cannot return an int", d.at)


def check_function(checker: Checker, d: syntax.Function) -> None:
    if d.type_parameters:
        checker.generic[id(d)] = copy.deepcopy(d)
    with checker.type_parameters(d.type_parameters) as variables:
        checker.variables[id(d)] = list(variables.values())
        check_prototype(checker, d)
        if not d.type_parameters:
            _function_body(checker, d)
    declare(checker, d)


def _function_body(checker: Checker, d: syntax.Function) -> None:
    if d.body is None:
        return
    outside = checker.inside, checker.result, checker.loops
    checker.inside, checker.result, checker.loops = "function", d.result_type, 0
    check_block(checker, d.body)
    if d.result_type != t.VOID and not _always_returns(d.body):
        raise CompileError(f"function {d.name} does not always return a value", d.at)
    checker.inside, checker.result, checker.loops = outside


def specialised(checker: Checker, function: syntax.Function, binding: Binding) -> syntax.Function:
    """A checked copy of a generic function for these types. The body is checked once for each choice of types."""
    types = tuple(binding[v] for v in checker.variables[id(function)])
    key = (id(function), types)
    if key not in checker.specialised_functions:
        made = copy.deepcopy(checker.generic[id(function)])
        checker.specialised_functions[key] = made
        outside, checker.scope = checker.scope, Scope(checker.scope.outermost())
        checker.scope.names.update(zip(made.type_parameters, types, strict=True))
        made.type_parameters = []
        checker.variables[id(made)] = []
        with checker.inner_scope():
            check_prototype(checker, made)
            _function_body(checker, made)
        checker.scope = outside
    return checker.specialised_functions[key]


def no_type_parameters(checker: Checker, d: syntax.Control | syntax.Parser) -> None:
    if d.type_parameters:
        raise CompileError(f"{type(d).__name__.lower()} {d.name} has a body and cannot be generic", d.at)
    checker.variables[id(d)] = []


def _always_returns(s: syntax.Statement) -> bool:
    if isinstance(s, syntax.Return):
        return True
    if isinstance(s, syntax.Block):
        return any(_always_returns(x) for x in s.statements)
    if isinstance(s, syntax.If):
        return s.otherwise is not None and _always_returns(s.then) and _always_returns(s.otherwise)
    if isinstance(s, syntax.Switch):
        return any(c.label is None for c in s.cases) and all(
            c.body is None or _always_returns(c.body) for c in s.cases
        )
    return False
