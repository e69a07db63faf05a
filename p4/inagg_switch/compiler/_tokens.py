"""Token stream that the parser's parts share: look ahead, expect, and know which names are types."""

from inagg_switch.compiler.lexer import SOFT_KEYWORDS, Token
from inagg_switch.errors import CompileError, Position

_DEEPEST = 120  # nesting of expressions, types and statements


class TokenStream:
    """Reads tokens one after the other; `_types` says of the names in each open scope whether they name a type."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._cursor = 0
        self._depth = 0
        self._types: list[dict[str, bool]] = [{}]

    @property
    def token(self) -> Token:
        return self._tokens[self._cursor]

    def peek(self, ahead: int = 1) -> Token:
        return self._tokens[min(self._cursor + ahead, len(self._tokens) - 1)]

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

    def error(self, message: str, at: Position | None = None) -> CompileError:
        return CompileError(message, at or self.token.at)

    def mark(self) -> tuple[int, int]:
        """Where the reader is, for return_to(): trying one reading and then another."""
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
        """A variable, parameter... of that name: it hides a type of the scopes around."""
        self._types[-1][name] = False

    def is_type(self, name: str) -> bool:
        return next((scope[name] for scope in reversed(self._types) if name in scope), False)

    def open_types(self, names: list[str]) -> None:
        self._types.append(dict.fromkeys(names, True))

    def close_types(self) -> None:
        self._types.pop()

    # --- `>` comes as single tokens: `a >> b` and `X<Y<Z>>` differ only to the grammar

    def adjacent(self, *texts: str) -> bool:
        """The next tokens are these, with no blank between."""
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
