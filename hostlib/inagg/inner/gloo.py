# SPDX-License-Identifier: Apache-2.0
"""Makes gloo's part of a group, or finds out which rank has kept it from being made."""

import contextlib
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from inagg.errors import InaggError
from inagg.membership.assembly import CLOSING_S, Assembly
from inagg.torch_versions import GLOO_KEEPS_ITS_TIMEOUT

# To connect: and for each rank, because each connects to all others, perhaps on few processors.
_CONNECT_S, _CONNECT_EACH_S = 6.0, 0.4
_FINDING_S = 1.0  # other ranks take this long to report why gloo failed


def make_gloo(ranks: Assembly, devices: list[Any], timeout: timedelta | None = None) -> Any:
    """Make torch's gloo backend for the ranks. All of them call it, once each has opened its devices.

    timeout: of each collective; None: that of `ranks`.

    Raises:
        JobError: another rank is the cause; it names the rank.
        RuntimeError: gloo's.
    """
    timeout = timeout or ranks.timeout
    try:
        # All ranks are there: a rank that does not connect in time never will.
        group = _connect(ranks, devices, "gloo", _patience(ranks) / 5)
    except RuntimeError:
        try:
            _find_cause(ranks)
        except InaggError as cause:
            raise cause from None
        raise
    if ranks.rank == 0:
        ranks.publish("rank 0 has looked", False)  # its gloo works: from now on rank 0 checks the others
    if GLOO_KEEPS_ITS_TIMEOUT:
        ranks.exchange("gloo has connected", None)  # before a rank ends its connections
        group = None  # ends it. All ranks can connect, so they do it again, with the timeout for collectives
        group = _connect(ranks, devices, "gloo again", timeout)
    group._set_default_timeout(timeout)
    return group


def _patience(ranks: Assembly) -> timedelta:
    """How long the ranks may take to connect, once all are there."""
    return min(ranks.timeout, timedelta(seconds=_CONNECT_S + _CONNECT_EACH_S * ranks.size))


class _Rendezvous(Store):
    """Gloo's store while it connects. A wait for a rank ends with an error when that rank has ended.

    name: of this attempt, because gloo uses the same keys in each.
    """

    def __init__(self, ranks: Assembly, name: str) -> None:
        super().__init__()
        self._ranks = ranks
        self._name = name

    def set(self, key: str, value: Any) -> None:
        self._ranks.store.set(f"{self._name}/{key}", value)

    def get(self, key: str) -> bytes:
        return self._ranks.bytes_at(f"{self._name}/{key}", _patience(self._ranks))

    def wait(self, keys: list[str], _timeout: Any = None) -> None:
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        return False


def _connect(ranks: Assembly, devices: list[Any], name: str, timeout: timedelta) -> Any:
    """Make a gloo group. It waits for a connection five times as long as `timeout`."""
    gloo: Any = dist.ProcessGroupGloo
    settings = gloo._Options()
    settings._timeout = timeout
    settings._devices = devices
    # Ranks begin the collectives of a group in the same order, so one thread can do them one after another.
    settings._threads = 1
    rendezvous = _Rendezvous(ranks, name)  # a variable, because gloo does not keep it alive
    return gloo(rendezvous, ranks.rank, ranks.size, settings)


def _find_cause(ranks: Assembly) -> None:
    """Raise the cause of gloo's error, if another rank has caused it.

    Rank 0 sees which processes have ended, but only after its own gloo has returned. The others wait until it has
    looked. If no process has ended, the first rank whose gloo failed reports its own error.

    Raises:
        JobError: another rank is the cause; it names the rank.
    """
    if ranks.rank != 0:
        ranks.check_lives()  # rank 0's process may be that of the store
    first = ranks.count("gloo failed") == 1
    if ranks.rank == 0:
        ranks.check_lives()
        ranks.check(CLOSING_S)
        ranks.publish("rank 0 has looked", True)
    looked = False
    with contextlib.suppress(DistStoreError):
        patience = _patience(ranks) + timedelta(seconds=_FINDING_S)
        looked = ranks.receive("rank 0 has looked", 0, patience)
    ranks.check(0.0 if first and looked else _FINDING_S)
