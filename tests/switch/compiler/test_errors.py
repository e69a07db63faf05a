# SPDX-License-Identifier: Apache-2.0
"""The compiler reports all errors of a program, up to twenty, each once.

A `§` marks each place that a message must point at, in order. It is removed before the program is compiled.
"""

import random
import re
from pathlib import Path

import pytest

from inagg_switch import CompileError
from inagg_switch.compiler import compile_file, generate
from inagg_switch.compiler.parse.preprocess import preprocess
from tests import INAGG_P4
from tests.switch.snippets import compile_to_cpp, v1program


def errors_of(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(CompileError) as caught:
        compile_to_cpp(text)
    return [(error.line, error.column, error.message) for error in caught.value.errors]


def check(text: str, *messages: str) -> None:
    """The errors are at the marks, with these messages."""
    places = []
    for line, row in enumerate(text.splitlines(), 1):
        columns = [m.start() for m in re.finditer("§", row)]
        places += [(line, column + 1 - before) for before, column in enumerate(columns)]
    found = errors_of(text.replace("§", ""))
    assert found == [(*place, message) for place, message in zip(places, messages, strict=True)]


def test_each_statement_of_a_block_has_its_error() -> None:
    check(
        v1program("meta.x = §a; if (§meta.x) { meta.y = §b; } else { §c(); } bit<8> d = 1; meta.x = d;"),
        "`a` is not declared",
        "expected bool for the condition of `if`, found a value of type bit<8>",
        "`b` is not declared",
        "`c` is not declared",
    )


def test_a_name_whose_declaration_is_wrong_gives_no_second_error() -> None:
    check(
        v1program(
            "bit<8> x = §gone; meta.x = x + K; t.apply(); act(x); meta.x = f(x); E_t e = E_t.a; hdr.h = s.h;",
            top="const bit<8> K = §gone; struct s_t { §gone_t h; } enum bit<2> E_t { a = §9 } "
            "bit<8> f(in §gone_t a) { return a; }",
            locals="s_t s; action act(§gone_t a) { meta.x = a; } "
            "table t { key = { §gone: exact; } actions = { act; NoAction; } const entries = { 1: act(1); } }",
        ),
        "`gone` is not declared",
        "type `gone_t` is not declared",
        "9 is not a value of bit<2>",
        "type `gone_t` is not declared",
        "type `gone_t` is not declared",
        "`gone` is not declared",
        "`gone` is not declared",
    )


def test_every_part_of_a_table_has_its_error() -> None:
    check(
        v1program(
            "t.apply(); u.apply();",
            locals="table t { key = { hdr.h.a: §close; hdr.h§.z: exact; } actions = { §go; NoAction; } size = §true; } "
            "table u { key = { hdr.h.a: exact; } actions = { NoAction; } const entries = { "
            "§16w1: NoAction(); 2: §go(); 3: NoAction(); } }",
        ),
        "`close` is not a match kind of this architecture",
        "header h_t has no field `z`",
        "`go` is not an action",
        "the size of a table must be a number known at compile time",
        "expected bit<8>, found a value of type bit<16>",
        "`go` is not among the actions of table u",
    )


def test_every_state_has_its_error() -> None:
    check(
        v1program(
            parser="state start { packet.extract(hdr.h); meta.x = §a; transition select(hdr.h.a) { §1: no; "
            "§true: accept; default: next; } } state next { transition §no; }"
        ),
        "`a` is not declared",
        "state `no` is not declared",
        "expected bit<8>, found a value of type bool",
        "state `no` is not declared",
    )


def test_every_field_and_parameter_has_its_error() -> None:
    check(
        v1program("f(meta.x, meta.x, meta.x); meta.x = one.b;", locals="s_t one;", top=(
            "struct s_t { §no a; bit<8> b; bit<8> §b; §no c; } void f(in §no a, in bit<8> b, in §no c) { }"
        )),
        "type `no` is not declared",
        "struct s_t has two fields `b`",
        "type `no` is not declared",
        "type `no` is not declared",
        "type `no` is not declared",
    )  # fmt: skip


def test_parsing_continues_after_an_invalid_statement() -> None:
    check(
        v1program(
            "meta.x = §; meta.x = 1; if §meta.x { meta.x = ; } else { meta.x = ; } meta.y §1; meta.x = (1 + 2§;",
            locals="action a() { meta.x = 1 §} table t { key = { hdr.h.a §exact; hdr.h.b: exact; hdr.h.c §; } "
            "actions = { a; §1; } }",
            top="struct s_t { bit<8> §1; bit<8> a; bit §8 b; }",
        ),
        "expected the field's name, found `1`",
        "expected the field's name, found `8`",
        "expected `;` after a statement, found `}`",
        "expected `:` after a key, found `exact`",
        "expected `:` after a key, found `;`",
        "expected an action's name, found `1`",
        "expected an expression, found `;`",
        "expected `(` after `if`, found `meta`",
        "expected `=` or a call, found `1`",
        "expected `)`, found `;`",
    )


def test_parsing_continues_after_an_invalid_declaration() -> None:
    check(
        v1program(
            top="struct §{ bit<8> a; }\nheader §3 { bit<8> b; }\ntypedef bit<§> word_t;\nconst word_t k = §;\n"
            "word_t f(in word_t a) { return a; }\naction §() { }\nenum e_t { a, b §c }\n§stray\n"
            "control N() { apply { } }"
        ),
        "expected the struct's name, found `{`",
        "expected the header's name, found `3`",
        "expected an expression, found `>`",
        "expected an expression, found `;`",
        "expected the action's name, found `(`",
        "expected `}` after the members, found `c`",
        "expected a declaration, found `stray`",
    )


@pytest.mark.parametrize("text", ["meta.x = (1; }", "if (true) { meta.x = §;", "} meta.x = 1;"])
def test_a_brace_that_is_missing_or_too_many_gives_few_errors(text: str) -> None:
    assert len(errors_of(v1program(text.replace("§", "")))) <= 2


def test_all_invalid_characters_are_reported() -> None:
    check(
        v1program('meta.x = §$1; meta.x = §09ab; meta.x = §3w; meta.x = §0w1; log_msg(§"a);'),
        "unexpected character '$'",
        "`09ab` is not a number",
        "`3w` is not a number",
        "width 0 of `0w1` is not between 1 and 2048",
        "string is not closed",
    )


def test_all_unsupported_features_are_reported() -> None:
    check(
        v1program(
            "clone3(CloneType.I2E, 1, { meta.x }); meta.x = meta.x §/ 3; r.read(meta.x, 0); meta.x = meta.x §% 3;",
            locals="register<bit<8>>(0) §r;",
        ).replace("clone3", "§clone3"),
        "a register needs at least one cell",
        "clone3 is not supported; use clone_preserving_field_list",
        "`/` needs values known at compile time, or a power of two on its right",
        "`%` needs values known at compile time, or a power of two on its right",
    )


def test_twenty_errors_are_shown_with_their_number() -> None:
    text = v1program("\n".join(["meta.x = true;"] * 20))
    with pytest.raises(CompileError) as caught:
        compile_to_cpp(text)
    assert (len(caught.value.errors), str(caught.value).splitlines()[-1]) == (20, "20 errors")
    with pytest.raises(CompileError) as caught:
        compile_to_cpp(text.replace("apply {", "apply { meta.x = true;", 3))
    assert (len(caught.value.errors), str(caught.value).splitlines()[-1]) == (20, "20 errors; there are more")


def test_a_single_error_is_shown_alone() -> None:
    with pytest.raises(CompileError) as caught:
        compile_to_cpp(v1program("meta.x = true;"))
    assert caught.value.errors == (caught.value,)
    assert len(str(caught.value).splitlines()) == 3


def test_each_error_shows_the_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "inner.p4").write_text("const bit<8> a = b;\n")
    (tmp_path / "main.p4").write_text('const bit<8> c = d;\n#include "inner.p4"\nconst bit<8> e = f;\n')
    with pytest.raises(CompileError) as caught:
        compile_file(tmp_path / "main.p4")
    shown = [(Path(e.path).name, e.line, e.source_line) for e in caught.value.errors]
    assert shown == [
        ("main.p4", 1, "const bit<8> c = d;"),
        ("main.p4", 3, "const bit<8> e = f;"),
        ("inner.p4", 1, "const bit<8> a = b;"),
    ]


