# SPDX-License-Identifier: Apache-2.0
"""The servers of a world, in ranks' processes or registered, and the addresses of ranks."""

from collections.abc import Sequence
from typing import NamedTuple

from inagg._core import ServedJob
from inagg_controller.jobs.servers import JobKey
from inagg_simulator import reference
from inagg_simulator.fabric import Hop
from inagg_simulator.p4_switch import Station, headers
from inagg_simulator.shared_fabric import Frame
from tests.simulation.ways import Way


class Addresses:
    """Of all ranks. stations: by link; a rank of a job has the job's first link and its number."""

    def __init__(self, stations: Sequence[Station]) -> None:
        self.stations = stations
        self._links: dict[int, range] = {}

    def add(self, job: int, first: int, workers: int) -> None:
        """The ranks of a job."""
        self._links[job] = range(first, first + workers)

    def links(self, job: int) -> range:
        """Those of a job's ranks."""
        return self._links[job]

    def rank(self, job: int, station: Station) -> int | None:
        """The rank of a job that has an address; None: none has."""
        for rank, link in enumerate(self._links[job]):
            if self.stations[link].ip == station.ip and self.stations[link].udp_port == station.udp_port:
                return rank
        return None


class _Served(NamedTuple):
    """home: the rank whose packets come past the switch."""

    sums: ServedJob
    way: Way
    home: int | None


class Server:
    """A server. link: to its host. jobs: what it serves."""

    def __init__(self, station: Station, link: int, ranks: Addresses) -> None:
        self.station, self.link = station, link
        self.jobs: dict[JobKey, _Served] = {}
        self._ranks = ranks

    def serve(self, key: JobKey, way: Way, index: int) -> None:
        """Admit the packets of a job. index: of this server among the job's."""
        home = way.servers[index].rank if way.homes else None
        sums = ServedJob(
            way.shape, servers=len(way.servers), index=index, relayed=way.relay is not None, home=home
        )
        self.jobs[key] = _Served(sums, way, home)

    def drop_others(self, kept: JobKey) -> None:
        """Stop serving a job on its other ways."""
        for key in [key for key in self.jobs if key.id == kept.id and key != kept]:
            del self.jobs[key]

    def receive(self, frame: Frame) -> list[Hop]:
        """What it sends because of a packet."""
        if len(frame.payload) < reference.HEADER.size:
            return []
        header = reference.decode(frame.payload)
        served = self.jobs.get(JobKey(header.job, header.epoch))
        if served is None:
            return []
        relayed = frame.source == served.way.relay
        rank = None if relayed else self._ranks.rank(header.job, frame.source)
        admitted = relayed or (rank is not None and (served.way.relay is None or rank == served.home))
        if not admitted:
            return []
        return [
            hop
            for receiver, left in served.sums.receive(frame.payload, rank)
            for hop in self._hops(header.job, served, receiver, left)
        ]

    def _hops(self, job: int, served: _Served, receiver: int | None, left: bytes) -> list[Hop]:
        """Ranks get packets past the switches but for those of shared slots."""
        links, relay = self._ranks.links(job), served.way.relay
        if relay is None:
            return [Hop(link, False, left) for link in (links if receiver is None else [links[receiver]])]
        home = [] if served.home is None else [Hop(links[served.home], False, left)]
        if receiver is None:
            return [self._frame(relay, left), *home]
        station = self._ranks.stations[links[receiver]]
        if station.ip == self.station.ip:  # it does not leave the host
            return [Hop(links[receiver], False, left)]
        return [self._frame(station, left)]

    def _frame(self, to: Station, left: bytes) -> Hop:
        return Hop(self.link, True, headers(self.station, to, len(left)) + left)
