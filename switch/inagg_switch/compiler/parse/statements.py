# SPDX-License-Identifier: Apache-2.0
"""Parses statements, and the declarations allowed among them."""

from collections.abc import Callable, Iterable, Sequence

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.annotations import parse_annotations
from inagg_switch.compiler.parse.expressions import (
    parse_arguments,
    parse_expression,
    parse_operand,
    parse_set,
    parse_type,
    starts_type,
)
from inagg_switch.compiler.parse.tokens import TokenStream
from inagg_switch.errors import CompileError

_COMPOUND = {
    "+=": "+",
    "-=": "-",
    "*=": "*",
    "/=": "/",
    "%=": "%",
    "&=": "&",
    "|=": "|",
    "^=": "^",
    "<<=": "<<",
    "|+|=": "|+|",
    "|-|=": "|-|",
}


def parse_block(tokens: TokenStream, before: Sequence[syntax.Annotation] = ()) -> syntax.Block:
    """A block, with its annotations or behind those in `before`."""
    annotations = (*before, *parse_annotations(tokens))
    at = tokens.expect("{").at
    tokens.open_types([])
    statements: list[syntax.Statement] = []
    while not tokens.at_text("}"):
        if tokens.token.kind == "end":
            raise tokens.error("`{` is not closed", at)
        with tokens.recovering():
            statements.append(parse_statement(tokens))
    tokens.advance()
    tokens.close_types()
    return syntax.Block(at, statements, _stripe(annotations))


def _stripe(annotations: Iterable[syntax.Annotation]) -> syntax.Expression | None:
    stripe = None
    for annotation in annotations:
        if annotation.name == "stripe":
            if stripe is not None or len(annotation.expressions) != 1:
                raise CompileError("a block has one @stripe(...), with one number", annotation.at)
            stripe = annotation.expressions[0]
    return stripe


def parse_statement(tokens: TokenStream) -> syntax.Statement:
    tokens.enter()
    result = _statement(tokens)
    tokens.leave()
    return result


def _statement(tokens: TokenStream) -> syntax.Statement:
    annotations = parse_annotations(tokens)
    token = tokens.token
    if annotations and not (_starts_declaration(tokens) or tokens.at_text("{", "const", "for")):
        raise tokens.error(f"expected a declaration, a block or a loop after an annotation, found {token}")
    if token.kind == "keyword" and not _is_assignment_to_soft_keyword(tokens):
        reader = _READERS.get(token.text)
        if reader is not None:
            return reader(tokens)
        if token.text in ("exit", "break", "continue"):
            tokens.advance()
            tokens.expect(";")
            kinds = {"exit": syntax.Exit, "break": syntax.Break, "continue": syntax.Continue}
            return kinds[token.text](token.at)
    if tokens.at_text("{"):
        return parse_block(tokens, annotations)
    if tokens.accept(";"):
        return syntax.Empty(token.at)
    if _starts_declaration(tokens):
        return parse_variable_or_instantiation(tokens, annotations)
    statement = _simple_statement(tokens)
    tokens.expect(";", "after a statement")
    return statement


def _is_assignment_to_soft_keyword(tokens: TokenStream) -> bool:
    return tokens.is_name(tokens.token) and tokens.peek().text in ("=", ".", "[")


def _starts_declaration(tokens: TokenStream) -> bool:
    """True if a type starts a declaration, and not `C.apply(...)` or `E.member`."""
    if not starts_type(tokens):
        return False
    return tokens.peek().text != "." and not (tokens.token.text == "error" and tokens.peek().text == ".")


def _simple_statement(tokens: TokenStream) -> syntax.Statement:
    at = tokens.token.at
    target = parse_operand(tokens)
    token = tokens.token
    if tokens.accept("="):
        return syntax.Assign(token.at, target, parse_expression(tokens))
    if token.text in _COMPOUND:
        tokens.advance()
        return syntax.Assign(token.at, target, parse_expression(tokens), _COMPOUND[token.text])
    if tokens.adjacent(">", ">="):
        tokens.advance()
        tokens.advance()
        return syntax.Assign(token.at, target, parse_expression(tokens), ">>")
    if not isinstance(target, syntax.Call):
        raise tokens.error(f"expected `=` or a call, found {tokens.token}")
    return syntax.CallStatement(at, target)


