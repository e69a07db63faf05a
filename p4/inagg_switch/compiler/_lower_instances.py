"""Instances of controls and parsers, and the extern objects that they are given.

C++ code of an instance names its extern objects directly, so every apply of an instance must give it the same ones,
as p4c demands too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.errors import CompileError


@dataclass
class Instance:
    """`values`: what its constructor parameters stand for, by the parameter's id. `block`: its code, once it is known
    which extern objects (`objects`) apply is given."""

    declaration: syntax.Control | syntax.Parser
    path: str
    values: Mapping[int, Any]
    objects: list[ir.Object] = field(default_factory=list)
    block: ir.Block | None = None


def takes_object(parameter: syntax.Parameter) -> bool:
    """A parameter of apply that is an extern object other than the packet, which generated code passes on."""
    return isinstance(parameter.type, t.ExternType) and parameter.type.name not in ("packet_in", "packet_out")


def objects_given(
    parameters: Sequence[syntax.Parameter],
    bound: Mapping[str, syntax.Expression | None],
    values: Mapping[int, Any],
) -> list[ir.Object]:
    """The extern objects among the arguments of an apply, in order."""
    objects: list[ir.Object] = []
    for parameter in filter(takes_object, parameters):
        value = bound[parameter.name]
        found = values.get(id(value.declaration)) if isinstance(value, syntax.Name) else None
        if not isinstance(found, ir.Object):
            at = parameter.at if value is None else value.start
            raise CompileError(f"the object for `{parameter.name}` is not known at compile time", at)
        objects.append(found)
    return objects
