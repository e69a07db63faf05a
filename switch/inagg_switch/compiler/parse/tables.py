# SPDX-License-Identifier: Apache-2.0
"""Parses tables."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.annotations import parse_annotations
from inagg_switch.compiler.parse.expressions import (
    parse_arguments,
    parse_expression,
    parse_key_set,
    parse_operand,
)
from inagg_switch.compiler.parse.lexer import Token
from inagg_switch.compiler.parse.tokens import TokenStream


def parse_table(tokens: TokenStream) -> syntax.Declaration:
    tokens.advance()
    name = tokens.name("the table's name")
    tokens.hide_type(name.text)
    table = syntax.Table(name.at, name.text, [], [], None, False, [], False, {})
    tokens.expect("{")
    seen: set[str] = set()
    while not tokens.accept("}"):
        tokens.not_the_end("a table property")
        with tokens.recovering():
            annotations = parse_annotations(tokens)
            is_const = tokens.accept("const") is not None
            token = tokens.name("a table property")
            if token.text in seen:
                raise tokens.error(f"table {name.text} has two `{token.text}` properties", token.at)
            seen.add(token.text)
            _property(tokens, table, token, is_const, annotations)
    if "actions" not in seen:
        raise tokens.error(f"table {name.text} has no actions", name.at)
    return table


def _property(
    tokens: TokenStream,
    table: syntax.Table,
    token: Token,
    is_const: bool,
    annotations: list[syntax.Annotation],
) -> None:
    tokens.expect("=", f"after `{token.text}`")
    if token.text == "key":
        _keys(tokens, table)
    elif token.text == "actions":
        _actions(tokens, table)
    elif token.text == "entries":
        table.const_entries = is_const
        _entries(tokens, table)
    elif token.text == "default_action":
        table.const_default = is_const
        table.default_action = _action_ref(tokens, [])
        tokens.expect(";", "after the default action")
    else:
        value = parse_expression(tokens)
        tokens.expect(";", f"after `{token.text}`")
        table.properties[token.text] = syntax.Property(token.at, token.text, value, is_const, annotations)


def _keys(tokens: TokenStream, table: syntax.Table) -> None:
    tokens.expect("{")
    while not tokens.accept("}"):
        tokens.not_the_end("a key")
        with tokens.recovering():
            table.keys.append(_key(tokens))


def _key(tokens: TokenStream) -> syntax.Key:
    at = tokens.token.at
    expression = parse_expression(tokens)
    tokens.expect(":", "after a key")
    kind = tokens.name("a match kind")
    annotations = parse_annotations(tokens)
    tokens.expect(";", "after a key")
    return syntax.Key(at, expression, kind.text, kind.at, annotations)


def _actions(tokens: TokenStream, table: syntax.Table) -> None:
    tokens.expect("{")
    while not tokens.accept("}"):
        tokens.not_the_end("an action's name")
        with tokens.recovering():
            table.actions.append(_action_ref(tokens, parse_annotations(tokens)))
            tokens.expect(";", "after an action")


def _action_ref(tokens: TokenStream, annotations: list[syntax.Annotation]) -> syntax.ActionRef:
    absolute = tokens.accept(".") is not None
    name = tokens.name("an action's name")
    arguments = parse_arguments(tokens) if tokens.at_text("(") else []
    return syntax.ActionRef(name.at, name.text, arguments, annotations, absolute)


def _entries(tokens: TokenStream, table: syntax.Table) -> None:
    tokens.expect("{")
    while not tokens.accept("}"):
        tokens.not_the_end("an entry")
        with tokens.recovering():
            table.entries.append(_entry(tokens))


def _entry(tokens: TokenStream) -> syntax.Entry:
    at = tokens.token.at
    is_const = tokens.accept("const") is not None
    priority = None
    if tokens.at_text("priority") and tokens.peek().text == "=":
        tokens.advance()
        tokens.advance()
        priority = parse_operand(tokens)
        tokens.expect(":", "after a priority")
    keys = parse_key_set(tokens)
    tokens.expect(":", "after the keys of an entry")
    action = _action_ref(tokens, [])
    annotations = parse_annotations(tokens)
    tokens.expect(";", "after an entry")
    return syntax.Entry(at, keys, action, annotations, priority, is_const)
