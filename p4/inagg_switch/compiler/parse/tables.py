"""Tables of the parser."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.parse.lexer import Token
from inagg_switch.compiler.parse.statements import StatementParser


class TableParser(StatementParser):
    """Reads tables."""

    def table(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the table's name")
        self.hide_type(name.text)
        table = syntax.Table(name.at, name.text, [], [], None, False, [], False, {})
        self.expect("{")
        seen: set[str] = set()
        while not self.accept("}"):
            self.not_the_end("a table property")
            with self.recovering():
                annotations = self.annotations()
                is_const = self.accept("const") is not None
                token = self.name("a table property")
                if token.text in seen:
                    raise self.error(f"table {name.text} has two `{token.text}` properties", token.at)
                seen.add(token.text)
                self._property(table, token, is_const, annotations)
        if "actions" not in seen:
            raise self.error(f"table {name.text} has no actions", name.at)
        return table

    def _property(
        self, table: syntax.Table, token: Token, is_const: bool, annotations: list[syntax.Annotation]
    ) -> None:
        self.expect("=", f"after `{token.text}`")
        if token.text == "key":
            self._keys(table)
        elif token.text == "actions":
            self._actions(table)
        elif token.text == "entries":
            table.const_entries = is_const
            self._entries(table)
        elif token.text == "default_action":
            table.const_default = is_const
            table.default_action = self._action_ref([])
            self.expect(";", "after the default action")
        else:
            value = self.expression()
            self.expect(";", f"after `{token.text}`")
            table.properties[token.text] = syntax.Property(token.at, token.text, value, is_const, annotations)

    def _keys(self, table: syntax.Table) -> None:
        self.expect("{")
        while not self.accept("}"):
            self.not_the_end("a key")
            with self.recovering():
                table.keys.append(self._key())

    def _key(self) -> syntax.Key:
        at = self.token.at
        expression = self.expression()
        self.expect(":", "after a key")
        kind = self.name("a match kind")
        annotations = self.annotations()
        self.expect(";", "after a key")
        return syntax.Key(at, expression, kind.text, kind.at, annotations)

    def _actions(self, table: syntax.Table) -> None:
        self.expect("{")
        while not self.accept("}"):
            self.not_the_end("an action's name")
            with self.recovering():
                table.actions.append(self._action_ref(self.annotations()))
                self.expect(";", "after an action")

    def _action_ref(self, annotations: list[syntax.Annotation]) -> syntax.ActionRef:
        absolute = self.accept(".") is not None
        name = self.name("an action's name")
        arguments = self.arguments() if self.at_text("(") else []
        return syntax.ActionRef(name.at, name.text, arguments, annotations, absolute)

    def _entries(self, table: syntax.Table) -> None:
        self.expect("{")
        while not self.accept("}"):
            self.not_the_end("an entry")
            with self.recovering():
                table.entries.append(self._entry())

    def _entry(self) -> syntax.Entry:
        at = self.token.at
        is_const = self.accept("const") is not None
        priority = None
        if self.at_text("priority") and self.peek().text == "=":
            self.advance()
            self.advance()
            priority = self._operand()
            self.expect(":", "after a priority")
        keys = self.key_set()
        self.expect(":", "after the keys of an entry")
        action = self._action_ref([])
        annotations = self.annotations()
        self.expect(";", "after an entry")
        return syntax.Entry(at, keys, action, annotations, priority, is_const)
