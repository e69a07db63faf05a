# SPDX-License-Identifier: Apache-2.0
"""Parses controls, parsers, actions and parameters."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.annotations import parse_annotations
from inagg_switch.compiler.parse.expressions import parse_expression, parse_key_set, parse_type, starts_type
from inagg_switch.compiler.parse.statements import (
    parse_block,
    parse_constant,
    parse_statement,
    parse_variable_or_instantiation,
)
from inagg_switch.compiler.parse.tables import parse_table
from inagg_switch.compiler.parse.tokens import TokenStream


def parse_type_parameters(tokens: TokenStream) -> list[str]:
    names: list[str] = []
    if tokens.accept("<"):
        while not tokens.at_text(">"):
            names.append(tokens.name("a type parameter").text)
            if not tokens.accept(","):
                break
        tokens.expect(">", "after the type parameters")
    return names


def parse_parameters(tokens: TokenStream) -> list[syntax.Parameter]:
    tokens.expect("(")
    parameters: list[syntax.Parameter] = []
    while not tokens.at_text(")"):
        annotations = parse_annotations(tokens)
        direction = tokens.advance().text if tokens.at_text("in", "out", "inout") else ""
        ref = parse_type(tokens)
        name = tokens.name("the parameter's name")
        tokens.hide_type(name.text)
        default = parse_expression(tokens) if tokens.accept("=") else None
        parameters.append(
            syntax.Parameter(name.at, name.text, direction, ref, default, annotations=annotations)
        )
        if not tokens.accept(","):
            break
    tokens.expect(")", "after the parameters")
    return parameters


def parse_action(tokens: TokenStream) -> syntax.Declaration:
    tokens.advance()
    name = tokens.name("the action's name")
    tokens.hide_type(name.text)
    tokens.open_types([])
    parameters = parse_parameters(tokens)
    action = syntax.Action(name.at, name.text, parameters, parse_block(tokens))
    tokens.close_types()
    return action


def parse_control(tokens: TokenStream) -> syntax.Declaration:
    return _block(tokens, "control")


def parse_parser(tokens: TokenStream) -> syntax.Declaration:
    return _block(tokens, "parser")


def _block(tokens: TokenStream, kind: str) -> syntax.Declaration:
    """A control or parser, or a control or parser type, which has no body."""
    tokens.advance()
    name = tokens.name(f"the {kind}'s name")
    tokens.declare_type(name.text)
    type_parameters = parse_type_parameters(tokens)
    tokens.open_types(type_parameters)
    parameters = parse_parameters(tokens)
    if tokens.accept(";"):
        block: syntax.Declaration = syntax.BlockTypeDeclaration(
            name.at, name.text, kind, parameters, type_parameters=type_parameters
        )
    else:
        constructor = parse_parameters(tokens) if tokens.at_text("(") else []
        tokens.expect("{", f"before the {kind}'s body")
        head = (name.at, name.text, parameters, constructor)
        if kind == "control":
            block = syntax.Control(*head, *_control_body(tokens), type_parameters=type_parameters)
        else:
            block = syntax.Parser(*head, *_parser_body(tokens), type_parameters=type_parameters)
    tokens.close_types()
    return block


def _control_body(tokens: TokenStream) -> tuple[list[syntax.Declaration], syntax.Block]:
    """The local declarations and the apply block."""
    found: list[syntax.Declaration] = []
    while not tokens.at_text("apply"):
        if tokens.token.kind == "end" or tokens.at_text("}"):
            raise tokens.error(f"expected a declaration or `apply`, found {tokens.token}")
        with tokens.recovering("apply", "action", "table", "const"):
            found.append(_control_local(tokens))
    tokens.advance()
    body = parse_block(tokens)
    tokens.expect("}", "after the control's apply block")
    return found, body


def _control_local(tokens: TokenStream) -> syntax.Declaration:
    annotations = parse_annotations(tokens)
    if tokens.at_text("const"):
        declaration: syntax.Declaration = parse_constant(tokens)
    elif tokens.at_text("action"):
        declaration = parse_action(tokens)
    elif tokens.at_text("table"):
        declaration = parse_table(tokens)
    elif starts_type(tokens):
        declaration = parse_variable_or_instantiation(tokens, annotations)
    elif (tokens.token.kind == "name" and tokens.peek().text in ("(", "<")) or tokens.peek().kind == "name":
        raise tokens.error(f"`{tokens.token.text}` is not a type")
    else:
        raise tokens.error(f"expected a declaration or `apply`, found {tokens.token}")
    declaration.annotations = annotations
    return declaration


def _parser_body(tokens: TokenStream) -> tuple[list[syntax.Declaration], list[syntax.State]]:
    """The local declarations and the states."""
    found: list[syntax.Declaration] = []
    states: list[syntax.State] = []
    while not tokens.accept("}"):
        tokens.not_the_end("a state or a declaration")
        with tokens.recovering("state"):
            _parser_local(tokens, found, states)
    return found, states


def _parser_local(tokens: TokenStream, found: list[syntax.Declaration], states: list[syntax.State]) -> None:
    annotations = parse_annotations(tokens)
    if tokens.at_text("state"):
        states.append(_state(tokens, annotations))
    elif tokens.at_text("value_set"):
        found.append(_value_set(tokens, annotations))
    elif tokens.at_text("const"):
        found.append(parse_constant(tokens))
    elif starts_type(tokens):
        found.append(parse_variable_or_instantiation(tokens, annotations))
    else:
        raise tokens.error(f"expected a state or a declaration, found {tokens.token}")


def _value_set(tokens: TokenStream, annotations: list[syntax.Annotation]) -> syntax.Declaration:
    tokens.advance()
    tokens.expect("<")
    ref = parse_type(tokens)
    tokens.expect(">")
    tokens.expect("(")
    size = parse_expression(tokens)
    tokens.expect(")")
    name = tokens.name("the value set's name")
    tokens.hide_type(name.text)
    tokens.expect(";", "after a value set")
    return syntax.ValueSet(name.at, name.text, ref, size, annotations=annotations)


def _state(tokens: TokenStream, annotations: list[syntax.Annotation]) -> syntax.State:
    tokens.advance()
    name = tokens.name("the state's name")
    opening = tokens.expect("{")
    body: list[syntax.Statement] = []
    while not tokens.at_text("transition", "}"):
        if tokens.token.kind == "end":
            raise tokens.error("`{` is not closed", opening.at)
        with tokens.recovering("transition"):
            body.append(parse_statement(tokens))
    transition: str | syntax.Select | None = None
    transition_at = tokens.token.at
    if tokens.accept("transition"):
        transition_at = tokens.token.at
        if tokens.at_text("select"):
            transition = _select(tokens)
        else:
            transition = tokens.name("a state's name or `select`").text
            tokens.expect(";", "after a transition")
    tokens.expect("}", "after a state")
    return syntax.State(name.at, name.text, body, transition, transition_at, annotations=annotations)


def _select(tokens: TokenStream) -> syntax.Select:
    at = tokens.advance().at
    subjects: list[syntax.Expression] = []
    tokens.expect("(", "after `select`")
    while not tokens.at_text(")"):
        subjects.append(parse_expression(tokens))
        if not tokens.accept(","):
            break
    tokens.expect(")")
    tokens.expect("{")
    cases: list[syntax.SelectCase] = []
    while not tokens.accept("}"):
        case_at = tokens.token.at
        keys = parse_key_set(tokens)
        tokens.expect(":", "after a set")
        state = tokens.name("a state's name")
        tokens.expect(";", "after a select case")
        cases.append(syntax.SelectCase(case_at, keys, state.text))
    tokens.accept(";")
    return syntax.Select(at, subjects, cases)
