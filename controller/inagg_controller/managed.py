# SPDX-License-Identifier: Apache-2.0
"""One of the service's switches: its connection, and the loss that is injected there."""

from collections.abc import Mapping
from functools import partial

from inagg_controller.connection import Connection
from inagg_controller.errors import InvalidRequestError
from inagg_controller.fabric.topology import SwitchNode
from inagg_controller.switch.client import Count, Switch
from inagg_controller.switch.loss import LossChange, Losses


class ManagedSwitch:
    """A switch. Its methods must be called in the service's loop.

    losses: the injected loss that is in force.
    """

    def __init__(self, node: SwitchNode, switch: Switch, connection: Connection) -> None:
        self.node = node
        self.switch = switch
        self.connection = connection
        self.losses = Losses()

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return self.connection.state == "connected"

    def read_counters(self) -> Mapping[str, Mapping[int, Count]]:
        """The indexed counters without zeros: name -> index -> count. On the switch's thread. Raises SwitchError."""
        return self.switch.read_counters(self.node.ports)

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
