# SPDX-License-Identifier: Apache-2.0
"""Random functions, actions and inner controls."""

from tests.fuzz.generate.statements import StatementGenerator
from tests.fuzz.programs.blocks import Control, Instance
from tests.fuzz.programs.expressions import BOOL, Ref, Type
from tests.fuzz.programs.statements import Assign, Block, Parameter, Routine, Statement


class RoutineGenerator(StatementGenerator):
    def function(self) -> Routine:
        kept, seen = self.kept_scope(), self.headers_seen
        self.headers_seen = False
        types = [r.type for r in self.scope + self.others]
        parameters = []
        for _ in range(self.random.randrange(1, 4)):
            direction = self.random.choice(("in", "in", "inout", "out"))
            parameters.append(Parameter(self.name("p"), self.random.choice(types), direction))
        self.scope, self.read_only, self.others, self.others_read_only = [], [], [], []
        self.enter_parameters(parameters)
        result = self.random.choice(types)
        body = self.block(2, "function") if any(r.type != BOOL for r in self.scope) else Block()
        body.statements[:0] = self.first_values(parameters)
        made = Routine(self.name("function"), parameters, body, result, self.expression(result, 2))
        self.restore_scope(kept)
        self.headers_seen = seen
        return made

    def first_values(self, parameters: list[Parameter]) -> list[Statement]:
        """Assignments to the `out` parameters, which have no value at first."""
        return [
            Assign(Ref(p.type, p.name), self.first_of(p.type)) for p in parameters if p.direction == "out"
        ]

    def action(self, for_table: bool) -> Routine:
        kept = self.kept_scope()
        types = [r.type for r in self.scope + self.others]
        parameters = []
        for _ in range(self.random.randrange(3)):
            direction = "" if for_table else self.random.choice(("in", "inout", "inout", "out"))
            type_ = self.random.choice(types)
            if for_table and (type_.signed or type(type_) is not Type or type_ == BOOL):
                type_ = Type(max(1, type_.width))
            parameters.append(Parameter(self.name("p"), type_, direction))
        self.enter_parameters(parameters)
        body = self.block(2, "action")
        body.statements[:0] = self.first_values(parameters)
        self.restore_scope(kept)
        return Routine(self.name("action"), parameters, body)

    def control(self) -> Control:
        """An inner control, which sees only its parameters."""
        kept, seen = self.kept_scope(), self.headers_seen
        self.headers_seen = False
        types = [r.type for r in self.scope + self.others]
        numbers = [r.type for r in self.scope if r.type != BOOL]
        parameters = [Parameter(self.name("p"), self.random.choice(numbers), "inout")]
        for _ in range(self.random.randrange(3)):
            direction = self.random.choice(("in", "inout", "out"))
            parameters.append(Parameter(self.name("p"), self.random.choice(types), direction))
        plain = [t for t in numbers if not t.signed] or [Type(8)]
        constructor = [
            Parameter(self.name("c"), self.random.choice([*plain, BOOL]), "")
            for _ in range(self.random.randrange(3))
        ]
        self.scope, self.read_only, self.others, self.others_read_only = [], [], [], []
        self.enter_parameters([*parameters, *constructor])
        body = self.block(2, "sub")
        body.statements[:0] = self.first_values(parameters)
        self.restore_scope(kept)
        self.headers_seen = seen
        return Control(self.name("Control"), constructor, parameters, body)

    def instance(self, control: Control) -> Instance:
        values = [self.random.getrandbits(max(1, p.type.width)) for p in control.constructor]
        return Instance.of(control, self.name("inner"), values)
