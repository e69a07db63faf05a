# SPDX-License-Identifier: Apache-2.0
"""Adds Trace statements to a lowered program, before emit.

They report what decides a packet's path: parser states, extracted headers, conditions, actions with their parameters,
assigned fields, and calls of extern objects. The emitter traces table look-ups; runtime/v1model.hpp traces the
pipeline's decisions (drops, ports).
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from inagg_switch.compiler import ir, primitives
from inagg_switch.compiler import types as t

_ON_OBJECTS = (
    primitives.RegisterRead
    | primitives.RegisterWrite
    | primitives.ExecuteMeter
    | primitives.Count
    | primitives.Digest
)
# Traced after they run; the others before.
_AFTER = primitives.Extract | primitives.RegisterRead
# Steps of other primitives, or traced elsewhere.
_SILENT = primitives.Require | primitives.Look | primitives.Parse | primitives.Trace | primitives.Emit


def instrument(program: ir.Program) -> None:
    """Adds Trace statements to `program`, in place."""
    for block in program.blocks:
        _instrument_block(block)


def _instrument_block(block: ir.Block) -> None:
    for action in block.actions:
        action.body = ir.Group((_action_line(action), *_body(action.body)))
    block.states = [_instrument_state(block, state) for state in block.states]
    if not block.states:
        block.body = ir.Group((_tell(f"control {block.full_name}"), *_body(block.body)))


def _instrument_state(block: ir.Block, state: ir.State) -> ir.State:
    first = _tell(f"parser {block.full_name}, state {state.name.removeprefix('state_')}")
    last = (
        [_tell(f"select({', '.join(_labels(state.subjects))})", *_shown(state.subjects))]
        if state.subjects
        else []
    )
    return replace(state, body=(first, *_sequence(state.body), *last))


def _action_line(action: ir.Action) -> ir.Stmt:
    shown = [
        (declared.name, ir.Var(p.type, p.name))
        for declared, p in zip(action.declaration.parameters, action.parameters, strict=True)
        if p.direction not in ("out", "inout", "ref") and _is_scalar(p.type)
    ]
    names = ", ".join(f"{name}={{}}" for name, _ in shown)
    return _tell(f"action {action.full_name}({names})", *(value for _, value in shown))


def _tell(text: str, *operands: ir.Expr) -> ir.Stmt:
    return primitives.Trace(text, operands)


def _is_scalar(type_: t.Type) -> bool:
    bits = t.strip(type_)
    return isinstance(bits, t.BitType | t.EnumType) or bits in (t.BOOL, t.ERROR)


# --- statements


def _body(s: ir.Stmt) -> tuple[ir.Stmt, ...]:
    return _sequence(s.body if isinstance(s, ir.Group) else (s,))


def _sequence(body: Iterable[ir.Stmt]) -> tuple[ir.Stmt, ...]:
    return tuple(traced for s in body for traced in _statement(s))


def _block(s: ir.Stmt, first: ir.Stmt | None = None) -> ir.Group:
    return ir.Group((*((first,) if first is not None else ()), *_body(s)))


def _statement(s: ir.Stmt) -> Iterable[ir.Stmt]:
    if isinstance(s, ir.Group):
        return (_block(s),)
    if isinstance(s, ir.Striped):
        return (replace(s, body=_block(s.body)),)
    if isinstance(s, ir.If):
        condition = f"if ({describe(s.condition)}): "
        otherwise = s.otherwise if s.otherwise is not None else ir.Group(())
        return (
            replace(
                s,
                then=_block(s.then, _tell(condition + "true")),
                otherwise=_block(otherwise, _tell(condition + "false")),
            ),
        )
    if isinstance(s, ir.Switch):
        return (replace(s, cases=tuple(replace(case, body=_block(case.body)) for case in s.cases)),)
    if isinstance(s, ir.Loop | ir.CountLoop):
        return (replace(s, body=_block(s.body)),)
    if isinstance(s, ir.Assign):
        return (s, *_assigned(s.target))
    if isinstance(s, primitives.Primitive) and not isinstance(s, _SILENT):
        line = _primitive_line(s)
        return (s, line) if isinstance(s, _AFTER) else (line, s)
    if isinstance(s, ir.Jump) and s.kind == "exit":
        return (_tell("exit"), s)
    return (s,)


def _assigned(target: ir.Expr) -> Iterable[ir.Stmt]:
    """Traces assignments to fields only: there are too many local variables, the compiler's among them."""
    base = target.base if isinstance(target, ir.Slice) else target
    if not isinstance(base, ir.Field) or not _is_scalar(base.type) or ir.impure(base):
        return ()
    return (_tell(f"{describe(base)} = {{}}", base),)


def _primitive_line(s: primitives.Primitive) -> ir.Stmt:
    operands = [
        o for o in ir.children(s) if isinstance(o, ir.Expr) and not isinstance(t.strip(o.type), t.ExternType)
    ]
    subject = f"{s.object.full_name} " if isinstance(s, _ON_OBJECTS) else ""
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(s).__name__).lower()
    return _tell(f"{subject}{name}({', '.join(_labels(operands))})", *_shown(operands))


def _has_value(e: ir.Expr) -> bool:
    return _is_scalar(e.type) and not ir.impure(e) and not isinstance(e, ir.Const)


def _labels(operands: Iterable[ir.Expr]) -> list[str]:
    return [describe(o) + ("={}" if _has_value(o) else "") for o in operands]


def _shown(operands: Iterable[ir.Expr]) -> list[ir.Expr]:
    return [o for o in operands if _has_value(o)]


# --- expressions as text


def describe(e: ir.Expr) -> str:
    """An expression as text, close to its source. The text has no braces."""
    if isinstance(e, ir.Const):
        return str(e.value).lower() if isinstance(e.value, bool) or e.value is None else f"{int(e.value):#x}"
    if isinstance(e, ir.Var):
        return e.name
    if isinstance(e, ir.Field):
        return f"{describe(e.base)}.{e.name}"
    if isinstance(e, ir.Element):
        return f"{describe(e.base)}[{describe(e.index)}]"
    if isinstance(e, ir.StackNext | ir.StackLast):
        return f"{describe(e.base)}.{'next' if isinstance(e, ir.StackNext) else 'last'}"
    if isinstance(e, ir.Slice):
        return f"{describe(e.base)}[{e.high}:{e.low}]"
    if isinstance(e, ir.TableHit):
        return f"{describe(e.apply)}.{'miss' if e.miss else 'hit'}"
    if isinstance(e, ir.TableApply):
        return f"{e.table.full_name}.apply()"
    if isinstance(e, ir.Call):
        return f"{e.callee}(...)"
    if isinstance(e, ir.Operation):
        return _describe_operation(e)
    return "..."


def _describe_operation(e: ir.Operation) -> str:
    parts = [describe(operand) for operand in e.operands]
    if e.name == "cast":
        return f"({e.type}) {parts[0]}"
    if e.name == "valid":
        return f"{parts[0]}.isValid()"
    if len(parts) == 2 and not e.name.isidentifier():
        return f"{parts[0]} {e.name} {parts[1]}"
    if len(parts) == 1 and not e.name.isidentifier():
        return f"{e.name}{parts[0]}"
    return f"{e.name}({', '.join(parts)})"
