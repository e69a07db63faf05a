# SPDX-License-Identifier: Apache-2.0
"""The token stream that the modules of the parser share: it looks ahead, expects tokens, goes on after an error, and
knows which names are types."""

from collections.abc import Iterator
from contextlib import contextmanager

from inagg_switch.compiler.diagnostics import Errors
from inagg_switch.compiler.parse.lexer import SOFT_KEYWORDS, Token
from inagg_switch.errors import CompileError, Position

_DEEPEST = 120  # nested expressions, types and statements


class TokenStream:
    """Reads tokens one after the other. `_types` has a map for each open scope, from names to whether they are
    types."""

    def __init__(self, tokens: list[Token], errors: Errors) -> None:
        self.errors = errors
        self._tokens = tokens
        self._resumed = -1  # the token at which reading resumed after the last error
        self._cursor = 0
        self._depth = 0
        self._types: list[dict[str, bool]] = [{}]

    @property
    def token(self) -> Token:
        return self._tokens[self._cursor]

    def peek(self, ahead: int = 1) -> Token:
        return self._tokens[max(min(self._cursor + ahead, len(self._tokens) - 1), 0)]

    def advance(self) -> Token:
        token = self._tokens[self._cursor]
        if token.kind != "end":
            self._cursor += 1
        return token

    def at_text(self, *texts: str) -> bool:
        token = self._tokens[self._cursor]
        return token.text in texts and token.kind in ("op", "keyword")

    def accept(self, text: str) -> Token | None:
        token = self._tokens[self._cursor]
        if token.text == text and token.kind in ("op", "keyword"):
            self._cursor += 1
            return token
        return None

    def expect(self, text: str, where: str = "") -> Token:
        token = self.accept(text)
        if token is None:
            raise self.error(f"expected `{text}`{where and ' ' + where}, found {self.token}")
        return token

    def is_name(self, token: Token) -> bool:
        return token.kind == "name" or (token.kind == "keyword" and token.text in SOFT_KEYWORDS)

    def name(self, what: str = "a name") -> Token:
        if not self.is_name(self.token):
            raise self.error(f"expected {what}, found {self.token}")
        return self.advance()

    def not_the_end(self, what: str) -> None:
        """Raises CompileError at the end of the file, where `what` is expected."""
        if self.token.kind == "end":
            raise self.error(f"expected {what}, found {self.token}")

    def error(self, message: str, at: Position | None = None) -> CompileError:
        return CompileError(message, at or self.token.at)

    @contextmanager
    def recovering(self, *stops: str) -> Iterator[None]:
        """Reads one statement, declaration or the like. After an error in it, reading resumes after the `;` or the
        braces that end it, before the brace that ends the enclosing block, or before one of the keywords `stops`."""
        start, depth, scopes, known = self._cursor, self._depth, len(self._types), len(self.errors)
        try:
            yield
            if len(self.errors) > known:
                self._resumed = self._cursor
        except CompileError as error:
            self._report(error)
            self._depth = depth
            del self._types[scopes:]
            self._skip(stops)
            if self._cursor == start and not self.at_text("}"):
                self.advance()
            self._resumed = self._cursor

    def _report(self, error: CompileError) -> None:
        """Reports an error, unless it follows from the last one: it is at the token where reading resumed, or the end
        of the file comes too early, because a brace was lost."""
        if self._cursor != self._resumed and not (self.errors and self.token.kind == "end"):
            self.errors.report(error)

    def _skip(self, stops: tuple[str, ...]) -> None:
        depth = 0
        while self.token.kind != "end":
            if depth == 0 and (self.at_text("}") or (self.at_text(*stops) and self._starts_line())):
                return
            token = self.advance()
            if token.kind != "op":
                continue
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            ends = token.text == "}" and not self.at_text("else", ";", ")", ",")
            if depth == 0 and (token.text == ";" or ends):
                return

    def _starts_line(self) -> bool:
        if not self._cursor:
            return True
        before = self._tokens[self._cursor - 1].at
        return (before.path, before.line) != (self.token.at.path, self.token.at.line)

    def mark(self) -> tuple[int, int]:
        """The place of the reader. return_to() goes back to it, to try another reading."""
        return self._cursor, self._depth

    def return_to(self, mark: tuple[int, int]) -> None:
        self._cursor, self._depth = mark

    def enter(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.error(f"nested more than {_DEEPEST} deep")

    def leave(self) -> None:
        self._depth -= 1

    # --- type names

    def declare_type(self, name: str) -> None:
        self._types[-1][name] = True

    def hide_type(self, name: str) -> None:
        """Declares a name that is not a type: it hides a type of an outer scope."""
        self._types[-1][name] = False

    def is_type(self, name: str) -> bool:
        return next((scope[name] for scope in reversed(self._types) if name in scope), False)

    def open_types(self, names: list[str]) -> None:
        self._types.append(dict.fromkeys(names, True))

    def close_types(self) -> None:
        self._types.pop()

    # --- `>` tokens come one by one: only the grammar tells `a >> b` from `X<Y<Z>>`

    def adjacent(self, *texts: str) -> bool:
        """True if the next tokens are these, without blanks between them."""
        first = self.token
        for offset, text in enumerate(texts):
            token = self.peek(offset) if offset else first
            if (
                token.text != text
                or token.at.line != first.at.line
                or token.at.column != first.at.column + offset
            ):
                return False
        return True
