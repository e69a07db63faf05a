# SPDX-License-Identifier: Apache-2.0
"""Fabrics: what --topology means, which links it makes, and where ranks run. No network is made."""

import pytest

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import CONTROL_PORT, Fabric, SwitchPort


def links(fabric: Fabric) -> list[str]:
    return [f"{trunk.lower} {trunk.upper}" for trunk in fabric.trunks]


def test_a_star_is_one_switch_with_all_hosts() -> None:
    star = Fabric.parse("star", hosts=3)
    assert star.switches == ("s1",)
    assert star.racks == ((1, 2, 3),)
    assert [str(port) for port in star.host_ports] == ["s1:1", "s1:2", "s1:3"]
    assert star.ports("s1") == [1, 2, 3, CONTROL_PORT]
    assert links(star) == []
    assert star == Fabric.star(3)


def test_a_tree_of_two_levels_is_racks_below_a_root() -> None:
    tree = Fabric.parse("tree:2x3")
    assert tree.switches == ("root", "leaf1", "leaf2")
    assert tree.racks == ((1, 2, 3), (4, 5, 6))
    assert [str(port) for port in tree.host_ports][2:4] == ["leaf1:3", "leaf2:1"]
    assert links(tree) == ["leaf1:101 root:1", "leaf2:101 root:2"]
    assert (tree.ports("root"), tree.ports("leaf2")) == ([1, 2, CONTROL_PORT], [1, 2, 3, 101])


def test_a_tree_of_three_levels_has_switches_between_root_and_leaves() -> None:
    tree = Fabric.parse("tree:2x2x1")
    assert tree.switches == ("root", "agg1", "agg2", "leaf1", "leaf2", "leaf3", "leaf4")
    assert links(tree) == [
        "agg1:101 root:1",
        "agg2:101 root:2",
        "leaf1:101 agg1:1",
        "leaf2:101 agg1:2",
        "leaf3:101 agg2:1",
        "leaf4:101 agg2:2",
    ]
    assert tree.size == 4


def test_switches_of_all_middle_levels_are_numbered_from_the_top() -> None:
    assert Fabric.parse("tree:1x2x2x1").switches[:5] == ("root", "agg1", "agg2", "agg3", "leaf1")


@pytest.mark.parametrize(("text", "switches"), [("tree:1x1", 2), ("tree:1x4", 2), ("tree:4x1", 5)])
def test_the_smallest_trees(text: str, switches: int) -> None:
    tree = Fabric.parse(text)
    assert len(tree.switches) == switches
    assert len(tree.trunks) == switches - 1
    assert tree.spanning == tree.trunks


def test_every_leaf_has_a_link_to_every_spine() -> None:
    fabric = Fabric.parse("leaf-spine:2x2x2")
    assert fabric.switches == ("spine1", "spine2", "leaf1", "leaf2")
    assert links(fabric) == [
        "leaf1:101 spine1:1",
        "leaf1:102 spine2:1",
        "leaf2:101 spine1:2",
        "leaf2:102 spine2:2",
    ]
    assert fabric.ports("spine1") == [1, 2, CONTROL_PORT]
    assert fabric.ports("spine2") == [1, 2]


def test_ordinary_frames_take_the_first_spine_only() -> None:
    fabric = Fabric.parse("leaf-spine:2x1x2")
    assert fabric.connected == ["spine1", "leaf1", "leaf2"]
    assert fabric.spanning_ports("leaf1") == [1, 101]
    assert fabric.spanning_ports("spine1") == [1, 2, CONTROL_PORT]


@pytest.mark.parametrize(
    "text", ["star", "tree:2x2x2", "leaf-spine:4x2x4", "tree:64x1", "leaf-spine:1x1x127"]
)
def test_every_port_leads_to_one_place(text: str) -> None:
    fabric = Fabric.parse(text, hosts=4 if text == "star" else None)
    ends = [SwitchPort(switch, port) for switch in fabric.switches for port in fabric.ports(switch)]
    assert len(set(ends)) == len(ends)
    assert set(fabric.neighbours) == set(ends)
    hosts = [name for name in fabric.neighbours.values() if name.startswith("h")]
    assert sorted(hosts) == sorted(f"h{number}" for number in range(1, fabric.size + 1))


def test_ranks_run_rack_by_rack_or_go_round_the_racks() -> None:
    contiguous = Fabric.parse("tree:2x3")
    interleaved = Fabric.parse("tree:2x3", rank_order="interleaved")
    assert [contiguous.host_of(rank) for rank in range(6)] == [1, 2, 3, 4, 5, 6]
    assert [interleaved.host_of(rank) for rank in range(6)] == [1, 4, 2, 5, 3, 6]
    assert [str(port) for port in interleaved.link_ports[-2:]] == ["leaf1:101", "leaf2:101"]
    assert contiguous.ranks_of_racks == ((0, 1, 2), (3, 4, 5))
    assert interleaved.ranks_of_racks == ((0, 2, 4), (1, 3, 5))


