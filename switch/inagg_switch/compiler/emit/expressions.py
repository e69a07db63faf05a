# SPDX-License-Identifier: Apache-2.0
"""Types, expressions and l-values as C++."""

from collections.abc import Callable

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.names import spell_field

_ARITHMETIC = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "&": "bit_and",
    "|": "bit_or",
    "^": "bit_xor",
}
_SATURATING = {"|+|": "add_saturating", "|-|": "sub_saturating"}


# --- types


def cpp_type(out: Emitter, type_: t.Type) -> str:
    bits = t.strip(type_)
    if isinstance(bits, t.BitType):
        return f"value_t<{bits.width}>"
    if isinstance(bits, t.VarbitType):
        return f"Varbit<{bits.width}>"
    if bits == t.BOOL:
        return "bool"
    if bits == t.ERROR or isinstance(bits, t.EnumType):
        return "std::uint32_t"
    if bits == t.VOID:
        return "void"
    if isinstance(bits, t.StructType):
        return f"p4::{out.struct_names[id(bits)]}"
    if isinstance(bits, t.TupleType):
        return f"Tuple<{', '.join(cpp_type(out, e) for e in bits.elements)}>"
    if isinstance(bits, t.StackType):
        return f"Stack<{cpp_type(out, bits.element)}, {bits.size}>"
    if isinstance(bits, t.ExternType):
        return {"packet_in": "PacketIn", "packet_out": "PacketOut"}[bits.name]
    raise AssertionError(f"no C++ type for {type_}")


# --- expressions


def expr(out: Emitter, e: ir.Expr) -> str:
    if isinstance(e, ir.Const):
        return _constant(out, e)
    if isinstance(e, ir.Var):
        return e.name
    if isinstance(e, ir.Part):
        return f"part<{e.index}>({expr(out, e.base)})"
    if isinstance(e, ir.Field):
        return f"{expr(out, e.base)}.{spell_field(e.name)}"
    if isinstance(e, ir.Element):
        if isinstance(e.index, ir.Const):
            return f"{expr(out, e.base)}.items[{e.index.value}]"
        return f"{expr(out, e.base)}.at({distance(out, e.index)})"
    if isinstance(e, ir.StackLast):
        return f"{expr(out, e.base)}.last()"
    if isinstance(e, ir.StackNext):
        return f"{expr(out, e.base)}.at({expr(out, e.base)}.next)"
    if isinstance(e, ir.Slice):
        return f"slice<{width_of(e.base)}, {e.high}, {e.low}>({expr(out, e.base)})"
    if isinstance(e, ir.Construct):
        return _construct(out, e)
    if isinstance(e, ir.Call):
        return out.call(out, e)
    if isinstance(e, ir.TableApply):
        return f"apply_{e.table.member}()"
    if isinstance(e, ir.TableHit):
        return f"{'!' if e.miss else ''}{expr(out, e.apply)}.hit"
    assert isinstance(e, ir.Operation)
    return _operation(out, e)


def _constant(out: Emitter, e: ir.Const) -> str:
    bits = t.strip(e.type)
    if e.value is None:
        return f"{cpp_type(out, e.type)}{{}}"
    if bits == t.BOOL:
        return "true" if e.value else "false"
    width = bits.width if isinstance(bits, t.BitType) else 32
    value = int(e.value) & ((1 << width) - 1)
    if width <= 64:
        return number(value)
    limbs = []
    while value:
        limbs.append(number(value & (2**64 - 1)))
        value >>= 64
    return f"Wide<{width}>{{{{{', '.join(limbs)}}}}}"


def _construct(out: Emitter, e: ir.Construct) -> str:
    items = [exact(out, i) for i in e.items]
    if isinstance(e.type, t.StackType):
        return f"{cpp_type(out, e.type)}{{{{{', '.join(items)}}}, 0}}"
    if t.is_header(e.type):
        items.append("true" if e.valid else "false")
    return f"{cpp_type(out, e.type)}{{{', '.join(items)}}}"


def exact(out: Emitter, e: ir.Expr) -> str:
    """An expression of exactly its type: C++ may have promoted small integers."""
    text = copied(out, e)
    bits = t.strip(e.type)
    if (
        isinstance(e, ir.Operation)
        and e.name == "conditional"
        and isinstance(bits, t.BitType)
        and bits.width <= 64
    ):
        return f"static_cast<{cpp_type(out, e.type)}>({text})"
    return text


