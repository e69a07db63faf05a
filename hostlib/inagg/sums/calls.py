# SPDX-License-Identifier: Apache-2.0
"""The texts of collectives that ranks compare (`journal`): what all ranks must agree on, and nothing else.

Sizes are in elements, because torch sums tensors of different shapes. If parts may have different sizes at different
ranks, the text has their total size, which is the same at all ranks.
"""

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

# Characters; the controller takes texts of 1000.
_LONGEST = 500


class _Kind(NamedTuple):
    """A kind of collective.

    name: in torch.distributed. place: the argument with the tensors that all ranks agree on; None: no argument.
    sized: ranks agree on sizes too. root: what torch calls the root; None: no root. reduces: it has an operation.
    compared: all ranks must call it. monitored_barrier is not compared, because it finds ranks that do not call it.
    """

    name: str
    place: int | None
    sized: bool = True
    root: str | None = None
    reduces: bool = False
    compared: bool = True


# By the methods of torch's process group.
_KINDS = {
    "all_gather_single": _Kind("all_gather", 0),
    "all_gather_single_coalesced": _Kind("all_gather", 0),
    "all_to_all_single": _Kind("all_to_all", 1, sized=False),
    "allgather": _Kind("all_gather", 0),
    "_allgather_base": _Kind("all_gather", 0),
    "allgather_coalesced": _Kind("all_gather", 0),
    "allgather_into_tensor_coalesced": _Kind("all_gather", 0),
    "allreduce": _Kind("all_reduce", 0, reduces=True),
    "allreduce_coalesced": _Kind("all_reduce", 0, reduces=True),
    "alltoall": _Kind("all_to_all", 1, sized=False),
    "alltoall_base": _Kind("all_to_all", 1, sized=False),
    "barrier": _Kind("barrier", None),
    "broadcast": _Kind("broadcast", 0, root="src"),
    "gather": _Kind("gather", 1, root="dst"),
    "gather_into_tensor": _Kind("gather", 1, root="dst"),
    "gather_single": _Kind("gather", 1, root="dst"),
    "monitored_barrier": _Kind("monitored_barrier", None, compared=False),
    "reduce": _Kind("reduce", 0, root="dst", reduces=True),
    "reduce_scatter": _Kind("reduce_scatter", 1, reduces=True),
    "reduce_scatter_single": _Kind("reduce_scatter", 1, reduces=True),
    "reduce_scatter_single_coalesced": _Kind("reduce_scatter", 1, reduces=True),
    "_reduce_scatter_base": _Kind("reduce_scatter", 1, reduces=True),
    "reduce_scatter_tensor_coalesced": _Kind("reduce_scatter", 1, reduces=True),
    "scatter": _Kind("scatter", 0, root="src"),
}


def is_collective(method: str) -> bool:
    """Whether all ranks must call this method of a process group; send and recv are not collectives."""
    return method in _KINDS and _KINDS[method].compared


def is_reduction(method: str) -> bool:
    """Whether this method of a process group combines elements of the ranks."""
    return method in _KINDS and _KINDS[method].reduces


def measure(method: str, arguments: Sequence[Any]) -> tuple[str, int]:
    """The name of a call in torch.distributed, and the bytes of its tensors."""
    kind = _KINDS.get(method, _Kind(method, 0))
    if kind.place is None or kind.place >= len(arguments):
        return kind.name, 0
    return kind.name, sum(dtype.itemsize * elements for dtype, elements in _types(arguments[kind.place]))


def describe(method: str, arguments: Sequence[Any], lane_bits: int | None = None) -> str:
    """The text of a call of a process group's method, such as ``broadcast(float32[10], src=0)``.

    lane_bits: for a sum through the switch, of its lanes.
    """
    kind = _KINDS[method]
    tensors = [] if kind.place is None or kind.place >= len(arguments) else _types(arguments[kind.place])
    opts = arguments[-1] if arguments else None
    return _text(
        kind,
        tuple(tensors),
        _operation(opts) if kind.reduces else None,
        getattr(opts, "rootRank", opts if isinstance(opts, int) else 0) if kind.root else 0,
        lane_bits,
    )


@lru_cache(maxsize=4096)
def sum_text(elements: int, average: bool, lane_bits: int) -> str:
    """What `describe` returns for an all-reduce of one float32 tensor."""
    operation = torch.distributed.ReduceOp.AVG if average else torch.distributed.ReduceOp.SUM
    return _text(_KINDS["allreduce"], ((torch.float32, elements),), operation, 0, lane_bits)


def _types(tensors: torch.Tensor | Iterable[Any]) -> Iterable[tuple[torch.dtype, int]]:
    """Type and number of elements of each tensor. A list of tensors within the list counts as one tensor."""
    for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
        if isinstance(tensor, torch.Tensor):
            yield tensor.dtype, tensor.numel()
        elif tensor:
            yield tensor[0].dtype, sum(part.numel() for part in tensor)


def _operation(opts: Any) -> Any:
    """The operation, from an options object or as it is; SUM without one, as in torch."""
    operation = getattr(opts, "reduceOp", opts)
    operation = getattr(operation, "op", operation)
    return operation if hasattr(operation, "name") else torch.distributed.ReduceOp.SUM


@lru_cache(maxsize=4096)
def _text(
    kind: _Kind,
    tensors: tuple[tuple[torch.dtype, int], ...],
    operation: Any,
    root: int,
    lane_bits: int | None,
) -> str:
    facts = [] if operation is None else [str(operation.name)]
    for dtype, elements in tensors:
        name = str(dtype).removeprefix("torch.")
        facts.append(f"{name}[{elements}]" if kind.sized else name)
    if kind.root is not None:
        facts.append(f"{kind.root}={root}")
    if lane_bits not in (None, 32):
        facts.append(f"{lane_bits}-bit lanes")
    text = f"{kind.name}({', '.join(facts)})"
    if len(text) <= _LONGEST:
        return text
    return (
        f"{text[:_LONGEST]}... ({len(tensors)} tensors, CRC-32 of all of it {zlib.crc32(text.encode()):08x})"
    )
