# SPDX-License-Identifier: Apache-2.0
"""Statements of generated programs: controls, actions, functions and tables. Every node prints itself as P4 and runs
itself in Python: copy-in/copy-out by the specification (6.8), tables by trying every entry."""

from dataclasses import dataclass, field
from typing import Any

from fuzz_expressions import Environment, Expression, Ref, Slice, Type, arithmetic, literal


class ExitControl(Exception):  # noqa: N818 - control flow, not an error
    """`exit` was run."""


class ReturnFrom(Exception):  # noqa: N818
    """`return` was run; `value` is a function's."""

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
    """Assigns to a scalar or to a slice of one."""
    if isinstance(target, Ref):
        env[target.path] = value
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
class SetValid(Statement):
    """setValid makes the fields of an invalid header zero, as BMv2 does; setInvalid leaves them."""

    header: str
    valid: bool
    fields: list[str]

    def p4(self) -> list[str]:
        return [f"{self.header}.{'setValid' if self.valid else 'setInvalid'}();"]

    def run(self, env: Environment) -> None:
        if self.valid and not env[f"{self.header}.$valid"]:
            for name in self.fields:
                env[f"{self.header}.{name}"] = 0
        env[f"{self.header}.$valid"] = self.valid


@dataclass
class CopyHeader(Statement):
    """An assignment of headers of one type. An invalid one makes the target invalid and leaves its fields."""

    target: str
    source: str
    fields: list[str]

    def p4(self) -> list[str]:
        return [f"{self.target} = {self.source};"]

    def run(self, env: Environment) -> None:
        valid = env[f"{self.source}.$valid"]
        env[f"{self.target}.$valid"] = valid
        if valid:
            for name in self.fields:
                env[f"{self.target}.{name}"] = env[f"{self.source}.{name}"]


@dataclass
class Move(Statement):
    """push_front or pop_front of a stack, also by more than its size; what comes in is invalid."""

    stack: str
    size: int
    how: str
    count: int
    fields: list[str]

    def p4(self) -> list[str]:
        return [f"{self.stack}.{self.how}({self.count});"]

    def run(self, env: Environment) -> None:
        names = ["$valid", *self.fields]
        before = [[env[f"{self.stack}[{n}].{name}"] for name in names] for n in range(self.size)]
        for n in range(self.size):
            source = n - self.count if self.how == "push_front" else n + self.count
            values = before[source] if 0 <= source < self.size else [False] + [0] * len(self.fields)
            for name, value in zip(names, values, strict=True):
                env[f"{self.stack}[{n}].{name}"] = value


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
    """`direction` is in, out, inout, or "" for what the control plane gives."""

    name: str
    type: Type
    direction: str

    def p4(self) -> str:
        return f"{self.direction} {self.type.p4} {self.name}".strip()


@dataclass
class Routine:
    """An action, or with `result` a function. Parameter names are unique in the program."""

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
            env[parameter.name] = value
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
                    store(env, argument, env[parameter.name])
        return result


@dataclass
class Call(Statement, Expression):
    """Of an action (a statement) or a function (an expression)."""

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


@dataclass
class Entry:
    """`keys`: per key None (anything), a number, or by the key's kind (value, prefix length), (value, mask),
    (low, high). Earlier entries win where priority decides."""

    keys: list[int | tuple[int, int] | None]
    action: Routine
    arguments: list[int]


@dataclass
class Table:
    name: str
    keys: list[tuple[Expression, str]]  # with the match kind
    actions: list[Routine]
    entries: list[Entry]
    const: bool
    default: Routine
    default_arguments: list[int]

    def key_name(self, place: int) -> str:
        return f"k{place}"

    def p4(self) -> list[str]:
        keys = " ".join(
            f'{e.p4()}: {kind} @name("{self.key_name(i)}");' for i, (e, kind) in enumerate(self.keys)
        )
        lines = [f"table {self.name} {{", f"    key = {{ {keys} }}"]
        lines.append(f"    actions = {{ {' '.join(a.name + ';' for a in self.actions)} }}")
        lines.append(f"    default_action = {self._action(self.default, self.default_arguments)};")
        if self.const:
            lines.append("    const entries = {")
            lines += [
                f"        ({', '.join(map(self._keyset, e.keys, range(len(e.keys))))}): "
                f"{self._action(e.action, e.arguments)};"
                for e in self.entries
            ]
            lines.append("    }")
        return [*lines, "}"]

    def _action(self, action: Routine, arguments: list[int]) -> str:
        return f"{action.name}({', '.join(literal(a) for a in arguments)})"

    def _keyset(self, key: int | tuple[int, int] | None, place: int) -> str:
        kind, width = self.keys[place][1], self.keys[place][0].type.width
        if key is None:
            return "_"
        if isinstance(key, int):
            return literal(key)
        if kind == "lpm":
            mask = (1 << width) - (1 << (width - key[1]))
            return f"{literal(key[0])} &&& {literal(mask)}"
        return f"{literal(key[0])} {'..' if kind == 'range' else '&&&'} {literal(key[1])}"

    def apply(self, env: Environment) -> tuple[bool, Routine]:
        """Looks up and runs the action. Returns whether it hit, and the action."""
        values = [e.type.unsigned(e.value(env)) for e, _ in self.keys]
        found = [e for e in self.entries if all(map(self._matches, values, e.keys, self.keys))]
        if not any(kind in ("ternary", "range", "optional") for _, kind in self.keys):
            found.sort(key=self._prefix, reverse=True)
        if found:
            self._run(env, found[0].action, found[0].arguments)
            return True, found[0].action
        self._run(env, self.default, self.default_arguments)
        return False, self.default

    def _prefix(self, entry: Entry) -> int:
        return sum(k[1] for k in entry.keys if isinstance(k, tuple))

    def _matches(self, value: int, key: int | tuple[int, int] | None, of: tuple[Expression, str]) -> bool:
        expression, kind = of
        if key is None:
            return True
        if isinstance(key, int):
            return value == key
        if kind == "lpm":
            shift = expression.type.width - key[1]
            return value >> shift == key[0] >> shift
        if kind == "ternary":
            return value & key[1] == key[0] & key[1]
        return key[0] <= value <= key[1]

    def _run(self, env: Environment, action: Routine, arguments: list[int]) -> None:
        from fuzz_expressions import Const

        constants: list[Expression] = [
            Const(p.type, p.type.wrap(a)) for p, a in zip(action.parameters, arguments, strict=True)
        ]
        action.call(env, constants)


@dataclass
class Apply(Statement):
    """t.apply(); or if (t.apply().hit), or switch (t.apply().action_run)."""

    table: Table
    how: str = "plain"  # plain, hit, miss, switch
    then: Block = field(default_factory=Block)
    other: Block = field(default_factory=Block)

    def p4(self) -> list[str]:
        text = f"{self.table.name}.apply()"
        if self.how == "plain":
            return [f"{text};"]
        if self.how == "switch":
            return [
                f"switch ({text}.action_run) {{",
                f"    {self.table.actions[0].name}: {{", *("    " + s for s in self.then.p4()[1:-1]), "    }",
                "    default: {", *("    " + s for s in self.other.p4()[1:-1]), "    }", "}",
            ]  # fmt: skip
        return [f"if ({text}.{self.how}) {{", *self.then.p4()[1:-1], "} else {", *self.other.p4()[1:-1], "}"]

    def run(self, env: Environment) -> None:
        hit, action = self.table.apply(env)
        if self.how == "plain":
            return
        taken = {"hit": hit, "miss": not hit, "switch": action is self.table.actions[0]}[self.how]
        (self.then if taken else self.other).run(env)
