# SPDX-License-Identifier: Apache-2.0
"""What a job gets of the switches: a tree of those that are there, slots in each, and room in their tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from inagg_controller.errors import FullError, InvalidRequestError, NotOfferedError, UnavailableError
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.fabric.topology import Link, Topology
from inagg_controller.fabric.tree import NoTreeError, Tree, TreeSwitch, plan_tree
from inagg_controller.jobs.accounts import FEWER_SLOTS, Account, Owner
from inagg_controller.jobs.leases import FEWEST_SLOTS, Lease, LeasePool
from inagg_controller.jobs.limits import Limits
from inagg_controller.jobs.placement import Placement

# A job that asks for more gets at most a share of the free slots: programs make many groups, the first ones large, and
# a small window is better than none.
_AMPLE_SLOTS = 32
# So few packets in flight fill no link; with even fewer, servers are faster. Where all jobs together may have little, a
# job takes a part of that.
_FEWEST_USEFUL_SLOTS = 16
_LEAST_PART = 4


@dataclass(frozen=True, slots=True)
class Share:
    """A job's tree, and the same number of slots in each of its switches, leased."""

    tree: Tree
    slots: int
    leases: Mapping[str, Lease]


class _Bound(NamedTuple):
    """Slot versions of a switch that a job may have.

    free: now. most: if no other job had any. refusal: if they are too few.
    """

    free: int
    most: int
    refusal: str


class Resources:
    """The switches of a topology.

    pools: the slots of each. connected: those that are connected. down: the links that pass no packets. ordinary: the
    links that ordinary traffic uses.
    """

    def __init__(self, topology: Topology, limits: Limits) -> None:
        self.pools = {switch.name: LeasePool(limits.leasable) for switch in topology.switches}
        self.connected: set[str] = set()
        self.down: set[Link] = set()
        self.ordinary = OrdinaryTree.shortest(topology)
        self._topology = topology
        self._limits = limits

    def take(
        self,
        at: Sequence[str],
        slots: int,
        owner: Owner,
        accounts: Sequence[Account],
        holders: Sequence[Placement],
        *,
        exact: bool = False,
    ) -> Share:
        """Plan a job's tree and lease its slots: the requested number, or fewer if slots are scarce and not `exact`.

        at: the switch of each rank's host. owner: the jobs of its creator together are limited to a share. accounts: in
        which the job counts; their jobs are limited to quotas. holders: what jobs hold. Raises InvalidRequestError,
        UnavailableError.
        """
        slots = min(slots, 1 << (self._limits.max_slots.bit_length() - 1))
        tree = self._plan(_ranks(at), min(self._limits.max_roots, slots))
        self.check_tables(tree, 0, owner.creator, holders)
        bounds = {
            switch.name: self._bound(switch.name, owner.creator, accounts, holders)
            for switch in tree.switches
        }
        return self._lease(tree, slots, bounds, exact)

    def share(self, at: Sequence[str]) -> Tree:
        """The tree of a job on shared slots, of the links that ordinary traffic keeps to. at: as in `take`.

        What the root sends to a server is ordinary traffic for the switches on its way.

        Raises InvalidRequestError, UnavailableError.
        """
        if not self._limits.shared_slots:
            raise NotOfferedError(
                "the switch has no shared slots: start the controller with --shared-slots, or with a smaller --pool"
            )
        return self._plan(_ranks(at), 1, set(self._topology.links) - self.ordinary.links)

    def give_back(self, leases: Mapping[str, Lease]) -> None:
        """End leases of a share."""
        for name, lease in leases.items():
            self.pools[name].give_back(lease)

    def reroute(self) -> list[Link]:
        """Have ordinary traffic go around what is not there now. Returns the links that it uses from now on."""
        away = self._topology.by_name.keys() - self.connected
        before, self.ordinary = self.ordinary, self.ordinary.around(self.down, away)
        return sorted(self.ordinary.links - before.links, key=str)

    def away(self, tree: Tree) -> list[str]:
        """The switches of a tree that are not connected."""
        return sorted(tree.by_name.keys() - self.connected)

    def _plan(
        self, ranks: Mapping[str, Sequence[int]], most_roots: int, without: Set[Link] = frozenset()
    ) -> Tree:
        for name in ranks:
            if name not in self.connected:
                raise UnavailableError(f"switch {name} is not connected; try again in a moment")
        graph = self._topology.graph(self.connected, self.down | without)
        try:
            tree = plan_tree(graph, ranks, most_roots, lambda name: -self.pools[name].free)
        except NoTreeError as error:
            raise UnavailableError(str(error)) from error
        for switch in tree.switches:
            if switch.members > self._limits.job_members:
                raise InvalidRequestError(
                    f"switch {switch.name} would sum for {switch.members} workers and switches; it can for "
                    f"{self._limits.job_members}"
                )
        return tree

    def check_tables(
        self, tree: Tree, servers: int, creator: str | None, holders: Sequence[Placement]
    ) -> None:
        """Raise UnavailableError if a job's entries do not fit into the tables of its switches.

        servers: its number, on shared slots.
        """
        for what, most, count in (
            ("workers", self._limits.max_members, _members),
            ("switches and servers above", self._limits.max_above, _above),
            ("jobs on shared slots", self._limits.max_shared_jobs, _sharing),
        ):
            share = int(self._limits.host_share * most)
            for switch in tree.switches:
                held = _held(switch.name, holders, count)
                if held + count(switch, servers) > most:
                    raise FullError(
                        f"the tables of switch {switch.name} hold {most} {what} and {held} are taken; wait until a job "
                        "ends"
                    )
                if creator is None:
                    continue
                if _held(switch.name, _of(creator, holders), count) + count(switch, servers) > share:
                    raise FullError(
                        f"the jobs of {creator} would have too many {what} at switch {switch.name}: the limit for one "
                        f"host is {share}; wait until a job ends"
                    )

    def _lease(self, tree: Tree, slots: int, bounds: Mapping[str, _Bound], exact: bool) -> Share:
        """Lease the same number of slots in each switch of a tree, or none.

        slots: how many to lease if there are as many. bounds: by switch.
        """
        fewest = slots
        if not exact:
            useful = min(slots, _FEWEST_USEFUL_SLOTS, *map(_least_part, bounds.values()))
            fewest = max(FEWEST_SLOTS, tree.roots, useful)
        free = {name: bound.free for name, bound in bounds.items()}
        scarcest = min(free, key=lambda name: free[name])
        while not exact and slots > _AMPLE_SLOTS and 2 * slots > self._limits.job_share * free[scarcest]:
            slots //= 2
        while slots >= fewest:
            leases: dict[str, Lease] = {}
            for name in free:
                lease = self.pools[name].take(2 * slots) if 2 * slots <= free[name] else None
                if lease is None:
                    scarcest = name
                    break
                leases[name] = lease
            else:
                return Share(tree, slots, leases)
            self.give_back(leases)
            slots //= 2
        raise FullError(bounds[scarcest].refusal)

    def _bound(
        self, name: str, creator: str | None, accounts: Sequence[Account], holders: Sequence[Placement]
    ) -> _Bound:
        """The tightest bound on a job at a switch."""
        pool = self.pools[name]
        bounds = [
            _Bound(
                pool.free,
                pool.size,
                f"the slot pool of switch {name} is full: {pool.free // 2} of {pool.size // 2} slots are free; wait "
                f"until a job ends, {FEWER_SLOTS}",
            )
        ]
        if creator is not None:
            held = leased_slots(name, _of(creator, holders))
            most = int(self._limits.host_share * pool.size)
            bounds.append(
                _Bound(
                    most - 2 * held,
                    most,
                    f"the jobs of {creator} have all slots of switch {name} that one host may have; wait until "
                    f"one ends, {FEWER_SLOTS}",
                )
            )
        for account in accounts:
            if account.slots is not None:
                held = leased_slots(name, (each for each in holders if account.owns(each.owner)))
                most = 2 * account.slots
                bounds.append(_Bound(most - 2 * held, most, account.slots_refusal(name, held)))
        return min(bounds, key=lambda bound: bound.free)


