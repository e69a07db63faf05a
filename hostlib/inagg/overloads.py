# SPDX-License-Identifier: Apache-2.0
"""Every form in which a program may call a method of a process group, brought into one.

torch calls a group written in Python with lists of tensors and an options object. Torch's own groups, which are C++,
accept more: a tensor in place of a list, keywords, and ``op``, ``root`` and ``timeout`` in place of the options. So do
inagg's: `arrange` turns each form into the first, and `in_one_form` wraps a method with it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import Work
from torch.utils._pytree import tree_leaves, tree_map_only

from inagg.torch_versions import method_name

_c10d: Any = torch._C._distributed_c10d  # torch's stub lacks much of it

# torch's names of what the options hold.
_OPTION_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


class _Form(NamedTuple):
    """How a method may be called.

    tensors: the names of the arguments before the options, with those of other forms behind a bar. depths: how deep
    each is nested in lists; None: it is not made of tensors. options: the class of the last argument; None: it has no
    options. loose: what may stand in the place of the options, in this order.
    """

    tensors: tuple[str, ...]
    depths: tuple[int | None, ...]
    options: Any
    loose: tuple[str, ...] = ("timeout",)


def _all_to_all(options: Any) -> _Form:
    names = ("output|output_tensor", "input|input_tensor", "output_split_sizes", "input_split_sizes")
    return _Form(names, (0, 0, None, None), options)


_REDUCE_SCATTER_SINGLE = _Form(
    ("outputTensor|output", "inputTensor|input"), (0, 0), _c10d.ReduceScatterOptions, ("op", "timeout")
)
_REDUCE_SCATTERS = _Form(("outputs", "inputs"), (1, 1), _c10d.ReduceScatterOptions, ("op", "timeout"))
_GATHER_SINGLE = _Form(("output", "input"), (0, 0), _c10d.AllgatherOptions)
_GATHERS = _Form(("outputs", "inputs"), (1, 1), _c10d.AllgatherOptions)
_INTO_ONE = _Form(("output", "input"), (0, 0), _c10d.GatherOptions, ("root", "timeout"))

_FORMS = {
    "all_gather_single": _GATHER_SINGLE,
    "all_gather_single_coalesced": _GATHERS,
    "all_to_all_single": _all_to_all(_c10d.AllToAllOptions),
    "allgather": _Form(
        ("output_tensors", "input_tensors|input_tensor"), (2, 1), _c10d.AllgatherOptions, ("timeout",)
    ),
    "_allgather_base": _GATHER_SINGLE,
    "allgather_coalesced": _Form(("output_lists", "input_list"), (2, 1), _c10d.AllgatherOptions),
    "allgather_into_tensor_coalesced": _GATHERS,
    "allreduce": _Form(("tensors|tensor",), (1,), _c10d.AllreduceOptions, ("op", "timeout")),
    "allreduce_coalesced": _Form(("tensors",), (1,), _c10d.AllreduceCoalescedOptions, ("op", "timeout")),
    "alltoall": _Form(("output_tensors", "input_tensors"), (1, 1), _c10d.AllToAllOptions),
    "alltoall_base": _all_to_all(_c10d.AllToAllOptions),
    "barrier": _Form((), (), _c10d.BarrierOptions),
    "broadcast": _Form(("tensors|tensor",), (1,), _c10d.BroadcastOptions, ("root", "timeout")),
    "gather": _Form(
        ("output_tensors", "input_tensors|input_tensor"), (2, 1), _c10d.GatherOptions, ("root", "timeout")
    ),
    "gather_into_tensor": _INTO_ONE,
    "gather_single": _INTO_ONE,
    "monitored_barrier": _Form(("timeout", "wait_all_ranks"), (None, None), None),
    "recv": _Form(("tensors", "srcRank", "tag"), (1, None, None), None),
    "recv_anysource": _Form(("tensors", "tag"), (1, None), None),
    "reduce": _Form(("tensors|tensor",), (1,), _c10d.ReduceOptions, ("root", "op", "timeout")),
    "reduce_scatter": _Form(
        ("output_tensors|output", "input_tensors|input"),
        (1, 2),
        _c10d.ReduceScatterOptions,
        ("op", "timeout"),
    ),
    "_reduce_scatter_base": _REDUCE_SCATTER_SINGLE,
    "reduce_scatter_single": _REDUCE_SCATTER_SINGLE,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTERS,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTERS,
    "scatter": _Form(
        ("output_tensors|output_tensor", "input_tensors"), (1, 2), _c10d.ScatterOptions, ("root", "timeout")
    ),
    "send": _Form(("tensors", "dstRank", "tag"), (1, None, None), None),
}
_DEFAULTS = {"timeout": None, "wait_all_ranks": False}  # of arguments of methods without options


def arrange(method: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a method of a process group in the form in which torch calls it.

    Raises:
        TypeError: the method has no such form.
    """
    form = _FORMS[method]
    count = len(form.tensors)
    if not keywords and len(arguments) == count + (form.options is not None) and count:
        first, last = arguments[0], arguments[-1]
        if isinstance(last, form.options or object) and isinstance(first, list) == bool(form.depths[0]):
            return tuple(arguments)  # as torch calls it
    named = _named(method, form, arguments, dict(keywords))
    arranged = []
    for names, depth in zip(form.tensors, form.depths, strict=True):
        name = next((name for name in names.split("|") if name in named), "")
        if not name and names not in _DEFAULTS:
            raise TypeError(f"{method}() lacks the argument {names.split('|')[0]!r}")
        value = named.pop(name) if name else _DEFAULTS[names]
        arranged.append(value if depth is None else _nested(value, depth))
    if form.options is not None:
        arranged.append(_options(method, form, named))
    elif named:
        raise TypeError(f"{method}() takes no argument {next(iter(named))!r}")
    return tuple(arranged)


