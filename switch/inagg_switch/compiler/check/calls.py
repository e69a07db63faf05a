# SPDX-License-Identifier: Apache-2.0
"""Checks calls: finds the target, its type arguments and its arguments."""

from collections.abc import Sequence

from inagg_switch.compiler import syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.arguments import bind, compile_time, kind_of
from inagg_switch.compiler.check.context import Binding, Checker
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.check.expressions import expression, lvalue
from inagg_switch.compiler.check.types import substitute, type_of
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError, Position

_WIDTHS = ("minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes")


def call(checker: Checker, e: syntax.Call) -> syntax.Expression:
    callee = e.callee
    if isinstance(callee, syntax.TypeExpression):
        return _construct(checker, e, type_of(checker, callee.ref))
    if isinstance(callee, syntax.Member):
        return _method(checker, e, callee)
    if not isinstance(callee, syntax.Name):
        raise CompileError("this cannot be called", e.start)
    return _named(checker, e, callee)


def _named(checker: Checker, e: syntax.Call, callee: syntax.Name) -> syntax.Expression:
    found = checker.scope.find(callee.name, absolute=callee.absolute)
    if found is None:
        raise CompileError(f"`{callee.name}` is not declared", callee.at)
    if isinstance(found, list):
        function = _overload(callee.name, found, e)
        if callee.name == "verify" and function.body is None and checker.inside != "parser":
            raise CompileError("verify can only be called in a parser", callee.at)
        binding = _type_arguments(checker, function.name, checker.variables[id(function)], e)
        e.bound = bind(checker, f"function {callee.name}", function.parameters, e.arguments, binding, e.start)
        e.target = (targets.ExternTarget if function.body is None else targets.FunctionTarget)(function)
        _result(checker, e, function, binding)
        for parameter in function.parameters:
            given = e.bound.get(parameter.name)
            if given is not None and binding.get(parameter.type) == t.INTEGER:  # type: ignore[call-overload]
                raise CompileError("the width of this number is not known; write it as in 8w1", given.start)
        if function.body is not None and function.type_parameters:
            e.target = targets.FunctionTarget(checker.checkers.specialised(checker, function, binding))
        return e
    if isinstance(found, syntax.Action):
        if checker.inside in ("parser", "function"):
            raise CompileError(f"action {found.name} cannot be called from a {checker.inside}", callee.at)
        _no_type_arguments(e)
        e.target = targets.ActionTarget(found)
        e.bound = bind(
            checker, f"action {found.name}", found.parameters, e.arguments, {}, e.start, of_action=True
        )
        e.type = t.VOID
        return e
    if isinstance(found, syntax.TypeDeclaration | t.Type):
        return _construct(
            checker,
            e,
            type_of(checker, syntax.NamedTypeRef(callee.at, callee.name, e.type_arguments, callee.absolute)),
        )
    checked = expression(checker, callee)
    raise CompileError(f"{describe(checked)} cannot be called", callee.at)


def _overload(name: str, functions: Sequence[syntax.Function], e: syntax.Call) -> syntax.Function:
    given = len(e.arguments)
    for function in functions:
        required = sum(p.default is None for p in function.parameters)
        if required <= given <= len(function.parameters):
            return function
    counts = " or ".join(str(len(f.parameters)) for f in functions)
    raise CompileError(f"`{name}` takes {counts} arguments, {given} given", e.start)


def _type_arguments(
    checker: Checker, name: str, variables: Sequence[t.TypeVariable], e: syntax.Call
) -> Binding:
    if not e.type_arguments:
        return {}
    if len(e.type_arguments) != len(variables):
        raise CompileError(
            f"`{name}` takes {len(variables)} type arguments, {len(e.type_arguments)} given", e.start
        )
    types = [type_of(checker, a) for a in e.type_arguments]
    return {v: type_ for v, type_ in zip(variables, types, strict=True) if type_ != t.ANYTHING}