def test_in_a_star_both_orders_are_the_same() -> None:
    star = Fabric.parse("star", hosts=3, rank_order="interleaved")
    assert [star.host_of(rank) for rank in range(3)] == [1, 2, 3]


def test_ports_are_found_by_switch_and_number_and_in_a_star_by_number() -> None:
    tree, star = Fabric.parse("tree:2x2"), Fabric.star(2)
    assert tree.find_port("leaf1:101") == SwitchPort("leaf1", 101)
    assert star.find_port("2") == star.find_port("p2") == star.find_port("s1:2") == SwitchPort("s1", 2)
    for text in ("1", "p1", "leaf1", "leaf1:3", "leaf9:1", "leaf1:x", "", ":", "leaf1:-1", "leaf1:²"):
        assert tree.find_port(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "topology '': want one such as star, tree:2x4"),
        ("ring:4", "topology 'ring:4': want one such as star"),
        ("star:4", "topology 'star:4': want one such as star"),
        ("tree", "topology 'tree': want one such as"),
        ("tree:", "topology 'tree:': want one such as"),
        ("tree:2x", "topology 'tree:2x': want one such as"),
        ("tree:2X4", "topology 'tree:2X4': want one such as"),
        ("tree:-2x4", "topology 'tree:-2x4': want one such as"),
        ("tree:2x4 ", "topology 'tree:2x4 ': want one such as"),
        ("tree:99999x1", "topology 'tree:99999x1': want one such as"),
        ("tree:4", "tree:4: want a number of switches for each level and then the workers a leaf"),
        ("tree:2x0", "tree:2x0: every number must be 1 or more"),
        ("tree:5x13", "tree:5x13: a testbed has 1 to 64 hosts, not 65"),
        ("tree:64x1x1x1", "tree:64x1x1x1: 193 switches; at most 128 are possible"),
        ("leaf-spine:2x4", "leaf-spine:2x4: want leaves, workers a leaf and spines"),
        ("leaf-spine:2x4x2x2", "leaf-spine:2x4x2x2: want leaves, workers a leaf and spines"),
        ("leaf-spine:2x4x0", "leaf-spine:2x4x0: every number must be 1 or more"),
        ("leaf-spine:9x8x2", "leaf-spine:9x8x2: a testbed has 1 to 64 hosts, not 72"),
        ("leaf-spine:1x1x128", "leaf-spine:1x1x128: 129 switches; at most 128 are possible"),
    ],
)
def test_a_topology_that_cannot_be_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Fabric.parse(text)
    assert message in str(caught.value)


def test_a_number_of_workers_must_be_that_of_the_topology() -> None:
    assert Fabric.parse("tree:2x2", hosts=4).size == 4
    with pytest.raises(ConfigurationError, match="tree:2x2 has 4 hosts, so 8 workers contradict it"):
        Fabric.parse("tree:2x2", hosts=8)


def test_a_star_needs_a_number_of_hosts() -> None:
    with pytest.raises(ConfigurationError, match="a star needs the number of hosts"):
        Fabric.parse("star")


def test_an_unknown_rank_order_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rank order 'random': want contiguous or interleaved"):
        Fabric.parse("tree:2x2", rank_order="random")  # type: ignore[arg-type]


def test_hosts_for_servers_are_behind_the_workers_and_no_rank_runs_there() -> None:
    star = Fabric.star(2).with_servers(2)
    assert (star.size, list(star.servers), list(star.hosts)) == (2, [3, 4], [1, 2, 3, 4])
    assert [star.host_of(rank) for rank in range(star.size)] == [1, 2]
    assert star.ranks_of_racks == ((0, 1),)
    assert star.ports("s1") == [1, 2, 3, 4, CONTROL_PORT]
    assert star.neighbours[SwitchPort("s1", 4)] == "h4"
    assert Fabric.from_settings(star.settings) == star


def test_hosts_for_servers_are_dealt_out_to_the_leaves() -> None:
    tree = Fabric.parse("tree:2x2").with_servers(3)
    assert [str(tree.host_ports[host - 1]) for host in tree.servers] == ["leaf1:3", "leaf2:3", "leaf1:4"]
    assert tree.leaves == ("leaf1", "leaf2")
    assert (tree.size, tree.ranks_of_racks) == (4, ((0, 1), (2, 3)))
    assert Fabric.from_settings(tree.settings) == tree


def test_a_fabric_of_a_manifest_without_servers_has_none() -> None:
    assert Fabric.from_settings({"hosts": 2}) == Fabric.star(2) == Fabric.star(2).with_servers(0)


@pytest.mark.parametrize(
    ("fabric", "count", "message"),
    [
        (Fabric.star(4), 61, "4 workers and 61 servers has 1 to 64 hosts, not 65"),
        (Fabric.star(4), -1, "-1 servers"),
    ],
)
def test_servers_that_cannot_be_are_explained(fabric: Fabric, count: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fabric.with_servers(count)
