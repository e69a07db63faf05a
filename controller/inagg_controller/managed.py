# SPDX-License-Identifier: Apache-2.0
"""One of the service's switches: its connection, and the loss that is injected there."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from inagg_contract.counters import EDGE_REFUSALS, JOB_PACKETS, RESULTS_SENT
from inagg_controller.connection import Connection
from inagg_controller.errors import InvalidRequestError
from inagg_controller.fabric.topology import SwitchNode
from inagg_controller.switch.client import Count, SlotVersion, Switch
from inagg_controller.switch.loss import LossChange, Losses

_T = TypeVar("_T")

# Reads of one kind take at most this part of the time. After a pause, reads of 1.25 s (_PART * _AHEAD_S) need no rest.
_PART = 0.25
_AHEAD_S = 5.0
_LONGEST_REST_S = 5.0
_BRIEF_S = 0.02  # shorter reads do not count


class ManagedSwitch:
    """A switch. Its methods must be called in the service's loop.

    losses: the injected loss that is in force. sampled: slot versions that read_slots reads.
    """

    def __init__(self, node: SwitchNode, switch: Switch, connection: Connection) -> None:
        self.node = node
        self.switch = switch
        self.connection = connection
        self.losses = Losses()
        self.sampled: Sequence[int] = ()
        self._reads: dict[Callable[[ManagedSwitch], Any], asyncio.Future[Any]] = {}  # that have not begun
        self._paid: dict[Callable[[ManagedSwitch], Any], float] = {}  # when they are at _PART

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return self.connection.state == "connected"

    def read_counters(self) -> Mapping[str, Mapping[int, Count]]:
        """The indexed counters without zeros: name -> index -> count. On the switch's thread. Raises SwitchError."""
        return self.switch.read_counters(self.node.ports)

    def read_edge_refusals(self) -> Mapping[str, Mapping[int, Count]]:
        """Those of what edge ports refuse. On the switch's thread. Raises SwitchError."""
        return self.switch.read_counters(self.node.ports, EDGE_REFUSALS)

    def read_traffic(self) -> Mapping[str, Mapping[int, Count]]:
        """Those of packets of jobs, and of results. On the switch's thread. Raises SwitchError."""
        return self.switch.read_counters(self.node.ports, (*JOB_PACKETS, RESULTS_SENT))

    def read_admitted(self) -> Mapping[tuple[int, int], Count]:
        """See Switch.read_admitted. On the switch's thread."""
        return self.switch.read_admitted()

    def read_displaced(self) -> Mapping[tuple[int, bool], Count]:
        """See Switch.read_displaced. On the switch's thread."""
        return self.switch.read_displaced()

    def read_slots(self) -> Mapping[int, SlotVersion]:
        """What the sampled slot versions hold. On the switch's thread. Raises SwitchError."""
        return self.switch.read_slots(self.sampled)

    async def read(self, what: Callable[["ManagedSwitch"], _T]) -> _T:
        """What a method of this class reads. Raises SwitchError.

        All that wait for the same share one read, so that few of them are before the next write. Reads of one
        kind rest when they take too much of the time, because they take the interpreter from the service's loop.
        """
        shared = self._reads.get(what)
        if shared is None:

            def begin() -> _T:
                del self._reads[what]
                began = time.monotonic()
                try:
                    return what(self)
                finally:
                    now = time.monotonic()
                    if now - began >= _BRIEF_S:
                        paid = max(self._paid.get(what, began), began) + (now - began) / _PART
                        self._paid[what] = min(paid, now + _AHEAD_S + _LONGEST_REST_S)

            async def read() -> _T:
                await asyncio.sleep(max(0.0, self._paid.get(what, 0.0) - _AHEAD_S - time.monotonic()))
                return await self.connection.call(begin)

            def end(ended: "asyncio.Future[_T]") -> None:
                if self._reads.get(what) is ended:  # it has not begun, because the switch is away
                    del self._reads[what]
                if not ended.cancelled():
                    ended.exception()  # those that waited for it may have gone

            shared = self._reads[what] = asyncio.ensure_future(read())
            shared.add_done_callback(end)
        return cast(_T, await asyncio.shield(shared))

    async def set_loss(self, port: int, direction: str, traffic: str, probability: float) -> None:
        """Inject loss. Raises InvalidRequestError, UnavailableError; nothing has changed then."""
        if port not in self.node.ports:
            raise InvalidRequestError(f"port is {port}; the switch's ports are {list(self.node.ports)}")
        async with self.connection.lock:
            await self._change_loss(self.losses.setting(port, direction, traffic, probability))

    async def clear_loss(self) -> None:
        """Remove all injected loss. Raises UnavailableError."""
        async with self.connection.lock:
            await self._change_loss(self.losses.clearing())

    async def _change_loss(self, change: LossChange) -> None:
        await self.connection.request(partial(self._write_loss, change))
        self.losses.commit(change)

    def _write_loss(self, change: LossChange) -> None:
        self.switch.remove(change.remove)
        self.switch.modify(change.modify)
        self.switch.insert(change.insert)