def _result(
    checker: Checker, e: syntax.Call, function: syntax.Function, binding: Binding
) -> syntax.Expression:
    for variable in checker.variables[id(function)]:
        if variable not in binding:
            raise CompileError(
                f"type argument {variable} of `{function.name}` is not known; write {function.name}<...>",
                e.start,
            )
    e.type_values = {v.name: type_ for v, type_ in binding.items()}
    e.type = substitute(function.result_type, binding)
    if function.name == "static_assert" and function.body is None:
        _static_assert(e)
    return e


def _static_assert(e: syntax.Call) -> None:
    check, message, *_ = (*e.bound.values(), None, None)
    if check is None or check.value is None:
        raise CompileError("the condition of static_assert must be known at compile time", e.start)
    if not check.value:
        raise CompileError(str(message.value) if message is not None else "static_assert failed", e.start)
    e.value = True


# --- constructors


def _construct(checker: Checker, e: syntax.Call, type_: t.Type) -> syntax.Expression:
    made, e.bound = construct(checker, type_, e.type_arguments, e.arguments, e.start)
    e.type = made
    e.target = targets.ConstructorTarget(made)
    return e


def construct(
    checker: Checker,
    type_: t.Type,
    type_arguments: Sequence[syntax.TypeRef],
    arguments: Sequence[syntax.Argument],
    at: Position,
) -> tuple[t.ExternType | t.BlockType, dict[str, syntax.Expression | None]]:
    """The type of the instance and its checked constructor arguments."""
    if isinstance(type_, t.ExternType):
        for constructor in type_.declaration.constructors:
            if len(constructor.parameters) == len(arguments):
                break
        else:
            raise CompileError(f"{type_} has no constructor with {len(arguments)} arguments", at)
        parameters = constructor.parameters
    elif isinstance(type_, t.BlockType):
        declaration = type_.declaration
        if isinstance(declaration, syntax.BlockTypeDeclaration):
            if declaration.kind != "package":
                raise CompileError(f"{declaration.kind} type {type_} has no body to instantiate", at)
            parameters = declaration.parameters
        else:
            parameters = declaration.constructor_parameters
    else:
        raise CompileError(f"{type_} cannot be instantiated", at)
    variables = checker.variables[id(type_.declaration)]
    given = tuple(type_of(checker, a) for a in type_arguments) or type_.arguments
    binding: Binding = {v: a for v, a in zip(variables, given, strict=False) if a != t.ANYTHING}
    bound = bind(checker, f"the constructor of {type_.name}", parameters, arguments, binding, at)
    missing = [v for v in variables if v not in binding]
    if missing and isinstance(type_, t.ExternType):
        raise CompileError(f"{type_.name} needs type arguments: {type_.name}<...>", at)
    return type(type_)(type_.name, type_.declaration, tuple(binding.get(v, v) for v in variables)), bound


# --- methods


def _method(checker: Checker, e: syntax.Call, callee: syntax.Member) -> syntax.Expression:
    base = callee.base = expression(checker, callee.base)
    if isinstance(base.type, t.ExternType):
        return _extern_method(checker, e, callee, base.type)
    _no_type_arguments(e)
    if (
        isinstance(base, syntax.TypeExpression)
        and isinstance(base.type, t.BlockType)
        and callee.name == "apply"
    ):
        if base.type.declaration.__class__ not in (syntax.Control, syntax.Parser):
            raise CompileError(f"{base.type} has no body to apply", e.start)
        return _apply_block(checker, e, base.type, None)
    if (
        isinstance(base, syntax.Name)
        and isinstance(base.declaration, syntax.Table)
        and callee.name == "apply"
    ):
        return _apply_table(checker, e, base.declaration)
    type_ = base.type
    if isinstance(type_, t.BlockType) and callee.name == "apply":
        return _apply_block(checker, e, type_, base)
    if callee.name in _WIDTHS and not e.arguments:
        return _size(e, callee, type_)
    return _builtin(checker, e, callee, type_)


