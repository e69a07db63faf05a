# SPDX-License-Identifier: Apache-2.0
"""Finds the tokens of preprocessed text in the file that they come from.

The preprocessor keeps the order of the tokens that no macro made. So these are the tokens that the two texts have in
common, and the others get the place of the macro's name. Where an expansion would push a token to the right, the line
is broken: every token stays in the column that it has in its file.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_WORD = re.compile(
    r'[A-Za-z_]\w*|\d\w*|"(?:\\.|[^"\\\n])*"|&&&|\.\.\.|\|[+-]\|=?|<<=?|>>=?|\.\.|&&|\|\||\+\+|[=!<>+*/%&|^-]=|\S'
)
_SPLICE = re.compile(r"\\[ \t\f\v\r]*$")


class _Word(NamedTuple):
    text: str
    line: int
    column: int  # from 0


def align(row: str, source: Sequence[str], line: int, end: int) -> list[tuple[int, str]]:
    """The tokens of `row`, as lines of the file: (number, text). `source` has the lines of the file, without comments.
    The tokens come from the lines from `line` to before `end`."""
    own = source[line - 1] if line <= len(source) else ""
    if _WORD.findall(row) == _WORD.findall(own):
        return [(line, own.rstrip())]
    words = _words(row, line)
    return _render(words, _found(words, _logical_line(source, line, end)))


def _words(row: str, line: int) -> list[_Word]:
    return [_Word(m.group(), line, m.start()) for m in _WORD.finditer(row)]


def _logical_line(source: Sequence[str], line: int, end: int) -> list[_Word]:
    """The tokens of a line and of those that the preprocessor joined with it: the arguments of a macro are open, or a
    backslash ends the line."""
    words: list[_Word] = []
    depth = 0
    for number in range(line, min(end, len(source) + 1)):
        text = source[number - 1]
        row = _words(_SPLICE.sub("", text), number)
        words += row
        depth += sum((w.text == "(") - (w.text == ")") for w in row)
        if depth <= 0 and _SPLICE.search(text) is None:
            break
    return words


def _found(words: list[_Word], source: list[_Word]) -> list[_Word | None]:
    """For each token its place in the file; None for one that follows another in the expansion of a macro."""
    places: list[_Word | None] = [None] * len(words)
    matcher = SequenceMatcher(None, [w.text for w in source], [w.text for w in words], autojunk=False)
    for kind, first, last, start, stop in matcher.get_opcodes():
        if last - first == stop - start:  # equal, or macros of one token each
            places[start:stop] = source[first:last]
        elif kind == "replace":
            places[start] = source[first]
    return places


def _render(words: list[_Word], places: list[_Word | None]) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    line, text = words[0].line, ""
    previous = words[0]
    for word, place in zip(words, places, strict=True):
        gap = word.column > previous.column + len(previous.text) and bool(text)
        if place is not None:
            if place.line != line or place.column < len(text) + gap:
                lines.append((line, text))
                line, text = place.line, ""
            text = text.ljust(place.column)
        elif gap:
            text += " "
        text += word.text
        previous = word
    return [(number, piece) for number, piece in (*lines, (line, text)) if piece]
