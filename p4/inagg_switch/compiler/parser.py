"""Stage 3: tokens to syntax tree, by recursive descent.

Written by hand rather than from a grammar, for two reasons. P4's grammar is not context-free: whether an identifier
is a type decides how `(T) - x`, `T x;` or `f<T>(x)` is read, so the parser keeps the type names in scope; and a
hand-written parser can say what it expected where, in the words of the language.

One class in four files, by what they read: _tokens (the stream), _parse_expressions (types, expressions, sets),
_parse_statements, and this one (declarations).
"""

from inagg_switch.compiler import syntax
from inagg_switch.compiler._parse_statements import StatementParser
from inagg_switch.compiler.lexer import Token
from inagg_switch.errors import Position


def parse(tokens: list[Token]) -> syntax.Program:
    """The whole program. Raises CompileError at the first token that does not fit."""
    return _DeclarationParser(tokens).program()


class _DeclarationParser(StatementParser):
    def program(self) -> syntax.Program:
        declarations: list[syntax.Declaration] = []
        while self.token.kind != "end":
            if not self.accept(";"):
                declarations.append(self._declaration())
        return syntax.Program(declarations)

    def _declaration(self) -> syntax.Declaration:
        annotations = self.annotations()
        readers = {
            "const": self._constant,
            "struct": self._struct,
            "header": self._struct,
            "header_union": self._struct,
            "enum": self._enum,
            "typedef": self._typedef,
            "type": self._typedef,
            "extern": self._extern,
            "action": self._action,
            "parser": self._parser,
            "control": self._control,
            "package": self._package,
        }
        token = self.token
        if self.at_text("error", "match_kind") and self.peek().text == "{":
            declaration: syntax.Declaration = self._members()
        elif token.kind == "keyword" and token.text in readers:
            declaration = readers[token.text]()
        elif self.starts_type() or self._starts_generic_function():
            declaration = self._function_or_instantiation(annotations)
        elif token.kind == "name" and self.peek().text in ("(", "<"):
            raise self.error(f"`{token.text}` is not a type")
        else:
            raise self.error(f"expected a declaration, found {token}")
        declaration.annotations = annotations
        return declaration

    def _starts_generic_function(self) -> bool:
        """`T f<T>(...)`: the result's type is a parameter that is named only after it."""
        return self.token.kind == "name" and self.is_name(self.peek()) and self.peek(2).text == "<"

    def _function_or_instantiation(self, annotations: list[syntax.Annotation]) -> syntax.Declaration:
        # `T name(` or `T name<` is a function, `T(` an instantiation.
        mark = self.mark()
        ref = self.type_ref()
        is_function = self.is_name(self.token) and self.peek().text in ("(", "<")
        self.return_to(mark)
        if is_function:
            function = self._function_prototype()
            function.body = self.block()
            self.close_types()
            return function
        if isinstance(ref, syntax.BaseTypeRef):
            raise self.error("variables are not allowed at the top level; use `const`")
        return self.variable_or_instantiation(annotations)

    def _type_parameters(self) -> list[str]:
        names: list[str] = []
        if self.accept("<"):
            while not self.at_text(">"):
                names.append(self.name("a type parameter").text)
                if not self.accept(","):
                    break
            self.expect(">", "after the type parameters")
        return names

    def _parameters(self) -> list[syntax.Parameter]:
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

    # --- types

    def _struct(self) -> syntax.Declaration:
        kind = self.advance().text
        name = self.name(f"the {kind}'s name")
        self.declare_type(name.text)
        type_parameters = self._type_parameters()
        self.open_types(type_parameters)
        self.expect("{")
        fields: list[syntax.Field] = []
        while not self.accept("}"):
            annotations = self.annotations()
            ref = self.type_ref()
            field = self.name("the field's name")
            self.expect(";", "after a field")
            fields.append(syntax.Field(field.at, field.text, ref, annotations=annotations))
        self.close_types()
        return syntax.StructDeclaration(name.at, name.text, kind, fields, type_parameters=type_parameters)

    def _enum(self) -> syntax.Declaration:
        self.advance()
        base = self.type_ref() if self.at_text("bit", "int") or self.peek().kind == "name" else None
        name = self.name("the enum's name")
        self.declare_type(name.text)
        self.expect("{")
        members: list[tuple[str, Position, syntax.Expression | None]] = []
        while not self.at_text("}"):
            self.annotations()
            member = self.name("a member's name")
            members.append((member.text, member.at, self.expression() if self.accept("=") else None))
            if not self.accept(","):
                break
        self.expect("}", "after the members")
        return syntax.EnumDeclaration(name.at, name.text, base, members)

    def _members(self) -> syntax.Declaration:
        what = self.advance()
        self.expect("{")
        members: list[tuple[str, Position]] = []
        while not self.at_text("}"):
            self.annotations()
            member = self.token
            if member.kind not in ("name", "keyword"):
                raise self.error(f"expected a member's name, found {member}")
            self.advance()
            members.append((member.text, member.at))
            if not self.accept(","):
                break
        self.expect("}", "after the members")
        return syntax.MembersDeclaration(what.at, what.text, members)

    def _typedef(self) -> syntax.Declaration:
        new = self.advance().text == "type"
        self.annotations()
        ref = self.type_ref()
        name = self.name("the type's name")
        self.expect(";", "after a typedef")
        self.declare_type(name.text)
        return syntax.TypedefDeclaration(name.at, name.text, ref, new)

    # --- externs and functions

    def _function_prototype(self) -> syntax.Function:
        """Leaves the type parameters in scope: the caller closes them after the body."""
        mark = self.mark()
        self.open_types(self._prototype_type_parameters())
        self.return_to(mark)
        result = self.type_ref()
        name = self.name("the function's name")
        type_parameters = self._type_parameters()
        parameters = self._parameters()
        return syntax.Function(name.at, name.text, result, type_parameters, parameters, None)

    def _prototype_type_parameters(self) -> list[str]:
        """`T f<T>()`: the result's type may be a parameter that is named only after it."""
        if self.token.kind == "name" and not self.is_type(self.token.text):
            self.advance()
            if self.at_text("<"):
                self.type_arguments()
        else:
            self.type_ref()
        self.name("the function's name")
        return self._type_parameters()

    def _extern(self) -> syntax.Declaration:
        self.advance()
        # `extern E {`, `extern E<T> {`; anything else is a function.
        is_object = (
            self.is_name(self.token)
            and self.peek().text in ("{", "<")
            and (self.peek().text == "{" or not self.is_type(self.token.text))
        )
        if not is_object:
            function = self._function_prototype()
            self.close_types()
            self.expect(";", "after an extern function")
            return function
        name = self.advance()
        self.declare_type(name.text)
        type_parameters = self._type_parameters()
        self.open_types(type_parameters)
        self.expect("{")
        methods: list[syntax.Function] = []
        constructors: list[syntax.Function] = []
        while not self.accept("}"):
            annotations = self.annotations()
            abstract = self.accept("abstract") is not None
            if self.token.text == name.text and self.peek().text == "(":
                at = self.advance().at
                self.open_types([])
                function = syntax.Function(at, name.text, None, [], self._parameters(), None)
                self.close_types()
                constructors.append(function)
            else:
                function = self._function_prototype()
                self.close_types()
                methods.append(function)
            function.annotations, function.abstract = annotations, abstract
            self.expect(";", "after a method")
        self.close_types()
        return syntax.ExternDeclaration(
            name.at, name.text, methods, constructors, type_parameters=type_parameters
        )

    def _action(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the action's name")
        self.hide_type(name.text)
        self.open_types([])
        parameters = self._parameters()
        action = syntax.Action(name.at, name.text, parameters, self.block())
        self.close_types()
        return action

    def _package(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the package's name")
        self.declare_type(name.text)
        type_parameters = self._type_parameters()
        self.open_types(type_parameters)
        parameters = self._parameters()
        self.close_types()
        self.expect(";", "after a package")
        return syntax.BlockTypeDeclaration(
            name.at, name.text, "package", parameters, type_parameters=type_parameters
        )

    # --- controls and parsers

    def _control(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the control's name")
        self.declare_type(name.text)
        type_parameters = self._type_parameters()
        self.open_types(type_parameters)
        parameters = self._parameters()
        if self.accept(";"):
            self.close_types()
            return syntax.BlockTypeDeclaration(
                name.at, name.text, "control", parameters, type_parameters=type_parameters
            )
        constructor = self._parameters() if self.at_text("(") else []
        self.expect("{", "before the control's body")
        found: list[syntax.Declaration] = []
        while not self.at_text("apply"):
            found.append(self._control_local())
        self.advance()
        body = self.block()
        self.expect("}", "after the control's apply block")
        self.close_types()
        return syntax.Control(
            name.at, name.text, parameters, constructor, found, body, type_parameters=type_parameters
        )

    def _control_local(self) -> syntax.Declaration:
        annotations = self.annotations()
        if self.at_text("const"):
            declaration: syntax.Declaration = self._constant()
        elif self.at_text("action"):
            declaration = self._action()
        elif self.at_text("table"):
            declaration = self._table()
        elif self.starts_type():
            declaration = self.variable_or_instantiation(annotations)
        elif (self.token.kind == "name" and self.peek().text in ("(", "<")) or self.peek().kind == "name":
            raise self.error(f"`{self.token.text}` is not a type")
        else:
            raise self.error(f"expected a declaration or `apply`, found {self.token}")
        declaration.annotations = annotations
        return declaration

    def _parser(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the parser's name")
        self.declare_type(name.text)
        type_parameters = self._type_parameters()
        self.open_types(type_parameters)
        parameters = self._parameters()
        if self.accept(";"):
            self.close_types()
            return syntax.BlockTypeDeclaration(
                name.at, name.text, "parser", parameters, type_parameters=type_parameters
            )
        constructor = self._parameters() if self.at_text("(") else []
        self.expect("{", "before the parser's body")
        found: list[syntax.Declaration] = []
        states: list[syntax.State] = []
        while not self.accept("}"):
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
        self.close_types()
        return syntax.Parser(
            name.at, name.text, parameters, constructor, found, states, type_parameters=type_parameters
        )

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

    # --- tables

    def _table(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the table's name")
        self.hide_type(name.text)
        table = syntax.Table(name.at, name.text, [], [], None, False, [], False, {})
        self.expect("{")
        seen: set[str] = set()
        while not self.accept("}"):
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
            at = self.token.at
            expression = self.expression()
            self.expect(":", "after a key")
            kind = self.name("a match kind")
            annotations = self.annotations()
            self.expect(";", "after a key")
            table.keys.append(syntax.Key(at, expression, kind.text, kind.at, annotations))

    def _actions(self, table: syntax.Table) -> None:
        self.expect("{")
        while not self.accept("}"):
            table.actions.append(self._action_ref(self.annotations()))
            self.expect(";", "after an action")

    def _action_ref(self, annotations: list[syntax.Annotation]) -> syntax.ActionRef:
        self.accept(".")
        name = self.name("an action's name")
        arguments = self.arguments() if self.at_text("(") else []
        return syntax.ActionRef(name.at, name.text, arguments, annotations)

    def _entries(self, table: syntax.Table) -> None:
        self.expect("{")
        while not self.accept("}"):
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
            table.entries.append(syntax.Entry(at, keys, action, annotations, priority, is_const))
