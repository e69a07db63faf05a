"""Statements: checked syntax to IR."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inagg_switch.compiler import fold, ir, primitives, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.calls import CallLowerer
from inagg_switch.compiler.lower.expressions import paths_in, zero
from inagg_switch.compiler.lower.loops import ends
from inagg_switch.errors import CompileError, Position


class StatementLowerer(CallLowerer):
    """Lowers statements. What an expression needs done before it runs comes out in front of the statement."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._statements: dict[type, Callable[[Any], ir.Stmt]] = {
            syntax.Empty: lambda s: ir.Group(()),
            syntax.Block: self.block,
            syntax.Assign: self._assign,
            syntax.CallStatement: self.call_statement,
            syntax.If: self._if,
            syntax.Switch: self._switch,
            syntax.For: self._for,
            syntax.ForIn: self._for_in,
            syntax.Return: self._return,
            syntax.Break: lambda s: ir.Jump("break"),
            syntax.Continue: lambda s: ir.Jump("continue"),
            syntax.Exit: lambda s: ir.Jump("exit"),
            syntax.Variable: self._variable,
            syntax.Constant: lambda s: ir.Group(()),
        }

    def note_endless_loop(self) -> None:
        """There is a loop that may not end."""
        raise NotImplementedError

    def report(self, error: CompileError) -> None:
        """There is an error; the program will not be emitted."""
        raise NotImplementedError

    @contextmanager
    def recovering(self, part: syntax.Node) -> Iterator[None]:
        """Lowers a part of the program. After an error in it, what comes behind is lowered as well, to find more."""
        try:
            yield
        except CompileError as error:
            self.values.wrong.add(id(part))
            self.report(error)

    def statement(self, s: syntax.Statement) -> ir.Stmt:
        lowerer = self._statements.get(type(s))
        if lowerer is None:
            raise CompileError("this statement is not supported here", s.at)
        before, self.pending = self.pending, []
        lowered: ir.Stmt = ir.Group(())
        with self.recovering(s):
            lowered = lowerer(s)
        needed, self.pending = self.pending, before
        return ir.Group((*needed, lowered)) if needed else lowered

    def statements(self, body: list[syntax.Statement]) -> tuple[ir.Stmt, ...]:
        result: list[ir.Stmt] = []
        for s in body:
            lowered = self.statement(s)
            # A declaration must stay in the block that it is written in.
            if isinstance(lowered, ir.Group) and isinstance(s, syntax.Variable):
                result.extend(lowered.body)
            else:
                result.append(lowered)
        return tuple(result)

    def block(self, s: syntax.Block) -> ir.Stmt:
        return ir.Group(self.statements(s.statements))

    def _assign(self, s: syntax.Assign) -> ir.Stmt:
        target = self.stable(self.expression(s.target), s.target.at)
        if s.operator is not None:
            self.known[id(s.target)] = target
        ahead = _header_ahead(s.value)
        if ahead is not None and paths_in(target)[0][0] not in self.locals:
            value = self.ahead(s.value, ahead)
            return ir.Group((primitives.SetValid(target), ir.Assign(target, value)))
        value = self.expression(s.value)
        if isinstance(value, ir.Construct) and isinstance(value.type, t.StackType):
            return self._assign_elements(target, value, s.at)
        return ir.Assign(target, value)

    def _assign_elements(self, target: ir.Expr, value: ir.Construct, at: Position) -> ir.Stmt:
        """A list has no `next`: that of the stack stays as it is."""
        stack = value.type
        assert isinstance(stack, t.StackType)
        made = ir.Var(stack, self.temporary(stack, at, "elements"))

        def element(base: ir.Expr, i: int) -> ir.Expr:
            return ir.Element(stack.element, base, ir.Const(t.BitType(32), i))

        copies = (ir.Assign(element(target, i), element(made, i)) for i in range(stack.size))
        return ir.Group((ir.Declare(made.name, stack, value), *copies))

    def _variable(self, s: syntax.Variable) -> ir.Stmt:
        value = None if s.value is None else self.expression(s.value)
        name = self.variable(s, s.type)
        self.locals.add(name)
        return ir.Declare(name, s.type, value)

    def _return(self, s: syntax.Return) -> ir.Stmt:
        return ir.Jump("return", None if s.value is None else self.expression(s.value))

    def _if(self, s: syntax.If) -> ir.Stmt:
        if s.condition.value is not None:
            taken = s.then if s.condition.value else s.otherwise
            return ir.Group(()) if taken is None else self.statement(taken)
        condition = self.expression(s.condition)
        return ir.If(
            condition, self.statement(s.then), None if s.otherwise is None else self.statement(s.otherwise)
        )

    def _for(self, s: syntax.For) -> ir.Stmt:
        start = self.statements(s.start)
        outside, self.pending = self.pending, []
        condition = self.expression(s.condition)
        if self.pending:
            raise CompileError("lookahead is not supported in the condition of a loop", s.condition.at)
        self.pending = outside
        bounded = ends(s)
        if not bounded:
            self.note_endless_loop()
        return ir.Loop(start, condition, self.statements(s.update), self.statement(s.body), bounded)

    def _for_in(self, s: syntax.ForIn) -> ir.Stmt:
        name = self.variable(s.variable, s.variable.type)
        self.locals.add(name)
        if isinstance(s.over, syntax.Range):
            low, high = self.expression(s.over.low), self.expression(s.over.high)
            return ir.CountLoop(name, s.variable.type, low, high, self.statement(s.body))
        stack_type = s.over.type
        assert isinstance(stack_type, t.StackType)
        counter = self.namespace.unique(f"{s.variable.name}_index")
        index_type = t.BitType(32)
        index = ir.Var(index_type, counter)
        element = ir.Element(stack_type.element, self.expression(s.over), index)
        body = ir.Group((ir.Declare(name, s.variable.type, element), self.statement(s.body)))
        return ir.CountLoop(
            counter, index_type, ir.Const(index_type, 0), ir.Const(index_type, stack_type.size - 1), body
        )

    def _switch(self, s: syntax.Switch) -> ir.Stmt:
        subject = self.expression(s.subject)
        cases: list[ir.SwitchCase] = []
        values: list[int] = []
        seen: set[int] = set()
        default = False
        for case in s.cases:
            if case.label is None:
                default = True
            else:
                value = self._label(case.label, s.subject.type)
                if value not in seen:  # the first of those that an instance makes equal counts
                    values.append(value)
                seen.add(value)
            if case.body is None:
                continue  # falls through to the next case that has a body
            if default:
                cases.append(ir.SwitchCase((), self.block(case.body)))
            elif values:
                cases.append(ir.SwitchCase(tuple(values), self.block(case.body)))
            values = []
        return ir.Switch(subject, tuple(cases))

    def _label(self, label: syntax.Expression, type_: t.Type) -> int:
        if isinstance(type_, t.ActionListType):
            assert isinstance(label, syntax.Name)
            return next(i for i, a in enumerate(type_.table.actions) if a.name == label.name)
        value: int = fold.wrap(int(self.fixed(label, "a switch label")), type_)
        bits = t.strip(type_)
        return value & ((1 << bits.width) - 1) if isinstance(bits, t.BitType) else value

    def initial(self, declaration: syntax.Variable) -> ir.Expr:
        """The value of a variable of the block."""
        return zero(declaration.type) if declaration.value is None else self.expression(declaration.value)


def _header_ahead(e: syntax.Expression) -> targets.MethodTarget | None:
    """The method of a look-ahead at a header."""
    if isinstance(e, syntax.Call) and isinstance(e.target, targets.MethodTarget) and t.is_header(e.type):
        return e.target if e.target.method.name == "lookahead" else None
    return None
