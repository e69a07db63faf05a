# SPDX-License-Identifier: Apache-2.0
"""Targets of calls, which the checker finds."""

from dataclasses import dataclass

from inagg_switch.compiler import syntax
from inagg_switch.compiler.types import BlockType, ExternType


@dataclass(frozen=True)
class ActionTarget:
    action: syntax.Action


@dataclass(frozen=True)
class FunctionTarget:
    """A function written in P4."""

    function: syntax.Function


@dataclass(frozen=True)
class ExternTarget:
    """An extern function such as mark_to_drop."""

    function: syntax.Function


@dataclass(frozen=True)
class MethodTarget:
    """A method of an extern object."""

    object: syntax.Expression
    extern: ExternType
    method: syntax.Function


@dataclass(frozen=True)
class BuiltinTarget:
    """isValid, setValid, setInvalid, push_front, pop_front, minSizeInBits..."""

    object: syntax.Expression
    name: str


@dataclass(frozen=True)
class TableTarget:
    table: syntax.Table


@dataclass(frozen=True)
class BlockTarget:
    """apply() of an instance of a control or parser; `instance` is None for apply() of a type, which makes an
    instance."""

    block: BlockType
    instance: syntax.Expression | None


@dataclass(frozen=True)
class ConstructorTarget:
    """`T(...)` as a value."""

    type: ExternType | BlockType


Target = (
    ActionTarget
    | FunctionTarget
    | ExternTarget
    | MethodTarget
    | BuiltinTarget
    | TableTarget
    | BlockTarget
    | ConstructorTarget
)
