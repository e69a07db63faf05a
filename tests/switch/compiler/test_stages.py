# SPDX-License-Identifier: Apache-2.0
"""Stages 2 to 5, each separately: tokens, syntax tree, constant values, lowered calls."""

import pytest

from inagg_switch.compiler import generate, ir, syntax
from inagg_switch.compiler.emit.outcome import outcome
from inagg_switch.compiler.emit.untouched import mentioned_headers, split_deparser, untouched_headers
from inagg_switch.compiler.fold import fold_binary, fold_unary
from inagg_switch.compiler.lower.program import lower
from inagg_switch.compiler.parse.lexer import tokenize
from inagg_switch.compiler.parse.parser import parse
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.compiler.primitives import Emit
from inagg_switch.compiler.types import BitType
from tests.switch.snippets import checked, v1program


@pytest.mark.parametrize(("text", "value"), [
    ("10", (10, None, False)), ("0x1F", (31, None, False)), ("0b1_01", (5, None, False)),
    ("0o17", (15, None, False)), ("0d09", (9, None, False)), ("8w255", (255, 8, False)),
    ("8s0x7f", (127, 8, True)), ("1_000", (1000, None, False)),
])  # fmt: skip
def test_numbers(text: str, value: tuple[int, int | None, bool]) -> None:
    assert tokenize(text)[0].value == value


def test_closing_brackets_stay_apart_and_shifts_are_joined_by_the_parser() -> None:
    program = parse(
        tokenize("struct g<T> { T a; } struct s { g<g<bit<8>>> a; } const int x = 8 >> 1 > 2 ? 1 : 0;")
    )
    constant = program.declarations[2]
    assert isinstance(constant, syntax.Constant)
    assert isinstance(constant.value, syntax.Conditional)
    assert isinstance(constant.value.condition, syntax.Binary)
    assert constant.value.condition.operator == ">"


def expression(text: str) -> syntax.Expression:
    (declaration,) = parse(tokenize(f"const int x = {text};")).declarations
    assert isinstance(declaration, syntax.Constant)
    return declaration.value


def shape(e: syntax.Expression) -> object:
    """Brackets as the parser set them."""
    if isinstance(e, syntax.Binary):
        return (shape(e.left), e.operator, shape(e.right))
    if isinstance(e, syntax.Unary):
        return (e.operator, shape(e.operand))
    if isinstance(e, syntax.Integer):
        return e.number
    if isinstance(e, syntax.Cast):
        return ("cast", shape(e.operand))
    return type(e).__name__


@pytest.mark.parametrize(("text", "expected"), [
    ("1 + 2 * 3", (1, "+", (2, "*", 3))),
    ("1 - 2 - 3", ((1, "-", 2), "-", 3)),
    ("1 | 2 ^ 3 & 4", (1, "|", (2, "^", (3, "&", 4)))),
    ("1 << 2 + 3", (1, "<<", (2, "+", 3))),
    ("1 == 2 && 3 < 4 || 5 != 6", (((1, "==", 2), "&&", (3, "<", 4)), "||", (5, "!=", 6))),
    ("1 & 2 == 2", ((1, "&", 2), "==", 2)),
    ("-1 + ~2", (("-", 1), "+", ("~", 2))),
    ("(bit<8>) 1 + 2", (("cast", 1), "+", 2)),
    ("1 ++ 2 >> 3", ((1, "++", 2), ">>", 3)),
    ("(1)", 1),
])  # fmt: skip
def test_precedence(text: str, expected: object) -> None:
    assert shape(expression(text)) == expected


