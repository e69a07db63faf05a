# SPDX-License-Identifier: Apache-2.0
"""Messages and places of errors in programs that are wrong or use an unsupported feature.

A `§` marks the place that the message must point at. It is removed before the program is compiled.
"""

import random
import re
from pathlib import Path

import pytest

from inagg_switch import CompileError
from inagg_switch.compiler import compile_file, compile_source, generate
from inagg_switch.compiler.parse.preprocess import preprocess
from tests import INAGG_P4
from tests.switch.snippets import compile_to_cpp, v1program

# In the apply block of the ingress.
STATEMENTS = {
    "§nothing = 1;": "`nothing` is not declared",
    "bit<8> §this = 1;": "expected the variable's name, found `this`",
    "bit<8> §_ = 1;": "expected the variable's name, found `_`",
    "hdr.h§..a = 1;": "expected `=` or a call, found `..`",
    "hdr.h§.nope = 1;": "header h_t has no field `nope`",
    "hdr§.a.b = 1;": "struct headers_t has no field `a`",
    "meta.x = §true;": "expected bit<8> for the value of an assignment, found a value of type bool",
    "meta.x = §meta.y;": "expected bit<8> for the value of an assignment, found a value of type bit<16>",
    "meta.y = hdr.h.a  §+ hdr.h.c;":
        "`+` needs two operands of the same bit type, found bit<8> and bit<16>",
    "meta.x = 8w1 §+ 16w1;": "`+` needs two operands of the same bit type, found bit<8> and bit<16>",
    "if (§meta.x) { }": "expected bool for the condition of `if`, found a value of type bit<8>",
    "if (§1 == true) { }": "expected bool for operand of a comparison, found a value of type int",
    "§1 = 2;": "a value of type int cannot be assigned to",
    "meta.x = 1 §}": "expected `;` after a statement, found `}`",
    "meta.x = (1 + 2§;": "expected `)`, found `;`",
    "meta.x §1;": "expected `=` or a call, found `1`",
    "meta.x = §;": "expected an expression, found `;`",
    "meta.x = §hdr.h.d[8:0];":
        "expected bit<8> for the value of an assignment, found a value of type bit<9>",
    "meta.x = hdr.h.d§[32:25];": "[32:25] is not a slice of bit<32>",
    "meta.x = hdr.h.d§[0:7];": "[0:7] is not a slice of bit<32>",
    "meta.flag = hdr.h.d[§meta.x:0] == 0;": "a slice bound must be a number known at compile time",
    "hdr.s[§3].a = 1;": "index 3 is outside h_t[3]",
    "hdr.h§[1].a = 1;": "a value of type h_t has no elements",
    "hdr.s§.next.a = 1;": "`next` of a header stack exists in parsers only",
    "bit<8> x = 1; bit<8> §x = 2;": "`x` is already declared at test.p4:18",
    "bit<§0> x;": "width 0 is not supported: expected 1 to 2048",
    "meta.x = meta.x << §(int) meta.x;": "the distance of a shift must be a number known at compile time",
    "meta.x = (bit<8>) (1 << §(int) meta.x);":
        "the distance of this shift must be known at compile time",
    "meta.x = (bit<8>) (§(int) meta.x / 2);":
        "this number must be known at compile time, or have a width",
    "meta.x = (bit<8>) (§(int) hdr.h.d << 2020);": "this number may need more than 2048 bits",
    "meta.x = meta.flag ? §(int) meta.x : 1;": "the width of one of the values must be known, as in 8w1",
    "meta.x = k(§(int) meta.x);": "parameter `a` of function k needs a value known at compile time",
    "M.apply(1); other.apply(1); §other.apply(2);": "every apply of instance I.other must have the same numbers",
    "meta.x = 7§[2048:0];": "[2048:0] is not a slice of int",
    "bit<8> x = §256w1;": "expected bit<8> for variable `x`, found a value of type bit<256>",
    "int §x = 1;": "a variable cannot be of type int",
    "§verify(true, error.NoError);": "verify can only be called in a parser",
    "§NoAction<bit<8>>();": "only functions, externs and their methods take type arguments",
    "if (§hdr.h.isValid<bit<8>>()) { }": "only functions, externs and their methods take type arguments",
    "const bit<8> k = §meta.x;": "the value of constant `k` must be known at compile time",
    "§foo();": "`foo` is not declared",
    "meta§.x();": "`meta` (metadata_t) has no method `x`",
    "§mark_to_drop(sm, sm);": "`mark_to_drop` takes 0 or 1 arguments, 2 given",
    "mark_to_drop(§meta);":
        "parameter `standard_metadata` of function mark_to_drop needs exactly standard_metadata_t, "
        "found `meta` (metadata_t)",
    "random(§8w3, 0, 1);": "a value of type bit<8> cannot be assigned to",
    "sm.egress_spec§.x = 1;": "a value of type bit<9> has no member `x`",
    "hdr.h§.frobnicate();": "a value of type h_t has no method `frobnicate`",
    "§hdr.h.setValid(1);": "setValid takes no arguments",
    "hdr.s.push_front(§meta.x);": "the argument of push_front must be a number known at compile time",
    "return §1;": "`return` cannot have a value here",
    "§break;": "`break` outside a loop",
    "meta.x = §P;": "type P is not a value",
    "meta.x = error§.Nope;": "error has no member `Nope`",
    "meta.x = §error.NoError;":
        "expected bit<8> for the value of an assignment, found a value of type error",
    "meta.flag = CounterType§.nope == CounterType.bytes;": "CounterType has no member `nope`",
    "meta.x = §(bit<8>) true;": "cannot cast a value of type bool to bit<8>",
    "meta.x = §(bit<8>) meta.y == 1;":
        "expected bit<8> for the value of an assignment, found a value of type bool",
    "meta.x = §(bit<8>) meta.flag;": "cannot cast a value of type bool to bit<8>",
    "meta.x = 1 §/ 0;": "division by zero",
    "meta.x = meta.x §/ 0;": "division by zero",
    "meta.x = meta.x §% 8w0;": "division by zero",
    "meta.x §/= 0;": "division by zero",
    "meta.x = meta.x §/ 3;": "`/` needs values known at compile time, or a power of two on its right",
    "meta.x = 8 §% meta.x;": "`%` needs values known at compile time, or a power of two on its right",
    "meta.x = meta.flag ? §1 : 2;": "the width of one of the values must be known, as in 8w1",
    "{ bit<8> §meta; }": "`meta` hides a parameter of that name",
    "@hidden §meta.x = 1;": "expected a declaration, a block or a loop after an annotation, found `meta`",
    "digest(1, §hdr.h);": "digest needs a struct or a list: digest<struct_t>(receiver, {...})",
    "digest(1, §{ a = meta.x });": "digest needs a struct or a list: digest<struct_t>(receiver, {...})",
    "hash(meta.x, HashAlgorithm.crc16, 8w0, §3, 8w9);":
        "the width of this number is not known; write it as in 8w1",
    "hash(meta.x, HashAlgorithm.crc16, 8w0, §{ a = meta.y }, 8w9);":
        "hash needs a list or a struct, as in { x }, not { a = bit<16> }",
    "hash(meta.x, HashAlgorithm.crc16, 8w0, §hdr.s, 8w9);":
        "hash needs a list or a struct, as in { x }, not h_t[3]",
    'log_msg("{}", §meta.x);': "log_msg needs a list of numbers: {a, b}",
    "f(§meta.x);": "parameter `a` of function f needs a value known at compile time",
    "inner.apply(§meta.x);": "parameter `a` of control N needs a value known at compile time",
    "meta.x = meta.x << §-1;": "shift by a negative number",
    "meta.x = !§meta.x;": "expected bool for operand of `!`, found a value of type bit<8>",
    "meta.flag = !§meta.x;": "expected bool for operand of `!`, found a value of type bit<8>",
    "meta.x = hdr.h.isValid() ? true : §8w1;":
        "expected bool for second value of `?:`, found a value of type bit<8>",
    "meta.x = true ? 8w1 : §16w1;":
        "expected bit<8> for second value of `?:`, found a value of type bit<16>",
    "switch (§hdr.h) { }": "`switch` needs bits, an enum or action_run, found a value of type h_t",
    "switch (meta.x) { 1: { } §1: { } }": "this label is used twice",
    "switch (meta.x) { §meta.y: { } }":
        "expected bit<8> for a switch label, found a value of type bit<16>",
    "switch (meta.x) { §default: { } 1: { } }": "`default` must be the last label",
    "switch (§meta.flag) { true: { } }": "`switch` needs bits, an enum or action_run, found a value of type bool",
    "switch (§sm.parser_error) { error.NoMatch: { } }":
        "`switch` needs bits, an enum or action_run, found a value of type error",
    "for (bool §i in 0 .. 3) { }": "a range of bool cannot be counted",
    "for (bit<8> i = 0; §i; i = i + 1) { }":
        "expected bool for the condition of `for`, found `i` (bit<8>)",
    "log_msg(§1);": "expected string for parameter `msg` of function log_msg, found a value of type int",
    "§P.apply(hdr);": "parser P can only be applied in a parser",
    '§static_assert(1 == 2, "no way");': "no way",
    "§update_checksum(true, { hdr.h.a }, hdr.h.c, HashAlgorithm.csum16);": (
        "update_checksum can only be called in the control that V1Switch has for it"
    ),
    "§clone(CloneType.E2E, 1);": "this clone can only be called in egress",
    "§recirculate_preserving_field_list(1);":
        "recirculate_preserving_field_list can only be called in egress",
    "§resubmit(meta);": "resubmit is not supported; use resubmit_preserving_field_list",
    "§clone3(CloneType.I2E, 1, {meta.x});": "clone3 is not supported; use clone_preserving_field_list",
    "random(§nope = meta.x, lo = 0, hi = 1);": "function random has no parameter `nope`",
    "random(meta.x, §result = meta.x, hi = 1);": "parameter `result` of function random is given twice",
    "mark_to_drop(§_);": "`_` can only stand for an `out` parameter of function mark_to_drop",
    "hdr.h.d = 32w1 / (hdr.h.d ++ hdr.h.d)[31:0] §+ 1w1;":
        "`+` needs two operands of the same bit type, found bit<32> and bit<1>",
    "meta.x = §{1, 2};": "expected bit<8> for the value of an assignment, found a list",
    "hdr.h = §{1, 2};": "h_t has 4 parts, the list 2",
    "hdr.h = {a = 1, b = 2, c = 3, e = §4};": "h_t has no field `e`",
    "meta.x = §8w0b12;": "`8w0b12` is not a number",
    "meta.x = §8x1;": "`8x1` is not a number",
    "meta.x = 1w2 + §$;": "unexpected character '$'",
    'meta.x = §"': "string is not closed",
    "for (§i in 0 .. 3) { }": "the variable of a loop needs its type: bit<32> i",
    "if (meta.x §= 1) { }": "expected `)`, found `=`; values are compared with `==`",
    "hash(meta.y, HashAlgorithm.crc16, §0, {hdr.h.a}, 16w10);":
        "the width of this number is not known; write it as in 8w1",
}  # fmt: skip