def test_all_invalid_directives_are_reported(tmp_path: Path) -> None:
    (tmp_path / "main.p4").write_text("#error one\n#undef 2\n")
    with pytest.raises(CompileError) as caught:
        compile_file(tmp_path / "main.p4")
    assert [e.message for e in caught.value.errors] == [
        "#error one",
        "macro names must be identifiers",
    ]


def test_errors_of_broken_programs_are_sorted_and_unique() -> None:
    """Mutations of p4/inagg.p4: several tokens dropped, doubled, swapped or replaced."""
    whole = preprocess(INAGG_P4).text
    start = whole.rindex("#", 0, whole.index('p4/include/constants.p4"'))
    generator = random.Random(2)
    tokens = re.findall(r"\s+|\w+|[^\w\s]", whole[start:])
    several = 0
    for _ in range(60):
        changed = list(tokens)
        for _ in range(generator.randint(3, 12)):
            place = generator.randrange(len(changed))
            other = generator.choice(tokens)
            changed[place : place + 1] = generator.choice([[], [changed[place]] * 2, [other]])
        try:
            generate(whole[:start] + "".join(changed))
        except CompileError as error:
            by_file: dict[str, list[tuple[int, int, str]]] = {}
            for one in error.errors:
                by_file.setdefault(one.path, []).append((one.line, one.column, one.message))
            for found in by_file.values():
                assert [f[:2] for f in found] == sorted(f[:2] for f in found)
                assert len(set(found)) == len(found)
            several += len(error.errors) > 1
    assert several > 20
