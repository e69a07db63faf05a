"""Stage 3: tokens to syntax tree, by recursive descent.

Written by hand rather than from a grammar, for two reasons. P4's grammar is not context-free: whether an identifier
is a type decides how `(T) - x`, `T x;` or `f<T>(x)` is read, so the parser keeps the type names in scope; and a
hand-written parser can say what it expected where, in the words of the language.

One class in several files, by what they read: _tokens (the stream), _parse_expressions (types, expressions, sets),
_parse_statements, _parse_tables, _parse_blocks (controls, parsers, actions), and this one (declarations).
"""

from inagg_switch.compiler import syntax
from inagg_switch.compiler.diagnostics import Errors
from inagg_switch.compiler.parse.blocks import BlockParser
from inagg_switch.compiler.parse.lexer import Token
from inagg_switch.errors import Position


def parse(tokens: list[Token]) -> syntax.Program:
    """The whole program. Raises CompileError for the tokens that do not fit."""
    errors = Errors()
    with errors.of_stage():
        return _DeclarationParser(tokens, errors).program()


# Words that start a declaration at the top level, where they start a line.
_STARTS = ("const", "struct", "header", "header_union", "enum", "typedef", "type", "extern", "action", "parser",
           "control", "package")  # fmt: skip


class _DeclarationParser(BlockParser):
    def program(self) -> syntax.Program:
        declarations: list[syntax.Declaration] = []
        while self.token.kind != "end":
            if self.accept(";"):
                continue
            start = self.token
            with self.recovering(*_STARTS):
                declarations.append(self._declaration())
                continue
            self._note_type(start)
            self.accept("}")  # one too many
        return syntax.Program(declarations, self.token.at)

    def _note_type(self, start: Token) -> None:
        """The name that a type definition which is wrong would have declared: it is still read as a type."""
        if start.text in ("typedef", "type"):
            last = self.peek(-2)
            if self.peek(-1).text == ";" and self.is_name(last):
                self.declare_type(last.text)

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
            "action": self.action,
            "parser": self.parser,
            "control": self.control,
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

    # --- types

    def _struct(self) -> syntax.Declaration:
        kind = self.advance().text
        name = self.name(f"the {kind}'s name")
        self.declare_type(name.text)
        type_parameters = self.type_parameters()
        self.open_types(type_parameters)
        self.expect("{")
        fields: list[syntax.Field] = []
        while not self.accept("}"):
            self.not_the_end("a field")
            with self.recovering():
                fields.append(self._field())
        self.close_types()
        return syntax.StructDeclaration(name.at, name.text, kind, fields, type_parameters=type_parameters)

    def _field(self) -> syntax.Field:
        annotations = self.annotations()
        ref = self.type_ref()
        name = self.name("the field's name")
        self.expect(";", "after a field")
        return syntax.Field(name.at, name.text, ref, annotations=annotations)

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
            member = self.name("a member's name")
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
        type_parameters = self.type_parameters()
        parameters = self.parameters()
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
        return self.type_parameters()

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
        type_parameters = self.type_parameters()
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
                function = syntax.Function(at, name.text, None, [], self.parameters(), None)
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

    def _package(self) -> syntax.Declaration:
        self.advance()
        name = self.name("the package's name")
        self.declare_type(name.text)
        type_parameters = self.type_parameters()
        self.open_types(type_parameters)
        parameters = self.parameters()
        self.close_types()
        self.expect(";", "after a package")
        return syntax.BlockTypeDeclaration(
            name.at, name.text, "package", parameters, type_parameters=type_parameters
        )
