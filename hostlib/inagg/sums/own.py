# SPDX-License-Identifier: Apache-2.0
"""Reductions of a group of one rank: the sum is the rank's own contribution, bit for bit.

No packet is sent, and nothing is rounded: the contribution itself is within every error bound, whatever the lanes. So
the residual is zero. The result is there when the call returns; on a device, when the current stream reaches it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import torch

from inagg.counters import TalliedCall, Tally
from inagg.device.streams import record_current
from inagg.errors import InaggError
from inagg.options import LaneBits, Options
from inagg.profile import profile_range
from inagg.sums.calls import describe, measure, sum_text
from inagg.sums.collectives import Wanted, check_lanes_call
from inagg.sums.journal import Journal
from inagg.sums.operation import Operation
from inagg.sums.reduction import check_writable
from inagg.sums.work import SwitchWork


class Membership(Protocol):
    """The group's membership: `inagg.membership.alone.Alone`."""

    journal: Journal

    @property
    def failure(self) -> InaggError | None: ...


class OwnSums:
    """What `SwitchCollectives` is for a group of several ranks.

    Args:
        membership: says whether the group still does collectives.
        options: the group's. Only `lane_bits` is used, for the names of calls.
        tally: counts the calls.
    """

    def __init__(self, membership: Membership, options: Options, tally: Tally) -> None:
        self.begun = 0  # calls
        self.narrowest_call = 32  # nothing is rounded
        self.options = options
        self._membership = membership
        self._tally = tally

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing is under way."""

    def reduce(
        self, method: str, opts: Any, operation: Operation, wanted: Sequence[Wanted], _timeout_s: float
    ) -> SwitchWork:
        """As `SwitchCollectives.reduce`."""
        tensors = [tensor for tensor, _, _ in wanted]
        name = describe(method, (tensors[:1], tensors[:1], opts), self.options.lane_bits)
        tallied = self._tally.begin(*measure(method, (tensors, tensors)))
        outputs = [output for _, output, _ in wanted if output is not None]
        return self._done(name, tallied, outputs, partial(_bring_all, wanted, operation))

    def all_reduce_float32(self, tensor: torch.Tensor, operation: Operation, timeout_s: float) -> SwitchWork:
        """As `SwitchCollectives.all_reduce_float32`."""
        return self.reduce("allreduce", None, operation, [(tensor, tensor, None)], timeout_s)

    def all_reduce_lanes(
        self,
        tensor: torch.Tensor,
        *,
        lane_bits: LaneBits,
        average: bool,
        rounding: Literal["nearest", "stochastic"],
        residual: torch.Tensor | None,
        timeout_s: float,
    ) -> SwitchWork:
        """See `ProcessGroup.sum_lanes`."""
        check_lanes_call(tensor, residual)
        tallied = self._tally.begin("all_reduce", tensor.nbytes)
        name = sum_text(tensor.numel(), average, lane_bits)

        def bring() -> None:
            if residual is not None:
                residual.data.zero_()

        return self._done(name, tallied, [tensor], bring)

    def _done(
        self, name: str, tallied: TalliedCall, outputs: list[torch.Tensor], bring: Callable[[], None]
    ) -> SwitchWork:
        """The Work of a call whose results `bring` brings."""
        self.begun += 1
        with profile_range(name):
            try:
                if (failure := self._membership.failure) is not None:
                    raise failure
                self._membership.journal.begin(name)
                with torch.inference_mode():  # the tensors may have been made in it
                    bring()
                tallied.end()
            except InaggError as error:
                return SwitchWork(outputs, [], error.with_traceback(None))
            finally:
                failure = None  # its traceback refers to this frame
        return SwitchWork(outputs, [_Finished(device) for device in {one.device for one in outputs}])


def _bring_all(wanted: Sequence[Wanted], operation: Operation) -> None:
    for one in wanted:
        _bring(one, operation)


def _bring(wanted: Wanted, operation: Operation) -> None:
    """Bring one contribution to its output. A rank alone receives all of it, whatever its part."""
    tensor, output, _ = wanted
    if output is None:
        return
    check_writable([output])
    value = tensor.detach()
    if operation.factor is not None:
        value = (value.to(torch.float32) * operation.factor).to(output.dtype)
    result = output.data  # autograd does not see it written
    if operation.factor is not None or result.data_ptr() != value.data_ptr():
        result.copy_(value.reshape(result.shape))


class _Finished:
    """The part of a Work whose results are on one device, queued there."""

    error: InaggError | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._queued = record_current(device)

    def wait(self, timeout_s: float | None) -> bool:
        return True

    def on_finished(self, callback: Callable[[], None]) -> None:
        callback()

    def query(self) -> bool:
        return self._queued.query()

    def block_current_stream(self) -> None:
        self._queued.block_current_stream()
