# SPDX-License-Identifier: Apache-2.0
"""Finds whether egress reads the length of a queue. Only then is the kernel asked for it."""

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.untouched import codes, nodes
from inagg_switch.compiler.primitives import MarkToDrop

_LENGTHS = frozenset(["enq_qdepth", "deq_qdepth"])


def reads_queues(program: ir.Program) -> bool:
    """True if egress mentions enq_qdepth or deq_qdepth, or uses all of the standard metadata."""
    for code in codes(program, "egress"):
        for parent, node in nodes(code):
            if not isinstance(node, ir.Expr) or t.strip(node.type) is not program.standard:
                continue
            # If it is passed to a callee, the callee's code decides.
            passed = isinstance(parent, ir.CallArgument) and parent.mode == "reference"
            if isinstance(parent, ir.Field):
                if parent.name in _LENGTHS:
                    return True
            elif not passed and not isinstance(parent, MarkToDrop):
                return True
    return False
