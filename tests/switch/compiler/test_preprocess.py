# SPDX-License-Identifier: Apache-2.0
"""Stage 1: what programs expect of the preprocessor, its messages, and the places of the remaining tokens."""

from pathlib import Path

import pytest

from inagg_switch import CompileError
from inagg_switch.compiler.parse import preprocess as stage
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
    ('@n("one\n// two\nthree") A', '@ n ( "one\n// two\nthree" ) A'),
    ("#ifdef A\n1\n#else\n2\n#endif", "2"),
    ("#define A\n#ifdef A\n1\n#else\n2\n#endif", "1"),
    ("#ifndef A\n1\n#endif", "1"),
    ("#if 0\n#if 1\na\n#else\nb\n#endif\n#elif 1\nc\n#else\nd\n#endif", "c"),
    ("#if 0\n#error not read\n#include <nowhere>\n#endif\na", "a"),
    ("#define V 3\n#if V >= 2 && defined(V) && !defined W\na\n#endif", "a"),
    ("#if (1 + 2) * 3 == 9 && 7 / 2 == 3 && 1 << 4 == 16 && ~0 == -1\na\n#endif", "a"),
    ("#if UNKNOWN\na\n#else\nb\n#endif", "b"),
    ("#pragma once\na", "a"),
    ("#ifdef __TARGET_BMV2__\na\n#else\nb\n#endif", "a"),
    ("#if defined(__p4c__) || defined(__P4C__)\na\n#else\nb\n#endif", "b"),
    ("#define ONE\n#ifdef NONE\na\n#elifdef ONE\nb\n#else\nc\n#endif", "b"),
    ("#define ONE\n#ifdef NONE\na\n#elifndef ONE\nb\n#else\nc\n#endif", "c"),
    ("########\n# don't \"read\" this\n#TODO 3\n  #TODO 4\na", "a"),
    ("/* b */ a\n#9 lives\nc", "a c"),
    ("#define F(n) { \\ \t\n n; \\\n}\nF(1)", "{ 1 ; }"),
    ("#define A 1 // one \\\n + 2\nA", "1"),
    ("a // one \\\n two\nb", "a b"),
    ("#define F(...) f(__VA_ARGS__)\nF(1, 2)", "f ( 1 , 2 )"),
    ("#define F(a, ...) f(a, ## __VA_ARGS__)\nF(1) F(1, 2)", "f ( 1 ) f ( 1 , 2 )"),
    ("#define A\n#define HAS defined(A)\n#if HAS\na\n#endif", "a"),
    ("#if 0 ? 0 : 1\na\n#endif", "a"),
    ("#if (0, 1)\na\n#endif", "a"),
    ("#if 'a' == 97\na\n#endif", "a"),
    ("#define CAT(a, b) a##b\nCAT(x, ) CAT(, y)", "x y"),
    ('#ident "a"\nb', "b"),
    ("#if __has_include(<core.p4>) && !__has_include(<none.p4>)\na\n#endif", "a"),
])  # fmt: skip
def test_directives_and_macros(text: str, expected: str) -> None:
    assert words(text) == expected


def test_command_line_defines() -> None:
    assert words("#if WORDS == 32\nWORDS\n#endif", WORDS="32") == "32"


