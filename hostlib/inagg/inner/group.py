# SPDX-License-Identifier: Apache-2.0
"""A process group that hands every collective to an inner group; its subclass `ProcessGroup` overrides sums.

torch's base class would dispatch what a subclass does not override. But it looks for the override with the GIL held
and, if it finds none, runs the collective without releasing the GIL. Gloo's threads need the GIL to drop tensors while
they hold gloo's queue lock: a deadlock. The methods of a group that is not a Python subclass release the GIL.
"""

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from operator import methodcaller
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, Work

from inagg.counters import TalliedCall, Tally
from inagg.dynamo import skip_dynamo
from inagg.errors import InaggError, JobError
from inagg.inner import cuda as _cuda
from inagg.inner.arguments import check_sizes, refuse_shared, tensors_of
from inagg.inner.connections import GlooConnections
from inagg.inner.gloo import make_gloo
from inagg.inner.host_copies import HostCopies
from inagg.inner.work import AnySourceWork, InnerWork, Waits, raising_cause
from inagg.membership.assembly import Assembly
from inagg.overloads import in_one_form
from inagg.sums.calls import is_collective, is_reduction, measure
from inagg.torch_versions import GLOO_LACKS_ALL_TO_ALL, method_name

# The thread of gloo's device does these. Their works are completed only when somebody waits for them. A wait without a
# timeout would take that with which gloo was made to connect.
_WITHOUT_THREAD = ("send", "recv")

DRAIN_S = 3.0  # a rank that leaves gives up its unfinished collectives after this time without a packet
_LOOK_S = 0.01


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: "ForwardingGroup", *arguments: Any) -> Any:
        return self.forward(name, *arguments)

    method.__name__ = name
    return in_one_form(method)


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: "ForwardingGroup", *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **keywords)

    method.__name__ = name
    return method


