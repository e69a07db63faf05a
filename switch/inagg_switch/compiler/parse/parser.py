# SPDX-License-Identifier: Apache-2.0
"""Stage 3: tokens to syntax tree, by recursive descent.

The parser is written by hand, not generated from a grammar, for two reasons. P4's grammar is not context-free: whether
an identifier is a type decides how to read `(T) - x`, `T x;` or `f<T>(x)`, so the parser keeps the type names in scope.
And a hand-written parser can say what it expected and where, in the words of the language.
"""

from collections.abc import Callable

from inagg_switch.compiler import syntax
from inagg_switch.compiler.diagnostics import Errors
from inagg_switch.compiler.parse.annotations import parse_annotations
from inagg_switch.compiler.parse.blocks import (
    parse_action,
    parse_control,
    parse_parameters,
    parse_parser,
    parse_type_parameters,
)
from inagg_switch.compiler.parse.expressions import (
    parse_expression,
    parse_type,
    parse_type_arguments,
    starts_type,
)
from inagg_switch.compiler.parse.lexer import Token
from inagg_switch.compiler.parse.statements import (
    parse_block,
    parse_constant,
    parse_variable_or_instantiation,
)
from inagg_switch.compiler.parse.tokens import TokenStream
from inagg_switch.errors import Position


def parse(tokens: list[Token]) -> syntax.Program:
    """Parses a whole program. Raises CompileError, which lists the mistakes."""
    errors = Errors()
    with errors.of_stage():
        return _parse_program(TokenStream(tokens, errors))


# Words that start a declaration if they start a line, at the top level.
_STARTS = ("const", "struct", "header", "header_union", "enum", "typedef", "type", "extern", "action", "parser",
           "control", "package")  # fmt: skip


def _parse_program(tokens: TokenStream) -> syntax.Program:
    declarations: list[syntax.Declaration] = []
    while tokens.token.kind != "end":
        if tokens.accept(";"):
            continue
        start = tokens.token
        with tokens.recovering(*_STARTS):
            declarations.append(_declaration(tokens))
            continue
        _note_type(tokens, start)
        tokens.accept("}")  # a surplus brace
    return syntax.Program(declarations, tokens.token.at)


def _note_type(tokens: TokenStream, start: Token) -> None:
    """Declares the name of an erroneous type definition, so that its uses are still read as a type."""
    if start.text in ("typedef", "type"):
        last = tokens.peek(-2)
        if tokens.peek(-1).text == ";" and tokens.is_name(last):
            tokens.declare_type(last.text)


def _declaration(tokens: TokenStream) -> syntax.Declaration:
    annotations = parse_annotations(tokens)
    token = tokens.token
    if tokens.at_text("error", "match_kind") and tokens.peek().text == "{":
        declaration: syntax.Declaration = _members(tokens)
    elif token.kind == "keyword" and token.text in _READERS:
        declaration = _READERS[token.text](tokens)
    elif starts_type(tokens) or _starts_generic_function(tokens):
        declaration = _function_or_instantiation(tokens, annotations)
    elif token.kind == "name" and tokens.peek().text in ("(", "<"):
        raise tokens.error(f"`{token.text}` is not a type")
    else:
        raise tokens.error(f"expected a declaration, found {token}")
    declaration.annotations = annotations
    return declaration


def _starts_generic_function(tokens: TokenStream) -> bool:
    """True for `T f<T>(...)`, where the type of the result is declared after it."""
    return tokens.token.kind == "name" and tokens.is_name(tokens.peek()) and tokens.peek(2).text == "<"


def _function_or_instantiation(
    tokens: TokenStream, annotations: list[syntax.Annotation]
) -> syntax.Declaration:
    # `T name(` or `T name<` is a function, `T(` an instantiation.
    mark = tokens.mark()
    ref = parse_type(tokens)
    is_function = tokens.is_name(tokens.token) and tokens.peek().text in ("(", "<")
    tokens.return_to(mark)
    if is_function:
        function = _function_prototype(tokens)
        function.body = parse_block(tokens)
        tokens.close_types()
        return function
    if isinstance(ref, syntax.BaseTypeRef):
        raise tokens.error("variables are not allowed at the top level; use `const`")
    return parse_variable_or_instantiation(tokens, annotations)


# --- types


def _struct(tokens: TokenStream) -> syntax.Declaration:
    kind = tokens.advance().text
    name = tokens.name(f"the {kind}'s name")
    tokens.declare_type(name.text)
    type_parameters = parse_type_parameters(tokens)
    tokens.open_types(type_parameters)
    tokens.expect("{")
    fields: list[syntax.Field] = []
    while not tokens.accept("}"):
        tokens.not_the_end("a field")
        with tokens.recovering():
            fields.append(_field(tokens))
    tokens.close_types()
    return syntax.StructDeclaration(name.at, name.text, kind, fields, type_parameters=type_parameters)


def _field(tokens: TokenStream) -> syntax.Field:
    annotations = parse_annotations(tokens)
    ref = parse_type(tokens)
    name = tokens.name("the field's name")
    tokens.expect(";", "after a field")
    return syntax.Field(name.at, name.text, ref, annotations=annotations)


