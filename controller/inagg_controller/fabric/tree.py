# SPDX-License-Identifier: Apache-2.0
"""Plans the tree of switches that sums for a job (docs/protocol.md, 5.5)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx

from inagg_controller.fabric.topology import Link

MOST_ROOTS = 128


class NoTreeError(Exception):
    """No tree joins the switches of a job. The message names two switches without a way."""


@dataclass(frozen=True, slots=True)
class TreeSwitch:
    """One switch of a job's tree.

    ranks: of the workers that it sums for itself. below: switches whose partial sums it adds. above: the switches that
    get its partial sums in turns; none if it is a root.
    """

    name: str
    ranks: tuple[int, ...]
    below: tuple[str, ...]
    above: tuple[str, ...]

    @property
    def members(self) -> int:
        """How many members it sums for: they are numbered from 0, ranks first."""
        return len(self.ranks) + len(self.below)

    def number_of(self, below: str) -> int:
        """The member number of a switch below."""
        return len(self.ranks) + self.below.index(below)


@dataclass(frozen=True)
class Tree:
    """A job's switches, every switch after those above it. links: (above, below) -> the link between them."""

    switches: tuple[TreeSwitch, ...]
    links: Mapping[tuple[str, str], Link]

    @cached_property
    def by_name(self) -> Mapping[str, TreeSwitch]:
        """The switches by name."""
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def leaf_of(self) -> Mapping[int, TreeSwitch]:
        """The switch of each rank's host."""
        return {rank: switch for switch in self.switches for rank in switch.ranks}

    @property
    def roots(self) -> int:
        """How many roots take turns, a power of two."""
        return sum(not switch.above for switch in self.switches)

    def number_of(self, rank: int) -> int:
        """The member number of a rank at its switch."""
        return self.leaf_of[rank].ranks.index(rank)


def plan_tree(
    graph: Any, ranks: Mapping[str, Sequence[int]], most_roots: int, load: Callable[[str], int] = lambda _: 0
) -> Tree:
    """The smallest tree of shortest ways that joins the switches of a job's workers, and the lowest of these.

    If several switches can be its root, a power of two of them are, the least loaded ones.

    graph: a networkx.MultiGraph of the switches and links that work, with links as keys. ranks: switch -> ranks of the
    workers at it, none without. most_roots: 1 or more. load: of a switch, in any unit.

    Raises:
        NoTreeError: no working links join them.
    """
    trees = [(name, tree) for name in graph if (tree := _tree_below(graph, name, ranks)) is not None]
    if not trees:
        raise NoTreeError(_without_way(graph, list(ranks)))
    size = min(map(_size, (tree for _, tree in trees)))
    trees = [(root, tree) for root, tree in trees if _size(tree) == size]
    trees.sort(key=lambda each: load(each[0]))  # stable: in the topology's order if equal
    first, tree = trees[0]
    roots = [first]
    if first not in ranks:  # one with workers of its own has members that the others have not
        roots = [root for root, other in trees if _without_root(other) == _without_root(tree)]
    count = 1 << min(len(roots), most_roots, MOST_ROOTS).bit_length() - 1
    return _as_tree(graph, roots[:count], tree, ranks)


# A tree as it is planned: its root first, each switch with those below it.
_Below = dict[str, tuple[str, ...]]


def _tree_below(graph: Any, root: str, leaves: Mapping[str, object]) -> _Below | None:
    """The shortest ways from `root` to the leaves; None if there is none to one of them."""
    ways = nx.bfs_tree(graph, root)
    if not all(leaf in ways for leaf in leaves):
        return None
    used = set(leaves) | {above for leaf in leaves for above in nx.ancestors(ways, leaf)}
    return {name: tuple(below for below in ways[name] if below in used) for name in ways if name in used}


def _size(tree: _Below) -> tuple[int, int]:
    """(number of switches, height)"""
    height: dict[str, int] = {}
    for name, below in reversed(tree.items()):
        height[name] = 1 + max((height[each] for each in below), default=0)
    return len(tree), height[next(iter(tree))]


def _without_root(tree: _Below) -> tuple[frozenset[str], _Below]:
    root, *rest = tree
    return frozenset(tree[root]), {name: tree[name] for name in rest}


def _as_tree(graph: Any, roots: Sequence[str], tree: _Below, ranks: Mapping[str, Sequence[int]]) -> Tree:
    root, *rest = tree
    above: dict[str, tuple[str, ...]] = {below: (name,) for name in rest for below in tree[name]}
    above |= dict.fromkeys(tree[root], tuple(roots))
    switches = [TreeSwitch(name, tuple(ranks.get(name, ())), tree[root], ()) for name in roots]
    switches += [TreeSwitch(name, tuple(ranks.get(name, ())), tree[name], above[name]) for name in rest]
    links = {(upper, lower): next(iter(graph[upper][lower])) for lower in rest for upper in above[lower]}
    return Tree(tuple(switches), links)


def _without_way(graph: Any, leaves: Sequence[str]) -> str:
    first = leaves[0]
    reached = nx.node_connected_component(graph, first) if first in graph else {first}
    other = next((leaf for leaf in leaves if leaf not in reached), leaves[-1])
    return f"there is no working way from switch {first} to switch {other}"