# Before the apply block of the ingress.
LOCALS = {
    "bit<8> x; bit<8> y; action a(inout bit<8> q) { q = 1; } table t { actions = { a(x); } default_action = a(§y); }":
        "argument `q` of a differs from the one in the list of actions",
    "table t { key = { hdr.h.a : §fuzzy; } actions = { NoAction; } }":
        "`fuzzy` is not a match kind of this architecture",
    "table t { key = { hdr.h.a : exact; } actions = { §nope; } }": "`nope` is not an action",
    "action a(bit<8> x) { } table t { actions = { a; } default_action = §a; }":
        "action a takes 1 arguments, 0 given: `x` is missing",
    "action a() { } table t { actions = { NoAction; } default_action = §a(); }":
        "`a` is not among the actions of table t",
    "table t { key = { §hdr.h : exact; } actions = { NoAction; } }":
        "a key of table t must be bits, bool, an enum or an error, found a value of type h_t",
    "table t { key = { §meta.flag : lpm; } actions = { NoAction; } }":
        "a key of kind lpm must be bits, found a value of type bool",
    "table t { actions = { NoAction; } priority_delta = §0; }": "`priority_delta` must be positive",
    "table t { key = { meta.x : exact; } actions = { NoAction; } entries = { priority = §3: 1: NoAction(); } }":
        "the keys of table t need no priorities",
    "table t { key = { meta.x : ternary; } actions = { NoAction; } const entries = { priority = §3: 1: NoAction(); } }":
        "`const` entries have no priorities: they match in the order in which they are written",
    "table t { actions = { NoAction; } size = §meta.x; }":
        "the size of a table must be a number known at compile time",
    "table t { actions = { NoAction; } size = 1; §size = 2; }": "table t has two `size` properties",
    "table t { actions = { NoAction; } size = §0x80000000; }": "size 2147483648 of table t is too large",
    "action a(metadata_t §m) { } table t { key = { meta.x: exact; } actions = { a; } }":
        "parameter `m` of action a is set by entries, so it must be bits, bool or an enum, not metadata_t",
    "action a(int §n) { } table t { key = { meta.x: exact; } actions = { a; } }":
        "an action cannot have a parameter of type int",
    "register<bit<8>>(0) §r;": "a register needs at least one cell",
    "action a() { } table t { actions = { a; §a; } }": "table t lists action `a` twice",
    "table t { key = { hdr.h.a : exact; } actions = { NoAction; } const entries = { §(1, 2) : NoAction(); } }":
        "table t has 1 keys, the entry 2",
    "table t { key = { hdr.h.a : exact; } actions = { NoAction; } const entries = { §1 &&& 2 : NoAction(); } }":
        "a mask does not fit a key of kind exact",
    "table t { key = { hdr.h.a : range; } actions = { NoAction; } const entries = { 9§..3 : NoAction(); } }":
        "the range from 9 to 3 is empty",
    "table t { key = { hdr.h.a : exact; } actions = { NoAction; } const entries = { 1: NoAction(); §1: NoAction(); } }":
        "the table has an entry with this key already, at line 16",
    "table t { key = { hdr.h.a : lpm; } actions = { NoAction; } entries = { 8 &&& 248: NoAction(); "
    "§15 &&& 248: NoAction(); } }":
        "the table has an entry with this key already, at line 16",
    "table t { key = { hdr.h.a : range; } actions = { NoAction; } entries = { priority = 3: _: NoAction(); "
    "§priority = 3: 0..255: NoAction(); } }":
        "the table has an entry with this key already, at line 16",
    "table t { key = { §hdr.h.a + 1 : exact; } actions = { NoAction; } }":
        'a key that is not a field needs a name: @name("...")',
    "action §a(bit<8> x, in bit<8> y) { }": "directionless parameters of action a must come last",
    "action a(in bit<8> x) { §x = 1; }": "`x` is an `in` parameter and cannot be assigned to",
    "action a(bit<8> x) { §x = 1; }": "`x` is a directionless parameter and cannot be assigned to",
    "action a() { §t.apply(); }": "`t` is not declared",
    "register<bit<8>>(§meta.x) r;":
        "expected bit<32> for parameter `size` of the constructor of register, found a value of type bit<8>",
    "register<§nope>(3) r;": "type `nope` is not declared",
    "register(3) §r;": "register needs type arguments: register<...>",
    "register<bool>(3) §r;": "a register must hold bits, not bool",
    "counter(§CounterType.bytes, 5) c;":
        "expected bit<32> for parameter `size` of the constructor of counter, found a value of type CounterType",
    "counter(5) §c;": "counter has no constructor with 1 arguments",
    "§undeclared_t x;": "`undeclared_t` is not a type",
    "§Checksum16() c;": "extern Checksum16 is not supported",
    "direct_meter<bit<2>>(MeterType.bytes) m; action a(inout bit<2> c) { bit<2> x; §m.read(x); } "
    "table t { key = { meta.x: exact; } actions = { a(meta.x[1:0]); } meters = m; }":
        "the result of a direct meter must go to metadata or a header field",
    "table t { key = { meta.x: exact; meta.y: selector; } actions = { NoAction; } "
    "const entries = { (1, §2): NoAction(); } }": "an entry cannot have a value for a selector key",
    "action a() { bit<8> §meta; }": "`meta` hides a parameter of that name",
    "table t { actions = { NoAction; } const entries = { §1: NoAction(); } }": "table t has entries but no key",
    "action a() { } @name(\"a\") action §b() { } table t { actions = { a; b; } }":
        "another action has the name `I.a` already",
    "action a() { } @name(\"a\") action §b(bit<8> x) { } table t { actions = { a; } } "
    "table u { actions = { b; } }": "another action has the name `I.a` already",
    "action a() { } @name(\"a\") action §b() { } table t { actions = { a; } } table u { actions = { b; } }":
        "another action has the name `I.a` already",
    "action a(in bool hit) { } table u { actions = { NoAction; } } table t { actions = { a(§u.apply().hit); } }":
        "table u can only be applied in a control's apply block",
    "const §list<bit<8>> numbers = { 1, 2 };": "list types are not supported",
    "direct_meter<bit<8>>(MeterType.bytes) §m; action a() { m.read(meta.x); } "
    "table t { key = { meta.x: exact; } actions = { a; } }": "I.m is read but belongs to no table",
    "direct_meter<bit<8>>(MeterType.bytes) m; "
    "table §t { key = { meta.x: exact; } actions = { NoAction; } meters = m; }":
        "no action of I.t reads its meter",
    "register<bit<8>>(3) r; table t { key = { meta.x: exact; } actions = { NoAction; } implementation = §r; }":
        "expected action_profile or action_selector, found `r` (register<bit<8>>)",
}  # fmt: skip