@pytest.mark.parametrize(("text", "value"), [
    ("const int x = 1 << 70;", 1 << 70),
    ("const int x = (5 - 7) * 3;", -6),
    ("const bit<8> x = 300;", 44),
    ("const bit<8> x = -1;", 255),
    ("const int<8> x = 200;", -56),
    ("const bit<8> x = 8w200 + 100;", 44),
    ("const bit<8> x = 8w200 |+| 100;", 255),
    ("const int<8> x = 8s100 |+| 8s100;", 127),
    ("const bit<8> x = 8w3 |-| 5;", 0),
    ("const bit<16> x = 8w1 ++ 8w2;", 258),
    ("const bit<4> x = 8w0xA5[7:4];", 10),
    ("const bit<8> x = (bit<8>) 16w0x1234;", 0x34),
    ("const bit<8> x = (bit<8>) (int<8>) -1;", 255),
    ("const int<8> x = (int<8>) 8w255 >> 1;", -1),
    ("const bit<8> x = 7 / 2 + 7 % 4;", 6),
    ("const bool x = 1 < 2 && !(3 == 4);", True),
    ("const bit<8> x = true ? 8w1 : 2;", 1),
    ("enum bit<8> e { a = 5, b = 7 } const bit<8> x = e.b + 1;", 8),
    ("const bit<16> a = 2; const bit<16> x = a << 3;", 16),
    ("header q { bit<9> a; bit<7> b; } struct w { q[3] s; } const int x = 3;", 3),
])  # fmt: skip
def test_constants(text: str, value: object) -> None:
    assert checked(v1program(top=text)).constants()["x"] == value


def test_folding_agrees_with_its_definition_at_the_edges() -> None:
    byte, signed = BitType(8), BitType(8, signed=True)
    assert fold_unary("~", 0, byte) == 255
    assert fold_unary("-", -128, signed) == -128
    assert fold_binary(">>", -128, 7, signed, byte) == -1
    assert fold_binary("<<", 1, 10**9, byte, byte) == 0
    assert fold_binary("|-|", -128, 1, signed, signed) == -128


def calls_in(block: ir.Block) -> list[ir.Call]:
    found: list[ir.Call] = []

    def walk(node: object) -> None:
        if isinstance(node, ir.Call):
            found.append(node)
        if isinstance(node, tuple | list):
            for part in node:
                walk(part)
        elif isinstance(node, ir.Stmt | ir.Expr):
            for part in vars(node).values():
                walk(part)

    walk(block.body)
    return found


def how_arguments_go(apply: str) -> list[str]:
    actions = """
        bit<8> shared;
        action take(in bit<8> a, out bit<8> b, inout bit<8> c) { b = a; c = c + shared; meta.x = 1; }
    """
    program = lower(checked(v1program(apply, locals=actions)))
    (call,) = calls_in(program.pipeline["ingress"])
    return [argument.mode for argument in call.arguments]


@pytest.mark.parametrize(("apply", "expected"), [
    # Only the apply block sees its variables, so a reference is enough.
    ("bit<8> v = 1; bit<8> w = 2; take(1, v, w);", ["value", "reference", "reference"]),
    # The action sees the control's variables and parameters, so it gets copies.
    ("bit<8> v = 1; take(1, shared, v);", ["value", "copy", "reference"]),
    ("bit<8> v = 1; take(1, v, meta.x);", ["value", "reference", "copy"]),
    # One variable twice: with references each would see changes of the other.
    ("bit<8> v = 1; take(v, v, v);", ["value", "copy", "copy"]),
])  # fmt: skip
def test_arguments_are_copied_where_a_reference_would_differ(apply: str, expected: list[str]) -> None:
    assert how_arguments_go(apply) == expected


def test_each_instance_is_lowered_to_one_block_with_its_path() -> None:
    program = lower(checked(v1program(
        "one.apply(hdr); two.apply(hdr);",
        top="control K(inout headers_t hdr)(bit<32> n) { register<bit<8>>(n) r; apply { r.write(0, 1); } }",
        locals="K(3) one; K(5) two;",
    )))  # fmt: skip
    assert [b.full_name for b in program.blocks if b.full_name.startswith("I")] == ["I.one", "I.two", "I"]
    registers = [o for o in program.objects if isinstance(o, ir.Register)]
    assert [(r.full_name, r.size) for r in registers] == [("I.one.r", 3), ("I.two.r", 5)]


