# SPDX-License-Identifier: Apache-2.0
"""Primitives of the language, as C++."""

from collections.abc import Sequence

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.calls import call_parts
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import (
    assign,
    cpp_type,
    distance,
    exact,
    expr,
    low_bits,
    width_of,
)
from inagg_switch.compiler.emit.externs import write_extern
from inagg_switch.compiler.emit.literals import c_string
from inagg_switch.compiler.names import spell_field
from inagg_switch.compiler.primitives import (
    Advance,
    Count,
    Emit,
    ExecuteMeter,
    Extract,
    Look,
    Parse,
    PopFront,
    Primitive,
    PushFront,
    RegisterRead,
    RegisterWrite,
    Require,
    SetInvalid,
    SetValid,
    Trace,
    Verify,
)


def write_primitive(out: Emitter, primitive: Primitive) -> None:
    match primitive:
        case Extract():
            _extract(out, primitive)
        case Advance(packet, bits):
            out.line(f"if (!{expr(out, packet)}.skip({expr(out, bits)})) return false;")
        case Require(packet, size):
            out.line(f"if (!{expr(out, packet)}.has({size})) return false;")
        case Look(looked, size):
            out.line(f"if (!{expr(out, looked)}) program.current_length += {size}u;")
            out.line(f"{expr(out, looked)} = true;")
        case Verify(condition, error):
            out.line(f"if (!({expr(out, condition)})) return program.packet_in.fail({expr(out, error)});")
        case Parse(call):
            _parse(out, call)
        case SetValid(header):
            out.line(f"program.set_valid({expr(out, header)});")
            _only_member(out, header)
        case SetInvalid(header):
            out.line(f"program.set_invalid({expr(out, header)});")
        case PushFront(stack, count):
            out.line(f"{expr(out, stack)}.push_front({count}u);")
        case PopFront(stack, count):
            out.line(f"{expr(out, stack)}.pop_front({count}u);")
        case Emit(packet, header):
            _emit(out, expr(out, packet), expr(out, header), header.type)
        case RegisterRead():
            _read_register(out, primitive)
        case RegisterWrite(register, index, value):
            _check_stripe(out, register, index)
            out.line(f"program.{register.member}.write({distance(out, index)}, {exact(out, value)});")
        case ExecuteMeter():
            _execute_meter(out, primitive)
        case Count(counter, index):
            out.line(f"program.{counter.member}.count({distance(out, index)}, program.packet_bytes);")
        case Trace(text, operands):
            _trace(out, text, operands)
        case _:
            write_extern(out, primitive)


def _extract(out: Emitter, primitive: Extract) -> None:
    packet, header = expr(out, primitive.packet), primitive.header
    length = "" if primitive.bits is None else f", {distance(out, primitive.bits)}"
    if isinstance(header, ir.StackNext):
        out.line(f"if (!{packet}.extract_next({expr(out, header.base)}{length})) return false;")
        return
    # For a member of a union in a stack, the union counts as extracted.
    stack = (
        header.base.base if isinstance(header, ir.Field) and isinstance(header.base, ir.StackNext) else None
    )
    if isinstance(header, ir.Element) and not (isinstance(header.index, ir.Const) or ir.impure(header.index)):
        # The same check as in p4c, which unrolls the loop of states.
        beyond = f"{distance(out, header.index)} >= std::size({expr(out, header.base)}.items)"
        out.line(f"if ({beyond}) return {packet}.fail(kStackOutOfBounds);")
    if stack is not None:
        out.line(f"if ({expr(out, stack)}.full()) return {packet}.fail(kStackOutOfBounds);")
    out.line(f"if (!{packet}.extract({expr(out, header)}{length})) return false;")
    _only_member(out, header)
    if stack is not None:
        out.line(f"++{expr(out, stack)}.next;")


def _parse(out: Emitter, called: ir.Call) -> None:
    before, call, after = call_parts(out, called)
    out.open("{")
    for text in before:
        out.line(text)
    out.line(f"const bool accepted = {call};")
    for text in after:
        out.line(text)
    out.line("if (!accepted) return false;")
    out.close()


# --- headers


def _only_member(out: Emitter, header: ir.Expr) -> None:
    """Invalidates the other members, if the header is a member of a union."""
    if isinstance(header, ir.Field) and t.is_union(header.base.type):
        invalidate_siblings(out, header)


def invalidate_siblings(out: Emitter, member: ir.Field) -> None:
    union = member.base.type
    assert isinstance(union, t.StructType)
    for name in union.fields:
        if name != member.name:
            out.line(f"{expr(out, member.base)}.{spell_field(name)}.valid = false;")


# --- deparser


def _emit(out: Emitter, packet: str, text: str, type_: t.Type) -> None:
    if isinstance(type_, t.StackType):
        out.open(f"for (const auto& element : {text}.items) {{")
        _emit(out, packet, "element", type_.element)
        out.close()
    elif t.is_header(type_):
        out.line(f"{packet}.emit({text});")
    else:
        assert isinstance(type_, t.StructType)
        for name, field in type_.fields.items():
            _emit(out, packet, f"{text}.{spell_field(name)}", field)


# --- state


def _check_stripe(out: Emitter, register: ir.Register, index: ir.Expr) -> None:
    """In a traced program: reports a cell that two stripes use."""
    if out.traced:
        where = f"program.{register.member}, {distance(out, index)}, {c_string(register.full_name)}"
        out.line(f"program.check_stripe({where});")


def _read_register(out: Emitter, primitive: RegisterRead) -> None:
    _check_stripe(out, primitive.object, primitive.index)
    result, index = primitive.result, distance(out, primitive.index)
    read = f"program.{primitive.object.member}.read"
    if isinstance(result, ir.Slice):
        out.open("{")
        out.line(f"{cpp_type(out, result.type)} cell = {expr(out, result)};")
        out.line(f"{read}(cell, {index});")
        out.line(assign(out, result, "cell") + ";")
        out.close()
        return
    out.line(f"{read}({expr(out, result)}, {index});")


def write_view(out: Emitter, read: RegisterRead) -> None:
    """Declares the read's result, a variable, as a reference to the cell (views.py)."""
    _check_stripe(out, read.object, read.index)
    cell = f"program.{read.object.member}.cell({distance(out, read.index)})"
    out.line(f"const {cpp_type(out, read.result.type)}& {expr(out, read.result)} = {cell};")


def _execute_meter(out: Emitter, primitive: ExecuteMeter) -> None:
    result, index = primitive.result, distance(out, primitive.index)
    out.open("{")
    out.line(f"std::uint32_t colour = {low_bits(out, result)};")
    length = "program.packet_bytes, program.now_us"
    out.line(f"program.{primitive.object.member}.execute({index}, colour, {length});")
    out.line(assign(out, result, f"resize<32, {width_of(result)}>(colour)") + ";")
    out.close()


# --- tracing


def _trace(out: Emitter, text: str, operands: Sequence[ir.Expr]) -> None:
    words = text.split("{}")
    parts = [f"std::string({c_string(words[0])})"]
    for operand, word in zip(operands, words[1:], strict=True):
        parts += [_shown(out, operand), c_string(word)]
    out.line(f"if (program.trace.is_on()) program.trace.line({' + '.join(parts)});")


def _shown(out: Emitter, e: ir.Expr) -> str:
    if e.type == t.BOOL:
        return f'({expr(out, e)} ? "true" : "false")'
    if isinstance(t.strip(e.type), t.BitType):
        return f"shown<{width_of(e)}>({expr(out, e)})"
    return f"std::to_string({expr(out, e)})"
