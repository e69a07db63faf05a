# SPDX-License-Identifier: Apache-2.0
"""Matches arguments with parameters, and infers type parameters from the types of both."""

from collections.abc import Mapping, Sequence

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Binding, Checker
from inagg_switch.compiler.check.conversions import convert, describe
from inagg_switch.compiler.check.expressions import lvalue
from inagg_switch.compiler.check.types import substitute
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError, Position


def bind(
    checker: Checker,
    what: str,
    parameters: Sequence[syntax.Parameter],
    arguments: Sequence[syntax.Argument],
    binding: Binding,
    at: Position,
    *,
    of_action: bool = False,
) -> dict[str, syntax.Expression | None]:
    """Returns the checked arguments by parameter name, None for `_`, and adds the types that they imply to `binding`. A
    parameter without direction needs a value known at compile time, except in actions. Raises CompileError."""
    pairs = _pair(what, parameters, arguments, at)
    checked: dict[str, syntax.Expression | None] = {}
    for parameter, argument in pairs:
        checked[parameter.name] = _argument(checker, what, parameter, argument)
    for wide in (True, False):  # arguments with a width decide a type before numbers without one
        for parameter, _ in pairs:
            value = checked[parameter.name]
            if value is not None and (value.type != t.INTEGER) == wide:
                _infer(parameter.type, value.type, binding)
    for parameter, _ in pairs:
        value = checked[parameter.name]
        if value is not None and parameter.type != t.BROKEN:
            value = checked[parameter.name] = _fit(checker, what, parameter, value, binding)
            if not (of_action or parameter.direction or compile_time(value)):
                raise CompileError(
                    f"parameter `{parameter.name}` of {what} needs a value known at compile time",
                    value.start,
                )
    for parameter in parameters:
        if parameter.name not in checked and parameter.default is not None:
            checked[parameter.name] = parameter.default
    return checked


def _fit(
    checker: Checker, what: str, parameter: syntax.Parameter, value: syntax.Expression, binding: Binding
) -> syntax.Expression:
    """The value converted to the parameter's type."""
    wanted = substitute(parameter.type, binding)
    if isinstance(wanted, t.BlockType):
        _fits_block(checker, value, wanted, binding)
        return value
    exact = parameter.direction in ("out", "inout") and not isinstance(wanted, t.TypeVariable)
    if exact and value.type != wanted:
        raise CompileError(
            f"parameter `{parameter.name}` of {what} needs exactly {wanted}, found {describe(value)}",
            value.at,
        )
    return convert(value, wanted, f"parameter `{parameter.name}` of {what}")


def compile_time(e: syntax.Expression) -> bool:
    """True for a constant, an instance, or a constructor parameter (each instance gives its value)."""
    if e.value is not None or isinstance(e.type, t.ExternType | t.BlockType):
        return True
    if isinstance(e, syntax.Name):
        return isinstance(e.declaration, syntax.Parameter) and e.declaration.direction == ""
    parts = [v for v in vars(e).values() if isinstance(v, syntax.Expression)]
    return bool(parts) and not isinstance(e, syntax.Call) and all(compile_time(p) for p in parts)


def _argument(
    checker: Checker, what: str, parameter: syntax.Parameter, argument: syntax.Argument
) -> syntax.Expression | None:
    if argument.value is None:
        if parameter.direction != "out" and checker.inside != "top":
            raise CompileError(f"`_` can only stand for an `out` parameter of {what}", argument.at)
        return None
    if parameter.direction in ("out", "inout"):
        return lvalue(checker, argument.value)
    return rvalue(checker, argument.value)


def _fits_block(checker: Checker, value: syntax.Expression, wanted: t.BlockType, binding: Binding) -> None:
    """Checks a control or parser that is an argument of a package: it needs the same kind and parameters."""
    have = value.type
    declaration = wanted.declaration
    wanted_kind = kind_of(declaration)
    if not isinstance(have, t.BlockType):
        raise CompileError(f"expected a {wanted_kind} {wanted.name}, found {describe(value)}", value.at)
    kind = kind_of(have.declaration)
    inner = dict(zip(checker.variables[id(declaration)], wanted.arguments, strict=True))
    parameters = have.declaration.parameters
    if kind != wanted_kind or len(parameters) != len(declaration.parameters):
        raise CompileError(
            f"{kind} {have.name} is not a {wanted_kind} {wanted.name}: it needs "
            f"{len(declaration.parameters)} parameters",
            value.at,
        )
    for mine, theirs in zip(parameters, declaration.parameters, strict=True):
        expected = substitute(theirs.type, inner)
        _infer(expected, mine.type, binding)
        expected = substitute(expected, binding)
        if t.BROKEN in (mine.type, expected):
            continue
        if mine.direction != theirs.direction or mine.type != expected:
            raise CompileError(
                f"parameter `{mine.name}` of {have.name} must be "
                f"{(theirs.direction + ' ' + str(expected)).strip()} to be a {wanted.name}",
                mine.at,
            )


def kind_of(declaration: syntax.Declaration) -> str:
    """parser, control or package."""
    if isinstance(declaration, syntax.BlockTypeDeclaration):
        return declaration.kind
    return "parser" if isinstance(declaration, syntax.Parser) else "control"


def _pair(
    what: str, parameters: Sequence[syntax.Parameter], arguments: Sequence[syntax.Argument], at: Position
) -> list[tuple[syntax.Parameter, syntax.Argument]]:
    if len(arguments) > len(parameters):
        raise CompileError(f"{what} takes {len(parameters)} arguments, {len(arguments)} given", at)
    by_name: Mapping[str, syntax.Parameter] = {p.name: p for p in parameters}
    pairs: list[tuple[syntax.Parameter, syntax.Argument]] = []
    seen: set[str] = set()
    for position, argument in enumerate(arguments):
        if argument.name is None:
            parameter = parameters[position]
        elif argument.name in by_name:
            parameter = by_name[argument.name]
        else:
            raise CompileError(f"{what} has no parameter `{argument.name}`", argument.at)
        if parameter.name in seen:
            raise CompileError(f"parameter `{parameter.name}` of {what} is given twice", argument.at)
        seen.add(parameter.name)
        pairs.append((parameter, argument))
    missing = [p.name for p in parameters if p.name not in seen and p.default is None]
    if missing:
        raise CompileError(
            f"{what} takes {len(parameters)} arguments, {len(arguments)} given: `{missing[0]}` is missing", at
        )
    return pairs


def _infer(wanted: t.Type, have: t.Type, binding: Binding) -> None:
    """Adds to `binding` the types that the type variables of `wanted` must have for `have` to fit."""
    if isinstance(wanted, t.TypeVariable):
        if binding.get(wanted, t.INTEGER) == t.INTEGER and have != t.ANYTHING:
            binding[wanted] = have
    elif isinstance(wanted, t.StackType) and isinstance(have, t.StackType):
        _infer(wanted.element, have.element, binding)
    elif isinstance(wanted, t.TupleType) and isinstance(have, t.TupleType):
        for one, other in zip(wanted.elements, have.elements, strict=False):
            _infer(one, other, binding)
    elif (
        isinstance(wanted, t.StructType)
        and isinstance(have, t.StructType)
        and wanted.declaration is have.declaration
    ) or (isinstance(wanted, t.ExternType | t.BlockType) and type(wanted) is type(have)):
        for one, other in zip(wanted.arguments, have.arguments, strict=False):
            _infer(one, other, binding)
