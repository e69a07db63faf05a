# SPDX-License-Identifier: Apache-2.0
"""Stage 1: a small C preprocessor.

It takes a P4 file and -D defines. It gives one self-contained text, with `# LINE "FILE"` markers, that compiles to the
same program. Every token stays in the column that it has in its file, so a later stage finds the place of an error
from the text only. Where the expansion of a macro would push a token to the right, the line is broken and the rest gets
a marker. Comments become blanks.

Directives: #include <> and "", #define (object- and function-like, # and ##), #undef, #if, #ifdef, #ifndef, #elif,
#else, #endif, #error, #warning, #pragma, #line and line markers. Anything else is an error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_switch.compiler.diagnostics import Errors
from inagg_switch.compiler.parse.condition import evaluate_condition
from inagg_switch.compiler.parse.macros import Macro, Macros, Piece, split_words
from inagg_switch.errors import CompileError, Position

P4INCLUDE = Path(__file__).resolve().parents[2] / "p4include"
_MAX_INCLUDE_DEPTH = 64

_STRING = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
_COMMENT_OR_STRING = re.compile(_STRING.pattern + r"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_OPERATOR_CHARACTERS = frozenset("+-*/%&|^=!<>.")
_MARKER = re.compile(r'\s*#\s*(?:line\s+)?(\d+)\s+"([^"]*)"')
_DIRECTIVE = re.compile(r"\s*#\s*([A-Za-z_]\w*|\d+)?(.*)\Z", re.DOTALL)
_DEFINE = re.compile(r"\s*([A-Za-z_]\w*)(\(([^)]*)\))?(.*)\Z", re.DOTALL)
_INCLUDE = re.compile(r'\s*(?:<([^>]+)>|"([^"]+)")\s*\Z')


@dataclass(frozen=True)
class Preprocessed:
    """The text for the next stage, and the original lines of every file for messages."""

    text: str
    files: Mapping[str, Sequence[str]]


@dataclass
class _Conditional:
    position: Position
    active: bool  # the preprocessor reads this branch
    taken: bool  # it has read a branch of this #if
    outer: bool  # it reads the surrounding text
    seen_else: bool = False


def preprocess(
    path: Path | str, defines: Mapping[str, str] | None = None, include_paths: Sequence[Path | str] = ()
) -> Preprocessed:
    """Preprocesses a file. Raises CompileError, also for a file that cannot be read."""
    worker = _Preprocessor(defines or {}, include_paths)
    with worker.errors.of_stage():
        worker.file(str(path), Path(path), Position(str(path), 1, 1))
    return Preprocessed(worker.out.text(), worker.files)


def preprocess_text(
    text: str,
    name: str = "<source>",
    defines: Mapping[str, str] | None = None,
    include_paths: Sequence[Path | str] = (),
) -> Preprocessed:
    """Preprocesses a text. Files of #include "..." are searched in `include_paths` only. Raises CompileError."""
    worker = _Preprocessor(defines or {}, include_paths)
    with worker.errors.of_stage():
        worker.lines(name, None, text)
    return Preprocessed(worker.out.text(), worker.files)


