# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile out of the methods of process groups and their Work.

Dynamo traces calls into Python. torch's own groups are C++, which it does not trace. In a group written in Python it
would read attributes, which it reports as an error for every process group.
"""

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

from inagg.torch_versions import refuse_too_old

_Class = TypeVar("_Class", bound=type)

refuse_too_old()  # a torch that is too old lacks the names below
_RUN_AS_WRITTEN = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def skip_dynamo(kind: _Class) -> _Class:
    """Mark the methods of a class to run uncompiled: each ends the graph of a compiled function.

    torch.compiler.disable does the same, but imports Dynamo, which takes one or two seconds, and wraps every call.
    """
    for member in vars(kind).values():
        if isinstance(member, FunctionType):
            member._torchdynamo_disable = True  # type: ignore[attr-defined]
            eval_frame.set_code_exec_strategy(member.__code__, _RUN_AS_WRITTEN)
    return kind