@pytest.mark.parametrize(("text", "place", "message"), [
    ("a\n#endif", (2, 2), "#endif without #if"),
    ("\n  #ifdef A", (2, 1), "unterminated #ifdef"),
    ("#include <missing.p4>", (1, 10), "missing.p4: No such file"),
    ("#error out of luck", (1, 2), "#error out of luck"),
    ("\t#define 3", (1, 10), "macro names must be identifiers"),
    ("#define F(a) a\nF(1, 2)", (2, 7), 'macro "F" passed 2 arguments'),
    ("#if 1 / 0\n#endif", (1, 7), "division by zero"),
    ("a\n  /* open", (2, 3), "unterminated comment"),
])  # fmt: skip
def test_errors(text: str, place: tuple[int, int], message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        preprocess_text(text, "t.p4")
    assert (caught.value.path, caught.value.line, caught.value.column) == ("t.p4", *place)


def test_a_macro_that_expands_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_MAX_BYTES", 1 << 20)
    text = "".join(f"#define A{i} A{i + 1} A{i + 1}\n" for i in range(60)) + "A0"
    with pytest.raises(
        CompileError, match=r"t\.p4:1:1: error: the preprocessed program is longer than 1 MiB"
    ):
        preprocess_text(text, "t.p4")


def test_errors_in_included_files_name_the_files_that_include_them(tmp_path: Path) -> None:
    (tmp_path / "inner.p4").write_text("\n#error one\n#error two\n")
    (tmp_path / "outer.p4").write_text('#include "inner.p4"\n')
    (tmp_path / "main.p4").write_text('#include <core.p4>\n#include "outer.p4"\n#error three\n')
    with pytest.raises(CompileError) as caught:
        preprocess(tmp_path / "main.p4")
    stack = f", included from {tmp_path}/outer.p4:1, included from {tmp_path}/main.p4:2"
    assert [(Path(e.path).name, e.line, e.message, e.source_line) for e in caught.value.errors] == [
        ("inner.p4", 2, f"#error one{stack}", "#error one"),
        ("inner.p4", 3, f"#error two{stack}", "#error two"),
        ("main.p4", 3, "#error three", "#error three"),
    ]


def test_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert words("#warning old\na") == "a"
    assert [r.getMessage().split(" [")[0] for r in caplog.records] == ["t.p4:1:2: warning: #warning old"]


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


def test_the_arguments_of_a_macro_keep_their_lines() -> None:
    text = "#define F(x, y) y { x }\n  F(a + 1,\n b) c\n"
    tokens = tokenize(preprocess_text(text, "t.p4").text)
    places = {t.text: (t.at.line, t.at.column) for t in tokens}
    assert (places["a"], places["1"], places["c"]) == ((2, 5), (2, 9), (3, 5))


def test_preprocessing_the_output_again_changes_no_token_and_no_line() -> None:
    text = "#define F(x) (x + 1)\n#ifndef A\nbit<F(7)> a; b\n#endif\n\n\n\n\n\n\n\n\n\n\nF(1) F(2)\n"
    once = preprocess_text(text, "t.p4").text
    again = preprocess_text(once, "other.p4").text
    assert [(t.text, t.at[:2]) for t in tokenize(once)] == [(t.text, t.at[:2]) for t in tokenize(again)]


def test_an_include_guard_and_a_recursive_include(tmp_path: Path) -> None:
    (tmp_path / "a.p4").write_text('#ifndef G\n#define G\nonce\n#include "a.p4"\n#endif\n')
    assert "once" in preprocess(tmp_path / "a.p4").text
    (tmp_path / "b.p4").write_text('#include "b.p4"\n')
    with pytest.raises(CompileError, match="nested depth"):
        preprocess(tmp_path / "b.p4")


def test_a_file_read_once_and_the_next_of_its_name(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    (tmp_path / "first" / "a.p4").write_text("#pragma once\none\n#include_next <a.p4>\n")
    (tmp_path / "second" / "a.p4").write_text("two\n")
    (tmp_path / "main.p4").write_text("#include <a.p4>\n#include <a.p4>\n")
    made = preprocess(tmp_path / "main.p4", include_paths=[tmp_path / "first", tmp_path / "second"])
    assert [t.text for t in tokenize(made.text) if t.kind != "end"] == ["one", "two"]


def test_a_file_whose_name_needs_quotes(tmp_path: Path) -> None:
    (tmp_path / "é b.p4").write_text("\n#include <core.p4>\nin\n")
    tokens = tokenize(preprocess(tmp_path / "é b.p4").text)
    assert tokens[-2].at == (str(tmp_path / "é b.p4"), 3, 1)


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