# In the parser.
PARSERS = {
    "state start { meta.y = (bit<16>) §packet.length(); transition accept; }":
        "packet_in.length() is not supported: BMv2 does not have it",
    "state start { packet.extract(hdr.h); transition §nowhere; }": "state `nowhere` is not declared",
    "state start { §packet.extract(meta); transition accept; }":
        "extract needs a header, found metadata_t",
    "state start { transition select(hdr.h.a) { 300000000000 &&& §true: accept; } }":
        "expected bit<8>, found a value of type bool",
    "state start { transition select(hdr.h.a, hdr.h.b) { §1: accept; } }":
        "`select` has 2 values, the case 1",
    "state start { transition select(§hdr.h) { default: accept; } }":
        "`select` needs bits, found a value of type h_t",
    "state start { §exit; }": "`exit` is not allowed in a parser",
    "state start { transition accept; } state §start { transition accept; }":
        "state `start` is already declared",
    "bit<8> one; state start { transition one; } state §one { transition accept; }":
        "state `one` is already declared",
    "state start { §hdr.s.push_front(1); transition accept; }":
        "push_front of a header stack is not allowed in a parser",
    "state start { packet§.nope(); transition accept; }": "extern packet_in has no method `nope`",
}  # fmt: skip


def marked(text: str) -> tuple[str, tuple[int, int] | None]:
    place = text.find("§")
    if place < 0:
        return text, None
    line = text.count("\n", 0, place) + 1
    column = place - text.rfind("\n", 0, place)
    return text.replace("§", ""), (line, column)


