# SPDX-License-Identifier: Apache-2.0
"""Parsers, as C++: apply() with a label for each state."""

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import cpp_type, exact, expr
from inagg_switch.compiler.emit.statements import write_all


def write_states(out: Emitter, block: ir.Block) -> None:
    out.open("bool apply() {")
    for member in block.members:
        if member.value is not None and not (
            isinstance(member.value, ir.Const) and member.value.value is None
        ):
            out.line(f"{member.name} = {expr(out, member.value)};")
    cyclic = _has_cycle(block.states)
    if cyclic:
        out.line("unsigned steps = 0;")
    # The code starts with the start state; goto reaches the others.
    start = next(s for s in block.states if s.name == "state_start")
    states = [start, *(s for s in block.states if s is not start)]
    targets = {case.state for state in states for case in state.cases}
    for state in states:
        if state is start or state.name in targets:
            _state_code(out, state, cyclic, labelled=state.name in targets)
    out.close()


def _state_code(out: Emitter, state: ir.State, cyclic: bool, labelled: bool) -> None:
    out.level -= 1
    out.open(f"{state.name}: {{" if labelled else f"{{  // {state.name}")
    if cyclic:
        # A loop of states that reads nothing must end too.
        out.line("if (++steps > kMaxParserSteps) return program.packet_in.fail(kParserTimeout);")
    write_all(out, state.body)
    names = [f"subject_{i}" for i in range(len(state.subjects))]
    for name, subject in zip(names, state.subjects, strict=True):
        out.line(f"const {cpp_type(out, subject.type)} {name} = {exact(out, subject)};")
    always = False
    for case in state.cases:
        subjects = [ir.Var(s.type, n) for n, s in zip(names, state.subjects, strict=True)]
        tests = [
            _in_set(out, subjects[place:], m) if m.kind == "set" else _match(out, subjects[place], m)
            for place, m in enumerate(case.matches)
            if m is not None
        ]
        go = {"accept": "return true;", "reject": "return false;"}.get(case.state, f"goto {case.state};")
        if tests:
            out.line(f"if ({' && '.join(tests)}) {go}")
        else:
            out.line(go)
            always = True
            break
    if not always:
        # Without a matching case, BMv2 stops parsing without an error (ParseState::find_next_state).
        out.line("return false;")
    out.close()
    out.level += 1


def _in_set(out: Emitter, subjects: list[ir.Var], match: ir.Match) -> str:
    """Declares the key of a value set, and returns the test."""
    value_set: ir.ValueSet = match.object
    key = f"key_{value_set.member}"
    total = sum((f.width + 63) // 64 for f in value_set.fields)
    out.line(f"std::uint64_t {key}[{total}];")
    at = 0
    for field, subject in zip(value_set.fields, subjects, strict=False):
        out.line(f"to_limbs<{field.width}>({expr(out, subject)}, {key} + {at});")
        at += (field.width + 63) // 64
    return f"program.{value_set.member}.contains({key})"


def _match(out: Emitter, subject: ir.Expr, match: ir.Match) -> str:
    if match.kind == "value":
        return expr(out, ir.Operation(t.BOOL, "==", (subject, match.operands[0])))
    if match.kind == "mask":
        value, mask = match.operands
        type_ = subject.type
        return expr(
            out,
            ir.Operation(
                t.BOOL,
                "==",
                (ir.Operation(type_, "&", (subject, mask)), ir.Operation(type_, "&", (value, mask))),
            ),
        )
    low, high = match.operands
    return expr(
        out,
        ir.Operation(
            t.BOOL,
            "&&",
            (ir.Operation(t.BOOL, "<=", (low, subject)), ir.Operation(t.BOOL, "<=", (subject, high))),
        ),
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
