# SPDX-License-Identifier: Apache-2.0
"""Computes the expression after #if: C's integer operators, by precedence climbing."""

import re
from collections.abc import Callable

from inagg_switch.errors import CompileError, Position

_OPERATOR = re.compile(r"\d\w*|[A-Za-z_]\w*|&&|\|\||==|!=|<=|>=|<<|>>|\S")
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "|": (3, lambda a, b: a | b),
    "^": (4, lambda a, b: a ^ b),
    "&": (5, lambda a, b: a & b),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">": (7, lambda a, b: int(a > b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, lambda a, b: a << b if 0 <= b < 4096 else 0),
    ">>": (8, lambda a, b: a >> b if b >= 0 else 0),
    "+": (9, lambda a, b: a + b),
    "-": (9, lambda a, b: a - b),
    "*": (10, lambda a, b: a * b),
    "/": (10, lambda a, b: a // b),
    "%": (10, lambda a, b: a % b),
}
_DEEPEST = 200  # nested brackets and signs


def evaluate_condition(words: list[str], at: Position) -> bool:
    """True if the expression is not zero. A name that is not a macro counts as 0, as in C. Raises CompileError."""
    text = ""
    for word in words:
        text += f" {word}" if text[-1:].isalnum() and word[:1].isalnum() else word
    tokens = _OPERATOR.findall(text)
    reader = _Reader(tokens, at)
    value = reader.expression(0)
    if reader.tokens:
        raise CompileError(f"unexpected `{reader.tokens[-1]}` in #if", at)
    return value != 0


class _Reader:
    def __init__(self, tokens: list[str], at: Position) -> None:
        self.tokens = tokens[::-1]
        self._at = at
        self._depth = 0

    def expression(self, level: int) -> int:
        value = self._operand()
        while self.tokens and self.tokens[-1] in _BINARY and _BINARY[self.tokens[-1]][0] > level:
            name = self.tokens.pop()
            strength, function = _BINARY[name]
            right = self.expression(strength)
            if name in "/%" and right == 0:
                raise CompileError("division by zero in #if", self._at)
            value = function(value, right)
        return value

    def _operand(self) -> int:
        self._depth += 1
        if not self.tokens or self._depth > _DEEPEST:
            raise CompileError("expected a value in #if", self._at)
        token = self.tokens.pop()
        if token == "(":
            value = self.expression(0)
            if not self.tokens or self.tokens.pop() != ")":
                raise CompileError("expected `)` in #if", self._at)
        elif token in "!-+~":
            operand = self._operand()
            value = {"!": int(operand == 0), "-": -operand, "+": operand, "~": ~operand}[token]
        elif token[0].isdigit():
            try:
                value = (
                    int(token.rstrip("uUlL") or "0", 0) if not re.fullmatch(r"0\d+", token) else int(token, 8)
                )
            except ValueError:
                raise CompileError(f"`{token}` is not a number", self._at) from None
        elif token[0].isalpha() or token[0] == "_":
            value = 0
        else:
            raise CompileError(f"unexpected `{token}` in #if", self._at)
        self._depth -= 1
        return value
