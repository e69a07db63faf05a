"""Parser states and value sets."""

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.types import set_fields
from inagg_switch.compiler.lower.tables import TableLowerer
from inagg_switch.compiler.names import spell
from inagg_switch.errors import CompileError


class ParserLowerer(TableLowerer):
    """Lowers the states of a parser."""

    def value_set(self, local: syntax.ValueSet, full_name: str, member: str) -> ir.ValueSet:
        fields = [
            ir.SetField(
                name, _match_kind(field), type_, t.bit_width(type_), field.annotations if field else ()
            )
            for name, type_, field in set_fields(local.type)
        ]
        size = self.number(local.size, "the size of a value set")
        if not 0 <= size < 1 << 31:
            raise CompileError(f"size {size} of a value set is too large", local.size.start)
        made = ir.ValueSet(member, full_name, local, fields, size)
        self.values[id(local)] = made
        return made

    def state(self, state: syntax.State) -> ir.State:
        body = list(self.statements(state.body))
        name = f"state_{spell(state.name)}"
        if state.transition is None:
            return ir.State(name, tuple(body), (), (ir.Case((), "reject"),))
        if isinstance(state.transition, str):
            return ir.State(name, tuple(body), (), (ir.Case((), _label(state.transition)),))
        subjects = tuple(self.expression(s) for s in state.transition.subjects)
        cases = tuple(
            ir.Case(tuple(self._match(k) for k in c.keys), _label(c.state)) for c in state.transition.cases
        )
        body.extend(self.pending)
        self.pending = []
        return ir.State(name, tuple(body), subjects, cases)

    def _match(self, key: syntax.Expression) -> ir.Match | None:
        if isinstance(key, syntax.Anything | syntax.DefaultValue):
            return None
        if isinstance(key, syntax.Name) and isinstance(key.declaration, syntax.ValueSet):
            return ir.Match("set", (), self.values[id(key.declaration)])
        if isinstance(key, syntax.Mask):
            return ir.Match("mask", (self.expression(key.left), self.expression(key.mask)))
        if isinstance(key, syntax.Range):
            return ir.Match("range", (self.expression(key.low), self.expression(key.high)))
        return ir.Match("value", (self.expression(key),))


def _match_kind(field: syntax.Field | None) -> str:
    """`@match(...)` of a field; exact without one."""
    annotation = None if field is None else field.annotation("match")
    if annotation is None:
        return "exact"
    kind = str(annotation.arguments[0]) if annotation.arguments else ""
    if kind not in ("exact", "lpm", "ternary", "range", "optional"):
        raise CompileError(f"`{kind}` is not a match kind of a value set", annotation.at)
    return kind


def _label(state: str) -> str:
    return state if state in ("accept", "reject") else f"state_{spell(state)}"