def compile_error(text: str) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_to_cpp(text)
    return caught.value


def check_place(fragment: str, text: str, message: str) -> None:
    program, place = marked(text)
    error = compile_error(program)
    assert error.message == message
    assert (error.path, error.line, error.column) == ("test.p4", *(place or ()))
    source = program.splitlines()[error.line - 1]
    assert str(error).splitlines() == [
        f"test.p4:{error.line}:{error.column}: error: {message}", source, " " * (error.column - 1) + "^"]  # fmt: skip


@pytest.mark.parametrize("fragment", STATEMENTS)
def test_in_statements(fragment: str) -> None:
    top = "void f(bit<8> a) { } control N(bit<8> a) { apply { } } control M(int a) { apply { } } " + (
        "bit<8> k(int a) { return (bit<8>) a; }"
    )
    check_place(fragment, v1program(fragment, top=top, locals="N() inner; M() other;"), STATEMENTS[fragment])


def two_tables_with_a_selector(first: str, second: str) -> str:
    tables = "".join(
        f"table {name} {{ key = {{ meta.x: exact; {key} }} actions = {{ NoAction; }} implementation = s; }}"
        for name, key in (("t", first), ("§u", second))
    )
    return f"action_selector(HashAlgorithm.crc16, 32w8, 32w8) s; {tables}"


