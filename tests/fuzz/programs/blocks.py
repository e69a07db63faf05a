# SPDX-License-Identifier: Apache-2.0
"""Inner controls and inner parsers of a generated program, with constructor parameters."""

from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.programs.expressions import Environment, Expression, Ref, literal
from tests.fuzz.programs.headers import Header, set_validity
from tests.fuzz.programs.parsers import Parser, ParserStatement
from tests.fuzz.programs.statements import Block, Parameter, Routine


def _declared(parameters: list[Parameter]) -> str:
    return ", ".join(p.p4() for p in parameters)


def _given(parameters: list[Parameter], values: list[int]) -> str:
    return ", ".join(
        ("true" if v else "false") if p.type.width == 0 else literal(v)
        for p, v in zip(parameters, values, strict=True)
    )


@dataclass
class Control:
    name: str
    constructor: list[Parameter]
    parameters: list[Parameter]
    body: Block

    def p4(self) -> list[str]:
        head = f"control {self.name}({_declared(self.parameters)})({_declared(self.constructor)}) {{"
        return [head, "    apply {", *("    " + s for s in self.body.p4()[1:-1]), "    }", "}"]


@dataclass
class Instance(Routine):
    """An instance of an inner control. `values` are the constructor's arguments."""

    control: Control | None = None
    values: list[int] = field(default_factory=list)

    @staticmethod
    def of(control: Control, name: str, values: list[int]) -> "Instance":
        return Instance(f"{name}.apply", control.parameters, control.body, control=control, values=values)

    @property
    def exits(self) -> bool:
        return any(line.strip() == "exit;" for line in self.body.p4())

    def p4(self) -> list[str]:
        assert self.control is not None
        name = self.name.removesuffix(".apply")
        return [f"{self.control.name}({_given(self.control.constructor, self.values)}) {name};"]

    def call(self, env: Environment, arguments: list[Expression]) -> Any:
        assert self.control is not None
        for parameter, value in zip(self.control.constructor, self.values, strict=True):
            env[parameter.name] = bool(value) if parameter.type.width == 0 else value
        return super().call(env, arguments)


@dataclass
class SubParser:
    """parser name(packet_in packet, inout `header` path, inout number)(constant)"""

    name: str
    header: Header
    path: str
    number: Parameter
    constant: Parameter
    parser: Parser = field(default_factory=lambda: Parser([]))

    def p4(self) -> list[str]:
        head = f"packet_in packet, inout {self.header.name} {self.path}, {self.number.p4()}"
        lines = [f"parser {self.name}({head})({self.constant.p4()}) {{"]
        return [*lines, *("    " + line for line in self.parser.p4()), "}"]


@dataclass
class CallParser(ParserStatement):
    """Applies an instance with this value for the constant. p4c replaces the parameters with the arguments, so
    changes to the parameters remain even if parsing ends in the inner parser."""

    parser: SubParser
    instance: str
    constant: int
    path: str
    number: Ref

    def declaration(self) -> str:
        return f"{self.parser.name}({literal(self.constant)}) {self.instance};"

    def p4(self) -> list[str]:
        return [f"{self.instance}.apply(packet, {self.path}, {self.number.p4()});"]

    def run(self, env: Environment) -> None:
        inner = self.parser
        env[inner.constant.name] = self.constant
        env[inner.number.name] = self.number.value(env)
        self._copy(env, self.path, inner.path)
        try:
            inner.parser.enter(env)
        finally:
            self._copy(env, inner.path, self.path)
            self.number.type.store(env, self.number.path, env[inner.number.name])

    def _copy(self, env: Environment, source: str, target: str) -> None:
        set_validity(env, target, env[f"{source}.$valid"])
        for name in self.parser.header.names():
            env[f"{target}.{name}"] = env[f"{source}.{name}"]
