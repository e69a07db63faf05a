# SPDX-License-Identifier: Apache-2.0
"""Parses types, expressions, and sets of values."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.lexer import Token
from inagg_switch.compiler.parse.tokens import TokenStream
from inagg_switch.errors import CompileError, Position

BASE_TYPES = frozenset(("bool", "bit", "int", "varbit", "error", "string", "void", "match_kind"))

# Binding strength, weakest first (P4-16 language specification, appendix H).
_LEVELS: dict[str, int] = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    ">": 4,
    "<=": 4,
    ">=": 4,
    "|": 5,
    "^": 6,
    "&": 7,
    "<<": 8,
    ">>": 8,
    "++": 9,
    "+": 9,
    "-": 9,
    "|+|": 9,
    "|-|": 9,
    "*": 10,
    "/": 10,
    "%": 10,
}


# --- types


def starts_type(tokens: TokenStream) -> bool:
    token = tokens.token
    if token.kind == "keyword":
        return token.text in BASE_TYPES or token.text in ("tuple", "list")
    return token.kind == "name" and tokens.is_type(token.text)


def parse_type(tokens: TokenStream) -> syntax.TypeRef:
    tokens.enter()
    ref = _simple_type(tokens)
    while tokens.at_text("["):
        at = tokens.advance().at
        ref = syntax.StackTypeRef(at, ref, parse_expression(tokens))
        tokens.expect("]", "after the size of a header stack")
    tokens.leave()
    return ref


def _simple_type(tokens: TokenStream) -> syntax.TypeRef:
    token = tokens.token
    if token.kind == "keyword" and token.text in BASE_TYPES:
        return _base_type(tokens)
    if tokens.at_text("tuple", "list"):
        at = tokens.advance().at
        arguments = parse_type_arguments(tokens)
        return (
            syntax.TupleTypeRef(at, arguments)
            if token.text == "tuple"
            else syntax.NamedTypeRef(at, "list", arguments)
        )
    absolute = tokens.accept(".") is not None
    name = tokens.name("a type")
    arguments = parse_type_arguments(tokens) if tokens.at_text("<") else []
    return syntax.NamedTypeRef(name.at, name.text, arguments, absolute)


def _base_type(tokens: TokenStream) -> syntax.TypeRef:
    token = tokens.advance()
    width: syntax.Expression | None = None
    if token.text in ("bit", "int", "varbit") and tokens.accept("<"):
        if tokens.accept("("):
            width = parse_expression(tokens)
            tokens.expect(")")
        else:
            width = parse_operand(tokens)
        tokens.expect(">", "after the width")
    return syntax.BaseTypeRef(token.at, token.text, width)


def parse_type_arguments(tokens: TokenStream) -> list[syntax.TypeRef]:
    tokens.expect("<")
    arguments: list[syntax.TypeRef] = []
    while not tokens.at_text(">"):
        if tokens.token.text == "_":
            arguments.append(syntax.DontCareTypeRef(tokens.advance().at))
        else:
            arguments.append(parse_type(tokens))
        if not tokens.accept(","):
            break
    tokens.expect(">", "after the type arguments")
    return arguments


# --- expressions


def parse_expression(tokens: TokenStream) -> syntax.Expression:
    """Parses any expression. `a ? b : c ? d : e` is `(a ? b : c) ? d : e`, as in p4c."""
    tokens.enter()
    condition = _binary(tokens, 0)
    while (question := tokens.accept("?")) is not None:
        then = parse_expression(tokens)
        tokens.expect(":", "in a conditional expression")
        condition = syntax.Conditional(question.at, condition, then, _binary(tokens, 0))
    tokens.leave()
    return condition


def _operator(tokens: TokenStream) -> tuple[str, int] | None:
    """The binary operator at the reader and the number of its tokens, or None."""
    token = tokens.token
    if token.kind != "op":
        return None
    if token.text == ">":
        if tokens.adjacent(">", ">") and not tokens.adjacent(">", ">", "="):
            return ">>", 2
        return ">", 1
    return (token.text, 1) if token.text in _LEVELS else None


def _binary(tokens: TokenStream, level: int) -> syntax.Expression:
    left = parse_operand(tokens)
    while True:
        found = _operator(tokens)
        if found is None or _LEVELS[found[0]] <= level or (found[0] == ">>" and tokens.adjacent(">", ">=")):
            return left
        at = tokens.token.at
        for _ in range(found[1]):
            tokens.advance()
        left = syntax.Binary(at, found[0], left, _binary(tokens, _LEVELS[found[0]]))


def parse_operand(tokens: TokenStream) -> syntax.Expression:
    tokens.enter()
    token = tokens.token
    if tokens.at_text("!", "~", "-", "+"):
        tokens.advance()
        result: syntax.Expression = syntax.Unary(token.at, token.text, parse_operand(tokens))
    elif tokens.at_text("(") and _is_cast(tokens):
        tokens.advance()
        ref = parse_type(tokens)
        tokens.expect(")")
        result = syntax.Cast(token.at, ref, parse_operand(tokens))
    else:
        result = _postfix(tokens, _primary(tokens))
    tokens.leave()
    return result


def _is_cast(tokens: TokenStream) -> bool:
    following = tokens.peek()
    if following.kind == "keyword" and following.text in (*BASE_TYPES, "tuple", "list"):
        # `(error.X == e)` is an expression, `(bit<8>) e` a cast.
        return not (following.text == "error" and tokens.peek(2).text == ".")
    if following.kind != "name" or not tokens.is_type(following.text):
        return False
    return tokens.peek(2).text in (")", "<", "[")


def _primary(tokens: TokenStream) -> syntax.Expression:
    token = tokens.token
    if token.kind == "number":
        tokens.advance()
        assert token.value is not None
        return syntax.Integer(token.at, *token.value, token.text)
    if token.kind == "string":
        return _strings(tokens)
    if token.kind == "keyword" and token.text in ("true", "false"):
        tokens.advance()
        return syntax.Boolean(token.at, token.text == "true")
    if tokens.at_text("("):
        tokens.advance()
        inner = parse_expression(tokens)
        tokens.expect(")")
        return inner
    if tokens.at_text("{"):
        return _braces(tokens)
    if tokens.at_text("..."):
        return syntax.DefaultValue(tokens.advance().at)
    return _name_or_type(tokens, token)


def _strings(tokens: TokenStream) -> syntax.Expression:
    at = tokens.token.at
    text = ""
    while tokens.token.kind == "string":
        text += tokens.advance().text[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
    return syntax.String(at, text)


def _name_or_type(tokens: TokenStream, token: Token) -> syntax.Expression:
    if tokens.at_text("error") and tokens.peek().text == ".":
        tokens.advance()
        return syntax.TypeExpression(token.at, syntax.BaseTypeRef(token.at, "error"))
    if token.kind == "keyword" and token.text in BASE_TYPES:
        return syntax.TypeExpression(token.at, parse_type(tokens))
    absolute = tokens.accept(".") is not None
    if tokens.token.text == "this":
        return syntax.Name(tokens.advance().at, "this")
    if tokens.is_name(tokens.token) and not absolute and tokens.is_type(tokens.token.text):
        return syntax.TypeExpression(token.at, _simple_type(tokens))
    if not tokens.is_name(tokens.token):
        raise tokens.error(f"expected an expression, found {tokens.token}")
    return syntax.Name(token.at, tokens.advance().text, absolute)


def _braces(tokens: TokenStream) -> syntax.Expression:
    at = tokens.advance().at
    if tokens.accept("#"):
        tokens.expect("}")
        return syntax.InvalidHeader(at)
    if tokens.is_name(tokens.token) and tokens.peek().text == "=":
        return _record(tokens, at)
    items: list[syntax.Expression] = []
    while not tokens.at_text("}"):
        items.append(parse_expression(tokens))
        if not tokens.accept(","):
            break
    tokens.expect("}", "after a list")
    return syntax.ListExpression(at, items)


def _record(tokens: TokenStream, at: Position) -> syntax.Expression:
    fields: list[tuple[str, syntax.Expression]] = []
    defaulted = False
    while not tokens.at_text("}"):
        if tokens.accept("..."):
            defaulted = True
            break
        name = tokens.name("a field name")
        tokens.expect("=")
        fields.append((name.text, parse_expression(tokens)))
        if not tokens.accept(","):
            break
    tokens.expect("}", "after a list of fields")
    return syntax.StructExpression(at, fields, defaulted)


def _postfix(tokens: TokenStream, base: syntax.Expression) -> syntax.Expression:
    while True:
        token = tokens.token
        if tokens.accept("."):
            base = syntax.Member(token.at, base, tokens.name("a member name").text)
        elif tokens.accept("["):
            base = _index(tokens, token.at, base)
        elif tokens.at_text("("):
            base = syntax.Call(token.at, base, [], parse_arguments(tokens))
        elif tokens.at_text("<") and (type_arguments := _call_type_arguments(tokens, base)) is not None:
            base = syntax.Call(token.at, base, type_arguments, parse_arguments(tokens))
        else:
            return base


def _index(tokens: TokenStream, at: Position, base: syntax.Expression) -> syntax.Expression:
    index = parse_expression(tokens)
    if tokens.accept(":"):
        low = parse_expression(tokens)
        tokens.expect("]", "after a slice")
        return syntax.Slice(at, base, index, low)
    if tokens.accept("+:"):
        width = parse_expression(tokens)
        tokens.expect("]", "after a slice")
        return syntax.Slice(at, base, width, index, counted=True)
    tokens.expect("]", "after an index")
    return syntax.Index(at, base, index)


def _call_type_arguments(tokens: TokenStream, base: syntax.Expression) -> list[syntax.TypeRef] | None:
    """The type arguments of a call; None if `<` is an operator, which is found out by trying."""
    if not isinstance(base, syntax.Name | syntax.Member):
        return None
    mark = tokens.mark()
    try:
        arguments = parse_type_arguments(tokens)
    except CompileError:
        arguments = []
    if arguments and tokens.at_text("("):
        return arguments
    tokens.return_to(mark)
    return None


def parse_arguments(tokens: TokenStream) -> list[syntax.Argument]:
    tokens.expect("(")
    arguments: list[syntax.Argument] = []
    while not tokens.at_text(")"):
        at = tokens.token.at
        name = None
        if tokens.is_name(tokens.token) and tokens.peek().text == "=":
            name = tokens.advance().text
            tokens.advance()
        if tokens.token.text == "_":
            tokens.advance()
            arguments.append(syntax.Argument(at, name, None))
        else:
            arguments.append(syntax.Argument(at, name, parse_expression(tokens)))
        if not tokens.accept(","):
            break
    tokens.expect(")", "after the arguments")
    return arguments


# --- sets, in select and entries


def parse_key_set(tokens: TokenStream) -> list[syntax.Expression]:
    """Parses one set, or several between brackets."""
    if tokens.at_text("(") and _is_set_tuple(tokens):
        tokens.advance()
        sets = [parse_set(tokens)]
        while tokens.accept(","):
            if tokens.at_text(")"):
                break
            sets.append(parse_set(tokens))
        tokens.expect(")", "after a tuple of sets")
        return sets
    return [parse_set(tokens)]


def _is_set_tuple(tokens: TokenStream) -> bool:
    """True if the bracket encloses all sets, as in `(a, b):`; false at the start of `(a + b) &&& c`."""
    depth = 0
    ahead = 0
    while True:
        text = tokens.peek(ahead).text if ahead else tokens.token.text
        kind = tokens.peek(ahead).kind if ahead else tokens.token.kind
        if kind == "end":
            return True
        depth += {"(": 1, ")": -1}.get(text, 0) if kind == "op" else 0
        ahead += 1
        if depth == 0:
            return not _is_cast(tokens) and tokens.peek(ahead).text == ":"


def parse_set(tokens: TokenStream) -> syntax.Expression:
    token = tokens.token
    if tokens.accept("default") or (token.text == "_" and tokens.advance()):
        return syntax.Anything(token.at)
    left = parse_expression(tokens)
    token = tokens.token
    if tokens.accept("&&&"):
        return syntax.Mask(token.at, left, parse_expression(tokens))
    if tokens.accept(".."):
        return syntax.Range(token.at, left, parse_expression(tokens))
    return left
