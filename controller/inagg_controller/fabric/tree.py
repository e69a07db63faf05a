# SPDX-License-Identifier: Apache-2.0
"""Plans the tree of switches that sums for a job (docs/protocol.md, 5.5)."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx

from inagg_controller.fabric.topology import Link, Place

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


NO_TREE = Tree((), {})


def plan_tree(
    graph: Any, ranks: Mapping[str, Sequence[int]], most_roots: int, load: Callable[[str], int] = lambda _: 0
) -> Tree:
    """A small tree that joins the switches of a job's workers.

    Each switch could be the root of a tree of shortest ways. It is a smallest of these trees, and of those a lowest.
    If several switches can be the root of the same tree, a power of two of them are, the least loaded ones. The order
    of switches and links in the graph makes no difference.

    graph: a networkx.MultiGraph of the switches and links that work, with links as keys. ranks: switch -> ranks of the
    workers at it, none without. most_roots: 1 or more. load: of a switch, in any unit.

    Raises:
        NoTreeError: no working links join them.
    """
    trees = [
        (root, tree) for root in sorted(graph) if (tree := _tree_below(graph, root, ranks.keys())) is not None
    ]
    if not trees:
        raise NoTreeError(_without_way(graph, list(ranks)))
    size = min(map(_size, (tree for _, tree in trees)))
    trees = [(root, tree) for root, tree in trees if _size(tree) == size]
    trees.sort(key=lambda each: load(each[0]))  # stable: by name if equal
    first, tree = trees[0]
    roots = [first]
    if first not in ranks:  # one with workers of its own has members that the others have not
        roots = [root for root, other in trees if _without_root(other) == _without_root(tree)]
    count = 1 << min(len(roots), most_roots, MOST_ROOTS).bit_length() - 1
    return _as_tree(graph, roots[:count], tree, ranks)


# A tree as it is planned: its root first, each switch with those below it.
_Below = dict[str, tuple[str, ...]]


def _tree_below(graph: Any, root: str, leaves: Set[str]) -> _Below | None:
    """Shortest ways from `root` to the leaves, over few switches; None if there is none to one of them."""
    depth = nx.single_source_shortest_path_length(graph, root)
    if not all(leaf in depth for leaf in leaves):
        return None
    further = {name: [each for each in graph[name] if depth[each] > depth[name]] for name in depth}
    reached: dict[str, frozenset[str]] = {}  # switch -> leaves that it is on a shortest way to
    for name in sorted(depth, key=lambda name: -depth[name]):
        reached[name] = frozenset({name} & leaves).union(*(reached[each] for each in further[name]))
    tree: _Below = {}
    to_do = deque([(root, frozenset(leaves))])
    while to_do:
        name, share = to_do.popleft()
        below = sorted(_cover(share - {name}, {each: reached[each] for each in further[name]}).items())
        tree[name] = tuple(each for each, _ in below)
        to_do += below
    return tree


def _cover(wanted: frozenset[str], sets: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Few of the sets that together have all that is wanted, each with its share: greedily, the largest share first."""
    shares: dict[str, frozenset[str]] = {}
    while wanted:
        _, name = min((-len(each & wanted), name) for name, each in sets.items())
        shares[name] = sets[name] & wanted
        wanted -= shares[name]
    return shares


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
    links = {
        (upper, lower): min(graph[upper][lower], key=_by_ends) for lower in rest for upper in above[lower]
    }
    return Tree(tuple(switches), links)


def _by_ends(link: Link) -> list[Place]:
    return sorted(link.ends)


def _without_way(graph: Any, leaves: Sequence[str]) -> str:
    first = leaves[0]
    reached = nx.node_connected_component(graph, first) if first in graph else {first}
    other = next((leaf for leaf in leaves if leaf not in reached), leaves[-1])
    return f"there is no working way from switch {first} to switch {other}"
