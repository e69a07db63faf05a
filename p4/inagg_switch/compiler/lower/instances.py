"""Instances of controls and parsers, and the extern objects and numbers that they are given.

C++ code of an instance names its extern objects directly, so every apply of an instance must give it the same ones,
as p4c demands too. The same goes for numbers without a width, which the code may depend on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.errors import CompileError

Given = ir.Object | ir.Const


@dataclass
class Instance:
    """`values`: what its constructor parameters stand for, by the parameter's id. `block`: its code, once it is known
    which extern objects and numbers (`objects`) apply is given."""

    declaration: syntax.Control | syntax.Parser
    path: str
    values: Mapping[int, Any]
    objects: list[Given] = field(default_factory=list)
    block: ir.Block | None = None


def takes_known(parameter: syntax.Parameter) -> bool:
    """A parameter that generated code does not pass on: an extern object other than the packet, a number without a
    width or a text."""
    if isinstance(parameter.type, t.ExternType):
        return parameter.type.name not in ("packet_in", "packet_out")
    return parameter.type in (t.INTEGER, t.STRING)


def known_given(
    parameters: Sequence[syntax.Parameter],
    bound: Mapping[str, syntax.Expression | None],
    values: Mapping[int, Any],
    fixed: Callable[[syntax.Expression, str], Any],
) -> list[Given]:
    """The arguments of those parameters, in order; `fixed` tells the value of an expression."""
    objects: list[Given] = []
    for parameter in filter(takes_known, parameters):
        value = bound[parameter.name]
        if value is not None and not isinstance(parameter.type, t.ExternType):
            what = f"parameter `{parameter.name}`"
            objects.append(ir.Const(parameter.type, fixed(value, what)))
            continue
        found = values.get(id(value.declaration)) if isinstance(value, syntax.Name) else None
        if not isinstance(found, ir.Object):
            at = parameter.at if value is None else value.start
            raise CompileError(f"the object for `{parameter.name}` is not known at compile time", at)
        objects.append(found)
    return objects
