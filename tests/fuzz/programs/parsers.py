# SPDX-License-Identifier: Apache-2.0
"""Parsers of generated programs. Every node prints itself as P4 and runs itself in Python, bit by bit, as in the P4_16
specification (12). After an error the packet goes on to the ingress with the headers extracted so far, as in
v1model."""

from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.programs.expressions import Environment, Expression, Ref, Type, literal
from tests.fuzz.programs.headers import Header, Varbit, set_validity


class ParserError(Exception):
    """The parser ends with `error.<name>`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserInvalidArgument",
    "Mine",
)


class Packet:
    """The bits of a frame and a cursor."""

    def __init__(self, frame: bytes) -> None:
        self.bits = "".join(f"{byte:08b}" for byte in frame)
        self.at = 0

    def peek(self, width: int) -> str:
        if self.at + width > len(self.bits):
            raise ParserError("PacketTooShort")
        return self.bits[self.at : self.at + width]

    def rest(self) -> bytes:
        left = self.bits[self.at :]
        return int("1" + left, 2).to_bytes(len(left) // 8 + 1, "big")[1:] if left else b""


PACKET = "$packet"  # its name in the environment


def extract(env: Environment, header: Header, path: str, varying: int = 0) -> None:
    """Extract a header. `varying`: size of its varbit field in bits."""
    packet: Packet = env[PACKET]
    bits = packet.peek(header.width + varying)
    packet.at += header.width + varying
    for name, type_ in header.fields:
        width = varying if isinstance(type_, Varbit) else max(1, type_.width)
        field, bits = bits[:width], bits[width:]
        if isinstance(type_, Varbit):
            env[f"{path}.{name}"] = field
        else:
            number = int(field, 2)
            env[f"{path}.{name}"] = bool(number) if type_.width == 0 else type_.wrap(number)
    set_validity(env, path, True)


class ParserStatement:
    def p4(self) -> list[str]:
        raise NotImplementedError

    def run(self, env: Environment) -> None:
        raise NotImplementedError


@dataclass
class Extract(ParserStatement):
    header: Header
    path: str

    def p4(self) -> list[str]:
        return [f"packet.extract({self.path});"]

    def run(self, env: Environment) -> None:
        extract(env, self.header, self.path)


@dataclass
class ExtractVarbit(ParserStatement):
    """`size`: size of the varbit field in bits, a bit<32>."""

    header: Header
    path: str
    size: Expression

    def p4(self) -> list[str]:
        return [f"packet.extract({self.path}, {self.size.p4()});"]

    def run(self, env: Environment) -> None:
        size = min(self.size.value(env), 0x7FFFFFFF)  # an int in BMv2
        most = next(t.width for _, t in self.header.fields if isinstance(t, Varbit))
        if size % 8:
            raise ParserError("ParserInvalidArgument")
        env[PACKET].peek(self.header.width + size)  # BMv2 checks this first
        if size > most:
            raise ParserError("HeaderTooShort")
        extract(env, self.header, self.path, size)


@dataclass
class ExtractNext(ParserStatement):
    """`member`: the union's member for a stack of unions, "" for a stack of headers."""

    header: Header
    stack: str
    size: int
    member: str = ""

    def p4(self) -> list[str]:
        return [f"packet.extract({self.stack}.next{self.member and '.' + self.member});"]

    def run(self, env: Environment) -> None:
        place = env[f"{self.stack}.$next"]
        if place >= self.size:
            raise ParserError("StackOutOfBounds")
        extract(env, self.header, f"{self.stack}[{place}]{self.member and '.' + self.member}")
        env[f"{self.stack}.$next"] = place + 1


@dataclass
class Advance(ParserStatement):
    """`distance`: bits to skip, a multiple of 8."""

    distance: int

    def p4(self) -> list[str]:
        return [f"packet.advance({self.distance});"]

    def run(self, env: Environment) -> None:
        env[PACKET].peek(self.distance)
        env[PACKET].at += self.distance


@dataclass
class Verify(ParserStatement):
    condition: Expression
    error: str

    def p4(self) -> list[str]:
        return [f"verify({self.condition.p4()}, error.{self.error});"]

    def run(self, env: Environment) -> None:
        if not self.condition.value(env):
            raise ParserError(self.error)


