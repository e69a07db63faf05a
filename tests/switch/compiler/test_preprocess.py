# SPDX-License-Identifier: Apache-2.0
"""Stage 1: macros, conditionals, includes, and the places of the remaining tokens."""

from pathlib import Path

import pytest

from inagg_switch import CompileError
from inagg_switch.compiler.parse.lexer import tokenize
from inagg_switch.compiler.parse.preprocess import preprocess, preprocess_text


def words(text: str, **defines: str) -> str:
    """The tokens of the preprocessed text, without line markers."""
    return " ".join(t.text for t in tokenize(preprocess_text(text, "t.p4", defines).text) if t.kind != "end")


@pytest.mark.parametrize(("text", "expected"), [
    ("#define A 1\nA + A", "1 + 1"),
    ("#define A B\n#define B 2\nA", "2"),
    ("#define A A + 1\nA", "A + 1"),
    ("#define A 1\n#undef A\nA", "A"),
    ("#define F(x) (x * x)\nF(3)", "( 3 * 3 )"),
    ("#define F(x, y) y x\nF(a, (b, c))", "( b , c ) a"),
    ("#define F() z\nF() F", "z F"),
    ("#define F(x) x\nF(\n 1\n + 2\n)", "1 + 2"),
    ("#define F(x) G(x)\n#define G(x) <x>\nF(F(1))", "< < 1 > >"),
    ("#define CAT(a, b) a ## b\nCAT(bit, s) CAT(x, 1)", "bits x1"),
    ("#define STR(a) #a\nSTR(a + b)", '"a + b"'),
    ("#define LONG 1 \\\n + 2\nLONG", "1 + 2"),
    ("#define LO\\\nNG 1\nLONG", "1"),
    ("a /* b \n c */ d // e\nf", "a d f"),
    ('"/* no comment */" // one', '"/* no comment */"'),
    ("#define IN(x) x\nIN(\"a, b\")", '"a, b"'),
    ('#define A 1\n@n("one\n// A two\nA") A', '@ n ( "one\n// A two\nA" ) 1'),
    ("#ifdef A\n1\n#else\n2\n#endif", "2"),
    ("#define A\n#ifdef A\n1\n#else\n2\n#endif", "1"),
    ("#ifndef A\n1\n#endif", "1"),
    ("#if 0\n#if 1\na\n#else\nb\n#endif\n#elif 1\nc\n#else\nd\n#endif", "c"),
    ("#if 0\n#error not read\n#include <nowhere>\n#endif\na", "a"),
    ("#define V 3\n#if V >= 2 && defined(V) && !defined W\na\n#endif", "a"),
    ("#if (1 + 2) * 3 == 9 && 7 / 2 == 3 && 1 << 4 == 16 && ~0 == -1\na\n#endif", "a"),
    ("#if UNKNOWN\na\n#else\nb\n#endif", "b"),
    ("#pragma once\n#warning hm\na", "a"),
])  # fmt: skip
def test_directives_and_macros(text: str, expected: str) -> None:
    assert words(text) == expected


def test_command_line_defines() -> None:
    assert words("#if WORDS == 32\nWORDS\n#endif", WORDS="32") == "32"


