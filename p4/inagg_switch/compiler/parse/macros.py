# SPDX-License-Identifier: Apache-2.0
"""Expands macros of the preprocessor."""

import re
from dataclasses import dataclass

from inagg_switch.errors import CompileError, Position

_MAX_EXPANSION = 200_000  # tokens of one logical line: stops a macro bomb

_WORD = re.compile(
    r'[A-Za-z_]\w*|\d\w*|"(?:\\.|[^"\\])*"|##|&&&|\.\.\.|\|[+-]\|=?|<<=?|>>=?|\.\.|&&|\|\||\+\+|[=!<>+*/%&|^-]=|\s+|.',
    re.DOTALL,
)


@dataclass(frozen=True)
class Macro:
    name: str
    parameters: tuple[str, ...] | None
    body: tuple[str, ...]


@dataclass
class Piece:
    """A token of the output. `column` is None if a macro made it."""

    text: str
    column: int | None
    hidden: frozenset[str] = frozenset()


class Macros(dict[str, Macro]):
    """The defined macros, by name."""

    def expand(self, pieces: list[Piece], at: Position) -> list[Piece]:
        done: list[Piece] = []
        todo = pieces[::-1]
        steps = 0
        while todo:
            steps += 1
            if steps > _MAX_EXPANSION:
                raise CompileError("macro expansion does not end", at)
            piece = todo.pop()
            if piece.text == "__LINE__":
                done.append(Piece(str(at.line), piece.column))
                continue
            if piece.text == "__FILE__":
                done.append(Piece(f'"{at.path}"', piece.column))
                continue
            macro = self.get(piece.text)
            if macro is None or piece.text in piece.hidden:
                done.append(piece)
                continue
            body = self._replacement(macro, piece, todo, at)
            if body is None:
                done.append(piece)
                continue
            if body:
                body[0].column = piece.column
            todo.extend(reversed(body))
        return done

    def _replacement(self, macro: Macro, use: Piece, todo: list[Piece], at: Position) -> list[Piece] | None:
        """The macro's body with the arguments inserted; None for a function-like macro without arguments."""
        hidden = use.hidden | {macro.name}
        if macro.parameters is None:
            return [Piece(t, None, hidden) for t in _paste(list(macro.body))]
        rest = len(todo)
        while rest and todo[rest - 1].text.isspace():
            rest -= 1
        if not rest or todo[rest - 1].text != "(":
            return None
        del todo[rest - 1 :]
        arguments = self._arguments(macro, todo, at)
        values = dict(zip(macro.parameters, arguments, strict=True))
        words: list[str] = []
        body = macro.body
        index = 0
        while index < len(body):
            word = body[index]
            if word == "#" and index + 1 < len(body) and body[index + 1] in values:
                words.append('"' + _plain(values[body[index + 1]]).replace('"', '\\"') + '"')
                index += 2
                continue
            if word in values:
                pasted = "##" in _neighbours(body, index)
                argument = values[word] if pasted else self.expand(list(values[word]), at)
                words.extend(p.text for p in argument)
            else:
                words.append(word)
            index += 1
        return [Piece(t, None, hidden) for t in _paste(words)]

    def _arguments(self, macro: Macro, todo: list[Piece], at: Position) -> list[list[Piece]]:
        arguments: list[list[Piece]] = [[]]
        depth = 0
        while True:
            if not todo:
                raise CompileError(f"the arguments of macro {macro.name} are not closed", at)
            piece = todo.pop()
            if piece.text == ")" and depth == 0:
                break
            if piece.text == "," and depth == 0:
                arguments.append([])
                continue
            depth += {"(": 1, ")": -1}.get(piece.text, 0)
            arguments[-1].append(Piece(piece.text, None, piece.hidden))
        assert macro.parameters is not None
        if not macro.parameters and len(arguments) == 1 and not _plain(arguments[0]):
            return []
        if len(arguments) != len(macro.parameters):
            raise CompileError(
                f"macro {macro.name} takes {len(macro.parameters)} arguments, {len(arguments)} given", at
            )
        return arguments


def _plain(pieces: list[Piece]) -> str:
    return " ".join("".join(p.text for p in pieces).split())


def _neighbours(body: tuple[str, ...], index: int) -> list[str]:
    before = [w for w in body[:index] if not w.isspace()][-1:]
    after = [w for w in body[index + 1 :] if not w.isspace()][:1]
    return before + after


def _paste(words: list[str]) -> list[str]:
    result: list[str] = []
    index = 0
    while index < len(words):
        if words[index] == "##" and result:
            while result and result[-1].isspace():
                result.pop()
            index += 1
            while index < len(words) and words[index].isspace():
                index += 1
            if index < len(words) and result:
                result[-1] += words[index]
        else:
            result.append(words[index])
        index += 1
    return result


def split_words(text: str) -> list[str]:
    return _WORD.findall(text)
