"""Statements of the parser."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.expressions import ExpressionParser
from inagg_switch.errors import Position

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


class StatementParser(ExpressionParser):
    """Reads statements and the declarations that may stand among them."""

    def block(self) -> syntax.Block:
        self.annotations()  # they mean nothing here
        at = self.expect("{").at
        self.open_types([])
        statements: list[syntax.Statement] = []
        while not self.at_text("}"):
            if self.token.kind == "end":
                raise self.error("`{` is not closed", at)
            with self.recovering():
                statements.append(self.statement())
        self.advance()
        self.close_types()
        return syntax.Block(at, statements)

    def statement(self) -> syntax.Statement:
        self.enter()
        result = self._statement()
        self.leave()
        return result

    def _statement(self) -> syntax.Statement:
        annotations = self.annotations()
        token = self.token
        if annotations and not (self._starts_declaration() or self.at_text("{", "const", "for")):
            raise self.error(f"an annotation is for a declaration, a block or a loop, found {token}")
        if token.kind == "keyword" and not self._is_assignment_to_soft_keyword():
            reader = {
                "if": self._if,
                "switch": self._switch,
                "for": self._for,
                "return": self._return,
                "const": self._constant,
            }.get(token.text)
            if reader is not None:
                return reader()
            if token.text in ("exit", "break", "continue"):
                self.advance()
                self.expect(";")
                kinds = {"exit": syntax.Exit, "break": syntax.Break, "continue": syntax.Continue}
                return kinds[token.text](token.at)
        if self.at_text("{"):
            return self.block()
        if self.accept(";"):
            return syntax.Empty(token.at)
        if self._starts_declaration():
            return self.variable_or_instantiation(annotations)
        statement = self._simple_statement()
        self.expect(";", "after a statement")
        return statement

    def _is_assignment_to_soft_keyword(self) -> bool:
        return self.is_name(self.token) and self.peek().text in ("=", ".", "[")

    def _starts_declaration(self) -> bool:
        """A type here declares something, unless it is used: `C.apply(...)`, `E.member`."""
        if not self.starts_type():
            return False
        return self.peek().text != "." and not (self.token.text == "error" and self.peek().text == ".")

    def _simple_statement(self) -> syntax.Statement:
        at = self.token.at
        target = self._operand()
        token = self.token
        if self.accept("="):
            return syntax.Assign(token.at, target, self.expression())
        if token.text in _COMPOUND:
            self.advance()
            return syntax.Assign(token.at, target, self.expression(), _COMPOUND[token.text])
        if self.adjacent(">", ">="):
            self.advance()
            self.advance()
            return syntax.Assign(token.at, target, self.expression(), ">>")
        if not isinstance(target, syntax.Call):
            raise self.error(f"expected `=` or a call, found {self.token}")
        return syntax.CallStatement(at, target)

    def _constant(self) -> syntax.Constant:
        at = self.expect("const").at
        ref = self.type_ref()
        name = self.name("the constant's name")
        self.expect("=", "after the name of a constant")
        value = self.expression()
        self.expect(";", "after a constant")
        self.hide_type(name.text)
        return syntax.Constant(name.at if name else at, name.text, ref, value)

    def variable_or_instantiation(self, annotations: list[syntax.Annotation]) -> syntax.Declaration:
        ref = self.type_ref()
        if self.at_text("("):
            arguments = self.arguments()
            name = self.name("the instance's name")
            if self.accept("="):
                raise self.error("abstract method implementations are not supported")
            self.expect(";", "after an instantiation")
            self.hide_type(name.text)
            return syntax.Instantiation(name.at, name.text, ref, arguments, annotations=annotations)
        name = self.name("the variable's name")
        value = self.expression() if self.accept("=") else None
        self.expect(";", "after a variable")
        self.hide_type(name.text)
        return syntax.Variable(name.at, name.text, ref, value, annotations=annotations)

    def _if(self) -> syntax.Statement:
        at = self.advance().at
        self.expect("(", "after `if`")
        condition = self.expression()
        if self.at_text("="):
            raise self.error("expected `)`, found `=`; values are compared with `==`")
        self.expect(")")
        then = self.statement()
        otherwise = self.statement() if self.accept("else") else None
        return syntax.If(at, condition, then, otherwise)

    def _switch(self) -> syntax.Statement:
        at = self.advance().at
        self.expect("(", "after `switch`")
        subject = self.expression()
        self.expect(")")
        self.expect("{")
        cases: list[syntax.SwitchCase] = []
        while not self.accept("}"):
            label_at = self.token.at
            label = None if self.accept("default") else self.expression()
            self.expect(":", "after a switch label")
            body = self.block() if self.at_text("{", "@") else None
            cases.append(syntax.SwitchCase(label_at, label, body))
        return syntax.Switch(at, subject, cases)

    def _return(self) -> syntax.Statement:
        at = self.advance().at
        value = None if self.at_text(";") else self.expression()
        self.expect(";", "after `return`")
        return syntax.Return(at, value)

    def _for(self) -> syntax.Statement:
        at = self.advance().at
        self.expect("(", "after `for`")
        self.annotations()
        if self.starts_type():
            ref = self.type_ref()
            name = self.name("the loop variable's name")
            if self.accept("in"):
                over = self.single_set()
                self.expect(")")
                variable = syntax.Variable(name.at, name.text, ref, None)
                return syntax.ForIn(at, variable, over, self.statement())
            value = self.expression() if self.accept("=") else None
            start: list[syntax.Statement] = [syntax.Variable(name.at, name.text, ref, value)]
            while self.accept(","):
                start.append(self._for_start())
        else:
            if self.peek().text == "in":
                raise self.error(f"the variable of a loop needs its type: bit<32> {self.token.text}")
            start = self._for_list(";")
        self.expect(";", "after the start of a loop")
        condition = self.expression()
        self.expect(";", "after the condition of a loop")
        update = self._for_list(")")
        self.expect(")")
        return syntax.For(at, start, condition, update, self.statement())

    def _for_start(self) -> syntax.Statement:
        if self.starts_type():
            ref = self.type_ref()
            name = self.name("the loop variable's name")
            value = self.expression() if self.accept("=") else None
            return syntax.Variable(name.at, name.text, ref, value)
        return self._simple_statement()

    def _for_list(self, end: str) -> list[syntax.Statement]:
        statements: list[syntax.Statement] = []
        while not self.at_text(end):
            statements.append(self._simple_statement())
            if not self.accept(","):
                break
        return statements

    # --- annotations

    def annotations(self) -> list[syntax.Annotation]:
        found: list[syntax.Annotation] = []
        while self.at_text("@"):
            at = self.advance().at
            if self.token.kind not in ("name", "keyword"):
                raise self.error(f"expected the annotation's name, found {self.token}")
            name = self.advance().text
            found.append(self._pragma(at) if name == "pragma" else self._annotation_body(at, name))
        return found

    def _pragma(self, at: Position) -> syntax.Annotation:
        """`@pragma name words...`, to the end of the line."""
        words: list[str] = []
        while self.token.kind != "end" and (self.token.at.path, self.token.at.line) == (at.path, at.line):
            words.append(self.advance().text)
        return syntax.Annotation(at, words[0] if words else "pragma", words[1:], " ".join(words[1:]))

    def _annotation_body(self, at: Position, name: str) -> syntax.Annotation:
        """Arguments are kept as (kind, text) words: what they mean depends on the annotation."""
        closing = {"(": ")", "[": "]"}.get(self.token.text)
        if closing is None:
            return syntax.Annotation(at, name, [], "")
        expressions: list[syntax.Expression] = []
        keys: list[str] = []
        if closing == "]":
            expressions, keys = self._pairs_ahead()
        elif name == "field_list":
            expressions = self._expressions_ahead()
        opening = self.advance()
        words: list[str] = []
        values: list[object] = []
        depth = 1
        while True:
            token = self.token
            if token.kind == "end":
                raise self.error("annotation is not closed", opening.at)
            self.advance()
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

    def _expressions_ahead(self) -> list[syntax.Expression]:
        """The arguments of a call that the reader is at, and stays at."""
        mark = self.mark()
        found = [a.value for a in self.arguments() if a.value is not None]
        self.return_to(mark)
        return found

    def _pairs_ahead(self) -> tuple[list[syntax.Expression], list[str]]:
        """The expressions between brackets that the reader is at, and stays at, and the keys in front of them: of all
        or of none."""
        mark = self.mark()
        expressions: list[syntax.Expression] = []
        keys: list[str] = []
        self.expect("[")
        while not self.at_text("]"):
            if self.is_name(self.token) and self.peek().text == "=":
                key = self.advance()
                if key.text in keys:
                    raise self.error(f"key `{key.text}` is there twice", key.at)
                keys.append(key.text)
                self.expect("=")
            expressions.append(self.expression())
            if keys and len(keys) < len(expressions):
                raise self.error("expected KEY = VALUE, as before", expressions[-1].start)
            if not self.accept(","):
                break
        if not self.at_text("]"):
            raise self.error(f"expected `,` or `]`, found {self.token}")
        self.return_to(mark)
        return expressions, keys