@pytest.mark.parametrize("key", ["", "hdr.h.b: selector;", "meta.y: selector; hdr.h.c: selector;"])
def test_tables_share_a_selector_only_with_the_same_keys(key: str) -> None:
    text = two_tables_with_a_selector("hdr.h.c: selector;", key)
    check_place(text, v1program(locals=text), "the action selector has other selector keys in another table")
    same = two_tables_with_a_selector(key, key)
    compile_to_cpp(marked(v1program(locals=same))[0])


@pytest.mark.parametrize("fragment", LOCALS)
def test_in_declarations(fragment: str) -> None:
    check_place(fragment, v1program(locals=fragment), LOCALS[fragment])


@pytest.mark.parametrize("block", ["parser", "verify", "update", "deparser"])
def test_digests_are_refused_outside_the_pipeline(block: str) -> None:
    call = "§digest<metadata_t>(1, meta);" if block != "deparser" else "§digest<headers_t>(1, hdr);"
    code = f"state start {{ {call} transition accept; }}" if block == "parser" else call
    check_place(call, v1program(**{block: code}), "digest can only be called in ingress")


def test_two_instances_cannot_share_an_absolute_name() -> None:
    text = 'control N() { @name(".t") table §t { actions = { NoAction; } } apply { t.apply(); } }'
    program = v1program("one.apply(); other.apply();", top=text, locals="N() one; N() other;")
    check_place(text, program, "another table has the name `t` already")


