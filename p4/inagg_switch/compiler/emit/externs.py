"""Functions of the architecture, as C++: one method a primitive of _lower_externs."""

from collections.abc import Sequence

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.expressions import ExpressionEmitter, width_of
from inagg_switch.compiler.emit.literals import c_string


class ExternEmitter(ExpressionEmitter):
    """Needs the line writer of the statement emitter."""

    def line(self, text: str = "") -> None:
        raise NotImplementedError

    def open(self, text: str) -> None:
        raise NotImplementedError

    def close(self, text: str = "}") -> None:
        raise NotImplementedError

    def _index(self, e: ir.Expr) -> str:
        return self.expr(e) if width_of(e) <= 64 else f"distance<{width_of(e)}>({self.expr(e)})"

    def _low(self, e: ir.Expr) -> str:
        """The low 64 bits of a number."""
        return self.expr(e) if width_of(e) <= 64 else f"resize<{width_of(e)}, 64>({self.expr(e)})"

    def _do_mark_to_drop(self, p: ir.Primitive) -> None:
        standard = self.expr(p.operands[0])
        self.line(f"{standard}.egress_spec = kDropPort;")
        self.line(f"{standard}.mcast_grp = 0;")

    def _do_random(self, p: ir.Primitive) -> None:
        result, low, high = p.operands
        # BMv2 leaves the destination alone when low > high.
        self.open("{")
        self.line(f"const std::uint64_t low = {self._index(low)};")
        self.line(f"const std::uint64_t high = {self._index(high)};")
        drawn = f"resize<64, {width_of(result)}>(program.random.between(low, high))"
        self.line(f"if (low <= high) {self.assign(result, drawn)};")
        self.close()

    # --- hashes and checksums

    def _do_hash(self, p: ir.Primitive) -> None:
        result, base, most, *data = p.operands
        self.open("{")
        algorithm, in_headers = p.detail
        self._sum(algorithm, data, in_headers=in_headers)
        value = f"hash_in_range(sum, {self._low(base)}, {self._low(most)})"
        self.line(self.assign(result, f"resize<64, {width_of(result)}>({value})") + ";")
        self.close()

    def _do_verify_checksum(self, p: ir.Primitive) -> None:
        condition, checksum, *data = p.operands
        test = self.expr(condition)
        header = header_of(checksum)
        if header is not None:
            # BMv2 does not verify a checksum that stands in an invalid header.
            test = f"{self.expr(header)}.valid && {test}"
        self.open(f"if ({test}) {{")
        algorithm, with_payload = p.detail
        self._sum(algorithm, data, with_payload)
        self.line(f"if (sum != {self._low(checksum)}) program.checksum_error = true;")
        self.close()

    def _do_update_checksum(self, p: ir.Primitive) -> None:
        condition, checksum, *data = p.operands
        self.open(f"if ({self.expr(condition)}) {{")
        algorithm, with_payload = p.detail
        self._sum(algorithm, data, with_payload)
        self.line(self.assign(checksum, f"resize<64, {width_of(checksum)}>(sum)") + ";")
        self.close()

    def _sum(
        self,
        algorithm: str,
        data: Sequence[ir.Expr],
        with_payload: bool = False,
        in_headers: Sequence[bool] | None = None,
    ) -> None:
        """Declares `sum`, over the fields; those whose header is invalid are left out, as in BMv2's calculations. That
        goes for all of them, or for those that `in_headers` tells."""
        if algorithm == "random":
            self.line("const std::uint64_t sum = program.random.next();")
            return
        of_header = in_headers or [True] * len(data)
        headers = [header_of(i) if inside else None for i, inside in zip(data, of_header, strict=True)]
        payload = "program.packet_in.rest(), program.payload_length()"
        if algorithm == "csum16" and not any(isinstance(i.type, t.VarbitType) for i in data):
            self._field_sum(data, headers)
            self.line(f"const std::uint64_t sum = csum16(fields{', ' + payload if with_payload else ''});")
            return
        self._input(data, headers)
        if with_payload:
            self.line("program.hash_input.align();")
            self.line(f"program.hash_input.append({payload});")
        self.line(f"const std::uint64_t sum = hash_{algorithm}(program.hash_input);")

    def _input(self, data: Sequence[ir.Expr], headers: list[ir.Expr | None]) -> None:
        self.line("program.hash_input.start();")
        for item, header in zip(data, headers, strict=True):
            test = "" if header is None else f"if ({self.expr(header)}.valid) "
            width = "" if isinstance(item.type, t.VarbitType) else f"template append<{width_of(item)}>"
            self.line(f"{test}program.hash_input.{width or 'append'}({self.item(item)});")

    def _field_sum(self, data: Sequence[ir.Expr], headers: list[ir.Expr | None]) -> None:
        self.line("FieldSum fields;")
        if headers and headers[0] is not None and all(h == headers[0] for h in headers):
            self.open(f"if ({self.expr(headers[0])}.valid) {{")
            offset = 0
            for item in data:
                self.line(f"fields.put<{offset}, {width_of(item)}>({self.expr(item)});")
                offset += width_of(item)
            self.line(f"fields.bits = {offset};")
            self.close()
            return
        for item, header in zip(data, headers, strict=True):
            test = "" if header is None else f"if ({self.expr(header)}.valid) "
            self.line(f"{test}fields.append<{width_of(item)}>({self.expr(item)});")

    def _do_digest(self, p: ir.Primitive) -> None:
        """The fields as they are now; the last digest of a packet is sent, after ingress."""
        self.open("if (program.digest_to != nullptr) {")
        self.line(f"program.digest_id = {p.object.member}_id;")
        size = sum((width_of(i) + 7) // 8 for i in p.operands)
        self.line(f"program.digest_data.resize({size});")
        at = 0
        for item in p.operands:
            width = width_of(item)
            value = f"static_cast<value_t<{width}>>({self.expr(item)})" if width <= 64 else self.expr(item)
            self.line(f"store_value<{width}>(program.digest_data.data() + {at}, {value});")
            at += (width + 7) // 8
        self.close()

    # --- packets that go round again

    def _do_clone(self, p: ir.Primitive) -> None:
        self.line(f"program.requests.clone({self._low(p.operands[0])}, {_list(p.detail)});")

    def _do_resubmit(self, p: ir.Primitive) -> None:
        self.line(f"program.requests.resubmit = {_list(p.detail)};")

    def _do_recirculate(self, p: ir.Primitive) -> None:
        self.line(f"program.requests.recirculate = {_list(p.detail)};")

    def _do_truncate(self, p: ir.Primitive) -> None:
        self.line(f"program.requests.truncate({self.expr(p.operands[0])});")

    # --- messages

    def _do_log_msg(self, p: ir.Primitive) -> None:
        numbers = ", ".join(self._decimal(e) for e in p.operands)
        self.line(f"if (program.log_to != nullptr) program.log({c_string(p.detail)}, {{{numbers}}});")

    def _decimal(self, e: ir.Expr) -> str:
        bits = t.strip(e.type)
        if not isinstance(bits, t.BitType):
            return f"std::to_string(static_cast<unsigned>({self.expr(e)}))"
        return f"decimal{'_signed' if bits.signed else ''}<{bits.width}>({self.item(e)})"

    def _do_assert(self, p: ir.Primitive) -> None:
        self.open(f"if (!({self.expr(p.operands[0])})) {{")
        self.line(f"program.halt({c_string(p.detail)});")
        self.close()


def _list(index: int | None) -> str:
    """A field list as the run time numbers them: 0 is none, 1 the empty one."""
    return "1u" if index is None else f"{index + 2}u"


def header_of(e: ir.Expr) -> ir.Expr | None:
    """The header that a field belongs to."""
    if isinstance(e, ir.Slice):
        return header_of(e.base)
    if isinstance(e, ir.Field):
        return e.base if t.is_header(e.base.type) else header_of(e.base)
    return None
