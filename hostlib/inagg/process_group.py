"""The torch.distributed backend ``"inagg"``.

All-reduces that the switch can do (SUM and AVG of float32 on the CPU) go through it; everything else goes to gloo,
which is the base class's doing.
"""

import atexit
import logging
import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, Work

from inagg import _session
from inagg._calls import describe
from inagg._inner_group import InnerGroup
from inagg._interface import source_address
from inagg._work import AllReduceWork
from inagg.errors import ConfigurationError, InaggError
from inagg.options import Options

_log = logging.getLogger(__name__)

_SWITCH_OPS = {
    dist.ReduceOp.SUM: False,
    dist.ReduceOp.AVG: True,
}  # operation -> divides by the number of ranks


class ProcessGroup(InnerGroup):
    """A process group that sums in the switch.

    Made by ``init_process_group("inagg")`` and ``new_group(backend="inagg")``; each group is a job of its own.

    Args:
        store: keys that the group's ranks share, and only they.
        rank, size: this process in the group.
        timeout: of the inner group's collectives.
        options: see `Options`.

    Raises:
        InaggError: the job could not be set up and `options.fallback` is ``"error"``. All ranks raise.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, options: Options) -> None:
        super().__init__(PrefixStore("inner", store), rank, size, timeout, _gloo_address(options))
        self.options = options
        self._all_reduces = 0
        self._inner_all_reduces = 0
        self._session: _session.Session | None = None
        try:
            self._session = _session.join(
                PrefixStore("inagg", store), rank, size, options, self._connections.break_off
            )
        except InaggError as error:
            if options.fallback == "error":
                raise
            _log.warning("inagg: no job on the switch, gloo does the sums of this group instead: %s", error)
        else:
            # A program may end without destroying its groups; the other ranks should hear "left", not silence.
            atexit.register(_close, weakref.ref(self._session))

    def allreduce(  # type: ignore[override]  # every overload of the base class in one
        self, tensors: torch.Tensor | Sequence[torch.Tensor], opts: Any = dist.ReduceOp.SUM
    ) -> Work:
        """All-reduce in place, asynchronously. Through the switch if it can do it, else through the inner group."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        average = _SWITCH_OPS.get(_operation(opts))
        if self._session is None or average is None or not all(map(_summable, tensors)):
            self._inner_all_reduces += 1
            work: Work = super().allreduce(tensors, opts)
            return work
        self._all_reduces += 1
        parts = []
        for tensor in tensors:
            try:
                parts.append(self._session.submit(tensor, options=self.options, average=average))
            except InaggError as error:
                return AllReduceWork(tensors, parts, error)
        return AllReduceWork(tensors, parts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """As `allreduce`: each tensor is summed on its own."""
        return self.allreduce(tensors, opts if opts is not None else dist.ReduceOp.SUM)

    def shutdown(self) -> None:
        """Leave the job. Called by ``destroy_process_group``."""
        if self._session is not None:
            self._session.close()
        super().shutdown()

    def abort(self) -> None:
        """As `shutdown`; what is outstanding fails."""
        self.shutdown()

    def _begin(self, method: str, arguments: Sequence[Any]) -> None:
        """Note a collective of the inner group among those that ranks compare."""
        if self._session is not None:
            self._session.journal.begin(describe(method, arguments))

    def _diagnose(self) -> InaggError | None:
        return None if self._session is None else self._session.diagnose()

    def getBackendName(self) -> str:  # noqa: N802 - torch's name for it
        return "inagg"

    def stats(self) -> dict[str, Any]:
        """What the group did so far; see `inagg.stats`."""
        counts = {"all_reduces": self._all_reduces, "inner_all_reduces": self._inner_all_reduces}
        if self._session is None:
            return {"path": "inner", **counts}
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


def _operation(opts: Any) -> Any:
    """The operation in ``AllreduceOptions``, ``AllreduceCoalescedOptions`` or given bare."""
    operation = getattr(opts, "reduceOp", opts)
    return getattr(operation, "op", operation)


def _summable(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _close(session: "weakref.ref[_session.Session]") -> None:
    living = session()
    if living is not None:
        living.close()


def create(backend_options: Any, pg_options: object) -> ProcessGroup:
    """A new group, as `inagg.registration` has torch ask for it."""
    if pg_options is not None and not isinstance(pg_options, Options):
        raise ConfigurationError(f"pg_options must be inagg.Options, not {type(pg_options).__name__}")
    return ProcessGroup(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        Options.resolve(pg_options),
    )


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What an inagg group (by default the world) did so far.

    ``path`` is ``"switch"``, or ``"inner"`` when it fell back; ``all_reduces`` went through the switch and
    ``inner_all_reduces`` did not. On the switch: job, rank, packets, bytes, retransmits, RTT and RTO in seconds.

    Raises:
        ConfigurationError: the group is not an inagg group.
    """
    chosen = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(chosen, ProcessGroup):
        raise ConfigurationError(f"not an inagg process group: {type(chosen).__name__}")
    return chosen.stats()