def test_two_actions_that_run_cannot_share_a_name() -> None:
    program = v1program("a(); b();", locals='action a() { } @name("a") action §b() { }')
    check_place(
        'action a() { } @name("a") action §b() { }', program, "another action has the name `I.a` already"
    )


def test_one_action_of_two_tables_is_one_action() -> None:
    tables = "table t { actions = { a; } } table u { actions = { a; } }"
    compile_to_cpp(v1program("t.apply(); u.apply(); a();", locals=tables, top="action a() { }"))


def test_a_digest_in_the_egress_compiles() -> None:
    compile_to_cpp(v1program(egress="digest<metadata_t>(1, meta);"))


@pytest.mark.parametrize("fragment", PARSERS)
def test_in_parsers(fragment: str) -> None:
    check_place(fragment, v1program(parser=fragment), PARSERS[fragment])


# Whole programs, without TEMPLATE.
PROGRAMS = {
    "void f(in string §s) { }": "a parameter of type string cannot have a direction",
    "int §f() { return 1; }": "function f cannot return an int",
    "void f(in int §s) { }": "a parameter of type int cannot have a direction",
    "type bit<8> t; enum t §e { a = 1 }": "the values of an enum must be bits, not t",
    "": "the program has no `main` package",
    "control C(); package §V1Switch(C c); control D() { apply { } } V1Switch(D()) main;":
        "`V1Switch` is declared in another way than in v1model.p4 of inagg_switch",
    "§x": "expected a declaration, found `x`",
    "struct s { bit<8> a; bit<8> §a; }": "struct s has two fields `a`",
    "parser §P() { state start { transition more; } state more { transition start; } }":
        "parser P reaches neither accept nor reject",
    "struct s { @field_list(§K) bit<8> a; }": "`K` is not declared",
    "struct s { @field_list(§true) bit<8> a; }":
        "the number of a field list must be a number known at compile time",
    "header h { error §a; }": "a header cannot have a field of type error",
    "header_union u { bit<8> §a; }": "a header_union cannot have a field of type bit<8>",
    "enum e { a, §a }": "enum e has two members `a`",
    "enum bit<8> e { §a }": "member `a` needs a value",
    "enum bit<4> e { a = 15, b = §16 }": "16 is not a value of bit<4>",
    "enum bit<4> e { a = §-1 }": "-1 is not a value of bit<4>",
    "enum int<4> e { a = -8, b = §8 }": "8 is not a value of int<4>",
    "enum e { §a = 1 }": "member `a` has a value, but the enum has no base type",
    "const bit<8> a = §b;": "`b` is not declared",
    "typedef §nope t;": "type `nope` is not declared",
    "struct s { §nope a; }": "type `nope` is not declared",
    "bit<8> f() { }": "function f does not always return a value",
    "bit<8> f(in bool b) { if (b) { return 1; } }": "function f does not always return a value",
    "void f() { return §1; }": "`return` cannot have a value here",
    "control c() { bit<8> x; apply { }§": "expected `}` after the control's apply block, found the end of the file",
    "control c() { apply §{ ": "`{` is not closed",
    "struct s { bit<8> a": "expected `;` after a field, found the end of the file",
    "§bit<8> x;": "variables are not allowed at the top level; use `const`",
}  # fmt: skip


