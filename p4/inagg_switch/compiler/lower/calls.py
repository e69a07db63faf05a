"""Calls: actions, functions, tables, blocks, built-in methods and externs."""

from collections.abc import Mapping
from typing import TypeVar

from inagg_switch.compiler import ir, primitives, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.expressions import path_of
from inagg_switch.compiler.lower.externs import ExternLowerer
from inagg_switch.compiler.lower.instances import Given, known_given, takes_known
from inagg_switch.errors import CompileError, Position

_Object = TypeVar("_Object", bound=ir.Object)


class CallLowerer(ExternLowerer):
    """Lowers calls. A call of an extern is a statement: it becomes a Primitive."""

    def action_of(self, declaration: syntax.Action) -> ir.Action:
        raise NotImplementedError

    def function_of(self, declaration: syntax.Function, known: list[Given]) -> ir.Function:
        raise NotImplementedError

    def table_of(self, declaration: syntax.Table) -> ir.Table:
        raise NotImplementedError

    def block_of(
        self, target: targets.BlockTarget, bound: Mapping[str, syntax.Expression | None], at: Position
    ) -> ir.Block:
        raise NotImplementedError

    def mark(self, name: str, at: Position) -> ir.Expr:
        """A new truth value of the block, false when a packet comes."""
        raise NotImplementedError

    # --- in expressions

    def call(self, e: syntax.Call) -> ir.Expr:
        target = e.target
        if isinstance(target, targets.ActionTarget):
            action = self.action_of(target.action)
            arguments = self.arguments(target.action.parameters, e.bound, private=False)
            return ir.Call(t.VOID, action.name, arguments, action.exits)
        if isinstance(target, targets.FunctionTarget):
            parameters = target.function.parameters
            known = known_given(parameters, e.bound, self.values, self.fixed)
            function = self.function_of(target.function, known)
            passed = [p for p in parameters if not takes_known(p)]
            arguments = self.arguments(passed, e.bound, private=True)
            return ir.Call(e.type, f"{function.name}", arguments)
        if isinstance(target, targets.TableTarget):
            table = self.table_of(target.table)
            return ir.TableApply(e.type, table, any(u.exits for u in table.actions))
        if isinstance(target, targets.BlockTarget):
            block = self.block_of(target, e.bound, e.start)
            passed = [p for p in target.block.declaration.parameters if not takes_known(p)]
            arguments = self.arguments(passed, e.bound, private=True, in_block=True)
            block.applied.append(arguments)
            return ir.Call(t.VOID, block.name, arguments, block.exits)
        if isinstance(target, targets.BuiltinTarget) and target.name == "isValid":
            return ir.Operation(t.BOOL, "valid", (self.expression(target.object),))
        if isinstance(target, targets.MethodTarget) and target.extern.name == "packet_in":
            return self._packet_in_value(e, target)
        if isinstance(target, targets.ExternTarget) and target.function.name == "static_assert":
            return ir.Const(t.BOOL, True)
        raise CompileError("this call is not supported in an expression", e.start)

    def _packet_in_value(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Expr:
        if target.method.name == "length":
            raise CompileError("packet_in.length() is not supported, as BMv2 does not have it", e.start)
        if target.method.name != "lookahead":
            raise CompileError(f"{target.method.name} gives no value", e.start)
        value = self.ahead(e, target)
        if t.is_header(e.type):
            # p4c has a header for each such place, which BMv2 adds to the packet when it becomes valid.
            looked = self.mark("looked", e.start)
            self.pending.append(primitives.Look(looked, t.bit_width(e.type) // 8))
        return value

    def ahead(self, e: syntax.Expression, target: targets.MethodTarget) -> ir.Expr:
        """What a lookahead reads. A packet that is too short for it is an error."""
        packet = self.expression(target.object)
        if not _fixed_size(e.type):
            raise CompileError(f"lookahead cannot read {e.type}", e.start)
        try:
            width = t.bit_width(e.type)
        except TypeError:
            raise CompileError(f"lookahead cannot read {e.type}", e.start) from None
        self.use_type(e.type, e.start)
        self.pending.append(primitives.Require(packet, width))
        return ir.Operation(e.type, "lookahead", (packet,))

    # --- as statements

    def call_statement(self, s: syntax.CallStatement) -> ir.Stmt:
        e = s.call
        if not isinstance(e, syntax.Call):
            raise CompileError("this expression has no effect", s.at)
        target = e.target
        if isinstance(target, targets.BuiltinTarget):
            return self._builtin(e, target)
        if isinstance(target, targets.MethodTarget):
            return self._method(e, target)
        if isinstance(target, targets.ExternTarget):
            return self.extern_function(e, target)
        if isinstance(target, targets.BlockTarget) and isinstance(target.block.declaration, syntax.Parser):
            call = self.expression(e)
            assert isinstance(call, ir.Call)
            return primitives.Parse(call)
        return ir.Evaluate(self.expression(e))

    def _builtin(self, e: syntax.Call, target: targets.BuiltinTarget) -> ir.Stmt:
        header = self.expression(target.object)
        if target.name in ("push_front", "pop_front"):
            count = e.bound["count"]
            assert count is not None
            push_or_pop = primitives.PushFront if target.name == "push_front" else primitives.PopFront
            return push_or_pop(header, self.number(count, "the number of places"))
        if target.name == "setValid":
            return primitives.SetValid(header)
        if target.name == "setInvalid":
            return primitives.SetInvalid(header)
        raise CompileError(f"{target.name}() alone has no effect", e.start)

    def _method(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        name = f"{target.extern.name}.{target.method.name}"
        handler = {
            "packet_in.extract": self._extract,
            "packet_in.advance": self._advance,
            "packet_in.lookahead": self._ahead_alone,
            "packet_out.emit": self._emit,
            "register.read": self._register_read,
            "register.write": self._register_write,
            "counter.count": self._count,
            "direct_counter.count": self._direct_count,
            "meter.execute_meter": self._execute_meter,
            "direct_meter.read": self._direct_meter_read,
        }.get(name)
        if handler is None:
            raise CompileError(f"{name} is not supported", e.start)
        return handler(e, target)

    def _extract(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        packet = self.expression(target.object)
        name = target.method.parameters[0].name
        if e.bound[name] is None:
            type_ = e.type_values[target.method.type_parameters[0]]
            header: ir.Expr = ir.Var(type_, self.temporary(type_, e.start, "ignored"))
            self.pending.append(ir.Declare(header.name, type_, None))  # type: ignore[attr-defined]
        else:
            header = self.bound(e, name)
        if not t.is_header(header.type):
            raise CompileError(f"extract needs a header, found {header.type}", e.start)
        variable = t.varbit_field(header.type) is not None
        if len(target.method.parameters) == 1:
            if variable:
                raise CompileError(
                    f"{header.type} has a varbit field: extract needs its size as well", e.start
                )
            return primitives.Extract(packet, header)
        if not variable:
            raise CompileError(f"{header.type} has no varbit field that the size could be of", e.start)
        return primitives.Extract(packet, header, self.bound(e, "variableFieldSizeInBits"))

    def _ahead_alone(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        self.ahead(e, target)
        return ir.Group(())

    def _advance(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        return primitives.Advance(self.expression(target.object), self.bound(e, "sizeInBits"))

    def _emit(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        header = self.bound(e, "hdr")
        if not _emittable(header.type):
            raise CompileError(f"emit needs headers, found {header.type}", e.start)
        return primitives.Emit(self.expression(target.object), header)

    def _object(self, target: targets.MethodTarget, kind: type[_Object]) -> _Object:
        name = target.object
        found = self.values.get(id(name.declaration)) if isinstance(name, syntax.Name) else None
        if not isinstance(found, kind):
            raise CompileError("the extern instance is not known here", name.at)
        return found

    def _register_read(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        result, index = self.bound(e, "result"), self.bound(e, "index")
        return primitives.RegisterRead(self._object(target, ir.Register), result, index)

    def _register_write(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        index, value = self.bound(e, "index"), self.bound(e, "value")
        return primitives.RegisterWrite(self._object(target, ir.Register), index, value)

    def _count(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        index = self.bound(e, "index")
        return primitives.Count(self._object(target, ir.Counter), index)

    def _execute_meter(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        result, index = self.bound(e, "result"), self.bound(e, "index")
        return primitives.ExecuteMeter(self._object(target, ir.Meter), result, index)

    def _direct_meter_read(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        """The table does it on every hit, before the action, whether or not the action asks for it (BMv2)."""
        meter = self._object(target, ir.DirectMeter)
        result = self.bound(e, "result")
        path = path_of(result)
        if path is None or path[0] in self.locals:
            raise CompileError("the result of a direct meter must go to metadata or a header field", e.start)
        if meter.target is not None and meter.target != result:
            raise CompileError("every read of a direct meter must have the same result", e.start)
        meter.target = result
        return ir.Group(())

    def _direct_count(self, e: syntax.Call, target: targets.MethodTarget) -> ir.Stmt:
        self._object(target, ir.DirectCounter)
        return ir.Group(())  # its table counts every hit (v1model: the call is unnecessary)


def _fixed_size(type_: t.Type) -> bool:
    """A lookahead can tell where each of its bits lies."""
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
