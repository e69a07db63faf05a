# SPDX-License-Identifier: Apache-2.0
"""Stage 2: preprocessed text to tokens, each with its place in the original file."""

import re
from typing import NamedTuple

from inagg_switch.compiler.diagnostics import Errors
from inagg_switch.errors import CompileError, Position

KEYWORDS = frozenset(
    [
        "_",
        "abstract",
        "action",
        "actions",
        "apply",
        "bit",
        "bool",
        "break",
        "const",
        "continue",
        "control",
        "default",
        "else",
        "entries",
        "enum",
        "error",
        "exit",
        "extern",
        "false",
        "for",
        "header",
        "header_union",
        "if",
        "in",
        "inout",
        "int",
        "key",
        "list",
        "match_kind",
        "out",
        "package",
        "parser",
        "priority",
        "return",
        "select",
        "state",
        "string",
        "struct",
        "switch",
        "table",
        "this",
        "transition",
        "true",
        "tuple",
        "type",
        "typedef",
        "value_set",
        "varbit",
        "void",
    ]
)

# Words that the grammar also allows as names (P4-16 language specification, appendix H: `nonTypeName`).
SOFT_KEYWORDS = frozenset(["actions", "apply", "entries", "key", "list", "priority", "state", "type"])

# `>` is always a separate token: `bit<32>>` closes two lists. The parser joins adjacent ones into shifts.
_TOKEN = re.compile(
    r"""(?P<space>[ \t\f\r\v]+)
      | (?P<number>(?:\d+[ws])?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|0[dD][0-9_]+|\d[\d_]*))(?![A-Za-z0-9_])
      | (?P<name>[A-Za-z_]\w*)
      | (?P<string>"(?:\\.|[^"\\])*")
      | (?P<op>&&&|\.\.\.|\|\+\|=|\|-\|=|<<=|\|\+\||\|-\||\.\.|<<|&&|\|\||==|!=|<=|>=|\+\+
              |\+:|\+=|-=|\*=|/=|%=|&=|\|=|\^=|[-+*/%&|^~!<>=?:;,.()\[\]{}@#])
    """,
    re.VERBOSE | re.ASCII,
)
_STRING_END = re.compile(r'(?:\\.|[^"\\])*"')
_MARKER = re.compile(r'\s*#\s*(?:line\s+)?(\d+)\s+"([^"]*)"')
_RADIX = {"x": 16, "b": 2, "o": 8, "d": 10}
MAX_WIDTH = 2048  # of bit and int; the limit of p4c


class Token(NamedTuple):
    """kind: name, keyword, number, string, op or end. `value` is (number, width or None, signed) of a number."""

    kind: str
    text: str
    at: Position
    value: tuple[int, int | None, bool] | None = None

    def __str__(self) -> str:
        return "the end of the file" if self.kind == "end" else f"`{self.text}`"


def tokenize(text: str, path: str = "<source>") -> list[Token]:
    """All tokens, then an `end` token. Raises CompileError for characters that start no token."""
    errors = Errors()
    with errors.of_stage():
        return _tokens(text, path, errors)


def _tokens(text: str, path: str, errors: Errors) -> list[Token]:
    tokens: list[Token] = []
    line = 0
    rows = text.split("\n")
    place = -1
    while (place := place + 1) < len(rows):
        row = rows[place]
        line += 1
        if "#" in row:
            marker = _MARKER.match(row)
            if marker is not None:
                line, path = int(marker.group(1)) - 1, marker.group(2)
                continue
        position = 0
        while position < len(row):
            match = _TOKEN.match(row, position)
            if match is None:
                at = Position(path, line, position + 1)
                if row[position] == '"' and _in_annotation(tokens):
                    string, end_row, position = _long_string(rows, place, position)
                    if string:
                        tokens.append(Token("string", string, at))
                        row, line, place = rows[end_row], line + end_row - place, end_row
                        continue
                if row[position] == '"' or not _in_annotation(tokens):
                    errors.report(CompileError(_error_message(row, position), at))
                    position = _resume_position(row, position)
                    continue
                tokens.append(Token("other", row[position], at))
                position += 1
                continue
            if match.lastgroup != "space":
                tokens.append(_token(match, Position(path, line, position + 1), errors))
            position = match.end()
    end = Position(path, max(line - 1, 1), 1)
    if tokens:
        last = tokens[-1]
        end = Position(last.at.path, last.at.line, last.at.column + len(last.text))
    tokens.append(Token("end", "", end))
    return tokens