STRUCT = """
header h_t { bit<32> d; }
header big_t { bit<512> d; }
struct headers_t { h_t h; big_t[2] big; h_t g; h_t k; big_t other; }
struct metadata_t { bit<32> x; }
bit<32> of_the_big(in headers_t all) { return all.big[1].d[31:0]; }
void copied(out headers_t all) { }
control Inner(inout headers_t inside) { apply { inside.g.d = 1; } }
control Whole(inout headers_t inside) { apply { headers_t other = inside; } }
"""


@pytest.mark.parametrize(("code", "expected"), [
    ({}, ["h", "big", "g", "k", "other"]),
    ({"egress": "hdr.h.d = 1; meta.x = hdr.g.d;"}, ["big"]),
    ({"egress": "hdr.big[0].d = 1;"}, ["g", "k", "other"]),
    ({"egress": "hdr.big.push_front(1);"}, ["g", "k", "other"]),
    ({"egress": "hdr.big[1].setInvalid();"}, ["g", "k", "other"]),
    ({"update": "hdr.big[0] = hdr.other;"}, ["g", "k"]),
    ({"egress_locals": "Inner() inner;", "egress": "inner.apply(hdr);"}, ["h", "big"]),
    ({"egress_locals": "Inner() inner;", "apply": "hdr.big[0].d = 1;"}, ["h", "big", "g", "k", "other"]),
    ({"egress": "meta.x = of_the_big(hdr);"}, ["g", "k", "other"]),
    ({"egress_locals": "table t { key = { hdr.big[0].d : exact; } actions = { NoAction; } }",
      "egress": "t.apply();"}, ["g", "k", "other"]),
    ({"egress_locals": "action set(out bit<512> d) { d = 1; } table t { actions = { set(hdr.big[0].d); } }",
      "egress": "t.apply();"}, ["g", "k", "other"]),
    ({"egress_locals": "Whole() whole;", "egress": "whole.apply(hdr);"}, []),
    ({"egress": "headers_t other = hdr; hdr = other;"}, []),
])  # fmt: skip
def test_the_headers_that_copies_of_a_multicast_share(code: dict[str, str], expected: list[str]) -> None:
    program = lower(checked(v1program(headers=STRUCT, parser="state start { transition accept; }", **code)))
    assert untouched_headers(program, mentioned_headers(program)) == expected


EMITS = "packet.emit(hdr.h); packet.emit(hdr.g); packet.emit(hdr.big);"


@pytest.mark.parametrize(("code", "expected"), [
    ({}, ["h", "g", "big"]),
    ({"egress": "hdr.h.d = 1;"}, ["g", "big"]),
    ({"egress": "hdr.g.setInvalid();"}, ["big"]),
    ({"egress": "hdr.big[0].d = 1;"}, []),
    ({"update": "hdr.h.d = hdr.big[0].d[31:0];"}, []),
    ({"egress": "headers_t other = hdr; hdr = other;"}, []),
    ({"deparser": EMITS + "if (hdr.h.d == 1) { packet.emit(hdr.k); }"}, []),
    ({"deparser": "if (hdr.h.d == 1) { return; }" + EMITS}, ["h", "g", "big"]),
    ({"deparser": "headers_t mine = hdr; mine.g.d = 1; packet.emit(mine.g); packet.emit(hdr.big);"}, ["big"]),
    ({"deparser": "packet.emit(hdr);"}, []),
])  # fmt: skip
def test_the_headers_that_the_deparser_writes_equally_for_all_copies(
    code: dict[str, str], expected: list[str]
) -> None:
    code = {"deparser": EMITS, **code}
    program = lower(checked(v1program(headers=STRUCT, parser="state start { transition accept; }", **code)))
    _, same = split_deparser(program, mentioned_headers(program))
    emitted = [emit.header for emit in same if isinstance(emit, Emit)]
    assert [header.name for header in emitted if isinstance(header, ir.Field)] == expected
    assert len(emitted) == len(expected)


