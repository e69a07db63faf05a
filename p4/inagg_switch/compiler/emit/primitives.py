"""What the language and its objects do, as C++: one method a primitive of _lower_calls."""

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.expressions import width_of
from inagg_switch.compiler.emit.externs import ExternEmitter
from inagg_switch.compiler.emit.literals import c_string
from inagg_switch.compiler.names import spell_field


class PrimitiveEmitter(ExternEmitter):
    """Needs the line writer of the statement emitter."""

    def primitive(self, p: ir.Primitive) -> None:
        getattr(self, f"_do_{p.name}")(p)

    # --- parser

    def _do_extract(self, p: ir.Primitive) -> None:
        packet, header, *bits = p.operands
        length = "".join(f", {self._index(b)}" for b in bits)
        if isinstance(header, ir.StackNext):
            self.line(
                f"if (!{self.expr(packet)}.extract_next({self.expr(header.base)}{length})) return false;"
            )
            return
        # A member of a union in a stack: the union counts as extracted then.
        stack = (
            header.base.base
            if isinstance(header, ir.Field) and isinstance(header.base, ir.StackNext)
            else None
        )
        if isinstance(header, ir.Element) and not (
            isinstance(header.index, ir.Const) or ir.impure(header.index)
        ):
            # As p4c has it where it unrolls the loop that leads there.
            beyond = f"{self._index(header.index)} >= std::size({self.expr(header.base)}.items)"
            self.line(f"if ({beyond}) return {self.expr(packet)}.fail(kStackOutOfBounds);")
        if stack is not None:
            self.line(f"if ({self.expr(stack)}.full()) return {self.expr(packet)}.fail(kStackOutOfBounds);")
        self.line(f"if (!{self.expr(packet)}.extract({self.expr(header)}{length})) return false;")
        self._only_member(header)
        if stack is not None:
            self.line(f"++{self.expr(stack)}.next;")

    def _do_advance(self, p: ir.Primitive) -> None:
        packet, bits = p.operands
        self.line(f"if (!{self.expr(packet)}.skip({self.expr(bits)})) return false;")

    def _do_require(self, p: ir.Primitive) -> None:
        self.line(f"if (!{self.expr(p.operands[0])}.has({p.detail})) return false;")

    def _do_look(self, p: ir.Primitive) -> None:
        looked = self.expr(p.operands[0])
        self.line(f"if (!{looked}) program.current_length += {p.detail}u;")
        self.line(f"{looked} = true;")

    def _do_verify(self, p: ir.Primitive) -> None:
        condition, error = (self.expr(o) for o in p.operands)
        self.line(f"if (!({condition})) return program.packet_in.fail({error});")

    def _do_parse(self, p: ir.Primitive) -> None:
        before, call, after = self.call_parts(p.detail)
        self.open("{")
        for text in before:
            self.line(text)
        self.line(f"const bool accepted = {call};")
        for text in after:
            self.line(text)
        self.line("if (!accepted) return false;")
        self.close()

    # --- headers

    def _only_member(self, header: ir.Expr) -> None:
        """A valid header in a union makes its siblings invalid."""
        if isinstance(header, ir.Field) and t.is_union(header.base.type):
            self.invalidate_siblings(header)

    def invalidate_siblings(self, member: ir.Field) -> None:
        union = member.base.type
        assert isinstance(union, t.StructType)
        for name in union.fields:
            if name != member.name:
                self.line(f"{self.expr(member.base)}.{spell_field(name)}.valid = false;")

    def _do_set_valid(self, p: ir.Primitive) -> None:
        self.line(f"program.set_valid({self.expr(p.operands[0])});")
        self._only_member(p.operands[0])

    def _do_set_invalid(self, p: ir.Primitive) -> None:
        self.line(f"program.set_invalid({self.expr(p.operands[0])});")

    def _do_push_front(self, p: ir.Primitive) -> None:
        self.line(f"{self.expr(p.operands[0])}.{p.name}({p.detail}u);")

    _do_pop_front = _do_push_front

    # --- deparser

    def _do_emit(self, p: ir.Primitive) -> None:
        packet, header = p.operands
        self._emit(self.expr(packet), self.expr(header), header.type)

    def _emit(self, packet: str, text: str, type_: t.Type) -> None:
        if isinstance(type_, t.StackType):
            self.open(f"for (const auto& element : {text}.items) {{")
            self._emit(packet, "element", type_.element)
            self.close()
        elif t.is_header(type_):
            self.line(f"{packet}.emit({text});")
        else:
            assert isinstance(type_, t.StructType)
            for name, field in type_.fields.items():
                self._emit(packet, f"{text}.{spell_field(name)}", field)

    # --- state

    def _index(self, e: ir.Expr) -> str:
        return self.expr(e) if width_of(e) <= 64 else f"distance<{width_of(e)}>({self.expr(e)})"

    def _do_register_read(self, p: ir.Primitive) -> None:
        result, index = p.operands
        register: ir.Register = p.object
        read = f"program.{register.member}.read"
        if isinstance(result, ir.Slice):
            self.open("{")
            self.line(f"{self.type(result.type)} cell = {self.expr(result)};")
            self.line(f"{read}(cell, {self._index(index)});")
            self.line(self.assign(result, "cell") + ";")
            self.close()
            return
        self.line(f"{read}({self.expr(result)}, {self._index(index)});")

    def _do_register_write(self, p: ir.Primitive) -> None:
        index, value = p.operands
        register: ir.Register = p.object
        self.line(f"program.{register.member}.write({self._index(index)}, {self.item(value)});")

    def _do_execute_meter(self, p: ir.Primitive) -> None:
        result, index = p.operands
        self.open("{")
        self.line(f"std::uint32_t colour = {self._low(result)};")
        length = "program.packet_bytes, program.now_us"
        self.line(f"program.{p.object.member}.execute({self._index(index)}, colour, {length});")
        self.line(self.assign(result, f"resize<32, {width_of(result)}>(colour)") + ";")
        self.close()

    def _do_count(self, p: ir.Primitive) -> None:
        counter: ir.Counter = p.object
        self.line(f"program.{counter.member}.count({self._index(p.operands[0])}, program.packet_bytes);")

    # --- tracing

    def _do_trace(self, p: ir.Primitive) -> None:
        """`detail` has one {} an operand."""
        words = p.detail.split("{}")
        parts = [f"std::string({c_string(words[0])})"]
        for operand, text in zip(p.operands, words[1:], strict=True):
            parts += [self._shown(operand), c_string(text)]
        self.line(f"if (program.trace.is_on()) program.trace.line({' + '.join(parts)});")

    def _shown(self, e: ir.Expr) -> str:
        if e.type == t.BOOL:
            return f'({self.expr(e)} ? "true" : "false")'
        if isinstance(t.strip(e.type), t.BitType):
            return f"shown<{width_of(e)}>({self.expr(e)})"
        return f"std::to_string({self.expr(e)})"
