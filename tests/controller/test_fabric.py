# SPDX-License-Identifier: Apache-2.0
"""Topologies: the file, ordinary traffic, the trees of jobs, and which links are there."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from inagg_controller.cli import app
from inagg_controller.errors import ConfigurationError
from inagg_controller.fabric.drawing import draw
from inagg_controller.fabric.file import read_topology
from inagg_controller.fabric.links import Links
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.fabric.topology import Link, Place, SwitchNode, Topology
from inagg_controller.fabric.tree import NoTreeError, Tree, plan_tree
from inagg_controller.switch.entries import Binding
from tests.controller.serving import LEAF_SPINE

ORDINARY = OrdinaryTree.shortest(LEAF_SPINE)

FILE = """
[[switch]]
name = "leaf1"
p4runtime = "127.0.0.1:9559"
aggregator_ip = "10.0.255.1"
aggregator_mac = "02:49:41:00:00:01"
ports = [255]

[[switch]]
name = "leaf2"
p4runtime = "unix:/run/leaf2"
device_id = 7
aggregator_ip = "10.0.255.2"
aggregator_mac = "02:49:41:00:00:02"

[[link]]
ends = ["leaf1:49", "leaf2:50"]

[[host]]
name = "h1"
ip = "10.0.0.1"
mac = "02:00:00:00:00:01"
at = "leaf1:1"