@pytest.mark.parametrize(("code", "expected"), [
    ({}, set()),
    ({"egress": "hdr.h.d = 1;"}, {"headers.h.d"}),
    ({"egress": "hdr.h.d[3:0] = 1; if (hdr.g.d == 1) { meta.x = hdr.k.d; }"}, {"headers.h.d"}),
    ({"egress": "hdr.g = hdr.h;"}, {"headers.g.valid", "headers.g.d"}),
    ({"egress": "hdr.g.setInvalid(); sm.egress_spec = 1;"}, {"headers.g.valid", "headers.g.d"}),
    ({"egress_locals": "Inner() inner;", "egress": "inner.apply(hdr);"}, {"headers.g.d"}),
    ({"egress_locals": "action set(out bit<32> d) { d = 1; } table t { actions = { set(hdr.k.d); } }",
      "egress": "t.apply();"}, {"headers.k.d"}),
    ({"egress": "meta.x = 1;", "update": "if (meta.x == 1) { hdr.h.d = 1; }"}, {"metadata.x"}),
    ({"egress": "meta.x = 1;", "update": "metadata_t all = meta; hdr.h.d = all.x;"}, None),
    # Too much to compare.
    ({"egress": "hdr.big[0].d = 1;"}, None),
    ({"egress": "headers_t other = hdr; hdr = other;"}, None),
    # Not the same a second time.
    ({"update": "bit<32> r; random(r, 0, 9); hdr.h.d = r;"}, None),
    ({"deparser": "for (bit<32> i = 0; i < hdr.h.d; i = i + 1) { packet.emit(hdr.g); }"}, None),
    ({"egress": "truncate(9);"}, None),
])  # fmt: skip
def test_what_decides_whether_copies_are_equal(code: dict[str, str], expected: set[str] | None) -> None:
    program = lower(checked(v1program(headers=STRUCT, parser="state start { transition accept; }", **code)))
    found = outcome(program)
    assert (None if found is None else set(found)) == expected


@pytest.mark.parametrize(("code", "copies"), [
    ("cells.read(v, 1); hdr.big[0].d = hdr.big[0].d + v; cells.write(1, hdr.big[0].d);", False),
    ("cells.read(v, 1); cells.write(2, v);", False),
    ("hdr.h.d = 1; cells.read(v, 1); others.write(1, hdr.big[0].d); hdr.big[0].d = v;", False),
    # The register is written before the last use.
    ("cells.read(v, 1); cells.write(1, hdr.big[0].d); hdr.big[0].d = v;", True),
    ("cells.read(v, 1); if (hdr.h.d == 1) { cells.write(1, hdr.big[0].d); } hdr.big[0].d = v;", True),
    ("cells.read(v, 1); store(hdr.big[0].d); hdr.big[0].d = v;", True),
    # The variable is written otherwise.
    ("v = 1; cells.read(v, 1); hdr.big[0].d = v;", True),
    ("cells.read(v, 1); v = v + 1; hdr.big[0].d = v;", True),
    ("cells.read(v, 1); v[7:0] = 1; hdr.big[0].d = v;", True),
    ("cells.read(v, 1); cells.read(v, 2); hdr.big[0].d = v;", True),
    ("cells.read(v, 1); change(v); hdr.big[0].d = v;", True),
    ("if (hdr.h.d == 1) { cells.read(v, 1); } hdr.big[0].d = v;", True),
    # It is used where it would have to be copied anyway.
    ("cells.read(v, 1); if (v == 1) { hdr.h.d = 1; }", True),
    ("cells.read(v, v[31:0]); hdr.big[0].d = v;", True),
])  # fmt: skip
def test_a_wide_register_is_read_without_a_copy_where_that_is_the_same(code: str, copies: bool) -> None:
    actions = """
        register<bit<512>>(4) cells;
        register<bit<512>>(4) others;
        action store(in bit<512> d) { cells.write(1, d); }
        action change(inout bit<512> d) { d = d + 1; }
    """
    parser = "state start { transition accept; }"
    source = v1program(f"bit<512> v; {code}", headers=STRUCT, parser=parser, locals=actions)
    cpp = generate(preprocess_text(source, "test.p4").text)[0]
    assert ("const value_t<512>& v = " in cpp) is not copies
