# SPDX-License-Identifier: Apache-2.0
"""Finds the reachable code of a lowered program, as p4c's front end does: P4Info lists only that.

The search takes constants, constructor arguments and `return` into account, but not the values of variables.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from inagg_switch.compiler import fold, ir, primitives, syntax

_USES = (primitives.RegisterRead, primitives.RegisterWrite, primitives.Count, primitives.ExecuteMeter)
_BINARY = frozenset(
    ["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "&", "|", "^", "<<", ">>", "++", "|+|", "|-|"]
)


@dataclass
class Reached:
    """The reachable blocks, objects and actions, by id()."""

    ids: set[int] = field(default_factory=set)

    def __contains__(self, made: ir.Block | ir.Object | ir.Action) -> bool:
        return id(made) in self.ids

    def shows(self, made: ir.Object | ir.Action) -> bool:
        """True if P4Info lists the object or action: it is reachable and not @hidden."""
        return made in self and made.declaration.annotation("hidden") is None


def reached(program: ir.Program) -> Reached:
    """Finds what can be reached from the pipeline.

    p4c keeps all objects of a reachable block, used or not, except tables, digests, direct counters and direct meters,
    and arrays that are declared through a typedef.
    """
    walk = _Walk(program)
    for block in program.pipeline.values():
        walk.block(block)
    found = walk.found
    skipped = {id(made) for block in program.blocks if block not in found for made in block.objects}
    for made in program.objects:
        if isinstance(made, ir.Table | ir.Digest):
            continue
        if isinstance(made, ir.DirectCounter | ir.DirectMeter):
            kept = made.table is not None and found.shows(made.table)
        else:
            kept = id(made) not in skipped and (id(made) in walk.used or not _is_array_by_typedef(made))
        if kept:
            found.ids.add(id(made))
    return found


class _Walk:
    def __init__(self, program: ir.Program) -> None:
        self.found = Reached()
        self.used: set[int] = set()  # registers, counters and meters, by id()
        self._blocks = {block.name: block for block in program.blocks}
        self._actions: dict[str, ir.Action] = {}
        self._inside_action = False
        self._unread: set[str] = set()  # local variables of the body that occur once
        self._returns = False  # the body has a `return`; in others p4c does not remove the code after `exit`

    def block(self, block: ir.Block) -> None:
        if block in self.found:
            return
        self.found.ids.add(id(block))
        outer, self._actions = self._actions, {action.name: action for action in block.actions}
        self._body(block.body)
        for state in block.states:
            self.statements(state.body)
            self._expressions(state.subjects)
        self._actions = outer

    def _body(self, body: ir.Stmt) -> None:
        """Visits the body of a block or an action."""
        outer = self._returns, self._unread
        self._returns, self._unread = _has_return(body), _unread(body)
        self.statement(body)
        self._returns, self._unread = outer

    def statements(self, body: Iterable[ir.Stmt]) -> bool:
        """Visits statements until one leaves the body; returns whether one does."""
        return any(self.statement(s) for s in body)

    def statement(self, s: ir.Stmt | None) -> bool:
        match s:
            case None:
                return False
            case ir.Group(body):
                return self.statements(body)
            case ir.Striped(number, body):
                self._expression(number)
                return self.statement(body)
            case ir.If(condition, then, otherwise):
                self._expression(condition)
                known = constant(condition)
                if known is not None:
                    return self.statement(then if known else otherwise)
                ended = self.statement(then)
                return self.statement(otherwise) and ended
            case ir.Jump(kind, value):
                self._expressions([] if value is None else [value])
                return kind == "return" or (kind == "exit" and self._returns)
        if isinstance(s, primitives.Digest):
            self.found.ids.add(id(s.object))
        if isinstance(s, _USES) and not self._is_dropped(s):
            self.used.add(id(s.object))
        self._within(s)
        return False

    def _is_dropped(self, s: ir.Stmt) -> bool:
        """True for a read of a register whose result nothing reads: p4c removes it."""
        if not isinstance(s, primitives.RegisterRead) or not isinstance(s.result, ir.Var):
            return False
        return s.result.name in self._unread

    def _within(self, node: ir.Node) -> None:
        for child in ir.children(node):
            if isinstance(child, ir.Stmt):
                self.statement(child)
            elif isinstance(child, ir.Expr):
                self._expression(child)
            else:
                self._within(child)

    def _expressions(self, expressions: Iterable[ir.Expr]) -> None:
        for e in expressions:
            self._expression(e)

    def _expression(self, e: ir.Expr) -> None:
        if isinstance(e, ir.TableApply):
            self._table(e.table)
        elif isinstance(e, ir.Call):
            if e.callee in self._actions:
                self._called(self._actions[e.callee])
            elif e.callee in self._blocks:
                self.block(self._blocks[e.callee])
        self._within(e)

    def _table(self, table: ir.Table) -> None:
        if table in self.found:
            return
        self.found.ids.add(id(table))
        self._expressions(key.expr for key in table.keys)
        for use in table.actions:
            self._action(use.action)

    def _called(self, action: ir.Action) -> None:
        """Visits an action that is called. p4c inlines the action into a calling action and does not list it for
        that."""
        if self._inside_action:
            self._body(action.body)
        else:
            self._action(action)

    def _action(self, action: ir.Action) -> None:
        if action not in self.found:
            self.found.ids.add(id(action))
            self._inside_action = True
            self._body(action.body)
            self._inside_action = False


def _is_array_by_typedef(made: ir.Object) -> bool:
    """True for a register, counter or meter whose declaration does not name its extern."""
    declared = made.declaration
    if not isinstance(made, ir.Register | ir.Counter | ir.Meter) or not isinstance(
        declared, syntax.Instantiation
    ):
        return False
    return (
        isinstance(declared.ref, syntax.NamedTypeRef)
        and declared.ref.name != str(declared.type).split("<")[0]
    )


def _unread(body: ir.Stmt) -> set[str]:
    """The local variables that occur once in a body, besides their declaration."""
    nodes = list(ir.walk(body))
    times = Counter(node.name for node in nodes if isinstance(node, ir.Var))
    return {node.name for node in nodes if isinstance(node, ir.Declare) and times[node.name] == 1}


def _has_return(s: ir.Stmt) -> bool:
    return any(isinstance(node, ir.Jump) and node.kind == "return" for node in ir.walk(s))


def constant(e: ir.Expr) -> Any:
    """The value of an expression of constants; None if it is not known at compile time."""
    if isinstance(e, ir.Const):
        return e.value
    if not isinstance(e, ir.Operation):
        return None
    values = [constant(operand) for operand in e.operands]
    if e.name in ("&&", "||") and values[0] is not None:
        return values[1] if values[0] == (e.name == "&&") else values[0]
    if not values or None in values:
        return None
    if e.name == "!":
        return not values[0]
    if e.name == "cast":
        return fold.cast_value(values[0], e.type)
    if e.name not in _BINARY:
        return None
    with suppress(fold.FoldError):
        left, right = e.operands
        return fold.fold_binary(e.name, values[0], values[1], left.type, right.type)
    return None