class _Output:
    """The text so far, and the place of its next line in the original files."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._path = ""
        self._line = 0

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def line(self, path: str, line: int, text: str) -> None:
        gap = line - self._line
        if path == self._path and 0 <= gap <= 8:
            self._lines.extend([""] * gap)
        else:
            self._lines.append(f'# {line} "{path}"')
        self._lines.append(text)
        self._path, self._line = path, line + 1 + text.count("\n")


class _Preprocessor:
    def __init__(self, defines: Mapping[str, str], include_paths: Sequence[Path | str]) -> None:
        self.out = _Output()
        self.errors = Errors()
        self.files: dict[str, Sequence[str]] = {}
        self._include_paths = (*map(Path, include_paths), P4INCLUDE)
        self._depth = 0
        self._macros = Macros()
        for name, value in {"__p4c__": "1", "__P4C__": "1", **defines}.items():
            if not _IDENTIFIER.fullmatch(name):
                raise CompileError(f"-D {name}: not an identifier", Position("<command line>", 1, 1))
            self._macros[name] = Macro(name, None, tuple(split_words(str(value))))

    # --- files and lines

    def file(self, name: str, path: Path, asked_at: Position) -> None:
        try:
            # Bytes that are not UTF-8 are allowed in comments; elsewhere the lexer rejects their replacement.
            text = path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise CompileError(f"cannot read {name}: {error.strerror}", asked_at) from error
        if self._depth >= _MAX_INCLUDE_DEPTH:
            raise CompileError(f"#include nested more than {_MAX_INCLUDE_DEPTH} deep", asked_at)
        self._depth += 1
        self.lines(name, path.parent, text)
        self._depth -= 1

    def lines(self, name: str, directory: Path | None, text: str) -> None:
        self.files[name] = text.split("\n")
        rows = _blank_comments(text, name).split("\n")
        conditionals: list[_Conditional] = []
        index = 0
        shift = 1  # the line number of a row, less its index; line markers change it
        while index < len(rows):
            line = index + shift
            row, index = _logical_line(rows, index)
            marker = _MARKER.match(row)
            if marker is not None:
                shift, name = int(marker.group(1)) - index, marker.group(2)
            elif row.lstrip().startswith("#"):
                self._directive(name, directory, line, row, conditionals)
            elif all(c.active for c in conditionals) and row.strip():
                row, index = _join_string(row, rows, index)
                row, index = self._join_arguments(row, rows, index)
                self._text_line(name, line, row)
        if conditionals:
            raise CompileError("#if without #endif", conditionals[-1].position)

    def _join_arguments(self, row: str, rows: list[str], index: int) -> tuple[str, int]:
        """Adds lines while the arguments of a function-like macro are open."""
        while index < len(rows) and self._open_call(row) and not rows[index].lstrip().startswith("#"):
            row, index = row + "\n" + rows[index], index + 1
        return row, index

    def _open_call(self, row: str) -> bool:
        for match in _IDENTIFIER.finditer(row):
            macro = self._macros.get(match.group())
            if macro is None or macro.parameters is None:
                continue
            rest = row[match.end() :].lstrip()
            if rest.startswith("(") and rest.count("(") > rest.count(")"):
                return True
        return False

    def _text_line(self, name: str, line: int, row: str) -> None:
        if not any(
            m.group() in self._macros or m.group() in ("__LINE__", "__FILE__")
            for m in _IDENTIFIER.finditer(row)
        ):
            self.out.line(name, line, row.rstrip())
            return
        pieces: list[Piece] = []
        extra = 0
        column = 1
        for text in split_words(row):
            pieces.append(Piece(text, column))
            if "\n" in text:
                extra += text.count("\n")
                column = len(text) - text.rindex("\n")
            else:
                column += len(text)
        expanded = self._macros.expand(pieces, Position(name, line, 1))
        self._render(name, line, expanded)

    def _render(self, name: str, line: int, pieces: list[Piece]) -> None:
        text = ""
        for piece in pieces:
            if piece.text.isspace():
                if text and not text[-1].isspace():
                    text += " "
                continue
            if piece.column is None:
                if text and _would_join(text[-1], piece.text[0]):
                    text += " "
            elif len(text) < piece.column - 1:
                text = text.ljust(piece.column - 1)
            elif len(text) >= piece.column and text.strip():
                self.out.line(name, line, text.rstrip())
                text = " " * (piece.column - 1)
            text += piece.text
        self.out.line(name, line, text.rstrip())

    # --- directives

    def _directive(
        self, name: str, directory: Path | None, line: int, row: str, conditionals: list[_Conditional]
    ) -> None:
        match = _DIRECTIVE.match(row)
        assert match is not None
        keyword, rest = match.group(1), match.group(2)
        at = Position(name, line, row.index("#") + 1)
        if keyword in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            self._conditional(keyword, rest, at, conditionals)
            return
        if not all(c.active for c in conditionals) or keyword is None:
            return
        if keyword == "include":
            self._include(rest, directory, at)
        elif keyword == "define":
            self._define(rest, at)
        elif keyword == "undef":
            self._macros.pop(rest.strip(), None)
        elif keyword == "error":
            self.errors.report(CompileError(f"#error {rest.strip()}", at))
        elif keyword not in ("pragma", "warning"):
            self.errors.report(CompileError(f"unknown preprocessor directive #{keyword}", at))

    def _conditional(self, keyword: str, rest: str, at: Position, stack: list[_Conditional]) -> None:
        outer = all(c.active for c in stack)
        if keyword in ("if", "ifdef", "ifndef"):
            active = outer and self._condition(keyword, rest, at)
            stack.append(_Conditional(at, active, active or not outer, outer))
            return
        if not stack:
            raise CompileError(f"#{keyword} without #if", at)
        top = stack[-1]
        if keyword == "endif":
            stack.pop()
            return
        if top.seen_else:
            raise CompileError(f"#{keyword} after #else", at)
        top.seen_else = keyword == "else"
        top.active = top.outer and not top.taken and (keyword == "else" or self._condition("if", rest, at))
        top.taken = top.taken or top.active

    def _condition(self, keyword: str, rest: str, at: Position) -> bool:
        if keyword == "if":
            pieces: list[Piece] = []
            words = [t for t in split_words(rest) if not t.isspace()]
            index = 0
            while index < len(words):
                if words[index] == "defined":
                    bracket = words[index + 1 : index + 2] == ["("]
                    operand = words[index + 1 + bracket : index + 2 + bracket]
                    if not operand or (bracket and words[index + 3 : index + 4] != [")"]):
                        raise CompileError("expected a name after `defined`", at)
                    pieces.append(Piece("1" if operand[0] in self._macros else "0", None))
                    index += 4 if bracket else 2
                else:
                    pieces.append(Piece(words[index], None))
                    index += 1
            return evaluate_condition([p.text for p in self._macros.expand(pieces, at)], at)
        macro = rest.strip().split()
        if not macro or not _IDENTIFIER.fullmatch(macro[0]):
            raise CompileError(f"expected a name after #{keyword}", at)
        return (macro[0] in self._macros) == (keyword == "ifdef")

    def _include(self, rest: str, directory: Path | None, at: Position) -> None:
        match = _INCLUDE.match(
            "".join(p.text for p in self._macros.expand([Piece(t, None) for t in split_words(rest)], at))
        )
        if match is None:
            raise CompileError('expected <file> or "file" after #include', at)
        wanted = match.group(1) or match.group(2)
        local = [directory] if match.group(2) and directory is not None else []
        for place in (*local, *self._include_paths):
            path = place / wanted
            if path.is_file():
                # Files of this package have short names, so that messages and cache keys do not depend on where
                # it is installed.
                self.file(f"<{wanted}>" if place == P4INCLUDE else str(path), path, at)
                return
        raise CompileError(f"cannot find {wanted}", at)

    def _define(self, rest: str, at: Position) -> None:
        match = _DEFINE.match(rest)
        if match is None:
            raise CompileError("expected a name after #define", at)
        parameters = None
        if match.group(2) is not None:
            parameters = tuple(p.strip() for p in match.group(3).split(",")) if match.group(3).strip() else ()
            bad = [p for p in parameters if not _IDENTIFIER.fullmatch(p)]
            if bad:
                raise CompileError(f"macro parameter `{bad[0]}` is not an identifier", at)
        self._macros[match.group(1)] = Macro(
            match.group(1), parameters, tuple(split_words(match.group(4).strip()))
        )


def _would_join(left: str, right: str) -> bool:
    if left in _OPERATOR_CHARACTERS:
        return right in _OPERATOR_CHARACTERS
    return (left.isalnum() or left == "_") and (right.isalnum() or right == "_")


def _logical_line(rows: list[str], index: int) -> tuple[str, int]:
    row = rows[index]
    index += 1
    while row.endswith("\\") and index < len(rows):
        row, index = row[:-1] + rows[index], index + 1
    return row, index


def _join_string(row: str, rows: list[str], index: int) -> tuple[str, int]:
    """Adds lines while a string is open. Strings of annotations may have several lines."""
    while '"' in row and '"' in _STRING.sub("", row) and index < len(rows):
        if rows[index].lstrip().startswith("#"):
            break
        row, index = row + "\n" + rows[index], index + 1
    return row, index


def _blank_comments(text: str, name: str) -> str:
    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if found.startswith('"'):
            return found
        if found.startswith("/*") and not (found.endswith("*/") and len(found) >= 4):
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            raise CompileError("comment is not closed", Position(name, line, column))
        return re.sub(r"[^\n]", " ", found)

    return _COMMENT_OR_STRING.sub(blank, text)
