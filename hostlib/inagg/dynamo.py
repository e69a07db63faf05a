# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile out of the methods of process groups and their Work.

Dynamo follows calls into Python, and a group of torch's own is C++ to it. In a group that is Python's it would read
attributes, which it takes for an error in any process group.
"""

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

_Class = TypeVar("_Class", bound=type)

_RUN_AS_WRITTEN = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def skip_dynamo(kind: _Class) -> _Class:
    """A class whose methods end a compiled function's graph, and run as they are written.

    As torch.compiler.disable would have it, but that imports Dynamo, which takes a second or two, and puts a frame
    around every call.
    """
    for member in vars(kind).values():
        if isinstance(member, FunctionType):
            member._torchdynamo_disable = True  # type: ignore[attr-defined]
            eval_frame.set_code_exec_strategy(member.__code__, _RUN_AS_WRITTEN)
    return kind
