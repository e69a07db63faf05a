# SPDX-License-Identifier: Apache-2.0
"""The tensors among the arguments of a process group's methods: which the inner group reads, which it writes, and in
what shape it gets them.

Gloo divides the tensor of a single-tensor collective along its first axis. NCCL takes any contiguous shape, and torch
relies on that for every group that is not named "gloo": SyncBatchNorm gathers into a tensor of shape (1, N C). So
these collectives get flat tensors (`flatten`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from inagg.errors import ConfigurationError


class Use(NamedTuple):
    """The places of the arguments whose tensors a method reads, and of those that it writes."""

    read: tuple[int, ...]
    written: tuple[int, ...]


_OUTPUT_AND_INPUT = Use(read=(1,), written=(0,))
_IN_PLACE = Use(read=(0,), written=(0,))
_SENT = Use(read=(0,), written=())
_RECEIVED = Use(read=(), written=(0,))

# By method, if no root matters. Methods that are not here have an output and an input. A message may be shorter than
# the tensor that receives it, and the rest of the tensor must keep its elements: so a recv reads the tensor too.
_USES = {
    "allreduce": _IN_PLACE,
    "allreduce_coalesced": _IN_PLACE,
    "recv": _IN_PLACE,
    "recv_anysource": _IN_PLACE,
    "send": _SENT,
}

_GATHER = frozenset(
    {
        "all_gather_single",
        "all_gather_single_coalesced",
        "_allgather_base",
        "allgather_into_tensor_coalesced",
    }
)
SCATTER = frozenset(
    {
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    }
)
_EXCHANGE = frozenset({"all_to_all_single", "alltoall_base"})

# Gloo joins the tensors of these, and takes all for the type of the first.
_JOINED = frozenset({"all_gather_single_coalesced", "allgather_coalesced", "allgather_into_tensor_coalesced"})


def use_of(name: str, arguments: Sequence[Any], rank: int) -> Use:
    """What the method `name` does at this rank with the tensors among its arguments."""
    if name == "broadcast":
        return _SENT if arguments[-1].rootRank == rank else _RECEIVED
    if name == "reduce":
        return _IN_PLACE if arguments[-1].rootRank == rank else _SENT
    return _USES.get(name, _OUTPUT_AND_INPUT)


def tensors_of(arguments: Sequence[Any]) -> list[torch.Tensor]:
    """All tensors among the arguments, those in lists too."""
    found: list[torch.Tensor] = []
    for argument in arguments:  # as short as possible: every collective comes here
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            found += tensors_of(argument)
    return found


def map_tensors(function: Callable[[int, torch.Tensor], torch.Tensor], arguments: Sequence[Any]) -> list[Any]:
    """Replace each tensor among the arguments by what `function` returns for its argument's place and the tensor."""

    def replaced(place: int, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return function(place, argument)
        if isinstance(argument, list | tuple):
            return [replaced(place, part) for part in argument]
        return argument

    return [replaced(place, argument) for place, argument in enumerate(arguments)]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie in memory as they are, one after the other. Sparse tensors count as plain."""
    if tensor.layout != torch.strided:
        return True
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def refuse_shared(name: str, arguments: Sequence[Any], rank: int) -> None:
    """Refuse tensors that receive a result and whose elements share memory.

    Raises:
        ConfigurationError: there is one. Nothing has been changed or sent.
    """
    for tensor in tensors_of(
        [arguments[place] for place in use_of(name, arguments, rank).written if arguments]
    ):
        if tensor.layout == torch.strided and any(
            stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise ConfigurationError(
                f"{name}: an expanded tensor cannot hold a result: its elements share memory; clone() it"
            )


def check_sizes(name: str, arguments: Sequence[Any], ranks: int) -> None:
    """Check the sizes of a collective with one tensor for all ranks.

    Raises:
        ConfigurationError: a tensor that holds the parts of all ranks is not `ranks` times as large as a part.
    """
    if not is_single(name):
        return
    outputs, inputs = tensors_of(arguments[:1]), tensors_of(arguments[1:2])
    for output, given in zip(outputs, inputs, strict=False):
        if name in _EXCHANGE:
            fits = _has_splits(arguments) or (output.numel() == given.numel() and given.numel() % ranks == 0)
            needed = f"as many as the input, and a multiple of {ranks}"
        elif name in _GATHER:
            fits = output.numel() == given.numel() * ranks
            needed = f"{ranks} times those of the input"
        else:
            fits = output.numel() * ranks == given.numel()
            needed = f"1/{ranks} of those of the input"
        if not fits:
            raise ConfigurationError(
                f"{name} in a group of {ranks}: the output, of shape {tuple(output.shape)}, has {output.numel()} "
                f"elements, the input, of shape {tuple(given.shape)}, {given.numel()}; the output needs {needed}"
            )


def is_single(name: str) -> bool:
    """Whether one tensor has the parts of all ranks, one after the other."""
    return name in _GATHER or name in SCATTER or name in _EXCHANGE


def is_flat(name: str, arguments: Sequence[Any]) -> bool:
    """Whether the shapes of the tensors do not matter. They do if an exchange divides the first axis by given sizes."""
    return is_single(name) and not (name in _EXCHANGE and _has_splits(arguments))


def flatten(name: str, arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments with flat tensors, if shapes do not matter, and as bytes, if gloo would take them for one type.

    An output with gaps stays as it is.
    """
    types = {tensor.dtype for tensor in tensors_of(arguments)} if name in _JOINED else set()
    if len(types) < 2 and not is_flat(name, arguments):
        return arguments

    def flat(place: int, tensor: torch.Tensor) -> torch.Tensor:
        if place == 0 and not tensor.is_contiguous():
            return tensor
        tensor = tensor.detach().reshape(-1)
        return tensor.view(torch.uint8) if len(types) > 1 else tensor

    return map_tensors(flat, arguments)


def _has_splits(arguments: Sequence[Any]) -> bool:
    return any(len(splits) for splits in arguments[2:4])
