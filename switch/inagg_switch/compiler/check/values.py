# SPDX-License-Identifier: Apache-2.0
"""Checks expressions that must have a value, at run time or at compile time."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.conversions import convert, describe
from inagg_switch.errors import CompileError


def rvalue(
    checker: Checker, e: syntax.Expression, to: t.Type | None = None, what: str = ""
) -> syntax.Expression:
    """The checked expression, converted to `to` if given. Raises CompileError if it is not a value."""
    checked = checker.checkers.expression(checker, e)
    if isinstance(checked, syntax.TypeExpression) or isinstance(checked.type, t.CallableType):
        raise CompileError(f"{describe(checked)} is not a value", checked.start)
    return checked if to is None else convert(checked, to, what)


def constant_value(checker: Checker, expression: syntax.Expression, what: str) -> int:
    """The value of an integer expression. Raises CompileError if it is not known at compile time."""
    checked = rvalue(checker, expression)
    if isinstance(checked.value, bool) or not isinstance(checked.value, int):
        raise CompileError(f"{what} must be a number known at compile time", expression.start)
    return checked.value
