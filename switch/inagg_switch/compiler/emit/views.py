# SPDX-License-Identifier: Apache-2.0
"""Finds wide variables that can be references to a register's cell, because a read into them needs no copy."""

from collections.abc import Sequence

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.primitives import RegisterRead, RegisterWrite


def viewed(statements: Sequence[ir.Stmt]) -> dict[int, RegisterRead | None]:
    """The places of the reads into such variables, and of the variables' declarations, which map to None.

    After the read, the variable is only used as a value, and nothing can write to the register before the last use.
    """
    found: dict[int, RegisterRead | None] = {}
    for place, statement in enumerate(statements):
        if isinstance(statement, ir.Declare) and _is_wide(statement.type) and statement.value is None:
            users = [i for i in range(place + 1, len(statements)) if _uses(statements[i], statement.name)]
            read = statements[users[0]] if users else None
            if isinstance(read, RegisterRead) and _can_view(
                read, statements[users[0] + 1 : users[-1] + 1], statement.name
            ):
                found |= {place: None, users[0]: read}
    return found


def _is_wide(type_: t.Type) -> bool:
    bits = t.strip(type_)
    return isinstance(bits, t.BitType) and bits.width > 64


def _can_view(read: RegisterRead, others: Sequence[ir.Stmt], name: str) -> bool:
    """`others`: the statements behind the read, up to the last use."""
    return (
        _is_variable(read.result, name)
        and not _uses(read.index, name)
        and not any(_uses(s, name) and not _only_reads(s, name) for s in others)
        and not any(ir.impure(s) for s in others)
        and not any(_writes(s, read.object) for s in others[:-1])
    )


def _is_variable(e: ir.Expr, name: str) -> bool:
    return isinstance(e, ir.Var) and e.name == name


def _uses(node: ir.Node, name: str) -> bool:
    return any(isinstance(part, ir.Var) and part.name == name for part in ir.walk(node))


def _only_reads(statement: ir.Stmt, name: str) -> bool:
    if isinstance(statement, ir.Assign):
        return not _uses(statement.target, name)
    return isinstance(statement, RegisterWrite)


def _writes(statement: ir.Stmt, register: ir.Register) -> bool:
    return any(isinstance(node, RegisterWrite) and node.object is register for node in ir.walk(statement))