def _enum(tokens: TokenStream) -> syntax.Declaration:
    tokens.advance()
    base = parse_type(tokens) if tokens.at_text("bit", "int") or tokens.peek().kind == "name" else None
    name = tokens.name("the enum's name")
    tokens.declare_type(name.text)
    tokens.expect("{")
    members: list[tuple[str, Position, syntax.Expression | None]] = []
    while not tokens.at_text("}"):
        parse_annotations(tokens)
        member = tokens.name("a member's name")
        members.append((member.text, member.at, parse_expression(tokens) if tokens.accept("=") else None))
        if not tokens.accept(","):
            break
    tokens.expect("}", "after the members")
    return syntax.EnumDeclaration(name.at, name.text, base, members)


def _members(tokens: TokenStream) -> syntax.Declaration:
    what = tokens.advance()
    tokens.expect("{")
    members: list[tuple[str, Position]] = []
    while not tokens.at_text("}"):
        parse_annotations(tokens)
        member = tokens.name("a member's name")
        members.append((member.text, member.at))
        if not tokens.accept(","):
            break
    tokens.expect("}", "after the members")
    return syntax.MembersDeclaration(what.at, what.text, members)


def _typedef(tokens: TokenStream) -> syntax.Declaration:
    new = tokens.advance().text == "type"
    parse_annotations(tokens)
    ref = parse_type(tokens)
    name = tokens.name("the type's name")
    tokens.expect(";", "after a typedef")
    tokens.declare_type(name.text)
    return syntax.TypedefDeclaration(name.at, name.text, ref, new)


# --- externs and functions


def _function_prototype(tokens: TokenStream) -> syntax.Function:
    """Parses a function up to its body. Leaves the type parameters in scope: the caller closes it after the body."""
    mark = tokens.mark()
    tokens.open_types(_prototype_type_parameters(tokens))
    tokens.return_to(mark)
    result = parse_type(tokens)
    name = tokens.name("the function's name")
    type_parameters = parse_type_parameters(tokens)
    parameters = parse_parameters(tokens)
    return syntax.Function(name.at, name.text, result, type_parameters, parameters, None)


def _prototype_type_parameters(tokens: TokenStream) -> list[str]:
    """The type parameters of a function; the type of the result, in front, may be one of them: `T f<T>()`."""
    if tokens.token.kind == "name" and not tokens.is_type(tokens.token.text):
        tokens.advance()
        if tokens.at_text("<"):
            parse_type_arguments(tokens)
    else:
        parse_type(tokens)
    tokens.name("the function's name")
    return parse_type_parameters(tokens)


def _extern(tokens: TokenStream) -> syntax.Declaration:
    tokens.advance()
    # An extern object is `extern E {` or `extern E<T> {`; anything else is a function.
    is_object = (
        tokens.is_name(tokens.token)
        and tokens.peek().text in ("{", "<")
        and (tokens.peek().text == "{" or not tokens.is_type(tokens.token.text))
    )
    if not is_object:
        function = _function_prototype(tokens)
        tokens.close_types()
        tokens.expect(";", "after an extern function")
        return function
    name = tokens.advance()
    tokens.declare_type(name.text)
    type_parameters = parse_type_parameters(tokens)
    tokens.open_types(type_parameters)
    tokens.expect("{")
    methods: list[syntax.Function] = []
    constructors: list[syntax.Function] = []
    while not tokens.accept("}"):
        annotations = parse_annotations(tokens)
        abstract = tokens.accept("abstract") is not None
        if tokens.token.text == name.text and tokens.peek().text == "(":
            at = tokens.advance().at
            tokens.open_types([])
            function = syntax.Function(at, name.text, None, [], parse_parameters(tokens), None)
            tokens.close_types()
            constructors.append(function)
        else:
            function = _function_prototype(tokens)
            tokens.close_types()
            methods.append(function)
        function.annotations, function.abstract = annotations, abstract
        tokens.expect(";", "after a method")
    tokens.close_types()
    return syntax.ExternDeclaration(
        name.at, name.text, methods, constructors, type_parameters=type_parameters
    )


def _package(tokens: TokenStream) -> syntax.Declaration:
    tokens.advance()
    name = tokens.name("the package's name")
    tokens.declare_type(name.text)
    type_parameters = parse_type_parameters(tokens)
    tokens.open_types(type_parameters)
    parameters = parse_parameters(tokens)
    tokens.close_types()
    tokens.expect(";", "after a package")
    return syntax.BlockTypeDeclaration(
        name.at, name.text, "package", parameters, type_parameters=type_parameters
    )


_READERS: dict[str, Callable[[TokenStream], syntax.Declaration]] = {
    "const": parse_constant,
    "struct": _struct,
    "header": _struct,
    "header_union": _struct,
    "enum": _enum,
    "typedef": _typedef,
    "type": _typedef,
    "extern": _extern,
    "action": parse_action,
    "parser": parse_parser,
    "control": parse_control,
    "package": _package,
}
