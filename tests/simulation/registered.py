# SPDX-License-Identifier: Apache-2.0
"""The registered servers of a world, as `inagg_server.agent` has them."""

from functools import partial
from typing import TYPE_CHECKING

from inagg_controller.jobs.servers import JobKey, Summed
from tests.simulation.servers import Server
from tests.simulation.ways import Way, way_of_rank

if TYPE_CHECKING:
    from tests.simulation.world import World

_BEAT_S = 0.5
_MEMORY = 1 << 20


# The jobs that a server is to serve, and as which of their servers.
_Orders = dict[JobKey, tuple[Way, int]]


class RegisteredServer:
    """One server, which may die and start again. link: of its host."""

    def __init__(self, world: "World", number: int) -> None:
        self._world, self.name = world, f"server{number + 1}"
        self._host = len(world.wires.ranks.stations) + number
        self._starts = 0
        self._server: Server
        self._start()
        self._instance: int | None = self._register(0.0)

    @property
    def link(self) -> int:
        """Its link."""
        return self._server.link

    def _start(self) -> None:
        self._starts += 1
        self._server = self._world.wires.start_server(self._host)
        self._instance = None

    def die(self) -> None:
        """It ends at once."""
        self._starts += 1
        self._world.wires.end_server(self._server)

    def start(self) -> None:
        """It starts again."""
        self._world.tell(f"{self.name} starts again")
        self._world.wires.end_server(self._server)
        self._start()
        self.beat()

    def _register(self, now: float) -> int:
        host = self._world.wires.topology.hosts[self._host]
        servers = self._world.control.table.servers
        return servers.register(self.name, host.ip, self._server.station.udp_port, _MEMORY, now).instance

    def serve_at_once(self) -> None:
        """Serve the first jobs, which then run."""
        assert self._instance is not None
        for key, order in self._heartbeat(0.0).items():
            self._server.serve(key, *order)
        self._heartbeat(0.0)

    def beat(self) -> None:
        """Send a heartbeat, obey its answer, and send the next one."""
        starts, world = self._starts, self._world

        def lives() -> bool:
            return starts == self._starts

        if self._instance is None:
            world.ask(self, self._register, partial(self._registered, starts), repeat=True, lives=lives)
        else:
            heard, unknown = partial(self._obey, starts), partial(self._unknown, starts)
            world.ask(self, self._heartbeat, heard, unknown, repeat=True, lives=lives)

    def _beat_again(self, starts: int) -> None:
        if starts == self._starts:
            self.beat()

    def _registered(self, starts: int, instance: int) -> None:
        if starts == self._starts:
            self._instance = instance
            self.beat()

    def _heartbeat(self, now: float) -> _Orders:
        control, instance = self._world.control, self._instance
        servers = control.table.servers
        assert instance is not None
        counted = {key: Summed(**served.sums.chunks) for key, served in self._server.jobs.items()}
        servers.heartbeat(self.name, instance, now, list(self._server.jobs), counted=counted)
        orders: _Orders = {}
        for job in servers.orders(self.name, instance):
            share = job.placement.servers
            way = way_of_rank(job, 0, self._world.wires.topology)
            assert share is not None
            assert way is not None
            names = [server.name for server in share.registered]
            orders[job.placement.key] = way, names.index(self.name)
        return orders

    def _obey(self, starts: int, orders: _Orders) -> None:
        if starts != self._starts:
            return
        for key in self._server.jobs.keys() - orders.keys():
            del self._server.jobs[key]
        for key in orders.keys() - self._server.jobs.keys():
            self._server.serve(key, *orders[key])
        pause = self._world.draws.uniform(0.9, 1.1) * _BEAT_S
        self._world.later(self, pause, partial(self._beat_again, starts))

    def _unknown(self, starts: int, _: object) -> None:
        """The controller does not know it any more, so its jobs have ended."""
        if starts == self._starts:
            self._server.jobs.clear()
            self._instance = None
            self.beat()