@pytest.mark.parametrize("text", PROGRAMS)
def test_whole_programs(text: str) -> None:
    program, place = marked(text)
    error = compile_error(program)
    assert error.message == PROGRAMS[text]
    if place is not None:
        assert (error.line, error.column) == place


def test_an_error_in_an_include_names_the_included_file(tmp_path: Path) -> None:
    (tmp_path / "inner.p4").write_text("const bit<8> a = 1;\n\nconst bool b = a;\n")
    (tmp_path / "main.p4").write_text('#include <core.p4>\n#include "inner.p4"\n')
    with pytest.raises(CompileError) as caught:
        compile_file(tmp_path / "main.p4")
    assert str(caught.value).splitlines() == [
        f"{tmp_path / 'inner.p4'}:3:16: error: expected bool for constant `b`, found `a` (bit<8>)",
        "const bool b = a;",
        "               ^",
    ]


def test_an_error_in_preprocessed_text_still_names_the_original_place(tmp_path: Path) -> None:
    (tmp_path / "main.p4").write_text("#define LONG_NAME 1\n\nconst bool b = LONG_NAME + c;\n")
    text = preprocess(tmp_path / "main.p4").text
    (tmp_path / "main.p4").unlink()
    with pytest.raises(CompileError) as caught:
        compile_source(text)
    error = caught.value
    assert (error.path, error.line, error.column) == (str(tmp_path / "main.p4"), 3, 28)
    assert error.message == "`c` is not declared"


@pytest.mark.parametrize("text", [
    "const bit<8> a = " + "(" * 5000 + "1" + ")" * 5000 + ";",
    "const bit<8> a = " + "-" * 5000 + "1;",
    "const bit<8> a = 1" + " + 1" * 5000 + ";",
    "control c() { apply " + "{" * 5000,
    "struct s { " + "tuple<" * 5000,
])  # fmt: skip
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(CompileError, match="nested"):
        compile_to_cpp(text)


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_broken_programs_give_a_diagnostic_and_never_a_traceback(seed: int) -> None:
    """Mutations of p4/inagg.p4: tokens dropped, doubled, swapped or replaced, and the text cut short."""
    whole = preprocess(INAGG_P4).text
    core_end = whole.index('p4/include/constants.p4"')
    start = whole.rindex("#", 0, core_end)
    generator = random.Random(seed)
    tokens = re.findall(r"\s+|\w+|[^\w\s]", whole[start:])
    places: list[tuple[int, int]] = []
    for _ in range(50):
        changed = list(tokens)
        for _ in range(generator.randint(1, 3)):
            place = generator.randrange(len(changed))
            other = generator.choice(tokens)
            changed[place : place + 1] = generator.choice(
                [[], [changed[place]] * 2, [other], [other, changed[place]]]
            )
        if generator.random() < 0.2:
            changed = changed[: generator.randrange(len(changed))]
        try:
            generate(whole[:start] + "".join(changed))
        except CompileError as error:
            places.append((error.line, error.column))
    assert len(places) > 25
    assert min(places) >= (1, 1)