def _extern_method(
    checker: Checker, e: syntax.Call, callee: syntax.Member, type_: t.ExternType
) -> syntax.Expression:
    methods = [m for m in type_.declaration.methods if m.name == callee.name]
    if not methods:
        raise CompileError(f"extern {type_.name} has no method `{callee.name}`", callee.at)
    method = _overload(callee.name, methods, e)
    outer = dict(zip(checker.variables[id(type_.declaration)], type_.arguments, strict=False))
    binding = {**outer, **_type_arguments(checker, method.name, checker.variables[id(method)], e)}
    e.bound = bind(
        checker, f"method {type_.name}.{callee.name}", method.parameters, e.arguments, binding, e.start
    )
    e.target = targets.MethodTarget(callee.base, type_, method)
    return _result(checker, e, method, binding)


def _apply_table(checker: Checker, e: syntax.Call, table: syntax.Table) -> syntax.Expression:
    if checker.inside != "control":
        raise CompileError(f"table {table.name} can only be applied in a control's apply block", e.start)
    if e.arguments:
        raise CompileError("apply() of a table takes no arguments", e.start)
    e.target = targets.TableTarget(table)
    e.type = t.ApplyResultType(table)
    return e


def _apply_block(
    checker: Checker, e: syntax.Call, type_: t.BlockType, instance: syntax.Expression | None
) -> syntax.Expression:
    declaration = type_.declaration
    kind = kind_of(declaration)
    if checker.inside != kind:
        raise CompileError(f"{kind} {type_.name} can only be applied in a {kind}", e.start)
    e.target = targets.BlockTarget(type_, instance)
    binding = dict(zip(checker.variables[id(declaration)], type_.arguments, strict=False))
    e.bound = bind(checker, f"{kind} {type_.name}", declaration.parameters, e.arguments, binding, e.start)
    e.type = t.VOID
    return e


def _size(e: syntax.Call, callee: syntax.Member, type_: t.Type) -> syntax.Expression:
    try:
        bits = t.bit_width(type_)
    except TypeError:
        raise CompileError(f"{describe(callee.base)} has no size", e.start) from None
    if callee.name.startswith("max"):
        bits += sum(f.width for f in _varbits(type_))
    e.type = t.INTEGER
    e.value = bits if callee.name.endswith("Bits") else (bits + 7) // 8
    return e


def _builtin(checker: Checker, e: syntax.Call, callee: syntax.Member, type_: t.Type) -> syntax.Expression:
    name = callee.name
    header = t.is_header(type_)
    if name == "isValid" and (header or t.is_union(type_)):
        e.type = t.BOOL
    elif name in ("setValid", "setInvalid") and header:
        callee.base = lvalue(checker, callee.base)
        e.type = t.VOID
    elif name in ("push_front", "pop_front") and t.is_stack(type_):
        if checker.inside == "parser":
            raise CompileError(f"{name} of a header stack is not allowed in a parser", e.start)
        callee.base = lvalue(checker, callee.base)
        if len(e.arguments) != 1 or e.arguments[0].value is None:
            raise CompileError(f"{name} takes one argument", e.start)
        count = rvalue(checker, e.arguments[0].value)
        number = count.type == t.INTEGER or isinstance(t.strip(count.type), t.BitType)
        if not (number and compile_time(count)) or (count.value is not None and count.value < 0):
            raise CompileError(f"the argument of {name} must be a number known at compile time", count.start)
        e.bound = {"count": count}
        e.target = targets.BuiltinTarget(callee.base, name)
        e.type = t.VOID
        return e
    else:
        raise CompileError(f"{describe(callee.base)} has no method `{name}`", callee.at)
    if e.arguments:
        raise CompileError(f"{name} takes no arguments", e.start)
    e.target = targets.BuiltinTarget(callee.base, name)
    return e


def _no_type_arguments(e: syntax.Call) -> None:
    if e.type_arguments:
        raise CompileError("only functions, externs and their methods take type arguments", e.start)


def _varbits(type_: t.Type) -> list[t.VarbitType]:
    if isinstance(type_, t.VarbitType):
        return [type_]
    if isinstance(type_, t.StructType):
        return [v for f in type_.fields.values() for v in _varbits(f)]
    if isinstance(type_, t.StackType):
        return _varbits(type_.element) * type_.size
    return []