def copied(out: Emitter, e: ir.Expr) -> str:
    """An expression as the initial value of a new variable."""
    text = expr(out, e)
    made = isinstance(e, ir.Const | ir.Construct | ir.Call)
    made = made or (isinstance(e, ir.Operation) and e.name == "lookahead")
    return text if made or not t.has_header(t.strip(e.type)) else f"fresh({text})"


# --- operators


def _operation(out: Emitter, e: ir.Operation) -> str:
    if (
        len(e.operands) > 1
        and e.name not in ("&&", "||", "conditional")
        and any(ir.impure(o) for o in e.operands)
    ):
        return _in_order(out, e)
    special = _OPERATORS.get(e.name)
    if special is not None:
        return special(out, e)
    operands = [expr(out, o) for o in e.operands]
    if e.name in ("&&", "||"):
        return f"({operands[0]} {e.name} {operands[1]})"
    if e.name == "!":
        return f"!{operands[0]}"
    if e.name in _ARITHMETIC:
        return f"{_ARITHMETIC[e.name]}<{width_of(e)}>({', '.join(operands)})"
    if e.name in _SATURATING:
        return (
            f"{_SATURATING[e.name]}{'_signed' if is_signed(e) else ''}<{width_of(e)}>({', '.join(operands)})"
        )
    simple = {
        "~": f"bit_not<{width_of(e)}>({operands[0]})",
        "neg": f"neg<{width_of(e)}>({operands[0]})",
        "last_index": f"{operands[0]}.last_index()",
        "action_run": f"{operands[0]}.action",
    }
    return simple[e.name]


def _in_order(out: Emitter, e: ir.Operation) -> str:
    """Evaluates the operands from left to right, which C++ does not guarantee."""
    names = [f"operand_{i}" for i in range(len(e.operands))]
    lets = " ".join(
        f"const {cpp_type(out, o.type)} {n} = {expr(out, o)};" for n, o in zip(names, e.operands, strict=True)
    )
    evaluated = ir.Operation(
        e.type, e.name, tuple(ir.Var(o.type, n) for n, o in zip(names, e.operands, strict=True))
    )
    return f"[&] {{ {lets} return {expr(out, evaluated)}; }}()"


def _cast(out: Emitter, e: ir.Operation) -> str:
    operand = e.operands[0]
    text = expr(out, operand)
    have, want = t.strip(operand.type), t.strip(e.type)
    if want == t.BOOL:
        return f"({text} != 0)"
    assert isinstance(want, t.BitType)
    if have == t.BOOL:
        return f"static_cast<value_t<1>>({text})"
    assert isinstance(have, t.BitType)
    if have.width == want.width:
        return text
    sign = "_signed" if have.signed else ""
    return f"resize{sign}<{have.width}, {want.width}>({text})"


def _conditional(out: Emitter, e: ir.Operation) -> str:
    condition, then, otherwise = (expr(out, o) for o in e.operands)
    if isinstance(t.strip(e.type), t.BitType) and (width_of(e) > 64 or width_of(e) == 16):
        # A field of a header may have another C++ type (values/field.hpp and packet.hpp of the runtime).
        then, otherwise = (f"value_t<{width_of(e)}>({value})" for value in (then, otherwise))
    return f"({condition} ? {then} : {otherwise})"


def _valid(out: Emitter, e: ir.Operation) -> str:
    header = e.operands[0]
    text = expr(out, header)
    if t.is_union(header.type):
        assert isinstance(header.type, t.StructType)
        return "(" + " || ".join(f"{text}.{spell_field(f)}.valid" for f in header.type.fields) + ")"
    return f"{text}.valid"


def _lookahead(out: Emitter, e: ir.Operation) -> str:
    packet = expr(out, e.operands[0])
    bits = t.strip(e.type)
    if isinstance(bits, t.BitType):
        return f"load_bits<0, {bits.width}>({packet}.rest())"
    if bits == t.BOOL:
        return f"(load_bits<0, 1>({packet}.rest()) != 0)"
    return _peek(out, e.type, 0, f"{packet}.rest()")


