# SPDX-License-Identifier: Apache-2.0
"""Statements of generated programs: controls, actions and functions. Every node prints itself as P4 and runs itself in
Python, with copy-in and copy-out as in the P4_16 specification (6.8)."""

from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.programs.expressions import Environment, Expression, Ref, Slice, Type, arithmetic, literal


class ExitControl(Exception):  # noqa: N818 - control flow, not an error
    """`exit` was run."""


class ReturnFrom(Exception):  # noqa: N818
    """`return` was run; `value` is the function's result."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class Statement:
    """Base of all nodes."""

    def p4(self) -> list[str]:
        """Lines of P4."""
        raise NotImplementedError

    def run(self, env: Environment) -> None:
        raise NotImplementedError


@dataclass
class Block(Statement):
    statements: list[Statement] = field(default_factory=list)

    def p4(self) -> list[str]:
        return ["{", *("    " + line for s in self.statements for line in s.p4()), "}"]

    def run(self, env: Environment) -> None:
        for statement in self.statements:
            statement.run(env)


LValue = Ref | Slice


def store(env: Environment, target: LValue, value: Any) -> None:
    """Assigns to a variable or to a slice of one."""
    if isinstance(target, Ref):
        target.type.store(env, target.path, value)
        return
    assert isinstance(target.operand, Ref)
    mask = (1 << target.type.width) - 1 << target.low
    whole = target.operand.type
    bits = whole.unsigned(env[target.operand.path])
    env[target.operand.path] = whole.wrap(bits & ~mask | int(value) << target.low)


@dataclass
class Assign(Statement):
    target: LValue
    expression: Expression

    def p4(self) -> list[str]:
        return [f"{self.target.p4()} = {self.expression.p4()};"]

    def run(self, env: Environment) -> None:
        store(env, self.target, self.expression.value(env))


@dataclass
class Declare(Statement):
    """A local variable, with its first value."""

    target: Ref
    expression: Expression

    def p4(self) -> list[str]:
        return [f"{self.target.type.p4} {self.target.path} = {self.expression.p4()};"]

    def run(self, env: Environment) -> None:
        store(env, self.target, self.expression.value(env))


@dataclass
class OperatorAssign(Statement):
    target: Ref
    operator: str
    expression: Expression

    def p4(self) -> list[str]:
        return [f"{self.target.p4()} {self.operator}= {self.expression.p4()};"]

    def run(self, env: Environment) -> None:
        old = env[self.target.path]
        env[self.target.path] = arithmetic(self.target.type, self.operator, old, self.expression.value(env))


@dataclass
class If(Statement):
    condition: Expression
    then: Block
    other: Block

    def p4(self) -> list[str]:
        lines = [f"if ({self.condition.p4()}) {{", *self.then.p4()[1:-1]]
        if self.other.statements:
            lines += ["} else {", *self.other.p4()[1:-1]]
        return [*lines, "}"]

    def run(self, env: Environment) -> None:
        (self.then if self.condition.value(env) else self.other).run(env)


@dataclass
class SwitchValue(Statement):
    """`switch` on a number; a case without a body falls through to the next one."""

    subject: Expression
    cases: list[tuple[int | None, Block | None]]  # None: default

    def p4(self) -> list[str]:
        lines = [f"switch ({self.subject.p4()}) {{"]
        for label, body in self.cases:
            text = "default" if label is None else f"{self.subject.type.width}w{literal(label)}"
            if body is None:
                lines.append(f"    {text}:")
            else:
                lines += [f"    {text}: {{", *("    " + s for s in body.p4()[1:-1]), "    }"]
        return [*lines, "}"]

    def run(self, env: Environment) -> None:
        subject = self.subject.value(env)
        place = next((i for i, (label, _) in enumerate(self.cases) if label == subject), None)
        if place is None:
            place = next((i for i, (label, _) in enumerate(self.cases) if label is None), None)
        if place is None:
            return
        body = next((b for _, b in self.cases[place:] if b is not None), None)
        if body is not None:
            body.run(env)


@dataclass
class Leave(Statement):
    """`exit`, or `return` of a control or an action."""

    exit: bool

    def p4(self) -> list[str]:
        return ["exit;" if self.exit else "return;"]

    def run(self, env: Environment) -> None:
        raise ExitControl if self.exit else ReturnFrom


@dataclass
class For(Statement):
    """for (bit<8> i = low; i <= high; i = i + 1)"""

    variable: str
    low: int
    high: int
    body: Block

    def p4(self) -> list[str]:
        i = self.variable
        head = f"for (bit<8> {i} = {self.low}; {i} <= {self.high}; {i} = {i} + 1) {{"
        return [head, *self.body.p4()[1:-1], "}"]

    def run(self, env: Environment) -> None:
        for i in range(self.low, self.high + 1):
            env[self.variable] = i
            self.body.run(env)


@dataclass(frozen=True)
class Parameter:
    """`direction`: in, out, inout, or "" if the control plane gives the argument."""

    name: str
    type: Type
    direction: str

    def p4(self) -> str:
        return f"{self.direction} {self.type.p4} {self.name}".strip()


@dataclass
class Routine:
    """An action; with `result`, a function. Parameter names are unique in the program."""

    name: str
    parameters: list[Parameter]
    body: Block
    result: Type | None = None
    returned: Expression | None = None

    def p4(self) -> list[str]:
        parameters = ", ".join(p.p4() for p in self.parameters)
        kind = "action" if self.result is None else self.result.p4
        lines = self.body.p4()
        if self.returned is not None:
            lines.insert(len(lines) - 1, f"    return {self.returned.p4()};")
        return [f"{kind} {self.name}({parameters}) {{", *lines[1:]]

    def call(self, env: Environment, arguments: list[Expression]) -> Any:
        """Copies in from left to right, runs, copies out from left to right (also when the body exits)."""
        values = [
            0 if p.direction == "out" else a.value(env)
            for p, a in zip(self.parameters, arguments, strict=True)
        ]
        for parameter, value in zip(self.parameters, values, strict=True):
            if parameter.direction != "out":
                parameter.type.store(env, parameter.name, value)
        result = None
        try:
            self.body.run(env)
            if self.returned is not None:
                result = self.returned.value(env)
        except ReturnFrom as leaving:
            result = leaving.value
        finally:
            for parameter, argument in zip(self.parameters, arguments, strict=True):
                if parameter.direction in ("out", "inout"):
                    assert isinstance(argument, Ref | Slice)
                    store(env, argument, parameter.type.load(env, parameter.name))
        return result


@dataclass
class Call(Statement, Expression):
    """A call of an action (a statement) or of a function (an expression)."""

    callee: Routine
    arguments: list[Expression]
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        self.type = self.callee.result or Type(0)

    def text(self) -> str:
        return f"{self.callee.name}({', '.join(a.p4() for a in self.arguments)})"

    def p4(self) -> Any:
        return [self.text() + ";"] if self.callee.result is None else self.text()

    def value(self, env: Environment) -> Any:
        return self.callee.call(env, self.arguments)

    def run(self, env: Environment) -> None:
        self.callee.call(env, self.arguments)

    def children(self) -> list[Expression]:
        return list(self.arguments)
