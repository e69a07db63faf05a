# SPDX-License-Identifier: Apache-2.0
"""Cases of test_collectives.py: every method of torch's process groups, in every form, called on an inagg group and on
a gloo group of the same ranks. Both return the same, or refuse with an error of the same kind."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

import inagg
from inagg.torch_versions import GLOO_REDUCE_SCATTER_ONLY_SUMS, release
from tests.hostlib.backend.collectives_cases import case

Call = Callable[[Any], object]

c10d: Any = torch._C._distributed_c10d  # torch's stub lacks much of it
CPU = torch.device("cpu")
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
LIMIT = timedelta(seconds=60)


def options(kind: str, **settings: object) -> Any:
    made = getattr(c10d, f"{kind}Options")()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def mine(elements: int = 3) -> torch.Tensor:
    return torch.full((elements,), dist.get_rank() + 1.0)


def many() -> torch.Tensor:
    return torch.arange(2.0 * dist.get_world_size()) + dist.get_rank()


def one_each() -> list[torch.Tensor]:
    return list(many().chunk(dist.get_world_size()))


def empty(elements: int = 3) -> list[torch.Tensor]:
    return [torch.zeros(elements) for _ in range(dist.get_world_size())]


def in_place(call: Callable[[Any, torch.Tensor], Any]) -> Call:
    """Whatever the call does to a tensor of this rank."""

    def run(group: Any) -> object:
        tensor = mine()
        call(group, tensor).wait()
        return tensor.tolist()

    return run


def into(make: Callable[[], Any], call: Callable[[Any, Any], Any]) -> Call:
    """What the call writes to the tensors that `make` returns."""

    def run(group: Any) -> object:
        results = make()
        call(group, results).wait()
        return [tensor.tolist() for tensor in torch.utils._pytree.tree_leaves(results)]

    return run


def at_root(lists: Any) -> Any:
    return lists if dist.get_rank() == 0 else []


def gathered(call: Callable[[Any, Any], Any]) -> Call:
    return into(lambda: at_root(empty()), call)


def message(call: Callable[[Any, torch.Tensor, int, int], tuple[Any, Any]]) -> Call:
    """A message to the next rank and one from the rank before."""

    def run(group: Any) -> object:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if ranks == 1:
            return None
        tensor = torch.zeros(3)
        sent, received = call(group, tensor, (rank + 1) % ranks, (rank - 1) % ranks)
        received.wait()
        sent.wait()
        return tensor.tolist()

    return run


def with_timeout(group: Any) -> object:
    before = group._get_backend(CPU).options._timeout
    try:
        group.set_timeout(timedelta(seconds=77))
        return group._get_backend(CPU).options._timeout
    finally:
        group.set_timeout(before)


def registered(call: Callable[[Any, torch.Tensor], object]) -> Call:
    def run(group: Any) -> object:
        tensor = mine()
        with functional.allow_inflight_collective_as_graph_input_ctx():
            call(group, tensor)
            return torch.ops.c10d_functional.wait_tensor(tensor).tolist()

    return run


def coalesced(group: Any) -> object:
    tensors = [mine(), mine(5)]
    with distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    return [tensor.tolist() for tensor in tensors]


ABSENT: list[Call] = []


def since(first: tuple[int, int], call: Call) -> Call:
    """A form that gloo groups have since a release of torch: in older ones they refuse it, or refuse it on one rank
    only. inagg's groups have it in all releases.
    """
    if release(torch.__version__) < first:
        ABSENT.append(call)
    return call


# By the method that it is about: (call, ...).
CALLS: dict[str, list[Call]] = {
    "allreduce": [
        in_place(lambda g, t: g.allreduce([t])),
        in_place(lambda g, t: g.allreduce((t,))),
        in_place(lambda g, t: g.allreduce([t], options("Allreduce", reduceOp=MAX))),
        in_place(lambda g, t: g.allreduce([t], opts=options("Allreduce", timeout=LIMIT))),
        in_place(lambda g, t: g.allreduce([t], MAX)),
        since((2, 9), in_place(lambda g, t: g.allreduce([t], SUM, LIMIT))),
        since((2, 9), in_place(lambda g, t: g.allreduce([t], op=SUM, timeout=LIMIT))),
        in_place(lambda g, t: g.allreduce(tensors=[t], op=MAX)),
        in_place(lambda g, t: g.allreduce(t)),
        in_place(lambda g, t: g.allreduce(t, MAX)),
        since((2, 9), in_place(lambda g, t: g.allreduce(tensor=t, op=SUM, timeout=LIMIT))),
        in_place(lambda g, t: g.allreduce()),
        in_place(lambda g, t: g.allreduce([t], root=0)),
        in_place(lambda g, t: g.allreduce([t], tensors=[t])),
        in_place(lambda g, t: g.allreduce([t], options("Allreduce"), op=SUM)),
        in_place(lambda g, t: g.allreduce([t], SUM, LIMIT, 3)),
        registered(lambda g, t: g.allreduce([t])),
    ],
    "allreduce_coalesced": [
        in_place(lambda g, t: g.allreduce_coalesced([t])),
        in_place(lambda g, t: g.allreduce_coalesced([t], options("AllreduceCoalesced", reduceOp=MAX))),
        in_place(lambda g, t: g.allreduce_coalesced(tensors=[t], opts=options("AllreduceCoalesced"))),
        registered(lambda g, t: g.allreduce_coalesced([t])),
        coalesced,
    ],
    "broadcast": [
        in_place(lambda g, t: g.broadcast([t])),
        in_place(lambda g, t: g.broadcast([t], options("Broadcast", rootRank=g.size() - 1))),
        in_place(lambda g, t: g.broadcast(t, g.size() - 1)),
        since((2, 9), in_place(lambda g, t: g.broadcast(t, root=g.size() - 1, timeout=LIMIT))),
        in_place(lambda g, t: g.broadcast(tensor=t, root=0)),
        registered(lambda g, t: g.broadcast(t, 0)),
    ],
    "reduce": [
        into(
            lambda: [mine()] if dist.get_rank() == 0 else [],
            lambda g, r: g.reduce(r or [mine()], options("Reduce", rootRank=0)),
        ),
        into(
            lambda: [mine()] if dist.get_rank() == 0 else [],
            lambda g, r: g.reduce(r[0] if r else mine(), root=0, op=MAX),
        ),
        since(
            (2, 9),
            into(
                lambda: [mine()] if dist.get_rank() == 0 else [],
                lambda g, r: g.reduce(r[0] if r else mine(), 0, SUM, LIMIT),
            ),
        ),
        into(lambda: [mine()] if dist.get_rank() == 0 else [], lambda g, r: g.reduce(r or [mine()])),
        in_place(lambda g, t: g.reduce(t, options("Broadcast"))),
    ],
    "allgather": [
        into(lambda: [empty()], lambda g, r: g.allgather(r, [mine()])),
        into(lambda: [empty()], lambda g, r: g.allgather(r, [mine()], options("Allgather", timeout=LIMIT))),
        into(empty, lambda g, r: g.allgather(r, mine())),
        since(
            (2, 9),
            into(empty, lambda g, r: g.allgather(output_tensors=r, input_tensor=mine(), timeout=LIMIT)),
        ),
        into(lambda: [empty()], lambda g, r: g.allgather(output_tensors=r, input_tensors=[mine()])),
        into(empty, lambda g, r: g.allgather(r)),
    ],
    "_allgather_base": [into(many, lambda g, r: g._allgather_base(r, torch.ones(2)))],
    "all_gather_single": [
        into(many, lambda g, r: g.all_gather_single(r, mine(2))),
        into(many, lambda g, r: g.all_gather_single(output=r, input=mine(2), opts=options("Allgather"))),
    ],
    "all_gather_single_coalesced": [
        into(lambda: [many()], lambda g, r: g.all_gather_single_coalesced(r, [mine(2)])),
        into(lambda: [many()], lambda g, r: g.all_gather_single_coalesced(outputs=r, inputs=[mine(2)])),
    ],
    "allgather_into_tensor_coalesced": [
        into(lambda: [many()], lambda g, r: g.allgather_into_tensor_coalesced(r, [mine(2)]))
    ],
    "allgather_coalesced": [
        into(lambda: [[torch.zeros(3)] for _ in empty()], lambda g, r: g.allgather_coalesced(r, [mine()])),
    ],
    "gather": [
        gathered(lambda g, r: g.gather([r] if r else [], [mine()], options("Gather", rootRank=0))),
        since((2, 9), gathered(lambda g, r: g.gather(r, mine(), 0))),
        since(
            (2, 9),
            gathered(lambda g, r: g.gather(output_tensors=r, input_tensor=mine(), root=0, timeout=LIMIT)),
        ),
    ],
    # Since torch 2.15; gloo refuses them.
    "gather_into_tensor": [gathered(lambda g, r: g.gather_into_tensor(many(), mine(1)))],
    "gather_single": [gathered(lambda g, r: g.gather_single(many(), mine(1)))],
    "scatter": [
        in_place(
            lambda g, t: g.scatter([t], at_root([empty()]), options("Scatter", rootRank=0)),
        ),
        since((2, 9), in_place(lambda g, t: g.scatter(t, at_root(empty()), 0))),
        since(
            (2, 9), in_place(lambda g, t: g.scatter(output_tensor=t, input_tensors=at_root(empty()), root=0))
        ),
    ],
    "reduce_scatter": [
        since((2, 8), into(lambda: [mine(2)], lambda g, r: g.reduce_scatter(r, [one_each()]))),
        since(
            (2, 8),
            into(lambda: [mine(2)], lambda g, r: g.reduce_scatter(r, [one_each()], options("ReduceScatter"))),
        ),
        since((2, 8), into(lambda: mine(2), lambda g, r: g.reduce_scatter(r, one_each()))),
        # Where gloo would sum, inagg refuses: collectives_inner.py.
        since(
            (2, 8),
            into(
                lambda: mine(2),
                lambda g, r: g.reduce_scatter(r, one_each(), SUM if GLOO_REDUCE_SCATTER_ONLY_SUMS else MAX),
            ),
        ),
        since(
            (2, 9),
            into(
                lambda: mine(2),
                lambda g, r: g.reduce_scatter(output=r, input=one_each(), op=SUM, timeout=LIMIT),
            ),
        ),
    ],
    "_reduce_scatter_base": [
        into(lambda: mine(2), lambda g, r: g._reduce_scatter_base(r, many())),
        into(lambda: mine(2), lambda g, r: g._reduce_scatter_base(outputTensor=r, inputTensor=many())),
    ],
    "reduce_scatter_single": [into(lambda: mine(2), lambda g, r: g.reduce_scatter_single(r, many()))],
    "reduce_scatter_single_coalesced": [
        into(lambda: [mine(2)], lambda g, r: g.reduce_scatter_single_coalesced(r, [many()]))
    ],
    "reduce_scatter_tensor_coalesced": [
        into(lambda: [mine(2)], lambda g, r: g.reduce_scatter_tensor_coalesced(r, [many()]))
    ],
    "alltoall": [since((2, 12), into(lambda: empty(2), lambda g, r: g.alltoall(r, one_each())))],
    "alltoall_base": [
        into(many, lambda g, r: g.alltoall_base(r, many(), [], [])),
        since((2, 9), into(many, lambda g, r: g.alltoall_base(r, many(), [], [], LIMIT))),
        since((2, 9), into(many, lambda g, r: g.alltoall_base(r, many(), [], [], timeout=LIMIT))),
        into(
            many,
            lambda g, r: g.alltoall_base(output=r, input=many(), output_split_sizes=[], input_split_sizes=[]),
        ),
        into(many, lambda g, r: g.alltoall_base(r, many())),
    ],
    "all_to_all_single": [
        into(many, lambda g, r: g.all_to_all_single(r, many(), [], [], options("AllToAll")))
    ],
    "barrier": [
        lambda g: g.barrier().wait(),
        lambda g: g.barrier(options("Barrier")).wait(),
        since((2, 9), lambda g: g.barrier(timeout=LIMIT).wait()),
        since((2, 9), lambda g: g.barrier(LIMIT).wait()),
    ],
    "monitored_barrier": [
        lambda g: g.monitored_barrier(),
        lambda g: g.monitored_barrier(LIMIT),
        lambda g: g.monitored_barrier(LIMIT, True),
        lambda g: g.monitored_barrier(timeout=LIMIT, wait_all_ranks=True),
    ],
    "send": [message(lambda g, t, to, source: (g.send([mine()], to, 4), g.recv([t], source, 4)))],
    "recv": [
        message(
            lambda g, t, to, source: (
                g.send(tensors=[mine()], dstRank=to, tag=4),
                g.recv(tensors=[t], srcRank=source, tag=4),
            )
        )
    ],
    "recv_anysource": [
        message(lambda g, t, to, source: (g.send([mine()], to, 5), g.recv_anysource([t], 5))),
    ],
    "set_timeout": [with_timeout],
    "size": [lambda g: g.size()],
    "rank": [lambda g: g.rank()],
    "get_group_store": [lambda g: isinstance(g.get_group_store(), distributed_c10d.Store)],
    "group_name": [lambda g: isinstance(g.group_name, str) and len(g.group_name) > 0],
    "_set_group_name": [lambda g: g._set_group_name(g.group_name)],
    "group_desc": [lambda g: isinstance(g.group_desc, str)],
    "_set_group_desc": [lambda g: g._set_group_desc(g.group_desc)],
    "bound_device_id": [lambda g: g.bound_device_id],
    "boxed": [lambda g: type(g).unbox(g.boxed()) is g],
    "unbox": [lambda g: dist.ProcessGroup.unbox(g.boxed()) is g],
    "_id": [lambda g: isinstance(g._id(), int)],
    "_get_backend": [lambda g: type(g._get_backend(CPU)).__name__],
    "_has_hooks": [lambda g: g._has_hooks()],
    "_set_sequence_number_for_group": [lambda g: g._set_sequence_number_for_group()],
    "_get_sequence_number_for_group": [lambda g: isinstance(g._get_sequence_number_for_group(), int)],
    "_enable_collectives_timing": [lambda g: g._enable_collectives_timing()],
    "_wait_for_pending_works": [lambda g: g._wait_for_pending_works()],
    "_register_on_completion_hook": [lambda g: g._register_on_completion_hook(lambda _: None)],
    "_start_coalescing": [lambda g: g._start_coalescing(CPU)],
    "_end_coalescing": [lambda g: g._end_coalescing(CPU)],
    "use_pg_for_symm_mem_rendezvous": [lambda g: g.use_pg_for_symm_mem_rendezvous],
}

# Not called here, or different for a reason.
OTHERS = {
    **dict.fromkeys(
        ["BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL"], "constants"
    ),
    **dict.fromkeys(["abort", "shutdown"], "end the group: collectives_groups.py"),
    **dict.fromkeys(
        ["_register_backend", "_set_default_backend", "_backend_id"],
        "for those who make torch's own group of backends",
    ),
    **dict.fromkeys(["_get_backend_name", "name"], "inagg; asked for below"),
    "_device_types": "gloo's has cuda on machines without CUDA",
    **dict.fromkeys(
        ["get_reconfigure_handle", "reconfigure", "supports_reconfigure"],
        "since torch 2.14: membership/test_formations.py, test_lost_rank.py",
    ),
    **dict.fromkeys(["new_window", "supports_window"], "since torch 2.14; gloo has none of it"),
    **dict.fromkeys(
        [f"{do}_{when}_hook" for do in ("register", "unregister") for when in ("pre", "post", "abort")]
        + ["supports_abort_hooks", "supports_completion_hooks"],
        "since torch 2.15; for calls through torch's dispatcher, without which groups in Python are called",
    ),
    "_add_ephemeral_timeout": "since torch 2.15; of backends in C++",
    "get_backend": "since torch 2.14, for get_backend_impl: the group itself, whose methods are those of a backend",
    "merge_remote_group": "of fault-tolerant programs that pair worlds; not there yet",
    "split_group": "below",
}


def outcome(call: Call, group: object) -> object:
    try:
        return call(group)
    except TypeError:
        return TypeError
    except RuntimeError as error:
        # Of this rank's own making; the text of a broken connection says otherwise.
        return str(error) if "transport" in str(error) else RuntimeError


@case
def every_method_in_every_form() -> None:
    names = {name for name in dir(dist.ProcessGroup) if not name.startswith(("__", "_pybind11"))}
    assert not names - CALLS.keys() - OTHERS.keys(), "torch has methods that this list lacks"
    gloo, group = dist.new_group(backend="gloo"), dist.group.WORLD
    assert isinstance(group, inagg.ProcessGroup)
    for name in sorted(names & CALLS.keys()):
        for number, call in enumerate(CALLS[name]):
            found = outcome(call, group)
            if call in ABSENT:
                assert not isinstance(found, type | str), (name, number, found)
                continue
            expected = outcome(call, gloo)
            assert found == expected, (name, number, found, expected)
    dist.destroy_process_group(gloo)
    assert group.name() == "inagg"
    # By this name torch chooses between the CPU and CUDA.
    assert group._get_backend_name() == ("inagg" if torch.cuda.is_available() else "gloo")


@case
def sequence_numbers_count_what_all_ranks_have_begun() -> None:
    group: Any = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.all_reduce(mine())
    dist.broadcast(mine(), 0)
    dist.all_reduce(torch.ones(3, dtype=torch.float64))
    assert group._get_sequence_number_for_group() == before + 3


@case
def split_group_makes_groups_of_some_ranks() -> None:
    world, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    assert isinstance(world, inagg.ProcessGroup)
    halves = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    own = next(half for half in halves if rank in half)
    for _ in range(2):
        group = world.split_group(own, timeout=LIMIT, group_desc="half")
        assert group is not None
        assert (group.size(), group.rank(), group.group_desc) == (len(own), own.index(rank), "half")
        assert group.timeout_s == LIMIT.total_seconds()
        tensor = torch.tensor([rank + 1.0])
        group.allreduce([tensor]).wait()
        assert tensor.item() == sum(member + 1 for member in own)
        group.shutdown()
    assert world.split_group([]) is None