@dataclass
class Set(ParserStatement):
    target: Ref
    expression: Expression

    def p4(self) -> list[str]:
        return [f"{self.target.p4()} = {self.expression.p4()};"]

    def run(self, env: Environment) -> None:
        env[self.target.path] = self.expression.value(env)


@dataclass
class Lookahead(Expression):
    type: Type

    def p4(self) -> str:
        return f"packet.lookahead<{self.type.p4}>()"

    def value(self, env: Environment) -> Any:
        return self.type.wrap(int(env[PACKET].peek(self.type.width), 2))


@dataclass
class Last(Expression):
    """A field of the last extracted element of a stack."""

    type: Type
    stack: str
    name: str

    def p4(self) -> str:
        return f"{self.stack}.last.{self.name}"

    def value(self, env: Environment) -> Any:
        place = env[f"{self.stack}.$next"]
        if place == 0:
            raise ParserError("StackOutOfBounds")
        return env[f"{self.stack}[{place - 1}].{self.name}"]


@dataclass
class ValueSet:
    """Members have one number a field. The type is bit<W> for one field, a struct for more."""

    name: str
    widths: list[int]
    size: int
    members: list[list[int]]

    @property
    def struct(self) -> str:
        if len(self.widths) == 1:
            return ""
        fields = " ".join(f"bit<{w}> f{n};" for n, w in enumerate(self.widths))
        return f"struct {self.name}_t {{ {fields} }}"

    def p4(self) -> str:
        element = f"{self.name}_t" if self.struct else f"bit<{self.widths[0]}>"
        return f"value_set<{element}>({self.size}) {self.name};"


Keyset = int | tuple[str, int, int] | None


@dataclass
class State:
    """Without `keys` the state goes to `target`. A keyset is a number, ("&&&", value, mask), ("..", low, high) or None
    (`_`). A value set matches all keys."""

    name: str
    statements: list[ParserStatement] = field(default_factory=list)
    keys: list[Expression] = field(default_factory=list)
    cases: list[tuple[list[Keyset] | ValueSet, str]] = field(default_factory=list)
    target: str = "accept"

    def p4(self) -> list[str]:
        lines = [f"state {self.name} {{", *("    " + line for s in self.statements for line in s.p4())]
        if not self.keys:
            return [*lines, f"    transition {self.target};", "}"]
        lines.append(f"    transition select({', '.join(k.p4() for k in self.keys)}) {{")
        lines += [f"        {self._keysets(keysets)}: {target};" for keysets, target in self.cases]
        return [*lines, "    }", "}"]

    def _keysets(self, keysets: list[Keyset] | ValueSet) -> str:
        if isinstance(keysets, ValueSet):
            return keysets.name
        parts = []
        for keyset in keysets:
            if keyset is None:
                parts.append("_" if len(keysets) > 1 else "default")
            elif isinstance(keyset, int):
                parts.append(literal(keyset))
            else:
                parts.append(f"{literal(keyset[1])} {keyset[0]} {literal(keyset[2])}")
        return f"({', '.join(parts)})" if len(parts) > 1 else parts[0]

    def run(self, env: Environment) -> str:
        """Runs the state; returns the next state's name."""
        for statement in self.statements:
            statement.run(env)
        if not self.keys:
            return self.target
        values = [k.value(env) for k in self.keys]
        for keysets, target in self.cases:
            if isinstance(keysets, ValueSet):
                if values in keysets.members:
                    return target
            elif all(map(_matches, values, keysets)):
                return target
        return "reject"


def _matches(value: int, keyset: Keyset) -> bool:
    if keyset is None:
        return True
    if isinstance(keyset, int):
        return value == keyset
    operator, first, second = keyset
    return value & second == first & second if operator == "&&&" else first <= value <= second


@dataclass
class Parser:
    states: list[State]
    value_sets: list[ValueSet] = field(default_factory=list)

    def p4(self) -> list[str]:
        return [v.p4() for v in self.value_sets] + [line for s in self.states for line in s.p4()]

    def enter(self, env: Environment) -> None:
        """Parses up to `accept`. Raises ParserError."""
        states = {s.name: s for s in self.states}
        now = "start"
        while now != "accept":
            now = states[now].run(env)
            if now == "reject":
                raise ParserError("NoError")  # BMv2 sets no error

    def run(self, env: Environment) -> str:
        """Parses; returns the name of the error that ended it, or NoError."""
        try:
            self.enter(env)
        except ParserError as error:
            return error.name
        return "NoError"
