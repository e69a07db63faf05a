# SPDX-License-Identifier: Apache-2.0
"""Decides whether a loop `for (start; condition; update)` certainly ends.

It does if it counts one variable up or down to a constant, in constant steps that cannot jump over the end of the
variable's range, and nothing in the loop assigns to that variable. The run time limits the iterations of other loops.
"""

from typing import Any

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t


def ends(loop: syntax.For) -> bool:
    """True if the loop certainly ends; False if this is not known."""
    condition = loop.condition
    if condition.value is not None or not isinstance(condition, syntax.Binary):
        return condition.value is False
    counter, last = condition.left, condition.right
    if not isinstance(counter, syntax.Name) or not isinstance(last.value, int) or len(loop.update) != 1:
        return False
    if not any(s is counter.declaration for s in loop.start):
        return False  # other code may change it
    step = _step(loop.update[0], counter)
    bits = t.strip(counter.type)
    if step is None or not isinstance(bits, t.BitType) or _assigned(loop.body, counter):
        return False
    low, high = fold.limits(bits)
    beyond = last.value + step  # one less when the condition excludes `last`
    if condition.operator in ("<", "<="):
        return step > 0 and beyond - (condition.operator == "<") <= high
    if condition.operator in (">", ">="):
        return step < 0 and beyond + (condition.operator == ">") >= low
    return False


def _step(update: syntax.Statement, counter: syntax.Name) -> int | None:
    """The step of `counter = counter + step` or `counter - step`; None for anything else."""
    if not isinstance(update, syntax.Assign) or not _names(update.target, counter):
        return None
    value = update.value
    if not isinstance(value, syntax.Binary) or value.operator not in ("+", "-"):
        return None
    if not _names(value.left, counter) or not isinstance(value.right.value, int):
        return None
    return int(value.right.value) * (1 if value.operator == "+" else -1)


def _names(e: syntax.Expression, variable: syntax.Name) -> bool:
    return isinstance(e, syntax.Name) and e.declaration is variable.declaration


def _assigned(node: Any, variable: syntax.Name) -> bool:
    """True if something in the tree may assign to the variable."""
    if isinstance(node, list | tuple):
        return any(_assigned(n, variable) for n in node)
    if isinstance(node, syntax.Assign) and _root_is(node.target, variable):
        return True
    if isinstance(node, syntax.Call):
        given = [a.value for a in node.arguments if a.value is not None]
        return any(_root_is(a, variable) for a in given) or _assigned(given, variable)
    if isinstance(node, syntax.Name) or not isinstance(
        node, syntax.Statement | syntax.Expression | syntax.SwitchCase
    ):
        return False
    return any(_assigned(v, variable) for v in vars(node).values() if isinstance(v, list | syntax.Node))


def _root_is(e: syntax.Expression, variable: syntax.Name) -> bool:
    while isinstance(e, syntax.Member | syntax.Index | syntax.Slice):
        e = e.base
    return _names(e, variable)