@pytest.mark.parametrize(("text", "place", "message"), [
    ("a\n#endif", (2, 1), "#endif without #if"),
    ("#if 1\n#else\n#else\n#endif", (3, 1), "#else after #else"),
    ("\n  #ifdef A", (2, 3), "#if without #endif"),
    ("#include <missing.p4>", (1, 1), "cannot find missing.p4"),
    ("#include missing", (1, 1), "expected <file>"),
    ("#error out of luck", (1, 1), "#error out of luck"),
    ("#frobnicate", (1, 1), "unknown preprocessor directive #frobnicate"),
    ("#define 3", (1, 1), "expected a name after #define"),
    ("#define F(1) x", (1, 1), "macro parameter `1`"),
    ("#define F(a) a\nF(1, 2)", (2, 1), "macro F takes 1 arguments, 2 given"),
    ("#define F(a) a\nF(1", (2, 1), "not closed"),
    ("#if 1 +\n#endif", (1, 1), "expected a value in #if"),
    ("#if 1 / 0\n#endif", (1, 1), "division by zero"),
    ("#if " + "(" * 5000 + "\n#endif", (1, 1), "expected a value in #if"),
    ("#if (1\n#endif", (1, 1), "expected `)`"),
    ("#if 1 1\n#endif", (1, 1), "unexpected `1`"),
    ("#ifdef\n#endif", (1, 1), "expected a name after #ifdef"),
    ("a\n  /* open", (2, 3), "comment is not closed"),
    ("#define A B B\n#define B C C\n#define C D D\n#define D E E\n" + "".join(
        f"#define {chr(69 + i)} {chr(70 + i)} {chr(70 + i)}\n" for i in range(16)) + "A", (21, 1), "does not end"),
])  # fmt: skip
def test_errors(text: str, place: tuple[int, int], message: str) -> None:
    with pytest.raises(CompileError, match=message.replace("(", r"\(").replace(")", r"\)")) as caught:
        preprocess_text(text, "t.p4")
    assert (caught.value.path, caught.value.line, caught.value.column) == ("t.p4", *place)


def test_tokens_keep_their_places_after_macros_and_includes(tmp_path: Path) -> None:
    (tmp_path / "inner.p4").write_text("in1\n\n  in2\n")
    (tmp_path / "main.p4").write_text(
        '#define LONG aaaaaaaaaaaaaaaaaaaa\n#include "inner.p4"\n/* x */ LONG b; LONG LONG c\n\n\n  d\n')  # fmt: skip
    main = str(tmp_path / "main.p4")
    inner = str(tmp_path / "inner.p4")
    tokens = tokenize(preprocess(main).text)
    places = [(t.text[:3], t.at.path, t.at.line, t.at.column) for t in tokens if t.kind != "end"]
    assert places == [
        ("in1", inner, 1, 1), ("in2", inner, 3, 3),
        ("aaa", main, 3, 9), ("b", main, 3, 14), (";", main, 3, 15), ("aaa", main, 3, 17), ("aaa", main, 3, 22),
        ("c", main, 3, 27), ("d", main, 6, 3),
    ]  # fmt: skip


def test_preprocessing_the_output_again_changes_nothing() -> None:
    text = "#define F(x) (x + 1)\n#ifndef A\nbit<F(7)> a; b\n#endif\n\n\n\n\n\n\n\n\n\n\nF(1) F(2)\n"
    once = preprocess_text(text, "t.p4").text
    again = preprocess_text(once, "other.p4").text
    assert [(t.text, t.at) for t in tokenize(once)] == [(t.text, t.at) for t in tokenize(again)]


def test_an_include_guard_and_a_recursive_include(tmp_path: Path) -> None:
    (tmp_path / "a.p4").write_text('#ifndef G\n#define G\nonce\n#include "a.p4"\n#endif\n')
    assert "once" in preprocess(tmp_path / "a.p4").text
    (tmp_path / "b.p4").write_text('#include "b.p4"\n')
    with pytest.raises(CompileError, match="nested more than 64 deep"):
        preprocess(tmp_path / "b.p4")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"cannot read .*: No such file"):
        preprocess(tmp_path / "none.p4")


def test_a_byte_order_mark_and_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "old.p4").write_bytes(b"\xef\xbb\xbfa // \xe9t\xe9\nb\xe9")
    assert preprocess(tmp_path / "old.p4").text == f'# 1 "{tmp_path / "old.p4"}"\na\nb\ufffd\n'


def test_only_newlines_end_lines() -> None:
    text = 'a "\x85\u2028"\f // \x0b\u2029\nb __LINE__'
    assert preprocess_text(text).text.splitlines()[-1].split() == ["b", "2"]
    assert '"\x85\u2028"' in preprocess_text(text).text
