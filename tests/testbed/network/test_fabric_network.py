# SPDX-License-Identifier: Apache-2.0
"""Several switches in namespaces: every host reaches every other, at the links' rates, and ranks run where they shall.

Linux bridges stand in for the switches.
"""

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.lifecycle import manifests
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.network.topology_file import topology_toml
from inagg_testbed.network.traffic import LinkBytes, link_bytes, port_bytes

OpenTestbed = Callable[..., AbstractContextManager[Testbed]]


@pytest.fixture(scope="module")
def tree(open_bridge: OpenTestbed) -> Iterator[Testbed]:
    """Two racks of two hosts; gloo has its own links."""
    with open_bridge(topology="tree:2x2", gloo_over="bridge") as testbed:
        yield testbed


def in_host(testbed: Testbed, number: int, script: str) -> str:
    return run_in_namespace(testbed.network.host(number).pid, script)


def reach_each_other(testbed: Testbed, *, subnet: int = 0) -> None:
    """Every host pings all others, and the controller's address if it is in the subnet."""
    hosts = range(1, testbed.network.size + 1)
    for number in hosts:
        targets = [f"10.0.{subnet}.{other}" for other in hosts if other != number]
        targets += [] if subnet else ["10.0.0.254"]
        in_host(testbed, number, " && ".join(f"ping -c 1 -W 5 {target}" for target in targets))


@pytest.mark.netns
@pytest.mark.parametrize("topology", ["tree:1x1", "tree:1x2", "tree:2x2x1", "leaf-spine:2x2x2"])
def test_every_host_reaches_every_other(open_bridge: OpenTestbed, topology: str) -> None:
    with open_bridge(topology=topology) as testbed:
        reach_each_other(testbed)
        for switch in testbed.network.fabric.switches:
            assert testbed.run.manifest.namespace(switch).alive()


@pytest.mark.netns
def test_gloos_own_links_are_a_tree_too(tree: Testbed) -> None:
    reach_each_other(tree)
    reach_each_other(tree, subnet=1)
    assert {"leaf1-b", "leaf2-b", "root-b"} <= tree.run.manifest.namespaces.keys()


@pytest.mark.netns
def test_interface_names_fit_and_are_those_of_the_switchs_node(tree: Testbed) -> None:
    ports = tree.network.ports("leaf2")
    assert list(ports) == [1, 2, 101]
    shown = json.loads(run_in_namespace(tree.network.switch_node("leaf2").pid, "ip -json link show"))
    assert set(ports.values()) <= {each["ifname"] for each in shown}
    assert all(len(name) <= 15 for name in tree.network.ports("root").values())


@pytest.mark.netns
def test_switches_and_the_controller_have_names(tree: Testbed) -> None:
    script = "import socket; print([socket.gethostbyname(name) for name in ('root', 'leaf2', 'ctl0', 'h4')])"
    found = in_host(tree, 1, f'{sys.executable} -c "{script}"')
    assert found == "['10.0.0.101', '10.0.0.103', '10.0.0.254', '10.0.0.4']\n"


@pytest.mark.netns
def test_links_between_switches_have_a_rate_of_their_own_at_both_ends(open_bridge: OpenTestbed) -> None:
    with open_bridge(topology="tree:2x1", link="100mbit", uplink=LinkSpec.parse("250mbit")) as testbed:
        for switch, port, rate in [
            ("leaf1", 1, 12_500_000),
            ("leaf1", 101, 31_250_000),
            ("root", 2, 31_250_000),
        ]:
            interface = testbed.network.ports(switch)[port]
            pid = testbed.network.switch_node(switch).pid
            (qdisc,) = json.loads(run_in_namespace(pid, f"tc -json qdisc show dev {interface}"))
            assert qdisc["options"]["rate"] == rate, (switch, port)


@pytest.mark.netns
@pytest.mark.parametrize(
    ("order", "hosts"), [("contiguous", ["h1", "h2", "h3", "h4"]), ("interleaved", ["h1", "h3", "h2", "h4"])]
)
def test_ranks_run_in_the_order_asked_for(open_bridge: OpenTestbed, order: str, hosts: list[str]) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from inagg_testbed.events import EventLog\n"
        "EventLog(pathlib.Path(sys.argv[1])).write('at', interface=os.environ['GLOO_SOCKET_IFNAME'])\n"
    )
    with open_bridge(topology="tree:2x2", rank_order=order) as testbed:
        group = testbed.launch([sys.executable, "-c", script, "{events}"], name="where")
        seen: dict[int, str] = {}
        group.follow(lambda rank, event: seen.update({rank: event["interface"]}), timeout_s=60)
        environments = testbed.node_environments()
    assert [seen[rank].rpartition("-")[2] for rank in range(4)] == hosts
    assert environments["h3"]["GLOO_SOCKET_IFNAME"].endswith("-h3")