def parse_constant(tokens: TokenStream) -> syntax.Constant:
    at = tokens.expect("const").at
    ref = parse_type(tokens)
    name = tokens.name("the constant's name")
    tokens.expect("=", "after the name of a constant")
    value = parse_expression(tokens)
    tokens.expect(";", "after a constant")
    tokens.hide_type(name.text)
    return syntax.Constant(name.at if name else at, name.text, ref, value)


def parse_variable_or_instantiation(
    tokens: TokenStream, annotations: list[syntax.Annotation]
) -> syntax.Declaration:
    ref = parse_type(tokens)
    if tokens.at_text("("):
        arguments = parse_arguments(tokens)
        name = tokens.name("the instance's name")
        if tokens.accept("="):
            raise tokens.error("abstract method implementations are not supported")
        tokens.expect(";", "after an instantiation")
        tokens.hide_type(name.text)
        return syntax.Instantiation(name.at, name.text, ref, arguments, annotations=annotations)
    name = tokens.name("the variable's name")
    value = parse_expression(tokens) if tokens.accept("=") else None
    tokens.expect(";", "after a variable")
    tokens.hide_type(name.text)
    return syntax.Variable(name.at, name.text, ref, value, annotations=annotations)


def _if(tokens: TokenStream) -> syntax.Statement:
    at = tokens.advance().at
    tokens.expect("(", "after `if`")
    condition = parse_expression(tokens)
    if tokens.at_text("="):
        raise tokens.error("expected `)`, found `=`; values are compared with `==`")
    tokens.expect(")")
    then = parse_statement(tokens)
    otherwise = parse_statement(tokens) if tokens.accept("else") else None
    return syntax.If(at, condition, then, otherwise)


def _switch(tokens: TokenStream) -> syntax.Statement:
    at = tokens.advance().at
    tokens.expect("(", "after `switch`")
    subject = parse_expression(tokens)
    tokens.expect(")")
    tokens.expect("{")
    cases: list[syntax.SwitchCase] = []
    while not tokens.accept("}"):
        label_at = tokens.token.at
        label = None if tokens.accept("default") else parse_expression(tokens)
        tokens.expect(":", "after a switch label")
        body = parse_block(tokens) if tokens.at_text("{", "@") else None
        cases.append(syntax.SwitchCase(label_at, label, body))
    return syntax.Switch(at, subject, cases)


def _return(tokens: TokenStream) -> syntax.Statement:
    at = tokens.advance().at
    value = None if tokens.at_text(";") else parse_expression(tokens)
    tokens.expect(";", "after `return`")
    return syntax.Return(at, value)


def _for(tokens: TokenStream) -> syntax.Statement:
    at = tokens.advance().at
    tokens.expect("(", "after `for`")
    parse_annotations(tokens)
    if starts_type(tokens):
        ref = parse_type(tokens)
        name = tokens.name("the loop variable's name")
        if tokens.accept("in"):
            over = parse_set(tokens)
            tokens.expect(")")
            variable = syntax.Variable(name.at, name.text, ref, None)
            return syntax.ForIn(at, variable, over, parse_statement(tokens))
        value = parse_expression(tokens) if tokens.accept("=") else None
        start: list[syntax.Statement] = [syntax.Variable(name.at, name.text, ref, value)]
        while tokens.accept(","):
            start.append(_for_start(tokens))
    else:
        if tokens.peek().text == "in":
            raise tokens.error(f"the variable of a loop needs its type: bit<32> {tokens.token.text}")
        start = _for_list(tokens, ";")
    tokens.expect(";", "after the start of a loop")
    condition = parse_expression(tokens)
    tokens.expect(";", "after the condition of a loop")
    update = _for_list(tokens, ")")
    tokens.expect(")")
    return syntax.For(at, start, condition, update, parse_statement(tokens))


def _for_start(tokens: TokenStream) -> syntax.Statement:
    if starts_type(tokens):
        ref = parse_type(tokens)
        name = tokens.name("the loop variable's name")
        value = parse_expression(tokens) if tokens.accept("=") else None
        return syntax.Variable(name.at, name.text, ref, value)
    return _simple_statement(tokens)


def _for_list(tokens: TokenStream, end: str) -> list[syntax.Statement]:
    statements: list[syntax.Statement] = []
    while not tokens.at_text(end):
        statements.append(_simple_statement(tokens))
        if not tokens.accept(","):
            break
    return statements


_READERS: dict[str, Callable[[TokenStream], syntax.Statement]] = {
    "if": _if,
    "switch": _switch,
    "for": _for,
    "return": _return,
    "const": parse_constant,
}
