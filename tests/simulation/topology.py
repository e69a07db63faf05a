# SPDX-License-Identifier: Apache-2.0
"""Where the hosts of a world are: at one switch, or at the leaves of a leaf-spine fabric."""

from collections.abc import Sequence

from inagg_controller.fabric.topology import Host, Link, Place, SwitchNode, Topology
from tests.simulation.scenario import Scenario

# Ports of a leaf: hosts first, then the spines.
_FIRST_UPLINK = 100
_RANKS, _SERVERS = 0x0A00_0001, 0x0A01_0001  # 10.0.0.1, 10.1.0.1
_SWITCHES = 0x0A02_0001
_MACS, _SWITCH_MACS = 0x0200_0000_0000, 0x0249_4100_0001


def leaves_of(scenario: Scenario) -> list[str]:
    """The switches that have hosts."""
    return ["s1"] if scenario.leaves == 1 else [f"leaf{leaf + 1}" for leaf in range(scenario.leaves)]


def topology_of(scenario: Scenario) -> Topology:
    """Host i of the ranks, and then those of registered servers, are at the leaves in turns."""
    leaves = leaves_of(scenario)
    spines = [f"spine{spine + 1}" for spine in range(scenario.spines)] if scenario.leaves > 1 else []
    ranks, servers = sum(scenario.workers), scenario.servers
    ips = [*range(_RANKS, _RANKS + ranks), *range(_SERVERS, _SERVERS + servers)]
    free = dict.fromkeys(leaves, 1)
    hosts = []
    for number, ip in enumerate(ips):
        leaf = leaves[(number if number < ranks else number - ranks) % len(leaves)]
        hosts.append(Host(f"h{number}", ip, _MACS + ip, Place(leaf, free[leaf])))
        free[leaf] += 1
    links = tuple(
        Link((Place(spine, 1 + below), Place(leaf, _FIRST_UPLINK + above)))
        for above, spine in enumerate(spines)
        for below, leaf in enumerate(leaves)
    )
    used: dict[str, list[int]] = {name: [] for name in (*leaves, *spines)}
    for place in [*(host.place for host in hosts), *(end for link in links for end in link.ends)]:
        used[place.switch].append(place.port)
    return Topology(
        tuple(_node(number, name, ports) for number, (name, ports) in enumerate(used.items())),
        links,
        tuple(hosts),
    )


def _node(number: int, name: str, ports: Sequence[int]) -> SwitchNode:
    return SwitchNode(
        name, f"unix:/{name}", 1, _SWITCHES + number, _SWITCH_MACS + number, tuple(sorted(ports))
    )