def leased_slots(switch: str, placements: Iterable[Placement]) -> int:
    """Slots of a switch that are leased together."""
    return sum(each.slots for each in placements if switch in each.leases)


def _least_part(bound: _Bound) -> int:
    """The fewest slots that are worth leasing within a bound, rounded down to a power of two."""
    part = bound.most // 2 // _LEAST_PART
    return 1 << part.bit_length() >> 1


def _ranks(at: Sequence[str]) -> dict[str, list[int]]:
    """Switch -> the ranks at it."""
    ranks: dict[str, list[int]] = {}
    for rank, switch in enumerate(at):
        ranks.setdefault(switch, []).append(rank)
    return ranks


# Entries of a job in a switch. servers: of a job on shared slots, else 0.


def _members(switch: TreeSwitch, servers: int) -> int:
    return switch.members


def _above(switch: TreeSwitch, servers: int) -> int:
    return len(switch.above) + servers


def _sharing(switch: TreeSwitch, servers: int) -> int:
    return min(servers, 1)


def _of(creator: str, holders: Iterable[Placement]) -> Iterable[Placement]:
    return (each for each in holders if each.owner.creator == creator)


def _held(name: str, placements: Iterable[Placement], count: Callable[[TreeSwitch, int], int]) -> int:
    """The sum of `count` over those that have a switch."""
    return sum(
        count(each.tree.by_name[name], 0 if each.servers is None else each.servers.count)
        for each in placements
        if name in each.tree.by_name
    )
