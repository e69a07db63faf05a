# SPDX-License-Identifier: Apache-2.0
"""Lowers calls of actions, functions, tables, blocks, built-in methods and externs."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from inagg_switch.compiler import ir, primitives, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.lower.arguments import pass_arguments, path_of
from inagg_switch.compiler.lower.constants import known_number
from inagg_switch.compiler.lower.context import Instance, Scope
from inagg_switch.compiler.lower.expressions import expression
from inagg_switch.compiler.lower.externs import argument, extern_function
from inagg_switch.compiler.lower.instances import is_static, static_arguments
from inagg_switch.errors import CompileError, Position

_Object = TypeVar("_Object", bound=ir.Object)


# --- in expressions


def call(scope: Scope, e: syntax.Call) -> ir.Expr:
    target = e.target
    if isinstance(target, targets.ActionTarget):
        action = scope.action_of(target.action)
        arguments = pass_arguments(scope, target.action.parameters, e.bound, private=False)
        return ir.Call(t.VOID, action.name, arguments, action.exits)
    if isinstance(target, targets.FunctionTarget):
        parameters = target.function.parameters
        static = static_arguments(scope, parameters, e.bound)
        function = scope.stage.function(target.function, static)
        passed = [p for p in parameters if not is_static(p)]
        arguments = pass_arguments(scope, passed, e.bound, private=True)
        return ir.Call(e.type, f"{function.name}", arguments)
    if isinstance(target, targets.TableTarget):
        table = scope.table_of(target.table)
        return ir.TableApply(e.type, table, any(u.exits for u in table.actions))
    if isinstance(target, targets.BlockTarget):
        block = _block_of(scope, target, e.bound, e.start)
        passed = [p for p in target.block.declaration.parameters if not is_static(p)]
        arguments = pass_arguments(scope, passed, e.bound, private=True, in_block=True)
        block.applied.append(arguments)
        return ir.Call(t.VOID, block.name, arguments, block.exits)
    if isinstance(target, targets.BuiltinTarget) and target.name == "isValid":
        return ir.Operation(t.BOOL, "valid", (expression(scope, target.object),))
    if isinstance(target, targets.MethodTarget) and target.extern.name == "packet_in":
        return _packet_in_value(scope, e, target)
    if isinstance(target, targets.ExternTarget) and target.function.name == "static_assert":
        return ir.Const(t.BOOL, True)
    raise CompileError("this call is not supported in an expression", e.start)


def _block_of(
    scope: Scope, target: targets.BlockTarget, bound: Mapping[str, syntax.Expression | None], at: Position
) -> ir.Block:
    if target.instance is None:
        # `C.apply(...)` makes a new instance with the name of its type.
        declaration = target.block.declaration
        own = Instance(declaration, f"{scope.path}.{declaration.name}", {})
        scope.instances.append((0, own))
        instance: object = own
    else:
        assert isinstance(target.instance, syntax.Name)
        instance = scope.values.get(id(target.instance.declaration))
    if not isinstance(instance, Instance):
        assert target.instance is not None
        raise CompileError(f"{describe(target.instance)} cannot be applied here", target.instance.at)
    static = static_arguments(scope, target.block.declaration.parameters, bound)
    return scope.stage.block(instance, static, at)


def _packet_in_value(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Expr:
    if target.method.name == "length":
        raise CompileError("packet_in.length() is not supported: BMv2 does not have it", e.start)
    if target.method.name != "lookahead":
        raise CompileError(f"{target.method.name} returns no value", e.start)
    value = lookahead(scope, e, target)
    if t.is_header(e.type):
        # p4c declares a header for each lookahead; BMv2 adds its length to the packet when it becomes valid.
        looked = scope.flag("looked", e.start)
        scope.pending.append(primitives.Look(looked, t.bit_width(e.type) // 8))
    return value


def lookahead(scope: Scope, e: syntax.Expression, target: targets.MethodTarget) -> ir.Expr:
    """The value that a lookahead reads. If the packet is too short, it is a parser error."""
    packet = expression(scope, target.object)
    if not _fixed_size(e.type):
        raise CompileError(f"lookahead cannot read {e.type}", e.start)
    try:
        width = t.bit_width(e.type)
    except TypeError:
        raise CompileError(f"lookahead cannot read {e.type}", e.start) from None
    scope.stage.use_type(e.type, e.start)
    scope.pending.append(primitives.Require(packet, width))
    return ir.Operation(e.type, "lookahead", (packet,))


# --- as statements


def call_statement(scope: Scope, s: syntax.CallStatement) -> ir.Stmt:
    """Lowers a call as a statement. Calls of externs become primitives."""
    e = s.call
    if not isinstance(e, syntax.Call):
        raise CompileError("this expression has no effect", s.at)
    target = e.target
    if isinstance(target, targets.BuiltinTarget):
        return _builtin(scope, e, target)
    if isinstance(target, targets.MethodTarget):
        return _method(scope, e, target)
    if isinstance(target, targets.ExternTarget):
        return extern_function(scope, e, target)
    if isinstance(target, targets.BlockTarget) and isinstance(target.block.declaration, syntax.Parser):
        call = expression(scope, e)
        assert isinstance(call, ir.Call)
        return primitives.Parse(call)
    return ir.Evaluate(expression(scope, e))


def _builtin(scope: Scope, e: syntax.Call, target: targets.BuiltinTarget) -> ir.Stmt:
    header = expression(scope, target.object)
    if target.name in ("push_front", "pop_front"):
        count = e.bound["count"]
        assert count is not None
        push_or_pop = primitives.PushFront if target.name == "push_front" else primitives.PopFront
        return push_or_pop(header, known_number(scope, count, "the number of places"))
    if target.name == "setValid":
        return primitives.SetValid(header)
    if target.name == "setInvalid":
        return primitives.SetInvalid(header)
    raise CompileError(f"{target.name}() has no effect as a statement", e.start)


def _method(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    name = f"{target.extern.name}.{target.method.name}"
    handler = _METHODS.get(name)
    if handler is None:
        raise CompileError(f"{name} is not supported", e.start)
    return handler(scope, e, target)


def _extract(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    packet = expression(scope, target.object)
    name = target.method.parameters[0].name
    if e.bound[name] is None:
        type_ = e.type_values[target.method.type_parameters[0]]
        header: ir.Expr = ir.Var(type_, scope.temporary(type_, e.start, "ignored"))
        scope.pending.append(ir.Declare(header.name, type_, None))  # type: ignore[attr-defined]
    else:
        header = argument(scope, e, name)
    if not t.is_header(header.type):
        raise CompileError(f"extract needs a header, found {header.type}", e.start)
    variable = t.varbit_field(header.type) is not None
    if len(target.method.parameters) == 1:
        if variable:
            raise CompileError(f"{header.type} has a varbit field: extract needs its size too", e.start)
        return primitives.Extract(packet, header)
    if not variable:
        raise CompileError(f"{header.type} has no varbit field, so extract takes no size", e.start)
    return primitives.Extract(packet, header, argument(scope, e, "variableFieldSizeInBits"))


def _discarded_lookahead(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    lookahead(scope, e, target)
    return ir.Group(())


def _advance(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    return primitives.Advance(expression(scope, target.object), argument(scope, e, "sizeInBits"))


def _emit(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    header = argument(scope, e, "hdr")
    if not _emittable(header.type):
        raise CompileError(f"emit needs headers, found {header.type}", e.start)
    return primitives.Emit(expression(scope, target.object), header)


def _object(scope: Scope, target: targets.MethodTarget, kind: type[_Object]) -> _Object:
    name = target.object
    found = scope.values.get(id(name.declaration)) if isinstance(name, syntax.Name) else None
    if not isinstance(found, kind):
        raise CompileError("the extern instance is not known at compile time", name.at)
    return found


def _register_read(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    result, index = argument(scope, e, "result"), argument(scope, e, "index")
    return primitives.RegisterRead(_object(scope, target, ir.Register), result, index)


def _register_write(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    index, value = argument(scope, e, "index"), argument(scope, e, "value")
    return primitives.RegisterWrite(_object(scope, target, ir.Register), index, value)


def _count(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    index = argument(scope, e, "index")
    return primitives.Count(_object(scope, target, ir.Counter), index)


def _execute_meter(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    result, index = argument(scope, e, "result"), argument(scope, e, "index")
    return primitives.ExecuteMeter(_object(scope, target, ir.Meter), result, index)


def _direct_meter_read(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    """Sets the meter's target. The table executes the meter on every hit, before the action, even if the action does
    not read it (as in BMv2)."""
    meter = _object(scope, target, ir.DirectMeter)
    result = argument(scope, e, "result")
    path = path_of(result)
    if path is None or path[0] in scope.locals:
        raise CompileError("the result of a direct meter must go to metadata or a header field", e.start)
    if meter.target is not None and meter.target != result:
        raise CompileError("every read of a direct meter must have the same result", e.start)
    meter.target = result
    return ir.Group(())


def _direct_count(scope: Scope, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
    _object(scope, target, ir.DirectCounter)
    return ir.Group(())  # the table counts every hit (v1model: the call is unnecessary)


_METHODS: dict[str, Callable[[Scope, syntax.Call, targets.MethodTarget], ir.Stmt]] = {
    "packet_in.extract": _extract,
    "packet_in.advance": _advance,
    "packet_in.lookahead": _discarded_lookahead,
    "packet_out.emit": _emit,
    "register.read": _register_read,
    "register.write": _register_write,
    "counter.count": _count,
    "direct_counter.count": _direct_count,
    "meter.execute_meter": _execute_meter,
    "direct_meter.read": _direct_meter_read,
}


def _fixed_size(type_: t.Type) -> bool:
    """True if the place of each bit is known at compile time."""
    bits = t.strip(type_)
    if isinstance(bits, t.StackType):
        return _fixed_size(bits.element)
    if isinstance(bits, t.StructType):
        return bits.kind != "header_union" and all(_fixed_size(f) for f in bits.fields.values())
    return isinstance(bits, t.BitType) or bits == t.BOOL


def _emittable(type_: t.Type) -> bool:
    if isinstance(type_, t.StackType):
        return t.is_stack(type_)
    if isinstance(type_, t.StructType):
        return type_.kind != "struct" or all(_emittable(f) for f in type_.fields.values())
    return False
