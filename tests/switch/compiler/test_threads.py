# SPDX-License-Identifier: Apache-2.0
"""Which programs several threads may run, and which frames belong together (compiler/threads.py)."""

import pytest

from inagg_switch.compiler import lower_file
from inagg_switch.compiler.lower.program import lower
from inagg_switch.compiler.threads import Steering, one_thread, steering
from inagg_switch.errors import CompileError
from tests import INAGG_P4
from tests.switch import PROGRAMS
from tests.switch.snippets import HEADERS, checked, compile_to_cpp, v1program

STEERED = HEADERS.replace("bit<32> d;", "@steer(4) bit<32> d;")
CELLS = "register<bit<32>>(64) cells;"
READ, WRITE = "bit<32> x; cells.read(x, 1);", "cells.write(0, 1);"


def reason(apply: str, *, headers: str = STEERED, **parts: str) -> str | None:
    return one_thread(lower(checked(v1program(apply, headers=headers, **parts))))


def test_the_threads_of_inagg_meet_in_runs_of_chunks() -> None:
    program = lower_file(INAGG_P4)
    assert one_thread(program) is None
    # Of Ethernet the type; of IPv4 version and length, no fragment, the protocol; of UDP the port.
    conditions = (
        (12, 0xFF, 0x08), (13, 0xFF, 0x00), (14, 0xFF, 0x45), (20, 0x3F, 0), (21, 0xFF, 0), (23, 0xFF, 17),
        (36, 0xFF, 0x49), (37, 0xFF, 0x41),
    )  # fmt: skip
    assert steering(program) == Steering(conditions, offset=54, bytes=4, shift=5)


def test_a_program_without_a_word_about_threads_has_one() -> None:
    assert "has @steer(n)" in str(reason("", headers=HEADERS))
    for path in PROGRAMS.glob("*.p4"):
        assert one_thread(lower_file(path)) is not None


def test_a_program_without_registers_needs_no_stripe() -> None:
    assert reason("hdr.h.a = 1;") is None


@pytest.mark.parametrize(
    "apply",
    [
        f"@stripe(0) {{ {READ} {WRITE} }}",
        f"@stripe(hdr.h.a) {{ {READ} }} @stripe(hdr.h.a) {{ {WRITE} }}",
        f"if (hdr.h.a == 1) {{ @stripe(1) {{ {READ} }} }} else {{ @stripe(hdr.h.d >> 4) {{ {WRITE} }} }}",
        "@stripe(0) { write(); }",
        "@stripe(0) { sets.apply(); }",
    ],
)
def test_registers_may_be_used_in_stripes(apply: str) -> None:
    locals = f"""{CELLS}
        action write() {{ {WRITE} }}
        table sets {{ key = {{ hdr.h.a : exact; }} actions = {{ write; NoAction; }} default_action = NoAction(); }}"""
    assert reason(apply, locals=locals) is None


@pytest.mark.parametrize(
    ("apply", "why"),
    [
        (READ, "register I.cells is used outside of any @stripe"),
        (f"@stripe(0) {{ {READ} }} {WRITE}", "register I.cells is used outside"),
        ("write();", "register I.cells is used outside"),
        ("@stripe(0) { write(); } write();", "register I.cells is used outside"),
        ("sets.apply();", "register I.cells is used outside"),
        ("top_write(cells);", "register I.cells is used outside"),
        ("@stripe(0) { top_write(cells); } top_write(cells);", "register I.cells is used outside"),
        (f"@stripe(0) {{ @stripe(1) {{ {WRITE} }} }}", "a @stripe inside a @stripe"),
        ("@stripe(0) { striped(); }", "a @stripe inside a @stripe"),
        ("bit<8> colour; rate.execute_meter(0, colour);", "meter I.rate counts"),
    ],
)
def test_what_threads_would_share_otherwise_is_named(apply: str, why: str) -> None:
    locals = f"""{CELLS} meter(1, MeterType.bytes) rate;
        action write() {{ {WRITE} }}
        action striped() {{ @stripe(1) {{ {WRITE} }} }}
        table sets {{ key = {{ hdr.h.a : exact; }} actions = {{ write; NoAction; }} default_action = NoAction(); }}"""
    if "rate" not in apply:
        locals = locals.replace("meter(1, MeterType.bytes) rate;", "")
    top = f"void top_write(register<bit<32>> cells) {{ {WRITE} }}"
    assert why in str(reason(apply, locals=locals, top=top))


def test_egress_is_looked_at_too() -> None:
    assert "E.cells" in str(reason("", egress=WRITE, egress_locals=CELLS))


@pytest.mark.parametrize(
    ("parser", "conditions", "offset"),
    [
        ("state start { packet.extract(hdr.h); transition accept; }", (), 4),
        ("state start { packet.extract(hdr.g); transition select(hdr.g.a) { 1: more; default: accept; } }"
         "state more { packet.extract(hdr.h); transition accept; }", ((0, 0xFF, 1),), 4),
        ("state start { packet.extract(hdr.g); transition select(hdr.g.a[1:0], hdr.g.c) {"
         "(1, _): accept; (_, 0x1234 &&& 0xFF0F): more; } }"
         "state more { packet.extract(hdr.h); transition accept; }", (), 4),
    ],
)  # fmt: skip
def test_the_first_way_to_the_field_counts(
    parser: str, conditions: tuple[tuple[int, int, int], ...], offset: int
) -> None:
    program = lower(checked(v1program("", headers=STEERED, parser=parser)))
    found = steering(program)
    assert found is not None
    assert (found.offset, found.bytes, found.shift) == (offset, 4, 4)


