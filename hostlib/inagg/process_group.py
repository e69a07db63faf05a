# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend ``"inagg"``.

Sums that the switch can do go through it (docs/backend.md has the list); everything else goes to the inner group.
"""

import atexit
import gc
import logging
import os
import sys
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store, Work

from inagg.counters import TalliedCall
from inagg.dynamo import skip_dynamo
from inagg.errors import ConfigurationError, InaggError, JobError, name_ranks
from inagg.inner.group import ForwardingGroup, refuse_gaps
from inagg.membership.assembly import Assembly, shorten
from inagg.membership.interface import source_address
from inagg.membership.join import all_fall_back, join
from inagg.membership.session import Session
from inagg.options import LaneBits, Options
from inagg.profile import profile_range
from inagg.sums.calls import describe, measure, sum_text
from inagg.sums.elements import decode, encode, is_contiguous_float32, takes, whole
from inagg.sums.operation import Operation, as_sum, or_sum
from inagg.sums.reduction import Reduction
from inagg.sums.work import SwitchWork

_log = logging.getLogger(__name__)

_TRIED_ELEMENTS, _TRIED_S = 4096, 8.0  # float32, between every two ranks: more than a jumbo frame
_MOMENT_S = 1.0  # for the last of them, whatever joining has taken
_LONGEST_CAUSE = 300  # characters; the controller takes 2000


@skip_dynamo
class ProcessGroup(ForwardingGroup):
    """A process group that sums in the switch.

    Made by ``init_process_group("inagg")``, ``new_group(backend="inagg")``, `create`; each group is a job of its own.

    Args:
        store: keys that the group's ranks share, and only they.
        rank, size: this process in the group.
        timeout: of each collective. A sum that takes longer ends the job.
        options: see `Options`.

    Raises:
        InaggError: the job could not be set up and `options.fallback` is ``"error"``. All ranks raise.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, options: Options) -> None:
        self.options = options
        # Integers are exact whatever the lanes of floats are.
        self._exactly = options.model_copy(update={"lane_bits": 32, "rounding": "nearest"})
        self._switch_reductions = 0
        self._warned: set[str] = set()
        self._why_inner = ""
        self._made = time.monotonic()
        self._session: Session | None = None
        _living.add(self)
        try:
            with Assembly(PrefixStore("inagg", store), rank, size, timeout) as ranks:
                gloo = PrefixStore("inner", store)
                super().__init__(ranks, gloo, _gloo_address(options), options.inner_cuda)
                self._find_way(ranks)
        except BaseException:
            self.end_inner()
            raise

    def _find_way(self, ranks: Assembly) -> None:
        """Join a job, or have gloo do the sums, as all ranks do."""
        # At once: if gloo has to fail as well, all ranks shall know when joining has.
        trial = self._begin_trial(ranks.size) if self.options.fallback == "inner" else None
        end = time.monotonic() + _TRIED_S
        try:
            self._session = join(ranks, self.options, self._on_failure)
        except InaggError as error:
            if ranks.over or not all_fall_back(ranks, self.options):
                raise
            assert trial is not None
            self._why_inner = str(error)
            self._end_trial(ranks, trial, max(_MOMENT_S, end - time.monotonic()))
            # Its text: what keeps records would keep the error, whose traceback refers to the group.
            _log.warning(
                "inagg: no job on the switch, gloo does the sums of this group instead: %s", self._why_inner
            )

    def _begin_trial(self, size: int) -> Work:
        """Have gloo carry large packets between every two ranks."""
        whole = torch.zeros(size * _TRIED_ELEMENTS)
        work: Work = self.inner.alltoall_base(torch.empty_like(whole), whole, [], [])
        return work

    def _end_trial(self, ranks: Assembly, trial: Work, patience_s: float) -> None:
        """
        Raises:
            JobError: gloo has not carried them; all ranks raise.
        """
        problem = None
        try:
            trial.wait(timedelta(seconds=patience_s))
        except RuntimeError as error:
            problem = shorten(str(error))
        problems = ranks.tell_all("inner", problem)
        failed = [rank for rank, found in enumerate(problems) if found is not None]
        if failed:
            raise JobError(
                f"there is no job on the switch ({self._why_inner}), and gloo does not get "
                f"{4 * _TRIED_ELEMENTS} bytes from each rank to each other within {_TRIED_S:g} s either. Is "
                "the MTU the same on all hosts and switches? "
                f"Gloo, at {name_ranks(failed)}: {problems[failed[0]]}",
                rank=ranks.rank,
            )

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
        """A group of the ranks that share a store, beside torch's world or without one. All of them call it.

        For programs that make groups again and again of whoever is there, such as torchft's. End each with `shutdown`,
        or with `abort` if ranks are lost.

        Args:
            store: each group needs keys that nobody has used before: a ``PrefixStore`` with a prefix of its own.
            rank, size: this process among them, from 0 to size - 1.
            timeout: of each collective.
            options: what is left out comes from where `Options.resolve` finds it.

        Raises:
            ConfigurationError: a rank that cannot be, or a store that this rank has made a group with before.
            InaggError: as the constructor.
        """
        if not 0 <= rank < size:
            raise ConfigurationError(f"there is no rank {rank} in a group of {size}: ranks are 0 to size - 1")
        resolved = Options.resolve(options)
        if store.add(f"created/{rank}", 1) > 1:
            raise ConfigurationError(
                f"rank {rank} has made a group with this store before: give each group keys of its own, such as those "
                'of PrefixStore("group-2", store)'
            )
        return cls(store, rank, size, timeout, resolved)

    def allreduce(  # type: ignore[override]  # every overload of the base class in one
        self, tensors: torch.Tensor | Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """All-reduce in place, asynchronously. Through the switch if it can do it, else through the inner group."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        operation = Operation.of(opts)
        commonest = len(tensors) == 1 and operation.is_sum_or_avg and is_contiguous_float32(tensors[0])
        if self._session is not None and commonest:
            return self._sum_float32(self._session, tensors[0], operation)
        if self._takes(operation, tensors):
            return self._sum("allreduce", opts, operation, [(tensor, tensor, None) for tensor in tensors])
        tensors, opts = self._prescaled(operation, tensors, opts, in_place="allreduce")
        return super().allreduce(tensors, or_sum(opts, dist.AllreduceOptions))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """As `allreduce`: each tensor is summed on its own."""
        if self._takes(Operation.of(opts), tensors):
            return self.allreduce(tensors, opts)
        tensors, opts = self._prescaled(Operation.of(opts), tensors, opts, in_place="allreduce_coalesced")
        return super().allreduce_coalesced(tensors, or_sum(opts, dist.AllreduceCoalescedOptions))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:  # type: ignore[override]
        """The sum to one rank. Through the switch it goes to all, of which the others make no use of it: a rank sends
        and receives the tensor once, where gloo's ring has the root receive and others send it twice."""
        operation = Operation.of(opts)
        is_root = opts.rootRank == self.rank()
        if not (self._takes(operation, tensors) and 0 <= opts.rootRank < self.size()):
            in_place = "reduce" if is_root else None
            return super().reduce(*self._prescaled(operation, tensors, opts, in_place))
        return self._sum(
            "reduce", opts, operation, [(tensor, tensor if is_root else None, None) for tensor in tensors]
        )

    def reduce_scatter(  # type: ignore[override]
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Work:
        """Each rank's part of the sum. Through the switch, as in gloo, every rank gets the whole of it."""
        operation = Operation.of(opts)
        parts = [tensor for several in inputs for tensor in several]
        sizes_fit = all(
            len(several) == self.size() and several[self.rank()].numel() == output.numel()
            for output, several in zip(outputs, inputs, strict=True)
        )
        if self._session is None or not sizes_fit or not self._takes(operation, [*outputs, *parts]):
            scaled, opts = self._prescaled(operation, parts, opts)
            rest = iter(scaled)
            lists = [list(islice(rest, len(several))) for several in inputs]
            return super().reduce_scatter(outputs, lists, or_sum(opts, dist.ReduceScatterOptions))
        self._session.sums.settle(parts)
        wanted = []
        for output, several in zip(outputs, inputs, strict=True):
            start = sum(tensor.numel() for tensor in several[: self.rank()])
            joined = torch.cat([tensor.reshape(-1) for tensor in several])
            wanted.append((joined, output, slice(start, start + output.numel())))
        return self._sum("reduce_scatter", opts, operation, wanted)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """As `reduce_scatter`, of one tensor with the parts of all ranks one after the other."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Several `reduce_scatter_single` at once."""
        operation = Operation.of(opts)
        sizes_fit = all(i.numel() == o.numel() * self.size() for o, i in zip(outputs, inputs, strict=True))
        if not sizes_fit or not self._takes(operation, [*outputs, *inputs]):
            inputs, opts = self._prescaled(operation, inputs, opts)
            settings = or_sum(opts, dist.ReduceScatterOptions)
            return super().reduce_scatter_single_coalesced(outputs, inputs, settings)
        first = [self.rank() * output.numel() for output in outputs]
        return self._sum(
            "reduce_scatter",
            opts,
            operation,
            [
                (tensor, output, slice(start, start + output.numel()))
                for tensor, output, start in zip(inputs, outputs, first, strict=True)
            ],
        )

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _prescaled(
        self, operation: Operation, tensors: Sequence[torch.Tensor], opts: Any, in_place: str | None = None
    ) -> tuple[Sequence[torch.Tensor], Any]:
        """Contributions and options for the inner group, which does SUM only: floats are scaled first.

        in_place: the method that is called, if the contributions are to hold the result.
        """
        for tensor in tensors:
            if tensor.is_cpu and tensor.is_floating_point() and tensor.itemsize == 1:
                raise ConfigurationError(
                    f"nothing sums {tensor.dtype} on the CPU: convert to torch.bfloat16 first"
                )
        scale = operation.scale_for(self.size())
        if scale is None or not all(map(torch.is_floating_point, tensors)):
            return tensors, opts
        if in_place:
            refuse_gaps(in_place, [tensors])  # before they are changed
        values = [tensor.detach() for tensor in tensors]  # parameters may be summed in place
        scaled = [value.mul_(scale) if in_place else value * scale for value in values]
        return scaled, as_sum(opts)

    def _takes(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the switch does this reduction. All ranks decide alike: by operation, type, layout, size."""
        through_switch = (
            self._session is not None
            and operation.is_sum
            and all(map(takes, tensors))
            and len({tensor.dtype for tensor in tensors}) == 1
            and not (operation.scale_for(2) is not None and any(whole(tensor.dtype) for tensor in tensors))
        )
        for tensor in tensors:
            if tensor.layout != torch.strided and "sparse" not in self._warned:
                self._warned.add("sparse")
                _log.warning("inagg: gloo sums sparse tensors: which elements they have differs by rank")
        return through_switch

    def _sum(
        self,
        method: str,
        opts: Any,
        operation: Operation,
        wanted: Sequence[tuple[torch.Tensor, torch.Tensor | None, slice | None]],
    ) -> Work:
        """Sums through the switch: for each tensor, where the result goes (None: nowhere) and which part of it."""
        assert self._session is not None
        session = self._session
        self._switch_reductions += 1
        calls = [
            describe(method, ([tensor], [tensor], opts), self._options_for(tensor).lane_bits)
            for tensor, _, _ in wanted
        ]
        tensors = [tensor for tensor, _, _ in wanted]
        tallied = self.tally.begin(*measure(method, (tensors, tensors)), parts=len(tensors))

        parts: list[Reduction] = []
        problem: InaggError | None = None
        with profile_range(calls[0]):
            for call, (tensor, output, part) in zip(calls, wanted, strict=True):
                try:
                    parts.append(
                        self._submit(session, call, operation, tensor.detach(), output, part, tallied)
                    )
                except InaggError as error:
                    problem = error.with_traceback(None)  # which refers to this frame
                    break
        return SwitchWork([output for _, output, _ in wanted if output is not None], parts, problem)

    def _sum_float32(self, session: Session, tensor: torch.Tensor, operation: Operation) -> Work:
        """What `_sum` does, for the commonest all-reduce. On small tensors its time is that of the Python here."""
        timeout_s = operation.timeout_s or self.timeout_s
        try:
            part = self._submit_float32(session, tensor, self.options, operation.average, timeout_s)
        except InaggError as error:
            return SwitchWork([tensor], [], error.with_traceback(None))
        return SwitchWork([tensor], [part])

    def _submit_float32(
        self,
        session: Session,
        tensor: torch.Tensor,
        options: Options,
        average: bool,
        timeout_s: float,
        residual: torch.Tensor | None = None,
    ) -> Reduction:
        self._switch_reductions += 1
        call = sum_text(tensor.numel(), average, options.lane_bits)
        tallied = self.tally.begin("all_reduce", tensor.nbytes)
        with profile_range(call):
            return session.sums.submit(
                tensor.detach().view(-1),
                options=options,
                call=call,
                average=average,
                residual=residual,
                timeout_s=timeout_s,
                tallied=tallied,
            )

    def sum_lanes(
        self,
        tensor: torch.Tensor,
        *,
        lane_bits: LaneBits,
        average: bool = False,
        rounding: Literal["nearest", "stochastic"] = "nearest",
        residual: torch.Tensor | None = None,
    ) -> Work:
        """All-reduce in place with lanes and rounding of this call's own, whatever the group's options say.

        Args:
            tensor: float32, contiguous, on the CPU or a CUDA device.
            lane_bits: 32, 16 or 8; the same at all ranks.
            residual: as `tensor`, and not it: receives what this rank's lanes leave out of each element.

        Raises:
            ConfigurationError: a tensor of another kind, or the group has fallen back to gloo.
        """
        if self._session is None:
            raise ConfigurationError("this group has no job on the switch (inagg.stats has the reason)")
        for given in (tensor,) if residual is None else (tensor, residual):
            if not is_contiguous_float32(given):
                raise ConfigurationError(
                    "sum_lanes takes contiguous float32 tensors on the CPU or a CUDA device, not "
                    f"{given.dtype} on {given.device}"
                )
        if residual is not None and (residual.device, residual.numel()) != (tensor.device, tensor.numel()):
            raise ConfigurationError(
                f"sum_lanes: the residual has {residual.numel()} elements on {residual.device}, the tensor "
                f"{tensor.numel()} on {tensor.device}"
            )
        options = self.options.model_copy(update={"lane_bits": lane_bits, "rounding": rounding})
        left = None if residual is None else residual.detach().view(-1)
        part = self._submit_float32(self._session, tensor, options, average, self.timeout_s, left)
        return SwitchWork([tensor], [part])

    def _options_for(self, tensor: torch.Tensor) -> Options:
        return self._exactly if whole(tensor.dtype) else self.options

    def _submit(
        self,
        session: Session,
        call: str,
        operation: Operation,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        part: slice | None,
        tallied: TalliedCall,
    ) -> Reduction:
        in_place = output is not None and output.data_ptr() == tensor.data_ptr() and part is None
        ranks = self.size()
        session.sums.settle([tensor] if output is None else [tensor, output])
        encoded = encode(tensor, ranks)
        if operation.factor is not None:
            encoded = (encoded * operation.factor).to(torch.float32)
        elif not in_place and encoded.data_ptr() == tensor.data_ptr():
            encoded = encoded.clone()  # what is not to hold the result stays as it is
        result = None if output is None else output.detach()

        def deliver() -> None:
            if result is not None:
                sums = encoded if part is None else encoded[:, part]
                result.copy_(decode(sums, result.dtype, ranks).view(result.shape))

        reduction = session.sums.submit(
            encoded.view(-1),
            options=self._options_for(tensor),
            call=call,
            average=operation.average,
            touches=result,
            deliver=None if result is not None and encoded.data_ptr() == result.data_ptr() else deliver,
            timeout_s=operation.timeout_s or self.timeout_s,
            tallied=tallied,
        )
        if operation.asynchronous:
            reduction.deliver_unasked()
        return reduction

    def shutdown(self) -> None:
        """Leave the job, and end the inner group. Called by ``destroy_process_group``."""
        self.leave(None)

    def leave(self, cause: str | None, since: float = 0.0) -> None:
        """As `Session.leave`; the inner group's threads have ended when this returns or raises."""
        try:
            if self._session is not None:
                self._session.leave(cause, since)
        finally:
            self.end_inner()

    def abort(self) -> None:
        """End the job for all ranks, at once: what is outstanding fails, here and there."""
        if self._session is not None:
            self._session.fail("aborted the group")
        if self._inner is not None:
            self._inner.abort()
        self._break_off()  # gloo's abort leaves what is under way waiting
        if self._session is not None:
            self._session.close()  # nobody need call shutdown as well

    def _on_failure(self) -> None:
        """The job has failed. While it is joined nothing waits for it yet, and gloo may have to do its sums."""
        if self._session is not None:
            self._break_off()

    def _begin(self, method: str, arguments: Sequence[Any]) -> None:
        """Note a collective of the inner group among those that ranks compare."""
        if self._session is not None:
            self._session.journal.begin(describe(method, arguments))

    def _failure(self) -> InaggError | None:
        return None if self._session is None else self._session.failure

    def _diagnose(self) -> InaggError | None:
        return None if self._session is None else self._session.diagnose()

    def getBackendName(self) -> str:  # noqa: N802 - torch's name for it
        return "inagg"

    @property
    def failed(self) -> bool:
        """Whether the job has failed."""
        return self._failure() is not None

    @property
    def path(self) -> Literal["switch", "inner"]:
        """Where sums go: ``"inner"`` when the group has fallen back to gloo."""
        return "inner" if self._session is None else "switch"

    def stats(self) -> dict[str, Any]:
        """What the group did so far; see `inagg.stats`."""
        counts = {
            "elapsed_s": time.monotonic() - self._made,
            "switch_reductions": self._switch_reductions,
            "inner_reductions": self.inner_reductions,
            "calls": self.tally.snapshot(),
        }
        if self._session is None:
            return {"path": "inner", "reason": self._why_inner, **counts}
        return {"path": "switch", "lane_bits": self.options.lane_bits, **counts, **self._session.stats()}


def _gloo_address(options: Options) -> str | None:
    """Gloo uses the network that the switch is on, unless its own variable says otherwise."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return None
    if options.address is not None:
        return str(options.address)
    host = urlsplit(options.controller or "").hostname
    try:
        return source_address(host) if host else None
    except ConfigurationError:
        return None  # joining the job will say it better


# Those that have not been let go of.
_living: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """A program may end without destroying its groups. The other ranks should hear "left", not silence; and a thread
    that came back from gloo to an interpreter that has ended would end the process with an abort."""
    cause, since = _uncaught(), time.monotonic()
    for group in tuple(_living):
        try:
            group.leave(cause, since)
        except BaseException:  # an impatient Ctrl-C too: the next group's turn
            _log.warning("inagg: a group did not end in order", exc_info=True)
    if cause is not None or any(group.failed for group in _living):
        # On a busy machine it takes seconds to look for garbage in all that torch consists of, and whoever restarts the
        # job waits for that.
        gc.freeze()


def _uncaught() -> str | None:
    """The exception that ends the program, if one does. An interactive session goes on after each."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):
        return None
    text = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
    return f"its program ended with {text[:_LONGEST_CAUSE]}"
