# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend ``"inagg"``.

Sums that the switch can do go through it (docs/backend.md has the list). All other collectives go to the inner group.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store, Work

from inagg.at_exit import leave_all, living
from inagg.counters import TalliedCall, Tally
from inagg.dynamo import skip_dynamo
from inagg.errors import ConfigurationError, InaggError, JobError
from inagg.fallback import join_or_fall_back
from inagg.inner.connections import GlooConnections
from inagg.inner.group import ForwardingGroup
from inagg.inner.reports import Reports
from inagg.inner.rounds import GlooRounds
from inagg.inner.scaling import scale_for_sum
from inagg.loading import loading_s, watch_loaders
from inagg.lone_training import TrainingWatch
from inagg.membership.alone import Alone
from inagg.membership.assembly import ABORTED, Assembly
from inagg.membership.assembly import describe as describe_error
from inagg.membership.formations import ADVICE, Formations, by_rank, number_of
from inagg.membership.interface import source_address
from inagg.membership.session import Session
from inagg.membership.store import NEW_GROUP
from inagg.membership.unformed import Unformed
from inagg.options import LaneBits, Options
from inagg.overloads import in_one_form
from inagg.side_processes import RankMark
from inagg.sums.calls import describe
from inagg.sums.collectives import SwitchCollectives, Wanted
from inagg.sums.elements import (
    HALVES,
    LEAST_HALVES,
    is_contiguous_float32,
    is_integer,
    lane_bits_of,
    takes,
)
from inagg.sums.operation import Operation
from inagg.sums.own import OwnSums
from inagg.sums.work import SwitchWork
from inagg.torch_versions import (
    GLOO_KEEPS_ITS_TIMEOUT,
    GLOO_LACKS_REDUCE_SCATTER,
    GLOO_REDUCE_SCATTER_ONLY_SUMS,
)

_c10d: Any = torch._C._distributed_c10d  # torch's stub lacks much of it

_log = logging.getLogger(__name__)


