# SPDX-License-Identifier: Apache-2.0
"""Calls of the architecture's functions, as C++."""

from collections.abc import Sequence
from typing import assert_never

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import assign, distance, exact, expr, low_bits, width_of
from inagg_switch.compiler.emit.literals import c_string
from inagg_switch.compiler.primitives import (
    Architecture,
    Assert,
    Clone,
    Digest,
    Hash,
    LogMsg,
    MarkToDrop,
    Random,
    Recirculate,
    Resubmit,
    Truncate,
    UpdateChecksum,
    VerifyChecksum,
)


def write_extern(out: Emitter, called: Architecture) -> None:
    match called:
        case MarkToDrop(standard):
            out.line(f"{expr(out, standard)}.egress_spec = kDropPort;")
            out.line(f"{expr(out, standard)}.mcast_grp = 0;")
        case Random():
            _random(out, called)
        case Hash():
            _hash(out, called)
        case VerifyChecksum():
            _verify_checksum(out, called)
        case UpdateChecksum():
            _update_checksum(out, called)
        case Digest(digest, data):
            _digest(out, digest, data)
        case Clone(session, fields):
            out.line(f"program.requests.clone({low_bits(out, session)}, {_list_number(fields)});")
        case Resubmit(fields):
            out.line(f"program.requests.resubmit = {_list_number(fields)};")
        case Recirculate(fields):
            out.line(f"program.requests.recirculate = {_list_number(fields)};")
        case Truncate(length):
            out.line(f"program.requests.truncate({expr(out, length)});")
        case LogMsg(message, data):
            numbers = ", ".join(_decimal(out, e) for e in data)
            out.line(f"if (program.log_to != nullptr) program.log({c_string(message)}, {{{numbers}}});")
        case Assert(condition, failure):
            out.open(f"if (!({expr(out, condition)})) {{")
            out.line(f"program.halt({c_string(failure)});")
            out.close()
        case _:
            assert_never(called)


def _random(out: Emitter, called: Random) -> None:
    # BMv2 does not write the result if low > high.
    out.open("{")
    out.line(f"const std::uint64_t low = {distance(out, called.low)};")
    out.line(f"const std::uint64_t high = {distance(out, called.high)};")
    drawn = f"resize<64, {width_of(called.result)}>(program.random.between(low, high))"
    out.line(f"if (low <= high) {assign(out, called.result, drawn)};")
    out.close()


# --- hashes and checksums


def _hash(out: Emitter, called: Hash) -> None:
    out.open("{")
    declare_sum(out, called.algorithm, called.data, in_headers=called.in_headers)
    value = f"hash_in_range(sum, {low_bits(out, called.base)}, {low_bits(out, called.most)})"
    out.line(assign(out, called.result, f"resize<64, {width_of(called.result)}>({value})") + ";")
    out.close()


def _verify_checksum(out: Emitter, called: VerifyChecksum) -> None:
    test = expr(out, called.condition)
    header = header_of(called.checksum)
    if header is not None:
        # BMv2 does not verify a checksum in an invalid header.
        test = f"{expr(out, header)}.valid && {test}"
    out.open(f"if ({test}) {{")
    declare_sum(out, called.algorithm, called.data, called.with_payload)
    out.line(f"if (sum != {low_bits(out, called.checksum)}) program.checksum_error = true;")
    out.close()


def _update_checksum(out: Emitter, called: UpdateChecksum) -> None:
    out.open(f"if ({expr(out, called.condition)}) {{")
    declare_sum(out, called.algorithm, called.data, called.with_payload)
    out.line(assign(out, called.checksum, f"resize<64, {width_of(called.checksum)}>(sum)") + ";")
    out.close()


def declare_sum(
    out: Emitter,
    algorithm: str,
    data: Sequence[ir.Expr],
    with_payload: bool = False,
    in_headers: Sequence[bool] | None = None,
) -> None:
    """Declares `sum`, the hash or checksum of the fields. As in BMv2, fields of invalid headers are omitted; with
    `in_headers`, only those that it marks."""
    if algorithm == "random":
        out.line("const std::uint64_t sum = program.random.next();")
        return
    of_header = in_headers or [True] * len(data)
    headers = [header_of(i) if inside else None for i, inside in zip(data, of_header, strict=True)]
    payload = "program.packet_in.rest(), program.payload_length()"
    if algorithm == "csum16" and not any(isinstance(i.type, t.VarbitType) for i in data):
        _field_sum(out, data, headers)
        out.line(f"const std::uint64_t sum = csum16(fields{', ' + payload if with_payload else ''});")
        return
    _input(out, data, headers)
    if with_payload:
        out.line("program.hash_input.align();")
        out.line(f"program.hash_input.append({payload});")
    out.line(f"const std::uint64_t sum = hash_{algorithm}(program.hash_input);")


def _input(out: Emitter, data: Sequence[ir.Expr], headers: list[ir.Expr | None]) -> None:
    out.line("program.hash_input.start();")
    for item, header in zip(data, headers, strict=True):
        test = "" if header is None else f"if ({expr(out, header)}.valid) "
        width = "" if isinstance(item.type, t.VarbitType) else f"template append<{width_of(item)}>"
        out.line(f"{test}program.hash_input.{width or 'append'}({exact(out, item)});")


def _field_sum(out: Emitter, data: Sequence[ir.Expr], headers: list[ir.Expr | None]) -> None:
    out.line("FieldSum fields;")
    if headers and headers[0] is not None and all(h == headers[0] for h in headers):
        out.open(f"if ({expr(out, headers[0])}.valid) {{")
        offset = 0
        for item in data:
            out.line(f"fields.put<{offset}, {width_of(item)}>({expr(out, item)});")
            offset += width_of(item)
        out.line(f"fields.bits = {offset};")
        out.close()
        return
    for item, header in zip(data, headers, strict=True):
        test = "" if header is None else f"if ({expr(out, header)}.valid) "
        out.line(f"{test}fields.append<{width_of(item)}>({expr(out, item)});")


# --- messages


def _digest(out: Emitter, digest: ir.Digest, data: Sequence[ir.Expr]) -> None:
    """Stores the fields. The last digest of a packet is sent after ingress."""
    out.open("if (program.digest_to != nullptr) {")
    out.line(f"program.digest_id = {digest.member}_id;")
    size = sum((width_of(field) + 7) // 8 for field in data)
    out.line(f"program.digest_data.resize({size});")
    at = 0
    for field in data:
        width = width_of(field)
        value = f"static_cast<value_t<{width}>>({expr(out, field)})" if width <= 64 else expr(out, field)
        out.line(f"store_value<{width}>(program.digest_data.data() + {at}, {value});")
        at += (width + 7) // 8
    out.close()


def _decimal(out: Emitter, e: ir.Expr) -> str:
    bits = t.strip(e.type)
    if not isinstance(bits, t.BitType):
        return f"std::to_string(static_cast<unsigned>({expr(out, e)}))"
    return f"decimal{'_signed' if bits.signed else ''}<{bits.width}>({exact(out, e)})"


def _list_number(index: int | None) -> str:
    """The run time's number of a field list: 0 is no list, 1 the empty list."""
    return "1u" if index is None else f"{index + 2}u"


def header_of(e: ir.Expr) -> ir.Expr | None:
    """The header that a field belongs to; None for other expressions."""
    if isinstance(e, ir.Slice):
        return header_of(e.base)
    if isinstance(e, ir.Field):
        return e.base if t.is_header(e.base.type) else header_of(e.base)
    return None
