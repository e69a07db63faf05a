# SPDX-License-Identifier: Apache-2.0
"""Calls of actions, functions and blocks, with their arguments, as C++."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import assign, copied, cpp_type, expr
from inagg_switch.compiler.names import spell_field


@dataclass
class _Passed:
    """The arguments of a call, and the statements that they need before and after it. Those of `unless_ended` run after
    it, but only if the callee does not end by `exit` or a parser error."""

    given: list[str]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    unless_ended: list[str] = field(default_factory=list)


def call(out: Emitter, e: ir.Call) -> str:
    """A call in an expression. Copies of arguments, if any, go into a lambda."""
    before, called, after = call_parts(out, e)
    if not before and not after:
        return called
    if e.type == t.VOID:
        return f"[&] {{ {' '.join(before)} {called}; {' '.join(after)} }}()"
    result = f"const {cpp_type(out, e.type)} result = {called};"
    return f"[&] {{ {' '.join(before)} {result} {' '.join(after)} return result; }}()"


def call_parts(out: Emitter, e: ir.Call) -> tuple[list[str], str, list[str]]:
    """The statements before a call, the call, and the statements after it. The latter read `accepted`, the result of a
    parser."""
    block = out.blocks.get(e.callee)
    parser = block is not None and isinstance(block.declaration, syntax.Parser)
    passed = _Passed(["program"] if e.callee in out.functions else [])
    in_order = len(e.arguments) > 1 and any(a.expr is not None and ir.impure(a.expr) for a in e.arguments)
    for place, argument in enumerate(e.arguments):
        mode = _mode(argument, block)
        if mode == "value":
            _pass_value(out, passed, argument, f"in_{place}" if in_order else "")
        elif mode == "reference":
            _pass_reference(out, passed, argument, in_block=block is not None)
        else:
            may_end = mode != "copy" and (parser or e.exits)
            _pass_copy(
                out, passed, argument, f"copy_{place}", passed.unless_ended if may_end else passed.after
            )
    if block is not None:
        if passed.unless_ended:
            ended = "accepted" if parser else "!program.exited"
            passed.after.append(f"if ({ended}) {{ {' '.join(passed.unless_ended)} }}")
        given = ", ".join(["program", *passed.given])
        return passed.before, f"code::{e.callee}{{{given}}}.apply()", passed.after
    # Without `code::`, a variable with the name of the function would hide it.
    function = f"code::{e.callee}" if e.callee in out.functions else e.callee
    return passed.before, f"{function}({', '.join(passed.given)})", passed.after


def _mode(argument: ir.CallArgument, block: ir.Block | None) -> str:
    if isinstance(argument.type, t.ExternType):
        return "reference"
    # p4c inlines an instance once. If it is applied to different arguments, it works on temporaries.
    if block is not None and argument.mode != "value" and any(o != block.applied[0] for o in block.applied):
        return "value" if argument.direction == "in" else "temporary"
    return argument.mode


def _pass_value(out: Emitter, passed: _Passed, argument: ir.CallArgument, name: str) -> None:
    """Passes a value, through a variable `name` where arguments must be evaluated in order."""
    assert argument.expr is not None
    text = copied(out, argument.expr)
    if name:
        passed.before.append(f"const {cpp_type(out, argument.type)} {name} = {text};")
    passed.given.append(name or text)


def _pass_reference(out: Emitter, passed: _Passed, argument: ir.CallArgument, *, in_block: bool) -> None:
    assert argument.expr is not None
    text = expr(out, argument.expr)
    if argument.direction == "out" and not in_block:
        passed.before.append(f"{text} = {{}};")
    elif argument.direction == "out":
        passed.before.extend(_invalidations(out, text, argument.type))
    passed.given.append(text)


def _pass_copy(
    out: Emitter, passed: _Passed, argument: ir.CallArgument, name: str, copied_out: list[str]
) -> None:
    initial = "{}"
    if argument.direction == "inout" and argument.expr is not None:
        initial = f" = {copied(out, argument.expr)}"
    passed.before.append(f"{cpp_type(out, argument.type)} {name}{initial};")
    passed.given.append(name)
    if argument.expr is not None:
        copied_out.append(assign(out, argument.expr, name) + ";")


def _invalidations(out: Emitter, text: str, type_: t.Type) -> Iterator[str]:
    """Statements that make the headers in an `out` argument invalid. As in p4c, other fields keep their values."""
    type_ = t.strip(type_)
    if isinstance(type_, t.StructType) and type_.kind == "struct":
        for name, field in type_.fields.items():
            yield from _invalidations(out, f"{text}.{spell_field(name)}", field)
    elif t.has_header(type_):
        yield f"assign_object({text}, {cpp_type(out, type_)}{{}});"