@skip_dynamo
class ProcessGroup(ForwardingGroup):
    """A process group that sums in the switch.

    ``init_process_group("inagg")``, ``new_group(backend="inagg")`` and `create` make it. Each group has its own job,
    except a group of one rank, which needs none, and no controller.

    Args:
        store: keys that only the ranks of this group share. They may have made a group with it before.
        rank, size: this process's rank, and the number of ranks.
        timeout: of each collective. A sum that takes longer ends the job.
        options: see `Options`.
        taken_over: what the program named, if `inagg.takeover` took the group over.
        backend: what the group calls its backend in Python. In C++ it is always "inagg": DDP's logger looks for gloo's
            group in one that calls itself "gloo".
        without_job: why the group has no job, and gloo does its sums; empty: it has one.
        formed: whether the ranks form the group now. Otherwise it does no collective until `reconfigure` forms it.

    Raises:
        InaggError: the job could not be set up, and the ranks do not fall back to gloo. All ranks raise.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: Options,
        *,
        taken_over: str | None = None,
        backend: str = "inagg",
        without_job: str = "",
        formed: bool = True,
        aborted: threading.Event | None = None,
    ) -> None:
        super().__init__(store, rank, size, timeout, copy_cpu=options.stage_cpu)
        self._options = options
        watch_loaders()
        self._mark: RankMark | None = None
        self._taken_over = taken_over
        self._backend_name = backend
        self._without_job = without_job
        self.training: TrainingWatch | None = None  # of the world
        self.before_leaving: list[Callable[[str | None, float], None]] = []  # with the arguments of `leave`
        self._warned_of_sparse = False
        self.made = time.monotonic()
        # If gloo does the sums, both are None, and `_why_inner` has the reason.
        self._session: Session | Alone | Unformed | None = None
        self._switch: SwitchCollectives | OwnSums | None = None
        self._why_inner = ""
        self._reports: Reports | None = None
        self._formations = Formations(store, rank)
        self._reforming = threading.Lock()  # guards the next one
        self._aborted: threading.Event | None = None  # while `reconfigure` runs: whether it shall give up
        self._splits: set[threading.Event] = set()  # the same of each `split_group` that runs
        living.add(self)
        if formed:
            self._form(store, rank, size, timeout, aborted=aborted)
        else:
            self._session = Unformed("the group has no members yet: call reconfigure first", rank)

    def _form(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        advice: str = NEW_GROUP,
        aborted: threading.Event | None = None,
    ) -> None:
        """Connect the ranks that share the store, and have them join a job. See the class for arguments and errors.

        advice, aborted: of `Assembly`. Until the group is formed, its collectives, which other threads may call, fail.
        """
        options = self._options
        self._session = Unformed("the group is being formed", rank)
        self._switch = self._reports = None
        self._why_inner = ""
        if size == 1:
            ranks = Assembly(HashStore(), rank, size, timeout, aborted=aborted)
            ranks.check_aborted()
            self.form_inner(ranks, ranks.inner_store, "127.0.0.1", options.inner_cuda)
            alone = Alone()
            self._switch = OwnSums(alone, options, self.tally)
            self._session = alone
            self._mark = RankMark()
            return
        try:
            with Assembly(store, rank, size, timeout, options.own_host_name, advice, aborted) as ranks:
                ranks.check_aborted()
                self.form_inner(ranks, ranks.inner_store, _gloo_address(options), options.inner_cuda)
                self._begin_sums(
                    self._without_job or join_or_fall_back(ranks, self, options, self._on_failure)
                )
        except BaseException:
            self.end_inner()
            raise
        self._mark = RankMark()

    def _begin_sums(self, joined: Session | str) -> None:
        """The group is formed. joined: its job, or why it has none."""
        options, size = self._options, self.size()
        if isinstance(joined, Session):
            joined.watch(self._connections.silent, self._connections.ended, self._connections.rtt_s)
            if not GLOO_KEEPS_ITS_TIMEOUT:  # rounds wait for ever, and connecting must not
                address, host = _gloo_address(options), options.own_host_name
                joined.may_sum_alone(partial(GlooRounds, self._store, self.rank(), size, address, host))
            self._switch = SwitchCollectives(joined.sums, size, options, self.tally)
            self._session = joined  # last: until then collectives fail
            return
        self._why_inner = joined
        own = partial(_waited, self.tally, self._connections, options.own_host_name, loading_s())
        self._reports = Reports(self._store, self.rank(), size, own)
        self._session = None

    splits = 0  # calls of torch.distributed.split_group

    @property
    def options(self) -> Options:
        """The group's options. A change of `lane_bits`, `half_lane_bits`, `rounding` or `seed` applies to later sums.

        All ranks must change them between the same two calls.
        """
        return self._options

    @options.setter
    def options(self, options: Options) -> None:
        self._options = options
        if self._switch is not None:
            self._switch.options = options

    @classmethod
    def create(
        cls,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: timedelta = default_pg_timeout,
        options: Options | None = None,
    ) -> Self:
        """Make a group of the ranks that share a store, with or without torch's world. All of these ranks call it.

        It is for programs that make a new group whenever ranks come or go, such as those that use torchft. End each
        group with `shutdown`, or with `abort` if ranks are lost.

        Args:
            store: keys that no group of other ranks uses: a ``PrefixStore`` with a different prefix for each group. The
                same ranks may use it again.
            rank, size: this process's rank, from 0 to size - 1, and the number of ranks.
            timeout: of each collective.
            options: `Options.resolve` adds those that are not set.

        Raises:
            ConfigurationError: the rank is out of range.
            InaggError: as the constructor.
        """
        if not 0 <= rank < size:
            raise ConfigurationError(f"rank {rank} is not in a group of size {size}: ranks are 0 to size - 1")
        return cls(store, rank, size, timeout, Options.resolve(options, ranks=size))

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> "ProcessGroup | None":
        """Make a group of some of this group's ranks, as ``torch.distributed.split_group``. All of them call it.

        Args:
            ranks: of this group, in the order of their ranks in the new group.
            timeout: of each collective; None: this group's.
            opts: `Options` of the new group. Other backends' options are ignored; the new group then has this group's.
            group_name: None for one after this group's.

        Returns:
            The group; None on a rank that is not one of `ranks`.

        Raises:
            InaggError: as the constructor.
        """
        if self.rank() not in ranks:
            return None
        members, aborted = ",".join(map(str, ranks)), threading.Event()
        self._splits.add(aborted)
        try:
            group = type(self)(
                PrefixStore(f"split/{members}", self._store),
                list(ranks).index(self.rank()),
                len(ranks),
                timeout or timedelta(seconds=self.timeout_s),
                opts if isinstance(opts, Options) else self.options,
                without_job=self._without_job,
                aborted=aborted,
            )
        finally:
            self._splits.discard(aborted)
        group.setGroupName(group_name or f"{self.group_name}:split:{members}")
        group.setGroupDesc(group_desc or f"{self.group_desc}:split")
        return group

    # torch's names and arguments; `in_one_form` accepts its other forms too.

    @in_one_form
    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """All-reduce in place, asynchronously: through the switch if it can do it, else through the inner group."""
        operation = Operation.of(opts)
        commonest = len(tensors) == 1 and operation.is_sum_or_avg and is_contiguous_float32(tensors[0])
        if self._switch is not None and commonest:
            return self._switch.all_reduce_float32(tensors[0], operation, self.timeout_s)
        return self._all_reduce("allreduce", tensors, operation, opts)

    @in_one_form
    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """As `allreduce`. Small tensors are summed together."""
        return self._all_reduce("allreduce_coalesced", tensors, Operation.of(opts), opts)

    def _all_reduce(
        self, method: str, tensors: Sequence[torch.Tensor], operation: Operation, opts: Any
    ) -> Work:
        if (switch := self._switch_for(operation, tensors)) is not None:
            wanted = [(tensor, tensor, None) for tensor in tensors]
            return switch.reduce("allreduce", opts, operation, wanted, self.timeout_s)
        scaled = scale_for_sum(operation, tensors, opts, self.size(), results=tensors, in_place=True)
        work: Work = self.forward(method, scaled.tensors, scaled.opts, deliver=scaled.deliver)
        return work

    @in_one_form
    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """Sum to one rank. Through the switch the sum goes to all ranks; the others discard it.

        Each rank sends and receives the tensor once. In gloo's ring the root receives almost twice as much.
        """
        operation = Operation.of(opts)
        is_root = opts.rootRank == self.rank()
        switch = self._switch_for(operation, tensors)
        if switch is None or not 0 <= opts.rootRank < self.size():
            scaled = scale_for_sum(
                operation,
                tensors,
                opts,
                self.size(),
                results=tensors if is_root else [],
                in_place=is_root,
            )
            work: Work = self.forward("reduce", scaled.tensors, scaled.opts, deliver=scaled.deliver)
            return work
        wanted = [(tensor, tensor if is_root else None, None) for tensor in tensors]
        return switch.reduce("reduce", opts, operation, wanted, self.timeout_s)

    @in_one_form
    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Work:
        """Give each rank its part of the sum. Through the switch, as in gloo, every rank receives the complete sum."""
        operation = Operation.of(opts)
        parts = [tensor for several in inputs for tensor in several]
        sizes_fit = all(
            len(several) == self.size() and several[self.rank()].numel() == output.numel()
            for output, several in zip(outputs, inputs, strict=True)
        )
        switch = self._switch_for(operation, [*outputs, *parts]) if sizes_fit else None
        if switch is None:
            _refuse_wrong_sums(operation, self.size())
            scaled = scale_for_sum(operation, parts, opts, self.size(), results=outputs)
            work: Work
            same_sizes = sizes_fit and len(outputs) == 1 and len({part.numel() for part in parts}) == 1
            if GLOO_LACKS_REDUCE_SCATTER and same_sizes:
                joined = torch.cat([tensor.reshape(-1) for tensor in scaled.tensors])
                one = (outputs[0], joined, scaled.opts)
                work = self.forward("_reduce_scatter_base", *one, deliver=scaled.deliver)
                return work
            rest = iter(scaled.tensors)
            lists = [list(islice(rest, len(several))) for several in inputs]
            work = self.forward("reduce_scatter", outputs, lists, scaled.opts, deliver=scaled.deliver)
            return work
        switch.settle(parts)
        wanted: list[Wanted] = []
        for output, several in zip(outputs, inputs, strict=True):
            start = sum(tensor.numel() for tensor in several[: self.rank()])
            joined = torch.cat([tensor.reshape(-1) for tensor in several])
            wanted.append((joined, output, slice(start, start + output.numel())))
        return switch.reduce("reduce_scatter", opts, operation, wanted, self.timeout_s)

    @in_one_form
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """As `reduce_scatter`, with the parts of all ranks in one tensor, in the order of ranks."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    @in_one_form
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Work:
        """Several `reduce_scatter_single` at once."""
        operation = Operation.of(opts)
        sizes_fit = all(i.numel() == o.numel() * self.size() for o, i in zip(outputs, inputs, strict=True))
        switch = self._switch_for(operation, [*outputs, *inputs]) if sizes_fit else None
        if switch is None:
            _refuse_wrong_sums(operation, self.size())
            scaled = scale_for_sum(operation, inputs, opts, self.size(), results=outputs)
            work: Work = self.forward(
                "reduce_scatter_single_coalesced",
                outputs,
                scaled.tensors,
                scaled.opts,
                deliver=scaled.deliver,
            )
            return work
        wanted: list[Wanted] = []
        for tensor, output in zip(inputs, outputs, strict=True):
            start = self.rank() * output.numel()
            wanted.append((tensor, output, slice(start, start + output.numel())))
        return switch.reduce("reduce_scatter", opts, operation, wanted, self.timeout_s)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _switch_for(
        self, operation: Operation, tensors: Sequence[torch.Tensor]
    ) -> SwitchCollectives | OwnSums | None:
        """The switch's collectives if the switch does this reduction, else None.

        All ranks decide alike, because the decision depends only on operation, type, layout and size.
        """
        through_switch = (
            self._switch is not None
            and operation.is_sum
            and all(map(takes, tensors))
            and len({tensor.dtype for tensor in tensors}) == 1
            and not (operation.factor is not None and any(is_integer(tensor.dtype) for tensor in tensors))
        )
        for tensor in tensors:
            if tensor.layout != torch.strided and not self._warned_of_sparse:
                self._warned_of_sparse = True
                _log.warning(
                    "inagg: rank %d: gloo sums sparse tensors, because ranks may have different elements; dense "
                    "tensors go through the switch",
                    self.rank(),
                )
        return self._switch if through_switch else None

    def sum_lanes(
        self,
        tensor: torch.Tensor,
        *,
        lane_bits: LaneBits,
        average: bool = False,
        rounding: Literal["nearest", "stochastic"] = "nearest",
        residual: torch.Tensor | None = None,
    ) -> Work:
        """All-reduce in place with this call's lanes and rounding instead of the group's.

        Args:
            tensor: float32, contiguous, on the CPU or a CUDA device.
            lane_bits: 32, 16 or 8; the same at all ranks.
            average: divides by the number of ranks.
            rounding: of floats to lanes.
            residual: another tensor of the same type, size and device. It receives the residual of each element.

        Raises:
            ConfigurationError: a tensor is of another type, or the group has fallen back to gloo.
        """
        if self._switch is None:
            self._refuse_broken()
            raise ConfigurationError(
                f"rank {self.rank()}: sum_lanes needs a job on the switch, and this group has fallen back to gloo; "
                "inagg.stats() has the reason"
            )
        return self._switch.all_reduce_lanes(
            tensor,
            lane_bits=lane_bits,
            average=average,
            rounding=rounding,
            residual=residual,
            timeout_s=self.timeout_s,
        )

    def shutdown(self) -> None:
        """Leave the job, and end the inner group. ``destroy_process_group`` calls this."""
        self.leave(None)

    def leave(self, cause: str | None, since: float = 0.0) -> None:
        """As `Session.leave`. The inner group's threads have ended when this returns or raises."""
        if self.training is not None:
            self.training.end(failed=cause is not None or self.failed)
        self._part(cause, since)

    def _part(self, cause: str | None = None, since: float = 0.0) -> None:
        """Leave the job, and end the inner group."""
        self._end_callers(cause, since)
        try:
            if self._session is not None:
                self._session.leave(cause, since)
        finally:
            self._unmark()
            self.end_inner()

    def abort(self) -> None:
        """End the job for all ranks at once. Their unfinished collectives fail.

        A `reconfigure` under way in another thread gives up, and raises a JobError here and at the other ranks. A later
        one can form the group again. In a forked child `abort` does nothing: the parent is still a member.
        """
        if os.getpid() != self._made_by:
            return
        self._end_callers(ABORTED, 0.0)
        self._end_splits()
        with self._reforming:
            if self._aborted is not None:
                self._aborted.set()
        session, inner = self._session, self._inner
        if isinstance(session, Unformed):
            return
        if session is not None:
            session.fail(ABORTED)
        if inner is not None:
            inner.abort()
        self._break_off()  # gloo's abort does not end collectives under way
        if session is not None:
            session.close()  # after abort, a program does not have to call shutdown
        self._unmark()

    def _end_callers(self, cause: str | None, since: float) -> None:
        """End what calls collectives of this group in place of the program, and groups that end with this one."""
        while self.before_leaving:
            self.before_leaving.pop()(cause, since)

    # torch's names, since 2.14. The backend of a device is the group: it has the methods that a program may want.

    @property
    def supports_reconfigure(self) -> bool:
        """True: `reconfigure` changes the ranks of any inagg group."""
        return True

    def get_reconfigure_handle(self) -> str:
        """This rank's name for `reconfigure`. It changes with each formation of the group."""
        return str(self._formations.handle)

    def reconfigure(self, opts: Any) -> Work:
        """Form the group again, of other ranks. All of them call it; those that are lost or left out do not.

        First this rank leaves the job that it is in: see `leave`. Its group keeps its options, its timeout, and the
        counts of its calls. Whoever holds the group, such as DistributedDataParallel, goes on with it.

        Args:
            opts: torch's ``ReconfigureOptions``. ``uuid``: a number that no formation with this store has had.
                ``handles``: those of the new ranks. A list has them by rank; in a set the ranks have the order in
                which they were numbered when their groups were made. ``timeout``: how long to wait for the other
                ranks; by default the group's. ``hints`` have no effect.

        Returns:
            A work that is done.

        Raises:
            ConfigurationError: there are no handles, this rank's is missing, or one is there twice or not inagg's; an
                argument is of another type; or several ranks need a controller, and the options name none. The group is
                as it was.
            JobError: the uuid was used before, or another thread is forming the group. The group is as it was.
            InaggError, DistStoreError: the ranks could not form the group. It does no collective until they can, with
                another uuid.
        """
        uuid, members, patience = number_of(opts.uuid), by_rank(opts.handles), opts.timeout
        if not isinstance(patience, timedelta | None):
            raise ConfigurationError(
                f"reconfigure needs a timedelta or None as its timeout, got {patience!r}"
            )
        options = type(self._options).resolve(self._options, ranks=len(members))
        with self._reforming:
            if self._aborted is not None:
                raise JobError("another thread forms this group again: it must end first", rank=self._rank)
            aborted = self._aborted = threading.Event()
        try:
            store, rank, size = self._formations.begin(uuid, members)
            self._part()
            self._options = options
            self._form_again(store, rank, size, patience, aborted)
        finally:
            with self._reforming:
                self._aborted = None
        self._formations.formed(uuid)
        if aborted.is_set():  # too late to give up
            self.abort()
        return SwitchWork([], [])

    def _form_again(
        self, store: Store, rank: int, size: int, patience: timedelta | None, aborted: threading.Event
    ) -> None:
        timeout, was = timedelta(seconds=self.timeout_s), (self._rank, self._size)
        try:
            self._form(store, rank, size, timeout if patience is None else patience, ADVICE, aborted)
        except BaseException as error:
            why = f"the group could not be formed again ({describe_error(error)}): call reconfigure with a new uuid"
            self._rank, self._size = was
            self._session, self._switch = Unformed(why, self._rank), None
            raise
        finally:
            self.set_timeout(timeout)

    def get_backend(self, device: torch.device) -> Any:
        """The group itself, for ``torch.distributed.get_backend_impl``."""
        return self

    def get_error(self) -> Any:
        """``ErrorType.SUCCESS``, as gloo: works have the errors."""
        return _c10d.ErrorType.SUCCESS

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.remove()

    def _on_failure(self) -> None:
        """End gloo's collectives, because the job has failed.

        While the job is being joined, do nothing: nothing waits for the job yet, and gloo may have to do the sums.
        """
        if isinstance(self._session, Session):
            self._end_splits()
            self._break_off()

    def _end_splits(self) -> None:
        for aborted in list(self._splits):
            aborted.set()

    def _begin(self, method: str, arguments: Sequence[Any]) -> None:
        """Note a collective of the inner group in the journal, which ranks compare."""
        if self._session is not None:
            self._session.journal.begin(describe(method, arguments))

    def _reduces(self, work: Work, call: TalliedCall) -> None:
        """In a group without a job, see when it ends, even if nobody waits for its work, and tell the others."""
        if self._reports is not None:
            work.get_future().add_done_callback(lambda _: call.end())
            self._reports.publish()

    def _failure(self) -> InaggError | None:
        return None if self._session is None else self._session.failure

    def _diagnose(self) -> InaggError | None:
        return None if self._session is None else self._session.diagnose()

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives this rank has begun. Ranks that have called the same have the same number."""
        if self._session is None:
            number: int = super()._get_sequence_number_for_group()
            return number
        return self._session.journal.last()[0]

    def getBackendName(self) -> str:  # noqa: N802 - torch's name for it
        return "inagg"

    def name(self) -> str:
        return self._backend_name

    def _get_backend_name(self) -> str:
        """The name that torch's Python code uses to choose a device, and only for that.

        It takes every name but "gloo" for a backend of CUDA tensors. So without CUDA this is "gloo", unless the program
        has named its backend otherwise.
        """
        with_cuda = torch.device("cuda") in self._device_types
        return self._backend_name if with_cuda or self._taken_over is not None else "gloo"

    @property
    def failed(self) -> bool:
        """Whether the job has failed."""
        return self._failure() is not None

    @property
    def path(self) -> Literal["switch", "server", "rounds", "local", "inner", "none"]:
        """Where sums go. ``"local"``: in a group of one rank. ``"inner"``: it has fallen back to gloo. ``"none"``:
        `reconfigure` has to form it."""
        return "inner" if self._session is None else self._session.path

    def catch_up(self) -> None:
        """Get the other ranks' figures of `stats` as of now. It takes up to eight heartbeat intervals."""
        if self._session is not None:
            self._session.catch_up()
        elif self._reports is not None:
            self._reports.publish(now=True)

    def stats(self) -> dict[str, Any]:
        """Figures since the group was made; see `inagg.stats`."""
        counts = {
            "elapsed_s": time.monotonic() - self.made,
            "switch_reductions": 0 if self._switch is None else self._switch.begun,
            "inner_reductions": self.inner_reductions,
            "calls": self.tally.snapshot(),
            "taken_over": self._taken_over,
        }
        if self._session is None:
            reports = {} if self._reports is None else self._reports.read()
            places = {rank: report.pop("place") for rank, report in reports.items()}
            waits = {"rank": self.rank(), "waits": reports, "places": places}
            return {"path": "inner", "reason": self._why_inner, **counts, **waits}
        lanes = self.options.lane_bits
        narrowest = lanes if self._switch is None else min(lanes, self._switch.narrowest_call)
        return {
            "path": self.path,
            "lane_bits": lanes,
            "half_lane_bits": {
                str(dtype).removeprefix("torch."): lane_bits_of(
                    dtype, LEAST_HALVES, self.size(), self.options
                )
                for dtype in HALVES
            },
            "narrowest_lane_bits": narrowest,
            **counts,
            **self._session.stats(),
        }