def _named(method: str, form: _Form, arguments: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name; those by place get the first of their names."""
    places = [names.split("|")[0] for names in form.tensors]
    rest = arguments[len(places) :]
    has_options = bool(rest) and form.options is not None and isinstance(rest[0], _options_classes())
    places += ["opts"] if has_options or form.options is None else form.loose
    if len(arguments) > len(places):
        raise TypeError(f"{method}() takes at most {len(places)} arguments, and {len(arguments)} were given")
    named = dict(zip(places, arguments, strict=False))
    for name in keywords:
        aliases = next((names.split("|") for names in form.tensors if name in names.split("|")), [name])
        if any(alias in named for alias in aliases):
            raise TypeError(f"{method}() got {name!r} twice")
    return named | keywords


def _nested(value: Any, depth: int) -> Any:
    """Tensors in as many lists as `depth`. An empty list stays as it is."""
    if depth and isinstance(value, torch.Tensor):
        return [_nested(value, depth - 1)]
    if depth == 2 and value and isinstance(value[0], torch.Tensor):
        return [list(value)]
    return value


def _options(method: str, form: _Form, named: dict[str, Any]) -> Any:
    """The options object of the arguments that are left."""
    opts = named.pop("opts", None)
    if opts is not None and named:
        raise TypeError(f"{method}() takes opts or {', '.join(form.loose)}, not both")
    if isinstance(opts, form.options):
        return opts
    if opts is None:
        if unknown := named.keys() - set(form.loose):
            raise TypeError(f"{method}() takes no argument {min(unknown)!r}")
        if "root" in form.loose and "root" not in named:
            named["root"] = 0
        given = {_OPTION_FIELDS[name]: value for name, value in named.items() if value is not None}
    elif isinstance(opts, _options_classes()) or "op" not in form.loose:
        raise TypeError(f"{method}() takes {form.options.__name__}, not {type(opts).__name__}")
    else:  # a ReduceOp
        given = {"reduceOp": opts}
    settings = form.options()
    for name, value in given.items():
        setattr(settings, name, value)
    return settings


@functools.cache
def _options_classes() -> tuple[Any, ...]:
    return tuple({form.options for form in _FORMS.values() if form.options is not None})


_Result = TypeVar("_Result")


def in_one_form(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorates a method of a process group, which then gets its arguments as torch passes them."""
    name = method.__name__

    @functools.wraps(method)
    def arranged(self: Any, *arguments: Any, **keywords: Any) -> _Result:
        arguments = arrange(name, arguments, keywords)
        if not _has_memory(arguments):
            arguments = tuple(tree_map_only(torch.Tensor, _waited_for, argument) for argument in arguments)
            if not _has_memory(arguments):  # torch's dispatcher knows what such a tensor is, or refuses it
                result: _Result = getattr(self.inner, method_name(name))(*arguments)
                return result
        work = method(self, *arguments)
        if isinstance(work, Work) and arguments:
            register(work, arguments[0])
        return work

    return arranged


# The types of tensors whose elements are in memory. Others, such as DTensor, may be wrappers.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


def _has_memory(arguments: Sequence[Any]) -> bool:
    """Whether all tensors among the arguments, or in lists of them, hold their elements themselves."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if type(argument) not in _PLAIN and _is_wrapper(argument):
                return False
        elif isinstance(argument, list | tuple) and not _has_memory(argument):
            return False
    return True


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python))


def _waited_for(tensor: torch.Tensor) -> torch.Tensor:
    """What a functional collective has returned, once it is there."""
    if not isinstance(tensor, AsyncCollectiveTensor):
        return tensor
    there: torch.Tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
    return there


def register(work: Work, results: Any) -> None:
    """Let ``torch.ops.c10d_functional.wait_tensor`` find the work of a tensor, where the program wants that.

    torch does so within `allow_inflight_collective_as_graph_input_ctx`, in the methods that a group overrides.
    """
    if _c10d._allow_inflight_collective_as_graph_input():
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                _c10d._register_work(tensor, work)
