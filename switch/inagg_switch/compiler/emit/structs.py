# SPDX-License-Identifier: Apache-2.0
"""Structs, headers and header unions, as C++."""

from collections.abc import Iterator

from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import cpp_type
from inagg_switch.compiler.names import spell_field

_CHECKSUM_AT = 6  # bytes from the beginning of a UDP header


def write_struct(out: Emitter, struct: t.StructType) -> None:
    name = out.struct_names[id(struct)]
    out.open(f"struct {name} {{")
    for field in struct.fields:
        out.line(f"{_field_type(out, struct, field)} {spell_field(field)};")
    if struct.kind == "header":
        out.line("bool valid;")
    checksum = checksum_field(struct)
    if checksum is not None:
        out.line(f"static constexpr std::size_t checksum_at = {_CHECKSUM_AT};")
        out.line(f"ChecksumField& checksum_field() {{ return {spell_field(checksum)}; }}")
    _equality(out, name, struct)
    if struct.kind != "header" and t.has_header(struct):
        _assignment(out, name, struct)
    if _serialisable(struct):
        _serialisation(out, struct)
    out.close("};")
    out.line()


def wide_fields(struct: t.StructType, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The C++ path and the width of each wide field of a header in the struct."""
    for name, type_ in struct.fields.items():
        yield from _wide(type_, prefix + spell_field(name), in_header=struct.kind == "header")


def _wide(type_: t.Type, path: str, *, in_header: bool) -> Iterator[tuple[str, int]]:
    bits = t.strip(type_)
    if isinstance(bits, t.StructType):
        yield from wide_fields(bits, f"{path}.")
    elif isinstance(bits, t.StackType):
        for i in range(bits.size):
            yield from _wide(bits.element, f"{path}.items[{i}]", in_header=in_header)
    elif isinstance(bits, t.BitType) and bits.width > 64 and in_header:
        yield path, bits.width


def checksum_field(struct: t.StructType) -> str | None:
    """The field that is UDP's checksum if the header is UDP's: 16 bits, of 8 bytes the last."""
    if struct.kind != "header" or not struct.fields:
        return None
    name, type_ = list(struct.fields.items())[-1]
    bits = t.strip(type_)
    whole = not any(isinstance(t.strip(f), t.VarbitType) for f in struct.fields.values())
    last = isinstance(bits, t.BitType) and bits.width == 16
    return name if whole and last and t.bit_width(struct) == 8 * _CHECKSUM_AT + 16 else None


def _field_type(out: Emitter, struct: t.StructType, field: str) -> str:
    type_ = struct.fields[field]
    bits = t.strip(type_)
    if field == checksum_field(struct):
        return "ChecksumField"
    if struct.kind == "header" and isinstance(bits, t.BitType):
        return f"field_t<{bits.width}>"
    return cpp_type(out, type_)


def _equality(out: Emitter, name: str, struct: t.StructType) -> None:
    tests = [f"{spell_field(f)} == other.{spell_field(f)}" for f in struct.fields] or ["true"]
    condition = " && ".join(tests)
    if struct.kind == "header":
        condition = f"valid == other.valid && (!valid || ({condition}))"
    used = "other" if struct.fields or struct.kind == "header" else ""
    out.line(f"bool operator==(const p4::{name}& {used}) const {{ return {condition}; }}")


def _assignment(out: Emitter, name: str, struct: t.StructType) -> None:
    out.open(f"void assign(const p4::{name}& other) {{")
    for field in map(spell_field, struct.fields):
        out.line(f"assign_object({field}, other.{field});")
    out.close()


def _serialisation(out: Emitter, struct: t.StructType) -> None:
    out.line(f"static constexpr std::size_t bytes = {t.bit_width(struct) // 8};")
    variable = next((x for x in _leaves(struct) if isinstance(x[1], t.VarbitType)), None)
    length = "bytes"
    size_parameter = ""
    if variable is not None:
        path, type_, _ = variable
        assert isinstance(type_, t.VarbitType)
        out.line(f"static constexpr std::size_t max_bytes = bytes + {(type_.width + 7) // 8};")
        out.line(f"std::size_t length() const {{ return bytes + {path}.length(); }}")
        _clear(out, struct)
        length, size_parameter = "length()", ", std::uint32_t varbits"
    out.open(f"void load([[maybe_unused]] const std::uint8_t* p{size_parameter}) {{")
    for path, type_, offset in _leaves(struct):
        width = t.bit_width(type_)
        if t.strip(type_) == t.BOOL:
            out.line(f"{path} = load_bits<{offset}, 1>(p) != 0;")
        elif isinstance(type_, t.VarbitType):
            # The fields after it are that much further on.
            out.line(f"{path}.load(p + {offset // 8}, {offset % 8}, varbits);")
            out.line("p += varbits / 8;")
        else:
            out.line(f"load_bits_to<{offset}, {width}>({path}, p);")
    out.close()
    if struct.kind != "header":
        return
    out.open("void store([[maybe_unused]] std::uint8_t* p) const {")
    if variable is not None or any(o % 8 or t.bit_width(type_) % 8 for _, type_, o in _leaves(struct)):
        out.line(f"std::memset(p, 0, {length});")
    for path, type_, offset in _leaves(struct):
        if isinstance(type_, t.VarbitType):
            out.line(f"{path}.store(p + {offset // 8}, {offset % 8});")
            out.line(f"p += {path}.length();")
        else:
            out.line(f"store_bits<{offset}, {t.bit_width(type_)}>(p, {path});")
    out.close()


def _clear(out: Emitter, struct: t.StructType) -> None:
    """Writes clear(), which setValid() calls: it zeroes the fields; a varbit field keeps its length."""
    out.open("void clear() {")
    for path, type_, _ in _leaves(struct):
        out.line(f"{path}.clear();" if isinstance(type_, t.VarbitType) else f"{path} = {{}};")
    out.close()


def _serialisable(type_: t.Type) -> bool:
    if isinstance(type_, t.StructType):
        return type_.kind != "header_union" and all(
            _serialisable(f) and not t.is_header(f) for f in type_.fields.values()
        )
    if isinstance(type_, t.StackType):
        return not t.has_header(type_) and _serialisable(type_.element)
    return isinstance(t.strip(type_), t.BitType | t.VarbitType) or t.strip(type_) == t.BOOL


def _elements(array: t.StackType, path: str, offset: int) -> Iterator[tuple[str, t.Type, int]]:
    """The scalars of an array, with their C++ path and bit offset."""
    for i in range(array.size):
        place = f"{path}.items[{i}]"
        if isinstance(array.element, t.StackType):
            yield from _elements(array.element, place, offset)
        elif isinstance(array.element, t.StructType):
            yield from _leaves(array.element, f"{place}.", offset)
        else:
            yield place, array.element, offset
        offset += t.bit_width(array.element)


def _leaves(struct: t.StructType, prefix: str = "", offset: int = 0) -> list[tuple[str, t.Type, int]]:
    """The scalar fields of a struct, with their C++ path and bit offset."""
    leaves: list[tuple[str, t.Type, int]] = []
    for name, type_ in struct.fields.items():
        path = prefix + spell_field(name)
        if isinstance(type_, t.StructType):
            leaves.extend(_leaves(type_, f"{path}.", offset))
        elif isinstance(type_, t.StackType):
            leaves.extend(_elements(type_, path, offset))
        else:
            leaves.append((path, type_, offset))
        offset += t.bit_width(type_)
    return leaves