def _token(match: re.Match[str], at: Position, errors: Errors) -> Token:
    kind, word = match.lastgroup or "op", match.group()
    if kind == "number":
        return Token(kind, word, at, _number(word, at, errors))
    return Token("keyword" if kind == "name" and word in KEYWORDS else kind, word, at)


def _long_string(rows: list[str], first: int, start: int) -> tuple[str, int, int]:
    """A string that starts in the row `first` and ends in a later one. Returns its text, the row it ends in, and the
    place after it. The text is empty if the string does not end."""
    parts = [rows[first][start:]]
    for last in range(first + 1, len(rows)):
        end = _STRING_END.match(rows[last])
        if end is not None and _MARKER.match(rows[last]) is None:
            return "\n".join((*parts, end.group())), last, end.end()
        parts.append(rows[last])
    return "", first, start


def _in_annotation(tokens: list[Token]) -> bool:
    """True inside the brackets of an annotation, where any character is allowed."""
    depth = 0
    for place in range(len(tokens) - 1, 1, -1):
        text = tokens[place].text
        if text == ")":
            depth += 1
        elif text == "(" and depth:
            depth -= 1
        elif text == "(" and tokens[place - 2].text == "@":
            return True
    return False


def line_at(text: str, path: str, wanted: Position) -> str | None:
    """The line of preprocessed text that holds a place of an original file."""
    line = 0
    for row in text.split("\n"):
        line += 1
        marker = _MARKER.match(row)
        if marker is not None:
            line, path = int(marker.group(1)) - 1, marker.group(2)
        elif (path, line) == (wanted.path, wanted.line) and row[wanted.column - 1 : wanted.column].strip():
            return row
    return None


def _resume_position(row: str, position: int) -> int:
    """Where reading goes on after a character that starts no token. An open string takes the rest of its line."""
    if row[position] == '"':
        return len(row)
    word = re.compile(r"\w+").match(row, position)
    return word.end() if word is not None else position + 1


def _error_message(row: str, position: int) -> str:
    if row[position] == '"':
        return "string is not closed"
    if row[position].isdigit():
        word = re.match(r"\w+", row[position:])
        return f"`{word.group() if word else row[position]}` is not a number"
    return f"unexpected character {row[position]!r}"


def _number(word: str, at: Position, errors: Errors) -> tuple[int, int | None, bool]:
    """The number, its width or None, and whether it is signed; reports an error and returns 0 if it is malformed."""
    try:
        return _parse_number(word, at)
    except CompileError as error:
        errors.report(error)
        return 0, None, False


def _parse_number(word: str, at: Position) -> tuple[int, int | None, bool]:
    width: int | None = None
    signed = False
    digits = word
    prefix = re.match(r"(\d+)([ws])(?=\d)", word)
    if prefix is not None:
        width, signed = int(prefix.group(1)), prefix.group(2) == "s"
        digits = word[prefix.end() :]
        if not (2 if signed else 1) <= width <= MAX_WIDTH:
            raise CompileError(
                f"width {width} of `{word}` is not between {2 if signed else 1} and {MAX_WIDTH}", at
            )
    radix = 10
    if len(digits) > 1 and digits[0] == "0" and digits[1].lower() in _RADIX:
        radix, digits = _RADIX[digits[1].lower()], digits[2:]
    digits = digits.replace("_", "")
    if not digits:
        raise CompileError(f"`{word}` has no digits", at)
    if len(digits) > 20_000:
        raise CompileError("number is too long", at)
    if radix == 10 and len(digits) > 4000:
        raise CompileError("decimal number is too long; write it in hexadecimal", at)
    return int(digits, radix), width, signed
