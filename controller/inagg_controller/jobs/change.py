# SPDX-License-Identifier: Apache-2.0
"""A running job that goes on another way (docs/protocol.md, 6.4): what its ranks publish, and who lacks what."""

from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from inagg_controller.errors import ConflictError, InvalidRequestError
from inagg_controller.jobs.servers import MOST_RANKS, Worker

# What `on_path_loss` names.
SAME, OTHER, SERVERS, INNER, FAIL = "same", "other", "servers", "inner", "fail"
# By what a job has its placement if it went back to its first way.
BACK = "back"
_CHUNKS = 1 << 32  # chunk numbers begin again


def without_switches(options: Sequence[str], workers: int) -> list[str]:
    """A job's options from the first on that needs no switch and no registered server; none if there is none."""
    for index, option in enumerate(options):
        if option == INNER or (option == SERVERS and workers <= MOST_RANKS):
            return [*options[index:]]
    return []


@dataclass(slots=True, kw_only=True)
class Change:
    """The change of one job, until all ranks have gone on.

    lost: the epoch of the way that the job has lost. was_beside: that way was beside the switches. not_beside: servers
    there are dead, too. reason: why. began, began_unbroken: when that way was lost, and the first of several ways that
    were lost one after the other. deadline: when the job fails if its ranks have not gone on. since: when the first of
    `options` was begun; the others follow. later: those before, which may still do. tried: by option, why it does not.
    found_by: the one by which the job has another placement, or is about to have one, or BACK; empty: it has none yet.
    published: by rank, for each slot the chunk that the rank completes next. server_ports: by rank, of the server in
    its process. beside: the ranks as workers of a job on servers in a network beside that of the switches, if they are
    in one. results: by chunk, the datagrams that some rank lacks. resumed: the ranks that have gone on.
    """

    lost: int
    was_beside: bool = False
    not_beside: bool = False
    reason: str
    began: float
    began_unbroken: float
    deadline: float
    since: float
    options: list[str]
    workers: int
    slots: int
    later: list[str] = field(default_factory=list)
    tried: dict[str, str] = field(default_factory=dict)
    found_by: str = ""
    published: dict[int, "array[int]"] = field(default_factory=dict)
    server_ports: dict[int, int | None] = field(default_factory=dict)
    beside: dict[int, Worker] = field(default_factory=dict)
    results: dict[int, bytes] = field(default_factory=dict)
    resumed: set[int] = field(default_factory=set)
    _lacks: dict[int, list[int]] = field(default_factory=dict)
    _gives: dict[int, list[int]] = field(default_factory=dict)
    _giver: dict[int, int] = field(default_factory=dict)

    @property
    def frozen(self) -> bool:
        """Whether all ranks have published their chunks."""
        return len(self.published) == self.workers

    @property
    def goes_beside(self) -> bool:
        """Whether the servers in the ranks' processes are to be beside the switches, if they are what sums."""
        wanted = self.found_by == SERVERS or self.was_beside
        return wanted and not self.not_beside and len(self.beside) == self.workers

    @property
    def waiting_for(self) -> list[int]:
        """The ranks that have not published theirs."""
        return sorted(set(range(self.workers)) - self.published.keys())

    @property
    def tried_text(self) -> str:
        """What was tried, for the end of a message."""
        tried = ", ".join(f"{option} ({why})" for option, why in self.tried.items())
        return f"; tried: {tried}" if tried else ""

    def publish(
        self, rank: int, chunks: "array[int]", server_port: int | None, beside: Worker | None = None
    ) -> None:
        """Record the next chunks of a rank, which is frozen. Repeating it changes nothing.

        Raises InvalidRequestError for a wrong number of chunks, ConflictError for others than before.
        """
        if len(chunks) != self.slots:
            raise InvalidRequestError(f"chunks has {len(chunks)} numbers; the job has {self.slots} slots")
        known = self.published.get(rank)
        if known is not None:
            if known != chunks:
                raise ConflictError(f"rank {rank} has published other chunks")
            return
        self.published[rank] = chunks
        self.server_ports[rank] = server_port
        if beside is not None:
            self.beside[rank] = beside
        if self.frozen:
            self._compare()

    def check_beside(self, beside: Worker) -> None:
        """Raise ConflictError if another rank has one of these endpoints beside the switches."""
        taken = {
            (other.ip, port)
            for rank, other in self.beside.items()
            if rank != beside.rank
            for port in (other.udp_port, other.server_udp_port)
        }
        own = {(beside.ip, beside.udp_port), (beside.ip, beside.server_udp_port)}
        if len(own) < 2 or not taken.isdisjoint(own):
            raise ConflictError(f"another endpoint of rank {beside.rank}, or of another rank, has this port")

    def lacks(self, rank: int) -> Sequence[int]:
        """The chunks whose results a rank lacks. All ranks have published theirs."""
        return self._lacks.get(rank, ())

    def gives(self, rank: int) -> list[int]:
        """The chunks whose results others need from a rank, without those that it has given."""
        return [chunk for chunk in self._gives.get(rank, ()) if chunk not in self.results]

    def give(self, rank: int, results: Mapping[int, bytes]) -> None:
        """Record results that others lack. Raises ConflictError for one that nobody needs from this rank."""
        for chunk, datagram in results.items():
            if self._giver.get(chunk) != rank:
                raise ConflictError(f"no rank needs chunk {chunk} from rank {rank}")
            self.results.setdefault(chunk, datagram)

    def _compare(self) -> None:
        """Find who lacks what, slot by slot. Of the ranks that have a result the lowest gives it.

        Raises ConflictError if ranks are more than a chunk apart in a slot.
        """
        alike: dict[bytes, list[int]] = {}  # what ranks have published, and these ranks
        for rank in range(self.workers):
            alike.setdefault(self.published[rank].tobytes(), []).append(rank)
        groups = list(alike.values())
        for nexts in zip(*(self.published[ranks[0]] for ranks in groups), strict=True):
            distinct = set(nexts)
            if len(distinct) == 1:
                continue
            chunk = self._older(distinct)
            behind = sorted(
                rank for ranks, one in zip(groups, nexts, strict=True) if one == chunk for rank in ranks
            )
            ahead = min(ranks[0] for ranks, one in zip(groups, nexts, strict=True) if one != chunk)
            for rank in behind:
                self._lacks.setdefault(rank, []).append(chunk)
            self._gives.setdefault(ahead, []).append(chunk)
            self._giver[chunk] = ahead

    def _older(self, distinct: Set[int]) -> int:
        """Of two next chunks of a slot the older. Raises ConflictError if they are not successive ones."""
        for chunk in distinct:
            if distinct == {chunk, (chunk + self.slots) % _CHUNKS}:
                return chunk
        raise ConflictError(f"ranks are at the chunks {sorted(distinct)} of one slot: they are not one job's")