@skip_dynamo
class ForwardingGroup(dist.ProcessGroup):
    """Collectives over gloo; for CUDA tensors over NCCL, if `inagg.inner.cuda` chooses it, else by gloo on host copies.

    `form_inner` connects the ranks. After `end_inner` it may connect others, and this process may then be another rank.

    Args:
        store, rank, size, timeout: what the methods of these names return until `form_inner` is called.
        copy_cpu: as `Options.stage_cpu`.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, copy_cpu: bool = False
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stub lacks this overload
        self._store, self._rank, self._size = store, rank, size
        self._waits = Waits()
        self.tally = Tally()
        self.inner_reductions = 0
        self._made_by = os.getpid()
        self._copy_cpu = copy_cpu
        self._under_way: set[Work] = set()  # gloo's collectives whose end nobody has noticed
        self._timeout_s = timeout.total_seconds()
        self._connecting = threading.Lock()  # held while a rank alone connects to itself
        _living.add(self)

    def form_inner(
        self, ranks: Assembly, store: Store, address: str | None = None, cuda: _cuda.InnerCuda = "auto"
    ) -> None:
        """Connect the ranks. A rank alone gets its inner group, and the threads that come with it, at its first use.

        Args:
            ranks: the ranks that make the group. Their timeout is that of each collective.
            store: keys that the group's ranks share: for NCCL, and for callers of `get_group_store`.
            address: this host's address for gloo. None leaves the choice to gloo, which asks the name service for the
                address of the host's name, often a loopback address.
            cuda: as `Options.inner_cuda`.

        Raises:
            ConfigurationError: the ranks cannot do what `cuda` asks for.
        """
        self._rank, self._size, self._store = ranks.rank, ranks.size, store
        self._timeout_s = ranks.timeout.total_seconds()
        self._waits = Waits()
        if ranks.size > 1:
            self._connect(ranks, store, address, cuda)
        else:
            self._on_demand = (ranks, store, address, cuda)

    # torch's class keeps the numbers that it was made with. Its C++ asks by the second names.
    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size  # noqa: N815

    def _connect(self, ranks: Assembly, store: Store, address: str | None, cuda: _cuda.InnerCuda) -> None:
        self._connections = GlooConnections(address, partial(make_gloo, ranks), ranks)
        try:
            chosen = _cuda.agree(ranks, cuda)
        except BaseException:
            self._connections.close()
            raise
        self._connections.all_connected()
        if chosen == "nccl":
            self._nccl = _cuda.nccl_group(PrefixStore("nccl", store), ranks.rank, ranks.size, ranks.timeout)
        self._backends = {"cpu": self._connections.group}
        if torch.cuda.is_available():
            self._backends["cuda"] = self._nccl or self._connections.group
        through_host = [*(["cuda"] if self._nccl is None else []), *(["cpu"] if self._copy_cpu else [])]
        self._copies = HostCopies(ranks.rank, through_host)
        self._inner = dist.ProcessGroup(ranks.rank, ranks.size)  # type: ignore[call-arg]
        for device, backend in self._backends.items():
            kind = getattr(dist.ProcessGroup.BackendType, "NCCL" if backend is self._nccl else "GLOO")
            self._inner._register_backend(torch.device(device), kind, backend)
        self._inner._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def _connect_alone(self) -> None:
        """Make the inner group of a rank alone: programs have many such groups, and most of them need none."""
        with self._connecting:
            if self._on_demand is not None:
                with self._on_demand[0]:
                    self._connect(*self._on_demand)
                self._on_demand = None

    @property
    def inner(self) -> Any:
        """The group that collectives are handed to.

        Raises:
            JobError: this group has been destroyed.
        """
        if self._on_demand is not None:
            self._connect_alone()
        if self._inner is None:
            raise JobError("this process group has been destroyed", rank=self.rank())
        return self._inner

    # torch asks a group for its backends, for example for their timeout. Only the inner group has them: torch's class
    # would keep the backends and their threads as long as anything refers to this group.
    @property
    def _device_types(self) -> list[torch.device]:
        return [
            torch.device(device) for device in (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
        ]

    def _get_backend(self, device: torch.device) -> Any:
        if self._on_demand is not None:
            self._connect_alone()
        if self._inner is None:
            self._refuse_broken()
        if device.type not in self._backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")  # torch's error
        return self._backends[device.type]

    @property  # type: ignore[misc]  # in torch's stub it can be set
    def use_pg_for_symm_mem_rendezvous(self) -> bool:
        return bool(self.inner.use_pg_for_symm_mem_rendezvous)

    # With a bound device torch takes it that the communicator of its backend can be split, which only NCCL's can.
    @property
    def bound_device_id(self) -> torch.device | None:
        return self._bound_device if self._nccl is not None else None

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound_device = device

    # torch's class would ask its own backend for these.
    _name = _description = ""

    def getGroupName(self) -> str:  # noqa: N802 - torch's names
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def end_inner(self) -> None:
        """End the inner group. Its threads have ended when this returns, because they must end before the interpreter.

        First wait for collectives under way as long as bytes move. Those that are left then fail.
        """
        if os.getpid() != self._made_by:
            return
        self._on_demand = None
        if self._inner is None:
            return
        try:
            self._copies.end_hand_over()
            self._drain()
        finally:
            if self._under_way:
                self._break_off()
            self._inner.shutdown()
            self._under_way.clear()
            self._backends = {}
            self._inner = self._nccl = None
            self._connections.close()
            self._copies.join_threads()

    def _drain(self) -> None:
        """Wait for gloo's collectives under way, until no byte has moved for DRAIN_S."""
        carried, end = -1, 0.0
        while self._prune():
            now, moved = time.monotonic(), self._connections.carried()
            if moved != carried:
                carried, end = moved, now + DRAIN_S
            if now >= end:
                return
            time.sleep(_LOOK_S)

    def _prune(self) -> bool:
        """Forget gloo's collectives that are done. Returns whether others are left."""
        for work in tuple(self._under_way):
            if work.is_completed():
                self._under_way.discard(work)
        return bool(self._under_way)

    def _break_off(self) -> None:
        """Make collectives under way and later ones fail, here and at other ranks."""
        self._waits.break_off()
        if self._connections is not None:
            self._connections.break_off()
        if self._nccl is not None:
            self._nccl.abort()

    @property
    def timeout_s(self) -> float:
        """The timeout, in seconds, of a collective that is called without one; torch may change it."""
        if self._connections is not None and self._connections.group is not None:
            self._timeout_s = self._connections.group.options._timeout.total_seconds()
        return self._timeout_s

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of collectives that are called without one."""
        self._timeout_s = timeout.total_seconds()
        if self._on_demand is not None:
            self._on_demand[0].timeout = timeout
        for backend in {id(one): one for one in self._backends.values()}.values():
            backend._set_default_timeout(timeout)

    def get_group_store(self) -> Store:
        """Keys that the group's ranks share. torch's constructor with a store is not available to Python classes."""
        return self._store

    def forward(self, name: str, *arguments: Any, deliver: Callable[[], None] | None = None) -> Any:
        """Call a method of the inner group.

        arguments: in the form that `inagg.overloads.arrange` makes. deliver: called once when the collective is done,
            before anybody sees it done.
        """
        self._refuse_broken()
        inner = self.inner
        refuse_shared(name, arguments, self.rank())
        # Some works of gloo have no future, by which to deliver; those of copies have.
        copied = self._copies.take(name, arguments) or deliver is not None
        if is_collective(name):
            self._begin(name, arguments)
        self.inner_reductions += is_reduction(name)
        call = self.tally.begin(*measure(name, arguments))
        check_sizes(name, arguments, self.size())
        with raising_cause(self._diagnose):
            begin = self._copies.begin if copied else self._copies.pass_by
            work = begin(name, getattr(inner, method_name(name)), arguments)
        if name == "recv_anysource":
            return AnySourceWork(work, self._diagnose, call, self._waits, timedelta(seconds=self.timeout_s))
        if isinstance(work, Work):
            if is_reduction(name):
                self._reduces(work, call)
            if name in _WITHOUT_THREAD:
                return InnerWork(work, self._diagnose, call, timeout=timedelta(seconds=self.timeout_s))
            self._prune()
            self._under_way.add(work)
            is_gloos = not copied and not any(tensor.is_cuda for tensor in tensors_of(arguments))
            return InnerWork(
                work,
                self._diagnose,
                call,
                self._under_way.discard,
                deliver=deliver,
                future_of=self._copies.future_of if is_gloos else methodcaller("get_future"),
            )
        call.end()
        return work

    def _begin(self, method: str, arguments: Sequence[Any]) -> None:
        """Called before gloo begins a collective."""

    def _reduces(self, work: Work, call: TalliedCall) -> None:
        """Called when the inner group has begun a reduction."""

    def _failure(self) -> InaggError | None:
        """What has broken the group; None if it is not known to be broken. No collective begins in a broken group."""
        return None

    def _refuse_broken(self) -> None:
        failure = self._failure()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame

    def _diagnose(self) -> InaggError | None:
        """What has broken the group; None if only gloo's error is known. Called when a collective has failed."""
        return None

    # Before there is an inner group. _on_demand: what `_connect` needs when a rank alone first uses its inner group.
    _inner: Any = None
    _nccl: Any = None
    _bound_device: torch.device | None = None
    _on_demand: tuple[Assembly, Store, str | None, _cuda.InnerCuda] | None = None
    _connections: Any = None
    _backends: Mapping[str, Any] = {}  # replaced, never changed
    _timeout_s = 0.0
    _made_by = 0

    # Some methods have two names. torch calls either, and looks for both in a subclass.
    all_gather_single = _forwarded("all_gather_single")
    all_gather_single_coalesced = _forwarded("all_gather_single_coalesced")
    all_to_all_single = _forwarded("all_to_all_single")
    allgather = _forwarded("allgather")
    _allgather_base = _forwarded("_allgather_base")
    allgather_coalesced = _forwarded("allgather_coalesced")
    allgather_into_tensor_coalesced = _forwarded("allgather_into_tensor_coalesced")
    allreduce = _forwarded("allreduce")
    allreduce_coalesced = _forwarded("allreduce_coalesced")
    alltoall_base = _forwarded("alltoall_base")
    barrier = _forwarded("barrier")
    broadcast = _forwarded("broadcast")
    gather = _forwarded("gather")
    gather_into_tensor = _forwarded("gather_into_tensor")
    gather_single = _forwarded("gather_single")
    recv = _forwarded("recv")
    recv_anysource = _forwarded("recv_anysource")
    reduce = _forwarded("reduce")
    reduce_scatter = _forwarded("reduce_scatter")
    _reduce_scatter_base = _forwarded("_reduce_scatter_base")
    reduce_scatter_single = _forwarded("reduce_scatter_single")
    reduce_scatter_single_coalesced = _forwarded("reduce_scatter_single_coalesced")
    reduce_scatter_tensor_coalesced = _forwarded("reduce_scatter_tensor_coalesced")
    scatter = _forwarded("scatter")
    send = _forwarded("send")

    @in_one_form
    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Any:
        """Exchange tensors with all ranks; as parts of one tensor where gloo has no exchange of several."""
        if not GLOO_LACKS_ALL_TO_ALL:
            return self.forward("alltoall", outputs, inputs, opts)
        outputs = list(outputs)  # the caller's list may change before the exchange is done
        kinds = {tensor.dtype for tensor in (*outputs, *inputs)}
        if len(kinds) > 1:
            raise ValueError(f"alltoall: tensors of one type are exchanged, not of {sorted(map(str, kinds))}")
        refuse_shared("alltoall", (outputs, inputs), self.rank())
        received, sent = ([tensor.numel() for tensor in tensors] for tensors in (outputs, inputs))
        given = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        joined = given.new_empty(sum(received))

        def deliver() -> None:
            for output, part in zip(outputs, torch.split(joined, received), strict=True):
                # Autograd does not see `data` written, as in torch's groups.
                output.data.copy_(part.view(output.shape))

        return self.forward("alltoall_base", joined, given, received, sent, opts, deliver=deliver)

    @in_one_form
    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """Up to torch 2.12 the inner group takes no None for its own timeout."""
        limit = timedelta(seconds=self.timeout_s) if timeout is None else timeout
        self.forward("monitored_barrier", limit, wait_all_ranks)

    # What torch's class would ask a backend of its own for.
    _enable_collectives_timing = _delegated("_enable_collectives_timing")
    _end_coalescing = _delegated("_end_coalescing")
    _get_sequence_number_for_group = _delegated("_get_sequence_number_for_group")
    _has_hooks = _delegated("_has_hooks")
    _register_on_completion_hook = _delegated("_register_on_completion_hook")
    _set_sequence_number_for_group = _delegated("_set_sequence_number_for_group")
    _start_coalescing = _delegated("_start_coalescing")
    _wait_for_pending_works = _delegated("_wait_for_pending_works")


# The groups that have been made and not been freed.
_living: "weakref.WeakSet[ForwardingGroup]" = weakref.WeakSet()


def _keep_all() -> None:
    """Keep gloo in a forked child: to free a group would wait for gloo's threads, which the child does not have."""
    for group in _living:
        for backend in {id(one): one for one in group._backends.values()}.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))


os.register_at_fork(after_in_child=_keep_all)
