"""Statements."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inagg_switch.compiler import fold, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.calls import CallChecker
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.errors import CompileError


class StatementChecker(CallChecker):
    """Checks statements in place."""

    def __init__(self) -> None:
        super().__init__()
        self._loops = 0
        self.result: t.Type | None = None  # of the function that is being checked
        self._statements: dict[type, Callable[[Any], None]] = {
            syntax.Empty: lambda s: None,
            syntax.Block: self.block,
            syntax.Assign: self._assign,
            syntax.CallStatement: self._call_statement,
            syntax.If: self._if,
            syntax.Switch: self._switch,
            syntax.For: self._for,
            syntax.ForIn: self._for_in,
            syntax.Break: self._jump,
            syntax.Continue: self._jump,
            syntax.Return: self._return,
            syntax.Exit: self._exit,
            syntax.Variable: self.variable,
            syntax.Constant: self.constant_declaration,
            syntax.Instantiation: self.instantiation,
        }

    def statement(self, s: syntax.Statement) -> None:
        self._statements[type(s)](s)

    def block(self, s: syntax.Block) -> None:
        with self.inner_scope():
            self.sequence(s.statements)

    def sequence(self, statements: list[syntax.Statement]) -> None:
        """Statements of a block or parser state, whose declarations may not hide a parameter."""
        for statement in statements:
            declaration = statement if isinstance(statement, syntax.Declaration) else None
            with self.recovering(declaration):
                if declaration is not None and isinstance(
                    self.scope.find(declaration.name), syntax.Parameter
                ):
                    raise CompileError(f"`{declaration.name}` hides a parameter of that name", declaration.at)
                self.statement(statement)

    @contextmanager
    def recovering(self, declaration: syntax.Declaration | None = None) -> Iterator[None]:
        around = self.inside, self.result, self._loops
        with super().recovering(declaration):
            yield
        self.inside, self.result, self._loops = around

    # --- declarations that are statements

    def variable(self, s: syntax.Variable) -> None:
        s.type = self.type_of(s.ref)
        if s.type in (t.INTEGER, t.STRING, t.VOID, t.MATCH_KIND) or isinstance(
            s.type, t.ExternType | t.BlockType | t.TypeVariable
        ):
            raise CompileError(f"a variable cannot be of type {s.type}", s.at)
        if s.value is not None:
            s.value = self.rvalue(s.value, s.type, f"variable `{s.name}`")
        self.declare(s)

    def constant_declaration(self, s: syntax.Constant) -> None:
        s.type = self.type_of(s.ref)
        s.value = self.rvalue(s.value, s.type, f"constant `{s.name}`")
        if s.value.value is None:
            raise CompileError(
                f"the value of constant `{s.name}` must be known at compile time", s.value.start
            )
        self.declare(s)

    def instantiation(self, s: syntax.Instantiation) -> None:
        type_ = self.type_of(s.ref)
        s.type, s.bound = self.construct(type_, [], s.arguments, s.at)
        if self.inside in ("action", "function", "block"):
            raise CompileError("an instance cannot be declared here", s.at)
        self.declare(s)

    # --- simple statements

    def _assign(self, s: syntax.Assign) -> None:
        s.target = self.lvalue(s.target)
        if s.operator is None:
            s.value = self.rvalue(s.value, s.target.type, "the value of an assignment")
            return
        # `a += b` is `a = a + b`, with whatever `a` calls done once: both name the same node.
        combined = syntax.Binary(s.at, s.operator, s.target, self.rvalue(s.value))
        s.value = self.convert(self.typed_binary(combined), s.target.type)

    def _call_statement(self, s: syntax.CallStatement) -> None:
        checked = self.expression(s.call)
        if isinstance(checked, syntax.Call) and isinstance(checked.target, targets.ConstructorTarget):
            raise CompileError("the instance is not used; name it in a declaration", s.at)
        s.call = checked

    def _exit(self, s: syntax.Exit) -> None:
        if self.inside in ("parser", "function"):
            raise CompileError(f"`exit` is not allowed in a {self.inside}", s.at)

    def _return(self, s: syntax.Return) -> None:
        if self.inside == "parser":
            raise CompileError("`return` is not allowed in a parser", s.at)
        wanted = self.result if self.inside == "function" else None
        if s.value is None:
            if wanted not in (None, t.VOID):
                raise CompileError(f"`return` needs a value of type {wanted}", s.at)
        elif wanted is None or wanted == t.VOID:
            raise CompileError("`return` has a value, and nothing takes it", s.value.start)
        else:
            s.value = self.rvalue(s.value, wanted, "the returned value")

    def _jump(self, s: syntax.Statement) -> None:
        if not self._loops:
            raise CompileError(f"`{type(s).__name__.lower()}` outside a loop", s.at)

    # --- control flow

    def _if(self, s: syntax.If) -> None:
        with self.recovering():
            s.condition = self.rvalue(s.condition, t.BOOL, "the condition of `if`")
        for branch in (s.then, s.otherwise):
            if branch is not None:
                self._branch(branch)

    def _branch(self, s: syntax.Statement) -> None:
        with self.inner_scope():
            self.statement(s)

    def _for(self, s: syntax.For) -> None:
        with self.inner_scope():
            for statement in s.start:
                self.statement(statement)
            s.condition = self.rvalue(s.condition, t.BOOL, "the condition of `for`")
            for statement in s.update:
                self.statement(statement)
            self._loop_body(s.body)

    def _loop_body(self, body: syntax.Statement) -> None:
        self._loops += 1
        self._branch(body)
        self._loops -= 1

    def _for_in(self, s: syntax.ForIn) -> None:
        with self.inner_scope():
            over = self.expression(s.over)
            self.variable(s.variable)
            type_ = s.variable.type
            if isinstance(over, syntax.Range):
                if not isinstance(t.strip(type_), t.BitType):
                    raise CompileError(f"a range of {type_} cannot be counted", s.variable.at)
                over.low, over.high = self.convert(over.low, type_), self.convert(over.high, type_)
            elif isinstance(over.type, t.StackType):
                if over.type.element != type_:
                    raise CompileError(f"the elements are {over.type.element}, not {type_}", s.variable.at)
            else:
                raise CompileError(
                    f"expected a range or a header stack, found {describe(over)}", s.over.start
                )
            s.over = over
            self._loop_body(s.body)

    def _switch(self, s: syntax.Switch) -> None:
        if self.inside in ("parser", "action"):
            raise CompileError("`switch` is not allowed in a parser or an action", s.at)
        s.subject = self.rvalue(s.subject)
        type_ = s.subject.type
        bits = t.strip(type_)
        if not isinstance(bits, t.BitType | t.EnumType | t.ActionListType):
            raise CompileError(
                f"`switch` needs bits, an enum or action_run, found {describe(s.subject)}", s.subject.start
            )
        seen: set[object] = set()
        for number, case in enumerate(s.cases):
            with self.recovering():
                key = self._label(case, type_)
                if key in seen:
                    raise CompileError("this label is there already", case.at)
                seen.add(key)
                if case.label is None and number != len(s.cases) - 1:
                    raise CompileError("`default` must be the last label", case.at)
            if case.body is not None:
                self.block(case.body)

    def _label(self, case: syntax.SwitchCase, type_: t.Type) -> object:
        """Something that is the same for the same label."""
        if case.label is None:
            return None
        if isinstance(type_, t.ActionListType):
            label = case.label
            names = {a.name for a in type_.table.actions}
            if not isinstance(label, syntax.Name) or label.name not in names:
                raise CompileError(f"expected an action of table {type_.table.name}", label.start)
            return label.name
        case.label = self.rvalue(case.label, type_, "a switch label")
        if not self.compile_time(case.label):
            raise CompileError("a switch label must be known at compile time", case.label.start)
        return case if case.label.value is None else fold.wrap(case.label.value, type_)