@pytest.mark.netns
def test_bytes_are_counted_on_the_links_that_they_cross(tree: Testbed) -> None:
    network = tree.network

    def read() -> Any:
        return port_bytes(network.fabric, tree.run.id, lambda node: tree.run.manifest.namespace(node).pid)

    in_host(tree, 1, "ping -c 1 -W 5 10.0.0.3")  # ARP is done
    before = read()
    in_host(tree, 1, "ping -c 10 -i 0.01 -s 1400 -W 5 10.0.0.3")
    found = {link.lower: link for link in link_bytes(network.fabric, before, read())}
    crossed = 10 * (1400 + 8 + 20 + 14)
    assert found["h1"].up >= crossed
    assert found["leaf1:101"].up >= crossed
    assert found["leaf2:101"].down >= crossed
    assert found["h3"].down >= crossed
    assert found["h2"].up + found["h4"].down < crossed


@pytest.mark.netns
def test_teardown_removes_the_temporary_folder(open_bridge: OpenTestbed, folder: Path) -> None:
    with open_bridge(hosts=1) as testbed:
        made = testbed.run.temporary_folder()
        (made / "leaf1").touch()
        assert manifests(folder / "state")[testbed.run.id].folders == [str(made)]
    assert not made.exists()


@pytest.mark.netns
def test_gloo_sums_over_a_tree_of_bridges(tree: Testbed) -> None:
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "tensor = torch.full((100_000,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(tensor)\n"
        "assert bool((tensor == 10).all())\n"
        "dist.barrier(); dist.destroy_process_group()\n"
    )
    before, after = (reading_of_gloos_links(tree, script, run) for run in (False, True))
    crossed = {link.lower: link for link in link_bytes(tree.network.fabric, before, after)}
    assert crossed["leaf1:101"].up > 400_000
    assert crossed["leaf1:101"].down > 400_000


def reading_of_gloos_links(testbed: Testbed, script: str, run: bool) -> Any:
    if run:
        group = testbed.launch([sys.executable, "-c", script], name="sum")
        group.follow(lambda _rank, _event: None, timeout_s=120)
    manifest = testbed.run.manifest
    return port_bytes(
        testbed.network.fabric, testbed.run.id, lambda node: manifest.namespace(node).pid, bridge=True
    )


def test_the_topology_file_names_every_switch_link_and_host() -> None:
    fabric = Fabric.parse("tree:2x1")
    found = tomllib.loads(topology_toml(fabric, {switch: f"unix:/x/{switch}" for switch in fabric.switches}))
    assert found["switch"][1] == {
        "name": "leaf1",
        "p4runtime": "unix:/x/leaf1",
        "device_id": 2,
        "aggregator_ip": "10.0.0.102",
        "aggregator_mac": "02:49:41:00:00:02",
    }
    assert [switch["name"] for switch in found["switch"]] == ["root", "leaf1", "leaf2"]
    assert found["link"] == [{"ends": ["leaf1:101", "root:1"]}, {"ends": ["leaf2:101", "root:2"]}]
    assert found["host"] == [
        {"name": "h1", "ip": "10.0.0.1", "mac": "02:00:0a:00:00:01", "at": "leaf1:1"},
        {"name": "h2", "ip": "10.0.0.2", "mac": "02:00:0a:00:00:02", "at": "leaf2:1"},
        {"name": "ctl0", "ip": "10.0.0.254", "mac": "02:00:0a:00:00:fe", "at": "root:255"},
    ]


@pytest.mark.parametrize("topology", ["tree:64x1", "leaf-spine:32x2x64"])
def test_the_addresses_of_a_large_fabric_differ(topology: str) -> None:
    fabric = Fabric.parse(topology)
    found = tomllib.loads(topology_toml(fabric, dict.fromkeys(fabric.switches, "127.0.0.1:9559")))
    addresses = [each["aggregator_ip"] for each in found["switch"]] + [each["ip"] for each in found["host"]]
    assert len(set(addresses)) == len(addresses) == len(fabric.switches) + 65
    assert all(0 < int(address.removeprefix("10.0.0.")) < 255 for address in addresses)
    macs = [each["aggregator_mac"] for each in found["switch"]]
    assert len(set(macs)) == len(macs)


def test_the_topology_file_of_a_star_has_the_star() -> None:
    found = tomllib.loads(topology_toml(Fabric.star(2), {"s1": "127.0.0.1:9559"}))
    assert [(each["name"], each["aggregator_ip"]) for each in found["switch"]] == [("s1", "10.0.0.253")]
    assert "link" not in found
    assert [each["at"] for each in found["host"]] == ["s1:1", "s1:2", "s1:255"]


def test_a_link_of_a_namespace_that_is_gone_is_left_out() -> None:
    fabric = Fabric.parse("tree:1x1")
    before, after = ({fabric.host_ports[0]: count} for count in ((1, 2), (11, 32)))
    assert link_bytes(fabric, before, after) == [LinkBytes("h1", "leaf1:1", 10, 30)]
