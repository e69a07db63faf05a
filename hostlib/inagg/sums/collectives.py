# SPDX-License-Identifier: Apache-2.0
"""Reductions through the switch, as a process group calls them.

Each tensor of a call becomes one sum of the queue, except that small tensors of an all-reduce are summed together.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from inagg.counters import TalliedCall, Tally
from inagg.device.ways import way_of
from inagg.errors import ConfigurationError, InaggError
from inagg.options import LaneBits, Options
from inagg.profile import profile_range
from inagg.sums.bundle import Bundle, divided, padded
from inagg.sums.calls import describe, measure, sum_text
from inagg.sums.elements import decode, divide_, encode, is_contiguous_float32, is_integer, lane_bits_of
from inagg.sums.operation import Operation
from inagg.sums.queue import SumQueue
from inagg.sums.reduction import Reduction, check_writable
from inagg.sums.work import SwitchWork

# A contribution, the tensor that receives the result (None: no tensor), and the part of the result (None: all).
Wanted = tuple[torch.Tensor, torch.Tensor | None, slice | None]


class SwitchCollectives:
    """The reductions of one group that go through the switch.

    Args:
        queue: the sums of the group's job.
        ranks: number of ranks in the group.
        options: the group's; an assignment applies to later calls.
        tally: counts the calls.
    """

    def __init__(self, queue: SumQueue, ranks: int, options: Options, tally: Tally) -> None:
        self.begun = 0  # calls
        self.narrowest_call = 32  # the least lane_bits of calls that give them
        self.queue = queue
        self._ranks = ranks
        self._tally = tally
        self.options = options

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `SumQueue.settle`."""
        self.queue.settle(tensors)

    @property
    def options(self) -> Options:
        return self._options

    @options.setter
    def options(self, options: Options) -> None:
        self._options = options
        # Integers are summed exactly, whatever the lane width of floats.
        self._exactly = options.model_copy(update={"lane_bits": 32, "rounding": "nearest"})

    def reduce(
        self, method: str, opts: Any, operation: Operation, wanted: Sequence[Wanted], timeout_s: float
    ) -> SwitchWork:
        """Sum each contribution over the ranks.

        method, opts: as the process group is called. timeout_s: of each sum, unless the operation has its own.
        """
        self.begun += 1
        tensors = [tensor for tensor, _, _ in wanted]
        sums = self._divided(method, operation, tensors)
        calls = []
        for indices in sums:
            summed = [tensors[index] for index in indices]
            calls.append(describe(method, (summed, summed, opts), self._lane_bits(summed[0])))
        tallied = self._tally.begin(*measure(method, (tensors, tensors)), parts=len(sums))

        parts: list[Reduction] = []
        problem: InaggError | None = None
        with profile_range(calls[0]):
            for call, indices in zip(calls, sums, strict=True):
                try:
                    if len(indices) == 1:
                        part = self._submit(call, operation, wanted[indices[0]], timeout_s, tallied)
                    else:
                        together = [tensors[index] for index in indices]
                        part = self._submit_bundle(call, operation, together, timeout_s, tallied)
                    if operation.asynchronous:
                        part.deliver_unasked()
                    parts.append(part)
                except InaggError as error:
                    problem = error.with_traceback(None)  # the traceback refers to this frame
                    break
        results = [tensor if output is None else output for tensor, output, _ in wanted]
        return SwitchWork(results, parts, problem)

    def all_reduce_float32(self, tensor: torch.Tensor, operation: Operation, timeout_s: float) -> SwitchWork:
        """`reduce` for the commonest all-reduce: one contiguous float32 tensor, SUM or AVG.

        For a small tensor, most of the time is spent in Python code, so this method does as little as it can.
        """
        try:
            part = self._submit_float32(
                tensor, self._options, operation.average, operation.timeout_s or timeout_s
            )
        except InaggError as error:
            return SwitchWork([tensor], [], error.with_traceback(None))
        return SwitchWork([tensor], [part])

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
        self.narrowest_call = min(self.narrowest_call, lane_bits)
        options = self._options.model_copy(update={"lane_bits": lane_bits, "rounding": rounding})
        left = None if residual is None else residual.data.view(-1)
        return SwitchWork([tensor], [self._submit_float32(tensor, options, average, timeout_s, left)])

    def _submit_float32(
        self,
        tensor: torch.Tensor,
        options: Options,
        average: bool,
        timeout_s: float,
        residual: torch.Tensor | None = None,
    ) -> Reduction:
        self.begun += 1
        call = sum_text(tensor.numel(), average, options.lane_bits)
        tallied = self._tally.begin("all_reduce", tensor.nbytes)
        with profile_range(call):
            return self.queue.submit(
                tensor.data.view(-1),  # autograd does not see it written, as with torch's groups
                options=options,
                call=call,
                average=average,
                residual=residual,
                timeout_s=timeout_s,
                tallied=tallied,
            )

    def _divided(self, method: str, operation: Operation, tensors: Sequence[torch.Tensor]) -> list[list[int]]:
        """The indices of the tensors of each sum. All tensors are of one type."""
        in_place = method == "allreduce" and operation.factor is None
        if len(tensors) == 1 or not in_place or is_integer(tensors[0].dtype):
            return [[index] for index in range(len(tensors))]
        if len({tensor.device for tensor in tensors}) > 1:
            raise ConfigurationError("the tensors of one coalesced all-reduce must be on one device")
        widths = [self._lane_bits(tensor) for tensor in tensors]
        return divided(
            (lane_bits, padded(tensor.numel(), self.queue.block_elements(lane_bits)))
            for tensor, lane_bits in zip(tensors, widths, strict=True)
        )

    def _lane_bits(self, tensor: torch.Tensor) -> LaneBits:
        return lane_bits_of(tensor.dtype, tensor.numel(), self._ranks, self._options)

    def _options_for(self, tensor: torch.Tensor) -> Options:
        if is_integer(tensor.dtype):
            return self._exactly
        lane_bits = self._lane_bits(tensor)
        if lane_bits == self._options.lane_bits:
            return self._options
        return self._options.model_copy(update={"lane_bits": lane_bits})

    def _submit(
        self, call: str, operation: Operation, wanted: Wanted, timeout_s: float, tallied: TalliedCall
    ) -> Reduction:
        tensor, output, part = wanted
        tensor = tensor.data  # autograd does not see it written, as with torch's groups
        in_place = output is not None and output.data_ptr() == tensor.data_ptr() and part is None
        ranks = self._ranks
        self.queue.settle([tensor] if output is None else [tensor, output])
        options = self._options_for(tensor)
        keep_halves = operation.factor is None and _core_sums(tensor, options)
        encoded = encode(tensor, ranks, keep_halves=keep_halves)
        if operation.factor is not None:
            encoded = (encoded * operation.factor).to(torch.float32)
        elif not in_place and encoded.data_ptr() == tensor.data_ptr():
            encoded = encoded.clone()  # a tensor that does not receive the result must not change
        result = None if output is None else output.data
        divides = operation.average and is_integer(tensor.dtype)

        def deliver() -> None:
            if result is not None:
                sums = encoded if part is None else encoded[:, part]
                decoded = decode(sums, result.dtype, ranks)
                result.copy_((divide_(decoded, ranks) if divides else decoded).view(result.shape))

        return self.queue.submit(
            encoded.view(-1),
            options=options,
            call=call,
            average=operation.average and not divides,
            touches=None if result is None else [result],
            deliver=None if result is not None and encoded.data_ptr() == result.data_ptr() else deliver,
            timeout_s=operation.timeout_s or timeout_s,
            tallied=tallied,
        )

    def _submit_bundle(
        self,
        call: str,
        operation: Operation,
        tensors: Sequence[torch.Tensor],
        timeout_s: float,
        tallied: TalliedCall,
    ) -> Reduction:
        """Sum floats with the same lanes together, in place."""
        results = [tensor.data for tensor in tensors]  # autograd does not see them written
        check_writable(results)
        self.queue.settle(results)
        options = self._options_for(results[0])
        dtype = results[0].dtype if _core_sums(results[0], options) else torch.float32
        bundle = Bundle(results, dtype, self.queue.block_elements(options.lane_bits))
        return self.queue.submit(
            bundle.flat,
            options=options,
            call=call,
            average=operation.average,
            touches=results,
            deliver=bundle.deliver,
            timeout_s=operation.timeout_s or timeout_s,
            tallied=tallied,
        )


def _core_sums(tensor: torch.Tensor, options: Options) -> bool:
    """Whether the core sums the elements, of any type of floats; not a device, which does float32."""
    return way_of(tensor, options) in (None, "host")


def check_lanes_call(tensor: torch.Tensor, residual: torch.Tensor | None) -> None:
    """Check the tensors of `ProcessGroup.sum_lanes`.

    Raises:
        ConfigurationError: a tensor is of another type, or they do not fit each other.
    """
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