OTHER = """
header o_t { bit<4> high; bit<12> low; bit<16> kind; }
header k_t { bit<16> first; @steer(3) bit<16> number; }
struct headers_t { o_t o; o_t p; k_t k; }
struct metadata_t { }
"""


@pytest.mark.parametrize(
    ("parser", "found"),
    [
        # Parts of bytes.
        ("state start { packet.extract(hdr.o); transition select(hdr.o.low) { 0xABC: k; } }"
         "state k { packet.extract(hdr.k); transition accept; }",
         Steering(((0, 0x0F, 0x0A), (1, 0xFF, 0xBC)), 6, 2, 3)),
        # A mask, and two conditions on one byte.
        ("state start { packet.extract(hdr.o); transition select(hdr.o.high, hdr.o.low) { (5, 0x100 &&& 0x300): k; } }"
         "state k { packet.extract(hdr.k); transition accept; }",
         Steering(((0, 0xF3, 0x51),), 6, 2, 3)),
        # A slice.
        ("state start { packet.extract(hdr.o); transition select(hdr.o.kind[9:6]) { 0xF: k; } }"
         "state k { packet.extract(hdr.k); transition accept; }",
         Steering(((2, 0x03, 0x03), (3, 0xC0, 0xC0)), 6, 2, 3)),
        # A way that contradicts itself is none.
        ("state start { packet.extract(hdr.o); transition select(hdr.o.kind) { 1: again; 2: twice; } }"
         "state again { transition select(hdr.o.kind) { 2: k; } }"
         "state twice { packet.extract(hdr.p); transition k; }"
         "state k { packet.extract(hdr.k); transition accept; }",
         Steering(((2, 0xFF, 0), (3, 0xFF, 2)), 10, 2, 3)),
        # What is no field is no condition.
        ("state start { packet.extract(hdr.o); transition select(hdr.o.kind + 1) { 1: k; } }"
         "state k { packet.extract(hdr.k); transition accept; }", Steering((), 6, 2, 3)),
        # A place that differs from packet to packet.
        ("state start { packet.extract(hdr.o); packet.advance((bit<32>) hdr.o.low); transition k; }"
         "state k { packet.extract(hdr.k); transition accept; }", None),
        # A parser that goes round.
        ("state start { packet.extract(hdr.o); transition select(hdr.o.kind) { 1: start; 2: k; } }"
         "state k { packet.extract(hdr.k); transition accept; }",
         Steering(((2, 0xFF, 0), (3, 0xFF, 2)), 6, 2, 3)),
        ("state start { transition accept; }", None),
    ],
)  # fmt: skip
def test_conditions_are_what_the_parser_compares(parser: str, found: Steering | None) -> None:
    program = lower(checked(v1program("", headers=OTHER, parser=parser)))
    assert steering(program) == found
    assert (one_thread(program) is None) == (found is not None)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (STEERED.replace("bit<8> x;", "@steer(1) bit<8> x;"), "a program has one field with @steer"),
        (STEERED.replace("steer(4)", "steer(32)"), "from 0 to 31"),
        (STEERED.replace("steer(4)", "steer"), "takes one number"),
        (STEERED.replace("steer(4)", "steer(1, 2)"), "takes one number"),
        (HEADERS.replace("bit<8> a;", "@steer(0) bit<7> a; bit<1> e;"), "8, 16 or 32 bits"),
        (
            HEADERS.replace("bit<8> a; bit<8> b;", "bit<4> a; @steer(0) bit<8> b; bit<4> e;"),
            "begins at a byte",
        ),
        (HEADERS.replace("bit<8> x;", "@steer(1) bit<8> x;"), "of a header"),
    ],
)
def test_a_wrong_steering_field_is_an_error(headers: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        steering(lower(checked(v1program("", headers=headers))))


@pytest.mark.parametrize(
    ("apply", "why"),
    [
        ("@stripe { }", "one @stripe"),
        ("@stripe() { }", "one @stripe"),
        ("@stripe(1, 2) { }", "one @stripe"),
        ("@stripe(1) @stripe(2) { }", "one @stripe"),
        ("@stripe(hdr.h.a == 1) { }", "a bit<N> of at most 32 bits"),
        ("@stripe(hdr.h.d ++ hdr.h.a) { }", "a bit<N> of at most 32 bits"),
        ("@stripe(nothing) { }", "nothing"),
    ],
)
def test_a_wrong_stripe_is_an_error(apply: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        compile_to_cpp(v1program(apply))


def test_a_stripe_stands_where_registers_can() -> None:
    with pytest.raises(CompileError, match="not in a function"):
        compile_to_cpp(v1program(top="bit<8> f() { @stripe(0) { return 1; } }"))
    with pytest.raises(CompileError, match="not in a parser"):
        compile_to_cpp(v1program(parser="state start { @stripe(0) { } transition accept; }"))
