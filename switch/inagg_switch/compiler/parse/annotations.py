# SPDX-License-Identifier: Apache-2.0
"""Annotations: `@name`, `@name(...)` and `@name[...]`."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.expressions import parse_arguments, parse_expression
from inagg_switch.compiler.parse.tokens import TokenStream
from inagg_switch.errors import Position

_WITH_EXPRESSIONS = ("field_list", "steer", "stripe")


def parse_annotations(tokens: TokenStream) -> list[syntax.Annotation]:
    found: list[syntax.Annotation] = []
    while tokens.at_text("@"):
        at = tokens.advance().at
        if tokens.token.kind not in ("name", "keyword"):
            raise tokens.error(f"expected the annotation's name, found {tokens.token}")
        name = tokens.advance().text
        found.append(_pragma(tokens, at) if name == "pragma" else _annotation_body(tokens, at, name))
    return found


def _pragma(tokens: TokenStream, at: Position) -> syntax.Annotation:
    """`@pragma name words...`, to the end of the line."""
    words: list[str] = []
    while tokens.token.kind != "end" and (tokens.token.at.path, tokens.token.at.line) == (at.path, at.line):
        words.append(tokens.advance().text)
    return syntax.Annotation(at, words[0] if words else "pragma", words[1:], " ".join(words[1:]))


def _annotation_body(tokens: TokenStream, at: Position, name: str) -> syntax.Annotation:
    """The annotation after its name. Arguments are not interpreted: their meaning depends on the annotation."""
    closing = {"(": ")", "[": "]"}.get(tokens.token.text)
    if closing is None:
        return syntax.Annotation(at, name, [], "")
    expressions: list[syntax.Expression] = []
    keys: list[str] = []
    if closing == "]":
        expressions, keys = _pairs_ahead(tokens)
    elif name in _WITH_EXPRESSIONS:
        expressions = _expressions_ahead(tokens)
    opening = tokens.advance()
    words: list[str] = []
    values: list[object] = []
    depth = 1
    while True:
        token = tokens.token
        if token.kind == "end":
            raise tokens.error("annotation is not closed", opening.at)
        tokens.advance()
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                break
        words.append(token.text)
        if token.kind == "string":
            values.append(token.text[1:-1])
        elif token.value is not None:
            values.append(token.value[0])
        elif token.text != ",":
            values.append(token.text)
    return syntax.Annotation(at, name, values, " ".join(words), opening.text == "[", expressions, keys)


def _expressions_ahead(tokens: TokenStream) -> list[syntax.Expression]:
    """The arguments between the next brackets. The reader does not move."""
    mark = tokens.mark()
    found = [a.value for a in parse_arguments(tokens) if a.value is not None]
    tokens.return_to(mark)
    return found


def _pairs_ahead(tokens: TokenStream) -> tuple[list[syntax.Expression], list[str]]:
    """The expressions between the next brackets, and their keys: all have one, or none. The reader does not move."""
    mark = tokens.mark()
    expressions: list[syntax.Expression] = []
    keys: list[str] = []
    tokens.expect("[")
    while not tokens.at_text("]"):
        if tokens.is_name(tokens.token) and tokens.peek().text == "=":
            key = tokens.advance()
            if key.text in keys:
                raise tokens.error(f"key `{key.text}` is given twice", key.at)
            keys.append(key.text)
            tokens.expect("=")
        expressions.append(parse_expression(tokens))
        if keys and len(keys) < len(expressions):
            raise tokens.error("expected KEY = VALUE, as before", expressions[-1].start)
        if not tokens.accept(","):
            break
    if not tokens.at_text("]"):
        raise tokens.error(f"expected `,` or `]`, found {tokens.token}")
    tokens.return_to(mark)
    return expressions, keys
