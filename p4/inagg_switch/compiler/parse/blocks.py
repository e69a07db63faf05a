"""Controls, parsers and actions of the parser."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.tables import TableParser


class BlockParser(TableParser):
    """Reads controls, parsers and actions, and parameters of all kinds."""

    def type_parameters(self) -> list[str]:
        names: list[str] = []
        if self.accept("<"):
            while not self.at_text(">"):
                names.append(self.name("a type parameter").text)
                if not self.accept(","):
                    break
            self.expect(">", "after the type parameters")
        return names

    def parameters(self) -> list[syntax.Parameter]:
        self.expect("(")
        parameters: list[syntax.Parameter] = []
        while not self.at_text(")"):
            annotations = self.annotations()
            direction = self.advance().text if self.at_text("in", "out", "inout") else ""
            ref = self.type_ref()
            name = self.name("the parameter's name")
            self.hide_type(name.text)
            default = self.expression() if self.accept("=") else None
            parameters.append(
                syntax.Parameter(name.at, name.text, direction, ref, default, annotations=annotations)
            )
            if not self.accept(","):
                break
        self.expect(")", "after the parameters")
        return parameters

    def action(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the action's name")
        self.hide_type(name.text)
        self.open_types([])
        parameters = self.parameters()
        action = syntax.Action(name.at, name.text, parameters, self.block())
        self.close_types()
        return action

    def control(self) -> syntax.Declaration:
        return self._block("control")

    def parser(self) -> syntax.Declaration:
        return self._block("parser")

    def _block(self, kind: str) -> syntax.Declaration:
        """A control or parser; or the type of one, which has no body."""
        self.advance()
        name = self.name(f"the {kind}'s name")
        self.declare_type(name.text)
        type_parameters = self.type_parameters()
        self.open_types(type_parameters)
        parameters = self.parameters()
        if self.accept(";"):
            block: syntax.Declaration = syntax.BlockTypeDeclaration(
                name.at, name.text, kind, parameters, type_parameters=type_parameters
            )
        else:
            constructor = self.parameters() if self.at_text("(") else []
            self.expect("{", f"before the {kind}'s body")
            head = (name.at, name.text, parameters, constructor)
            if kind == "control":
                block = syntax.Control(*head, *self._control_body(), type_parameters=type_parameters)
            else:
                block = syntax.Parser(*head, *self._parser_body(), type_parameters=type_parameters)
        self.close_types()
        return block

    def _control_body(self) -> tuple[list[syntax.Declaration], syntax.Block]:
        """What is declared, and the apply block."""
        found: list[syntax.Declaration] = []
        while not self.at_text("apply"):
            if self.token.kind == "end" or self.at_text("}"):
                raise self.error(f"expected a declaration or `apply`, found {self.token}")
            with self.recovering("apply", "action", "table", "const"):
                found.append(self._control_local())
        self.advance()
        body = self.block()
        self.expect("}", "after the control's apply block")
        return found, body

    def _control_local(self) -> syntax.Declaration:
        annotations = self.annotations()
        if self.at_text("const"):
            declaration: syntax.Declaration = self._constant()
        elif self.at_text("action"):
            declaration = self.action()
        elif self.at_text("table"):
            declaration = self.table()
        elif self.starts_type():
            declaration = self.variable_or_instantiation(annotations)
        elif (self.token.kind == "name" and self.peek().text in ("(", "<")) or self.peek().kind == "name":
            raise self.error(f"`{self.token.text}` is not a type")
        else:
            raise self.error(f"expected a declaration or `apply`, found {self.token}")
        declaration.annotations = annotations
        return declaration

    def _parser_body(self) -> tuple[list[syntax.Declaration], list[syntax.State]]:
        """What is declared, and the states."""
        found: list[syntax.Declaration] = []
        states: list[syntax.State] = []
        while not self.accept("}"):
            self.not_the_end("a state or a declaration")
            with self.recovering("state"):
                self._parser_local(found, states)
        return found, states

    def _parser_local(self, found: list[syntax.Declaration], states: list[syntax.State]) -> None:
        annotations = self.annotations()
        if self.at_text("state"):
            states.append(self._state(annotations))
        elif self.at_text("value_set"):
            found.append(self._value_set(annotations))
        elif self.at_text("const"):
            found.append(self._constant())
        elif self.starts_type():
            found.append(self.variable_or_instantiation(annotations))
        else:
            raise self.error(f"expected a state or a declaration, found {self.token}")

    def _value_set(self, annotations: list[syntax.Annotation]) -> syntax.Declaration:
        self.advance()
        self.expect("<")
        ref = self.type_ref()
        self.expect(">")
        self.expect("(")
        size = self.expression()
        self.expect(")")
        name = self.name("the value set's name")
        self.hide_type(name.text)
        self.expect(";", "after a value set")
        return syntax.ValueSet(name.at, name.text, ref, size, annotations=annotations)

    def _state(self, annotations: list[syntax.Annotation]) -> syntax.State:
        self.advance()
        name = self.name("the state's name")
        opening = self.expect("{")
        body: list[syntax.Statement] = []
        while not self.at_text("transition", "}"):
            if self.token.kind == "end":
                raise self.error("`{` is not closed", opening.at)
            with self.recovering("transition"):
                body.append(self.statement())
        transition: str | syntax.Select | None = None
        transition_at = self.token.at
        if self.accept("transition"):
            transition_at = self.token.at
            if self.at_text("select"):
                transition = self._select()
            else:
                transition = self.name("a state's name or `select`").text
                self.expect(";", "after a transition")
        self.expect("}", "after a state")
        return syntax.State(name.at, name.text, body, transition, transition_at, annotations=annotations)

    def _select(self) -> syntax.Select:
        at = self.advance().at
        subjects: list[syntax.Expression] = []
        self.expect("(", "after `select`")
        while not self.at_text(")"):
            subjects.append(self.expression())
            if not self.accept(","):
                break
        self.expect(")")
        self.expect("{")
        cases: list[syntax.SelectCase] = []
        while not self.accept("}"):
            case_at = self.token.at
            keys = self.key_set()
            self.expect(":", "after a set")
            state = self.name("a state's name")
            self.expect(";", "after a select case")
            cases.append(syntax.SelectCase(case_at, keys, state.text))
        self.accept(";")
        return syntax.Select(at, subjects, cases)
