"""Parsers, as C++: apply() with a label for each state."""

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.structs import StructEmitter


class ParserEmitter(StructEmitter):
    """Writes the states of a parser."""

    def parser(self, block: ir.Block) -> None:
        self.open("bool apply() {")
        for member in block.members:
            if member.value is not None and not (
                isinstance(member.value, ir.Const) and member.value.value is None
            ):
                self.line(f"{member.name} = {self.expr(member.value)};")
        cyclic = _has_cycle(block.states)
        if cyclic:
            self.line("unsigned steps = 0;")
        # The first state written is the start; the others are reached by goto, if at all.
        start = next(s for s in block.states if s.name == "state_start")
        states = [start, *(s for s in block.states if s is not start)]
        targets = {case.state for state in states for case in state.cases}
        for state in states:
            if state is start or state.name in targets:
                self._state_code(state, cyclic, labelled=state.name in targets)
        self.close()

    def _state_code(self, state: ir.State, cyclic: bool, labelled: bool) -> None:
        self._level -= 1
        self.open(f"{state.name}: {{" if labelled else f"{{  // {state.name}")
        if cyclic:
            # A parser that goes round without reading must end too.
            self.line("if (++steps > kMaxParserSteps) return program.packet_in.fail(kParserTimeout);")
        self.body(state.body)
        names = [f"subject_{i}" for i in range(len(state.subjects))]
        for name, subject in zip(names, state.subjects, strict=True):
            self.line(f"const {self.type(subject.type)} {name} = {self.item(subject)};")
        always = False
        for case in state.cases:
            subjects = [ir.Var(s.type, n) for n, s in zip(names, state.subjects, strict=True)]
            tests = [
                self._in_set(subjects[place:], m) if m.kind == "set" else self._match(subjects[place], m)
                for place, m in enumerate(case.matches)
                if m is not None
            ]
            go = {"accept": "return true;", "reject": "return false;"}.get(case.state, f"goto {case.state};")
            if tests:
                self.line(f"if ({' && '.join(tests)}) {go}")
            else:
                self.line(go)
                always = True
                break
        if not always:
            # BMv2 stops parsing then, without an error (ParseState::find_next_state).
            self.line("return false;")
        self.close()
        self._level += 1

    def _in_set(self, subjects: list[ir.Var], match: ir.Match) -> str:
        """The test for a value set; the key is declared in front of it."""
        value_set: ir.ValueSet = match.object
        key = f"key_{value_set.member}"
        total = sum((f.width + 63) // 64 for f in value_set.fields)
        self.line(f"std::uint64_t {key}[{total}];")
        at = 0
        for field, subject in zip(value_set.fields, subjects, strict=False):
            self.line(f"to_limbs<{field.width}>({self.expr(subject)}, {key} + {at});")
            at += (field.width + 63) // 64
        return f"program.{value_set.member}.contains({key})"

    def _match(self, subject: ir.Expr, match: ir.Match) -> str:
        if match.kind == "value":
            return self.expr(ir.Operation(t.BOOL, "==", (subject, match.operands[0])))
        if match.kind == "mask":
            value, mask = match.operands
            type_ = subject.type
            return self.expr(
                ir.Operation(
                    t.BOOL,
                    "==",
                    (ir.Operation(type_, "&", (subject, mask)), ir.Operation(type_, "&", (value, mask))),
                )
            )
        low, high = match.operands
        return self.expr(
            ir.Operation(
                t.BOOL,
                "&&",
                (ir.Operation(t.BOOL, "<=", (low, subject)), ir.Operation(t.BOOL, "<=", (subject, high))),
            )
        )


def _has_cycle(states: list[ir.State]) -> bool:
    after = {s.name: {c.state for c in s.cases} for s in states}
    done: set[str] = set()

    def visit(name: str, path: frozenset[str]) -> bool:
        if name in path:
            return True
        if name in done or name not in after:
            return False
        found = any(visit(n, path | {name}) for n in after[name])
        done.add(name)
        return found

    return any(visit(s.name, frozenset()) for s in states)
