"""Types and expressions of the parser."""

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


class ExpressionParser(TokenStream):
    """Reads types and expressions."""

    # --- types

    def starts_type(self) -> bool:
        token = self.token
        if token.kind == "keyword":
            return token.text in BASE_TYPES or token.text in ("tuple", "list")
        return token.kind == "name" and self.is_type(token.text)

    def type_ref(self) -> syntax.TypeRef:
        self.enter()
        ref = self._simple_type()
        while self.at_text("["):
            at = self.advance().at
            ref = syntax.StackTypeRef(at, ref, self.expression())
            self.expect("]", "after the size of a header stack")
        self.leave()
        return ref

    def _simple_type(self) -> syntax.TypeRef:
        token = self.token
        if token.kind == "keyword" and token.text in BASE_TYPES:
            return self._base_type()
        if self.at_text("tuple", "list"):
            at = self.advance().at
            arguments = self.type_arguments()
            return (
                syntax.TupleTypeRef(at, arguments)
                if token.text == "tuple"
                else syntax.NamedTypeRef(at, "list", arguments)
            )
        absolute = self.accept(".") is not None
        name = self.name("a type")
        arguments = self.type_arguments() if self.at_text("<") else []
        return syntax.NamedTypeRef(name.at, name.text, arguments, absolute)

    def _base_type(self) -> syntax.TypeRef:
        token = self.advance()
        width: syntax.Expression | None = None
        if token.text in ("bit", "int", "varbit") and self.accept("<"):
            if self.accept("("):
                width = self.expression()
                self.expect(")")
            else:
                width = self._operand()
            self.expect(">", "after the width")
        return syntax.BaseTypeRef(token.at, token.text, width)

    def type_arguments(self) -> list[syntax.TypeRef]:
        self.expect("<")
        arguments: list[syntax.TypeRef] = []
        while not self.at_text(">"):
            if self.token.text == "_":
                arguments.append(syntax.DontCareTypeRef(self.advance().at))
            else:
                arguments.append(self.type_ref())
            if not self.accept(","):
                break
        self.expect(">", "after the type arguments")
        return arguments

    # --- expressions

    def expression(self) -> syntax.Expression:
        """Conditionals and everything that binds tighter. `a ? b : c ? d : e` is `(a ? b : c) ? d : e`, as in p4c."""
        self.enter()
        condition = self._binary(0)
        while (question := self.accept("?")) is not None:
            then = self.expression()
            self.expect(":", "of a conditional expression")
            condition = syntax.Conditional(question.at, condition, then, self._binary(0))
        self.leave()
        return condition

    def _operator(self) -> tuple[str, int] | None:
        """The binary operator here and the number of its tokens."""
        token = self.token
        if token.kind != "op":
            return None
        if token.text == ">":
            if self.adjacent(">", ">") and not self.adjacent(">", ">", "="):
                return ">>", 2
            return ">", 1
        return (token.text, 1) if token.text in _LEVELS else None

    def _binary(self, level: int) -> syntax.Expression:
        left = self._operand()
        while True:
            found = self._operator()
            if found is None or _LEVELS[found[0]] <= level or (found[0] == ">>" and self.adjacent(">", ">=")):
                return left
            at = self.token.at
            for _ in range(found[1]):
                self.advance()
            left = syntax.Binary(at, found[0], left, self._binary(_LEVELS[found[0]]))

    def _operand(self) -> syntax.Expression:
        self.enter()
        token = self.token
        if self.at_text("!", "~", "-", "+"):
            self.advance()
            result: syntax.Expression = syntax.Unary(token.at, token.text, self._operand())
        elif self.at_text("(") and self._is_cast():
            self.advance()
            ref = self.type_ref()
            self.expect(")")
            result = syntax.Cast(token.at, ref, self._operand())
        else:
            result = self._postfix(self._primary())
        self.leave()
        return result

    def _is_cast(self) -> bool:
        following = self.peek()
        if following.kind == "keyword" and following.text in (*BASE_TYPES, "tuple", "list"):
            # `(error.X == e)` is an expression, `(bit<8>) e` a cast.
            return not (following.text == "error" and self.peek(2).text == ".")
        if following.kind != "name" or not self.is_type(following.text):
            return False
        return self.peek(2).text in (")", "<", "[")

    def _primary(self) -> syntax.Expression:
        token = self.token
        if token.kind == "number":
            self.advance()
            assert token.value is not None
            return syntax.Integer(token.at, *token.value, token.text)
        if token.kind == "string":
            return self._strings()
        if token.kind == "keyword" and token.text in ("true", "false"):
            self.advance()
            return syntax.Boolean(token.at, token.text == "true")
        if self.at_text("("):
            self.advance()
            inner = self.expression()
            self.expect(")")
            return inner
        if self.at_text("{"):
            return self._braces()
        if self.at_text("..."):
            return syntax.DefaultValue(self.advance().at)
        return self._name_or_type(token)

    def _strings(self) -> syntax.Expression:
        at = self.token.at
        text = ""
        while self.token.kind == "string":
            text += self.advance().text[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
        return syntax.String(at, text)

    def _name_or_type(self, token: Token) -> syntax.Expression:
        if self.at_text("error") and self.peek().text == ".":
            self.advance()
            return syntax.TypeExpression(token.at, syntax.BaseTypeRef(token.at, "error"))
        if token.kind == "keyword" and token.text in BASE_TYPES:
            return syntax.TypeExpression(token.at, self.type_ref())
        absolute = self.accept(".") is not None
        if self.token.text == "this":
            return syntax.Name(self.advance().at, "this")
        if self.is_name(self.token) and not absolute and self.is_type(self.token.text):
            return syntax.TypeExpression(token.at, self._simple_type())
        if not self.is_name(self.token):
            raise self.error(f"expected an expression, found {self.token}")
        return syntax.Name(token.at, self.advance().text, absolute)

    def _braces(self) -> syntax.Expression:
        at = self.advance().at
        if self.accept("#"):
            self.expect("}")
            return syntax.InvalidHeader(at)
        if self.is_name(self.token) and self.peek().text == "=":
            return self._record(at)
        items: list[syntax.Expression] = []
        while not self.at_text("}"):
            items.append(self.expression())
            if not self.accept(","):
                break
        self.expect("}", "after a list")
        return syntax.ListExpression(at, items)

    def _record(self, at: Position) -> syntax.Expression:
        fields: list[tuple[str, syntax.Expression]] = []
        defaulted = False
        while not self.at_text("}"):
            if self.accept("..."):
                defaulted = True
                break
            name = self.name("a field name")
            self.expect("=")
            fields.append((name.text, self.expression()))
            if not self.accept(","):
                break
        self.expect("}", "after a list of fields")
        return syntax.StructExpression(at, fields, defaulted)

    def _postfix(self, base: syntax.Expression) -> syntax.Expression:
        while True:
            token = self.token
            if self.accept("."):
                base = syntax.Member(token.at, base, self.name("a member name").text)
            elif self.accept("["):
                base = self._index(token.at, base)
            elif self.at_text("("):
                base = syntax.Call(token.at, base, [], self.arguments())
            elif self.at_text("<") and (type_arguments := self._call_type_arguments(base)) is not None:
                base = syntax.Call(token.at, base, type_arguments, self.arguments())
            else:
                return base

    def _index(self, at: Position, base: syntax.Expression) -> syntax.Expression:
        index = self.expression()
        if self.accept(":"):
            low = self.expression()
            self.expect("]", "after a slice")
            return syntax.Slice(at, base, index, low)
        if self.accept("+:"):
            width = self.expression()
            self.expect("]", "after a slice")
            return syntax.Slice(at, base, width, index, counted=True)
        self.expect("]", "after an index")
        return syntax.Index(at, base, index)

    def _call_type_arguments(self, base: syntax.Expression) -> list[syntax.TypeRef] | None:
        """Type arguments of a call, if `<` starts them; `a < b` is told apart by trying."""
        if not isinstance(base, syntax.Name | syntax.Member):
            return None
        mark = self.mark()
        try:
            arguments = self.type_arguments()
        except CompileError:
            arguments = []
        if arguments and self.at_text("("):
            return arguments
        self.return_to(mark)
        return None

    def arguments(self) -> list[syntax.Argument]:
        self.expect("(")
        arguments: list[syntax.Argument] = []
        while not self.at_text(")"):
            at = self.token.at
            name = None
            if self.is_name(self.token) and self.peek().text == "=":
                name = self.advance().text
                self.advance()
            if self.token.text == "_":
                self.advance()
                arguments.append(syntax.Argument(at, name, None))
            else:
                arguments.append(syntax.Argument(at, name, self.expression()))
            if not self.accept(","):
                break
        self.expect(")", "after the arguments")
        return arguments

    # --- sets, in select and entries

    def key_set(self) -> list[syntax.Expression]:
        """One set, or as many as there are between brackets."""
        if self.at_text("(") and self._is_set_tuple():
            self.advance()
            sets = [self.single_set()]
            while self.accept(","):
                if self.at_text(")"):
                    break
                sets.append(self.single_set())
            self.expect(")", "after a tuple of sets")
            return sets
        return [self.single_set()]

    def _is_set_tuple(self) -> bool:
        """A bracket that encloses the whole set, rather than the start of `(a + b) &&& c`."""
        depth = 0
        ahead = 0
        while True:
            text = self.peek(ahead).text if ahead else self.token.text
            kind = self.peek(ahead).kind if ahead else self.token.kind
            if kind == "end":
                return True
            depth += {"(": 1, ")": -1}.get(text, 0) if kind == "op" else 0
            ahead += 1
            if depth == 0:
                return not self._is_cast() and self.peek(ahead).text == ":"

    def single_set(self) -> syntax.Expression:
        token = self.token
        if self.accept("default") or (token.text == "_" and self.advance()):
            return syntax.Anything(token.at)
        left = self.expression()
        token = self.token
        if self.accept("&&&"):
            return syntax.Mask(token.at, left, self.expression())
        if self.accept(".."):
            return syntax.Range(token.at, left, self.expression())
        return left
