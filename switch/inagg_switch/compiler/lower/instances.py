# SPDX-License-Identifier: Apache-2.0
"""Makes instances of controls, parsers and extern objects, and finds their static arguments.

A static argument is an extern object, a number without a width, or a string. The C++ code of an instance names its
extern objects directly and may depend on the others, so every apply of an instance must have the same static arguments;
p4c demands that too.
"""

from collections.abc import Mapping, Sequence

from inagg_switch.compiler import ir, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.lower.constants import constant, known_number, known_value, member_name
from inagg_switch.compiler.lower.context import Instance, Scope, StaticArgument
from inagg_switch.compiler.names import control_plane_name
from inagg_switch.errors import CompileError


def is_static(parameter: syntax.Parameter) -> bool:
    """True if the argument must be known at compile time, and generated code does not pass it: an extern object other
    than the packet, a number without a width, or a string."""
    if isinstance(parameter.type, t.ExternType):
        return parameter.type.name not in ("packet_in", "packet_out")
    return parameter.type in (t.INTEGER, t.STRING)


def static_arguments(
    scope: Scope, parameters: Sequence[syntax.Parameter], bound: Mapping[str, syntax.Expression | None]
) -> list[StaticArgument]:
    """The arguments of the static parameters, in order."""
    found: list[StaticArgument] = []
    for parameter in filter(is_static, parameters):
        value = bound[parameter.name]
        if value is not None and not isinstance(parameter.type, t.ExternType):
            what = f"parameter `{parameter.name}`"
            found.append(ir.Const(parameter.type, known_value(scope, value, what)))
            continue
        made = scope.values.get(id(value.declaration)) if isinstance(value, syntax.Name) else None
        if not isinstance(made, ir.Object):
            at = parameter.at if value is None else value.start
            raise CompileError(f"the object for `{parameter.name}` is not known at compile time", at)
        found.append(made)
    return found


def make_instance(scope: Scope, local: syntax.Instantiation) -> None:
    """Makes the instance or extern object of a declaration."""
    scope.values[id(local)] = _make(scope, local, local.type, control_plane_name(local, scope.path))


def _make(scope: Scope, local: syntax.Instantiation, type_: t.Type, full_name: str) -> Instance | ir.Object:
    if isinstance(type_, t.BlockType):
        declaration = type_.declaration
        values = constructor_values(scope, declaration, local.bound, full_name)
        instance = Instance(declaration, full_name, values)
        scope.instances.append((id(local), instance))
        if not any(is_static(p) for p in declaration.parameters):
            scope.stage.block(instance, [], local.at)
        return instance
    assert isinstance(type_, t.ExternType)
    made = _extern_instance(scope, local, type_, full_name)
    scope.add_object(made)
    return made


def constructor_values(
    scope: Scope,
    declaration: syntax.Control | syntax.Parser,
    bound: Mapping[str, syntax.Expression | None],
    path: str,
) -> dict[int, object]:
    """The values of the constructor parameters of the instance `path`, by the parameter's id."""
    values: dict[int, object] = {}
    for parameter in declaration.constructor_parameters:
        value = bound[parameter.name]
        assert value is not None
        values[id(parameter)] = _constructor_argument(scope, value, f"{path}.{parameter.name}")
    return values


def _constructor_argument(scope: Scope, value: syntax.Expression, full_name: str) -> object:
    if isinstance(value, syntax.Call) and isinstance(value.target, targets.ConstructorTarget):
        # A constructor call as an argument: the instance has the name of the parameter.
        local = syntax.Instantiation(value.at, full_name, syntax.DontCareTypeRef(value.at), value.arguments)
        local.type, local.bound = value.target.type, value.bound
        return _make(scope, local, local.type, full_name)
    if isinstance(value.type, t.ExternType | t.BlockType):
        known = scope.values.get(id(value.declaration)) if isinstance(value, syntax.Name) else None
        if known is None:
            raise CompileError(f"{describe(value)} is not known at compile time", value.start)
        return known
    return constant(known_value(scope, value, "an argument of a constructor"), value.type)


def _extern_instance(
    scope: Scope, local: syntax.Instantiation, type_: t.ExternType, full_name: str
) -> ir.Object:
    member = scope.stage.members.unique(full_name)
    if type_.name == "register":
        element = type_.arguments[0]
        if not isinstance(t.strip(element), t.BitType):
            raise CompileError(f"a register must hold bits, not {element}", local.at)
        size = _size(scope, local)
        if size == 0:
            raise CompileError("a register needs at least one cell", local.at)
        return ir.Register(member, full_name, local, element, size)
    if type_.name == "counter":
        return ir.Counter(member, full_name, local, _size(scope, local), _unit(scope, local))
    if type_.name == "direct_counter":
        return ir.DirectCounter(member, full_name, local, _unit(scope, local))
    if type_.name == "meter":
        return ir.Meter(member, full_name, local, _size(scope, local), _unit(scope, local))
    if type_.name == "direct_meter":
        return ir.DirectMeter(member, full_name, local, _unit(scope, local))
    if type_.name == "action_profile":
        return ir.Profile(member, full_name, local, _size(scope, local), None)
    if type_.name == "action_selector":
        return ir.Profile(member, full_name, local, _size(scope, local), _enum(scope, local, "algorithm"))
    raise CompileError(f"extern {type_.name} is not supported", local.ref.at)


def _size(scope: Scope, local: syntax.Instantiation) -> int:
    value = local.bound["size"]
    assert value is not None
    size = known_number(scope, value, "the size")
    if size > 1 << 31:
        raise CompileError(f"size {size} is too large", value.at)
    return size


def _unit(scope: Scope, local: syntax.Instantiation) -> str:
    return _enum(scope, local, "type")


def _enum(scope: Scope, local: syntax.Instantiation, name: str) -> str:
    value = local.bound[name]
    assert value is not None
    return member_name(scope, value, f"`{name}`")


def make_object(scope: Scope, call: syntax.Call, entry: syntax.Property, table: str) -> ir.Object:
    """Makes an extern object from a constructor call in a table's property. Its name is the @name of the property, or
    else the property's name; if that is taken, the table's name goes in front."""
    assert isinstance(call.target, targets.ConstructorTarget)
    local = syntax.Instantiation(
        call.at,
        entry.name,
        syntax.DontCareTypeRef(call.at),
        call.arguments,
        annotations=entry.annotations,
    )
    local.type, local.bound = call.target.type, call.bound
    name = control_plane_name(local, "")
    if any(name == o.full_name for o in scope.stage.objects):
        name = f"{table}.{name}"
    made = _make(scope, local, local.type, name)
    assert isinstance(made, ir.Object)
    return made