def _peek(out: Emitter, type_: t.Type, offset: int, data: str) -> str:
    """A value of the type from the bits at `offset`; its headers are valid."""
    bits = t.strip(type_)
    if bits == t.BOOL:
        return f"(load_bits<{offset}, 1>({data}) != 0)"
    if isinstance(bits, t.StructType | t.StackType):
        types = list(bits.fields.values()) if isinstance(bits, t.StructType) else [bits.element] * bits.size
        parts: list[str] = []
        for part in types:
            parts.append(_peek(out, part, offset, data))
            offset += t.bit_width(part)
        if isinstance(bits, t.StackType):
            return f"{cpp_type(out, type_)}{{{{{', '.join(parts)}}}, 0}}"
        if t.is_header(bits):
            parts.append("true")
        return f"{cpp_type(out, type_)}{{{', '.join(parts)}}}"
    return f"load_bits<{offset}, {t.bit_width(type_)}>({data})"


def _equal(out: Emitter, e: ir.Operation) -> str:
    left, right = (expr(out, o) for o in e.operands)
    return f"({left} {e.name} {right})"


def _order(out: Emitter, e: ir.Operation) -> str:
    left, right = (expr(out, o) for o in e.operands)
    width = width_of(e.operands[0])
    if width <= 64 and not is_signed(e.operands[0]):
        return f"({left} {e.name} {right})"
    name = "less_signed" if is_signed(e.operands[0]) else "less"
    if e.name in (">", "<="):
        left, right = right, left
    text = f"{name}<{width}>({left}, {right})"
    return text if e.name in ("<", ">") else f"!{text}"


def distance(out: Emitter, e: ir.Expr) -> str:
    """A value as a 64-bit number, at most the largest."""
    width = width_of(e)
    return expr(out, e) if width <= 64 else f"distance<{width}>({expr(out, e)})"


def low_bits(out: Emitter, e: ir.Expr) -> str:
    """The low 64 bits of a number."""
    return expr(out, e) if width_of(e) <= 64 else f"resize<{width_of(e)}, 64>({expr(out, e)})"


def _shift(out: Emitter, e: ir.Operation) -> str:
    value, by = e.operands
    name = "shl" if e.name == "<<" else "shr_signed" if is_signed(value) else "shr"
    return f"{name}<{width_of(e)}>({expr(out, value)}, {distance(out, by)})"


def _concat(out: Emitter, e: ir.Operation) -> str:
    left, right = e.operands
    return f"concat<{width_of(left)}, {width_of(right)}>({expr(out, left)}, {expr(out, right)})"


_OPERATORS: dict[str, Callable[[Emitter, ir.Operation], str]] = {
    "cast": _cast,
    "conditional": _conditional,
    "valid": _valid,
    "lookahead": _lookahead,
    "==": _equal,
    "!=": _equal,
    "<<": _shift,
    ">>": _shift,
    "++": _concat,
    "<": _order,
    "<=": _order,
    ">": _order,
    ">=": _order,
}


# --- l-values


def assign(out: Emitter, target: ir.Expr, value: str) -> str:
    """An assignment, as an expression."""
    bits = t.strip(target.type)
    if isinstance(target, ir.Slice):
        base = expr(out, target.base)
        changed = f"with_slice<{width_of(target.base)}, {target.high}, {target.low}>({base}, {value})"
        return assign(out, target.base, changed)
    if isinstance(bits, t.BitType) and bits.width > 64:
        return f"wide_copy({expr(out, target)}, {value})"
    if t.has_header(bits):
        return f"assign_object({expr(out, target)}, {value})"
    return f"{expr(out, target)} = {value}"


def assign_expr(out: Emitter, target: ir.Expr, value: ir.Expr) -> str:
    """Like assign(), for a value in IR. A wide sum is computed in the target."""
    wide = isinstance(t.strip(target.type), t.BitType) and width_of(target) > 64
    if wide and isinstance(value, ir.Operation) and value.name == "+" and not isinstance(target, ir.Slice):
        left, right = value.operands
        if not (ir.impure(left) or ir.impure(right)):
            return f"wide_add_to({expr(out, target)}, {expr(out, left)}, {expr(out, right)})"
    return assign(out, target, expr(out, value))


def number(value: int) -> str:
    """An unsigned literal."""
    text = str(value) if value < 4096 else hex(value)
    return f"{text}u" if value < 2**32 else f"{text}ull"


def width_of(e: ir.Expr) -> int:
    return t.bit_width(e.type)


def is_signed(e: ir.Expr) -> bool:
    bits = t.strip(e.type)
    return isinstance(bits, t.BitType) and bits.signed