def _waited(tally: Tally, connections: GlooConnections, place: str, loaded_s: float) -> dict[str, Any]:
    """What a rank reports in a group without a job.

    gloo does not say when the others begin a sum, so `waited_s` has all of the sum. loaded_s: `loading_s` at the start.
    """
    sums, waited_s = tally.ended_reductions()
    return {
        "sums": sums,
        "waited_s": waited_s,
        "longest_wait": None,
        "loading_s": loading_s() - loaded_s,
        "rtt_s": connections.rtt_s(),
        "place": place,
    }


def _refuse_wrong_sums(operation: Operation, ranks: int) -> None:
    if GLOO_REDUCE_SCATTER_ONLY_SUMS and not operation.is_sum and ranks > 1:
        raise ConfigurationError(
            f"reduce_scatter with another operation than a sum: gloo of torch {torch.__version__} would sum. Use "
            "all_reduce, or torch 2.9 or later"
        )


def _gloo_address(options: Options) -> str | None:
    """This host's address in the network of the switch. None if GLOO_SOCKET_IFNAME chooses the network, or unknown."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return None
    if options.address is not None:
        return str(options.address)
    host = urlsplit(options.controller or "").hostname
    try:
        return source_address(host) if host else None
    except ConfigurationError:
        return None  # joining the job raises a better error


atexit.register(leave_all)