[[host]]
name = "h2"
ip = "10.0.0.2"
at = "leaf2:1"
"""


def topology(switches: str, *links: str) -> Topology:
    """Switches by their names, and links such as a-b; each end of a link has a port of its own."""
    ports: dict[str, list[int]] = {name: [] for name in switches.split()}

    def place(name: str) -> Place:
        ports[name].append(len(ports[name]) + 1)
        return Place(name, ports[name][-1])

    found = [Link((place(a), place(b))) for a, b in (link.split("-") for link in links)]
    nodes = [
        SwitchNode(name, name, 1, number, number, tuple(ports[name]))
        for number, name in enumerate(ports, start=1)
    ]
    return Topology(tuple(nodes), tuple(found))


def planned(of: Topology, ranks: Mapping[str, tuple[int, ...]], roots: int = 128, **options: Any) -> Tree:
    return plan_tree(of.graph(of.by_name), ranks, roots, **options)


def above(tree: Tree) -> dict[str, tuple[str, ...]]:
    return {switch.name: switch.above for switch in tree.switches}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "fabric.toml"
    made.write_text(FILE)
    return made


def test_a_file_describes_switches_links_and_hosts(path: Path) -> None:
    found = read_topology(path)
    assert [(node.name, node.device_id, node.ports) for node in found.switches] == [
        ("leaf1", 1, (1, 49, 255)),
        ("leaf2", 7, (1, 50)),
    ]
    assert [str(link) for link in found.links] == ["leaf1:49 - leaf2:50"]
    assert [(host.name, host.mac, str(host.place)) for host in found.hosts] == [
        ("h1", 0x020000000001, "leaf1:1"),
        ("h2", None, "leaf2:1"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "leaf2"', 'name = "leaf1"', "switch leaf1 is there twice"),
        ('name = "leaf2"', 'name = "leaf 2"', "switch.2.name: "),
        ("device_id = 7", 'device_id = "7"', "switch.2.device_id: Input should be a valid integer"),
        ("device_id = 7", "device = 7", "switch.2.device: Extra inputs are not permitted"),
        ("10.0.255.2", "10.0.0.1", "address 10.0.0.1 is there twice"),
        ("02:49:41:00:00:02", "02:00:00:00:00:01", "MAC address 02:00:00:00:00:01 is there twice"),
        ("02:49:41:00:00:02", "02:49", "switch.2.aggregator_mac: '02:49' is not a MAC address"),
        ("unix:/run/leaf2", "127.0.0.1:9559", ""),
        ("leaf2:50", "leaf3:50", "leaf3:50: there is no switch leaf3"),
        ("leaf2:50", "leaf2", "link.1.ends.2: 'leaf2' is not a switch and a port from 0 to 509"),
        ("leaf2:50", "leaf2:510", "link.1.ends.2: 'leaf2:510' is not a switch and a port from 0 to 509"),
        ("leaf2:50", "leaf1:50", "the link leaf1:49 - leaf1:50 joins a switch to itself"),
        ('at = "leaf2:1"', 'at = "leaf2:50"', "port leaf2:50 has a link to another switch"),
        ("ports = [255]", "ports = [49]", "port leaf1:49 has a link to another switch"),
        ('name = "h2"', 'name = "h1"', "host h1 is there twice"),
        ("[[host]]", "[[hosts]]", "hosts: Extra inputs are not permitted"),
        ("[[link]]", "[[link]", "Expected"),
    ],
)
def test_a_wrong_file_is_told_with_its_name_and_the_fault(
    path: Path, old: str, new: str, message: str
) -> None:
    assert old in FILE
    path.write_text(FILE.replace(old, new))
    if not message:  # two switches of one server have different device ids
        assert len(read_topology(path).switches) == 2
        return
    with pytest.raises(ConfigurationError) as caught:
        read_topology(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*/no: No such file or directory"):
        read_topology(tmp_path / "no")


def test_the_command_lists_and_draws_a_topology(path: Path, tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["topology", str(path)])
    assert listed.exit_code == 0
    assert "link leaf1:49 - leaf2:50\n" in listed.stdout
    assert "host h2: 10.0.0.2 at leaf2:1\n" in listed.stdout
    drawn = CliRunner().invoke(app, ["topology", str(path), "--svg", str(tmp_path / "fabric.svg")])
    assert (drawn.exit_code, drawn.stdout) == (0, "")
    assert ET.parse(tmp_path / "fabric.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    path.write_text("")
    wrong = CliRunner().invoke(app, ["topology", str(path)])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "switch: Field required" in wrong.stderr


def test_a_drawing_has_every_switch_host_and_link() -> None:
    drawing = draw(LEAF_SPINE)
    texts = [text.text for text in ET.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
    assert {"leaf1", "leaf2", "spine1", "spine2", "h1", "h2", "h3", "h4", "10.0.0.4"} <= set(texts)
    assert drawing.count("stroke-dasharray") == 1  # ordinary traffic does not use one of spine2's links


def test_ordinary_traffic_keeps_to_links_without_a_loop() -> None:
    flooded = {name: ORDINARY.flooded(name) for name in LEAF_SPINE.by_name}
    assert flooded == {"leaf1": (1, 2, 101, 102), "leaf2": (1, 2, 101), "spine1": (1, 2), "spine2": (1,)}


def test_addresses_of_other_switches_are_bound_to_the_way_there() -> None:
    ports = {binding.ip: (binding.port, binding.shared) for binding in ORDINARY.bindings("leaf1")}
    assert ports == {
        0x0A000001: (1, False),
        0x0A000002: (2, False),
        0x0A000003: (101, True),
        0x0A000004: (101, True),
        0x0A00FF02: (101, True),
        0x0A00FF03: (101, True),
        0x0A00FF04: (102, True),
    }
    assert Binding(ip=0x0A000003, mac=0x020000000003, port=2, shared=True) in ORDINARY.bindings("spine1")


def links_of(tree: OrdinaryTree) -> set[str]:
    return set(map(str, tree.links))


def test_ordinary_traffic_goes_around_a_switch_and_stays_there() -> None:
    around = ORDINARY.around((), {"spine1"})
    assert links_of(around) == {"leaf1:102 - spine2:1", "leaf2:102 - spine2:2"}
    assert around.flooded("leaf1") == (1, 2, 102)
    back = around.around((), ())
    assert links_of(back) == links_of(around) | {"leaf1:101 - spine1:1"}
    ports = {binding.ip: binding.port for binding in back.bindings("leaf2")}
    assert (ports[0x0A000001], ports[0x0A00FF01], ports[0x0A00FF03], ports[0x0A00FF04]) == (102,) * 4


def test_a_switch_that_only_the_controller_misses_keeps_its_traffic() -> None:
    moved = ORDINARY.around((), {"spine1"}).around((), ())
    assert moved.around((), {"leaf2"}) is moved
    assert moved.around((), {"leaf2", "leaf1", "spine1", "spine2"}) is moved
    # Nothing else joins the leaves.
    alone = Topology(LEAF_SPINE.switches[:3], LEAF_SPINE.links[:2], LEAF_SPINE.hosts)
    tree = OrdinaryTree.shortest(alone)
    assert tree.around(alone.links, {"spine1"}) is tree


def test_nobody_floods_to_a_switch_that_would_close_a_circle() -> None:
    """spine2 needs another link than that to leaf1; leaf1 perhaps still floods to both spines."""
    around = ORDINARY.around((), {"leaf1"})
    assert links_of(around) == {"leaf2:101 - spine1:2", "leaf2:102 - spine2:2"}
    for name in LEAF_SPINE.by_name:
        stations = {(binding.ip, binding.mac) for binding in ORDINARY.bindings(name)}
        assert {(binding.ip, binding.mac) for binding in around.bindings(name)} == stations


def test_a_tree_is_known_by_the_names_of_its_links() -> None:
    moved = ORDINARY.around((), {"spine1"})
    assert OrdinaryTree.named(LEAF_SPINE, sorted(links_of(moved))) == moved
    every = [str(link) for link in LEAF_SPINE.links]
    for names in (every, ["leaf9:1 - spine1:1"]):
        assert OrdinaryTree.named(LEAF_SPINE, names) is None


@given(st.data())
def test_ordinary_traffic_has_no_loop_and_joins_what_live_links_join(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 7))
    names = [f"s{number}" for number in range(size)]
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda pair: pair[0] < pair[1])
    found = topology(" ".join(names), *map("-".join, data.draw(st.lists(pairs, min_size=1, max_size=12))))
    tree = OrdinaryTree.shortest(found)
    faults = st.tuples(st.sets(st.sampled_from(found.links)), st.sets(st.sampled_from(names)))
    for down, away in data.draw(st.lists(faults, max_size=4)):
        before, tree = tree, tree.around(down, away)
        dead = down | {link for link in found.links if any(end.switch in away for end in link.ends)}
        assert before.links - dead <= tree.links
        used = found.graph(names, set(found.links) - tree.links)
        assert nx.is_forest(used)
        for joined in nx.connected_components(found.graph(names, dead)):
            assert joined <= nx.node_connected_component(used, next(iter(joined)))
        for name in away:
            links = {link for link in before.links if any(end.switch == name for end in link.ends)}
            assert tree.links & links in (links, set())


def test_workers_at_one_switch_need_no_other() -> None:
    tree = planned(LEAF_SPINE, {"leaf2": (0, 1)})
    assert (above(tree), tree.roots, tree.links) == ({"leaf2": ()}, 1, {})


def test_all_spines_take_turns_as_roots() -> None:
    tree = planned(LEAF_SPINE, {"leaf1": (0, 2), "leaf2": (1, 3)})
    spines = ("spine1", "spine2")
    assert above(tree) == {"spine1": (), "spine2": (), "leaf1": spines, "leaf2": spines}
    assert (tree.roots, tree.number_of(3), tree.leaf_of[3].name) == (2, 1, "leaf2")
    assert str(tree.links["spine2", "leaf1"]) == "leaf1:102 - spine2:1"
    assert tree.by_name["spine1"].number_of("leaf2") == 1


@pytest.mark.parametrize(("spines", "most", "roots"), [(3, 128, 2), (4, 128, 4), (4, 3, 2), (4, 1, 1)])
def test_a_power_of_two_of_the_spines_are_roots(spines: int, most: int, roots: int) -> None:
    names = [f"s{number}" for number in range(spines)]
    of = topology(" ".join(["a", "b", *names]), *(f"{leaf}-{name}" for name in names for leaf in "ab"))
    assert planned(of, {"a": (0,), "b": (1,)}, most).roots == roots


def test_the_least_loaded_spine_is_the_root() -> None:
    ranks: dict[str, tuple[int, ...]] = {"leaf1": (0,), "leaf2": (1,)}
    tree = planned(LEAF_SPINE, ranks, 1, load=lambda name: {"spine1": 8, "spine2": 2}.get(name, 0))
    assert [name for name, those in above(tree).items() if not those] == ["spine2"]


def test_a_tree_of_three_levels_uses_what_it_needs_only() -> None:
    of = topology("top m1 m2 a b c d", "top-m1", "top-m2", "m1-a", "m1-b", "m2-c", "m2-d")
    assert above(planned(of, {"a": (0,), "b": (1,)})) == {"m1": (), "a": ("m1",), "b": ("m1",)}
    tree = planned(of, {"a": (0,), "d": (1,)})
    # Of the five switches on the way, the one in the middle is the root: no lower tree has them.
    assert above(tree) == {"top": (), "m1": ("top",), "m2": ("top",), "a": ("m1",), "d": ("m2",)}


def test_a_switch_with_workers_of_its_own_may_be_the_root() -> None:
    of = topology("a b", "a-b")
    tree = planned(of, {"a": (0, 1), "b": (2,)})
    assert above(tree) == {"a": (), "b": ("a",)}
    assert (tree.by_name["a"].members, tree.by_name["a"].number_of("b")) == (3, 2)


def test_of_the_shortest_ways_those_over_few_switches_are_taken() -> None:
    of = topology("x a b c d", "x-a", "x-b", "x-c", "x-d", "a-b", "b-c", "c-d")
    tree = planned(of, {"a": (0,), "b": (1,), "c": (2,), "d": (3,)})
    assert above(tree) == {"b": (), "a": ("b",), "c": ("b",), "d": ("c",)}  # from b to d over x is as short


def fat_tree(k: int) -> Topology:
    """k pods of k/2 aggregation (a0.0) and k/2 edge switches (e0.0); k/2 cores (c0.0) to each aggregation number."""
    half = range(k // 2)
    links = [f"a{pod}.{a}-e{pod}.{e}" for pod in range(k) for a in half for e in half]
    links += [f"c{a}.{c}-a{pod}.{a}" for pod in range(k) for a in half for c in half]
    return topology(" ".join(dict.fromkeys(name for link in links for name in link.split("-"))), *links)


def test_in_a_fat_tree_a_job_takes_one_aggregation_switch_a_pod_and_one_core() -> None:
    of = fat_tree(4)
    one_pod = {"e2.0": (0, 1), "e2.1": (2,)}
    assert above(planned(of, one_pod, 1)) == {"a2.0": (), "e2.0": ("a2.0",), "e2.1": ("a2.0",)}
    assert planned(of, one_pod).roots == 2
    two_pods = {"e0.1": (3,), **one_pod}
    expected = {"a0.0": ("c0.0",), "a2.0": ("c0.0",), "e0.1": ("a0.0",), "e2.0": ("a2.0",), "e2.1": ("a2.0",)}
    assert above(planned(of, two_pods, 1)) == {"c0.0": (), **expected}
    every_edge = {name: (rank,) for rank, name in enumerate(of.by_name) if name.startswith("e")}
    assert Counter(name[0] for name in above(planned(of, every_edge, 1))) == {"c": 1, "a": 4, "e": 8}


@given(
    st.randoms(use_true_random=False),
    st.sets(st.sampled_from(["e0.0", "e0.1", "e1.0", "e3.1", "c0.1"]), min_size=1),
)
def test_the_order_of_the_file_makes_no_difference(random: Random, leaves: set[str]) -> None:
    of = fat_tree(4)
    parallel = Link((Place("a0.0", 90), Place("e0.0", 90)))
    links = [*of.links, parallel]
    ranks = {name: (rank,) for rank, name in enumerate(sorted(leaves))}
    shuffled = Topology(
        tuple(random.sample(of.switches, len(of.switches))),
        tuple(random.sample(links, len(links))),
    )
    assert planned(shuffled, ranks) == planned(Topology(of.switches, tuple(links)), ranks)


def test_without_a_way_two_switches_are_named() -> None:
    with pytest.raises(NoTreeError, match="no working way from switch a to switch c"):
        planned(topology("a b c", "a-b"), {"a": (0,), "b": (1,), "c": (2,)})


def deliver(links: Links, now: float, cables: dict[Place, Place]) -> None:
    """Send what is due over cables: port -> port at the other end."""
    for switch, frames in links.due(now).items():
        for frame in frames:
            sent = Place(switch, int.from_bytes(frame[14:16], "big"))
            if sent in cables:
                came = cables[sent]
                links.hear(came.switch, frame[:16] + came.port.to_bytes(2, "big") + frame[18:], now)


def both_ways(of: Topology) -> dict[Place, Place]:
    return {a: b for link in of.links for a, b in (link.ends, link.ends[::-1])}


def test_links_are_up_when_beacons_have_passed_both_ways() -> None:
    links = Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0)
    cables = both_ways(LEAF_SPINE)
    one_way = Place("leaf1", 101)
    del cables[one_way]
    deliver(links, 0.0, cables)
    assert [(str(change.link), change.state) for change in links.tick(0.0)] == [
        ("leaf2:101 - spine1:2", "up"),
        ("leaf1:102 - spine2:1", "up"),
        ("leaf2:102 - spine2:2", "up"),
    ]
    for tick in range(1, 51):
        deliver(links, tick / 10, cables)
        changes = list(links.tick(tick / 10))
    assert [(str(change.link), change.reason) for change in changes] == [
        ("leaf1:101 - spine1:1", "no beacon arrives at spine1:1")
    ]


def test_a_link_that_is_cut_is_down_and_up_again_when_it_is_mended() -> None:
    links = Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0)
    cables, cut = both_ways(LEAF_SPINE), LEAF_SPINE.links[0]
    seen = []
    for tick in range(200):
        now = tick / 10
        now_there = {a: b for a, b in cables.items() if not (3 <= now < 12 and a in cut.ends)}
        deliver(links, now, now_there)
        seen += [(now, change.link, change.state) for change in links.tick(now)]
    assert [(link, state) for _, link, state in seen[4:]] == [(cut, "down"), (cut, "up")]
    assert 4.4 < seen[4][0] - 3 < 5.1
    assert 0.0 <= seen[5][0] - 12 <= 0.5


def test_a_wrong_cable_is_told_with_both_ends() -> None:
    links = Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0)
    cables = both_ways(LEAF_SPINE)
    a, b = Place("leaf1", 101), Place("leaf1", 102)  # exchanged
    cables[a], cables[b] = cables[b], cables[a]
    cables[cables[a]], cables[cables[b]] = a, b
    deliver(links, 0.0, cables)
    list(links.tick(0.0))
    assert links.wrong_cables() == [
        "port leaf1:101 is connected to spine2:1; the topology file says spine1:1",
        "port leaf1:102 is connected to spine1:1; the topology file says spine2:1",
    ]


def test_what_is_no_beacon_of_this_controller_means_nothing() -> None:
    links, other = (Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0) for _ in range(2))
    frame = other.beacon(Place("leaf1", 101))
    for wrong in (b"", frame[:20], frame, b"\0" * 60):
        links.hear("spine1", wrong, 0.0)
    assert list(links.tick(0.0)) == []


def test_time_in_which_the_controller_itself_stood_still_does_not_cut_a_link() -> None:
    links = Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0)
    deliver(links, 0.0, both_ways(LEAF_SPINE))
    list(links.tick(0.0))
    assert list(links.tick(60.0)) == []


@pytest.mark.parametrize("gap", [0.6, 3.0])
def test_a_machine_that_is_always_late_does_not_hide_a_cut_link(gap: float) -> None:
    links = Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0)
    cut = LEAF_SPINE.links[0]
    cables = {a: b for a, b in both_ways(LEAF_SPINE).items() if a not in cut.ends}
    for tick in range(11):
        deliver(links, tick * gap, cables)
        list(links.tick(tick * gap))
    assert list(links.states.values()) == ["down", "up", "up", "up"]
