# SPDX-License-Identifier: Apache-2.0
"""Bytes on the links of a fabric, as the kernel counts them at the interfaces of the switches' nodes.

Ethernet headers are included. A frame with offloads counts once, with its headers once, unless the link's token bucket
has segmented it. A copy that a queue drops is not counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.interfaces import interface_bytes
from inagg_testbed.network.topology import Network, bridge_node, port_interface

PortBytes = Mapping[SwitchPort, tuple[int, int]]
Reading = Sequence[PortBytes]  # of the switches' ports, and of the bridges' ports if gloo has its own links


@dataclass(frozen=True)
class LinkBytes:
    """Bytes on one link. lower: a host, or a port of the lower switch. upper: a port of a switch. up: towards upper."""

    lower: str
    upper: str
    up: int
    down: int


def port_bytes(fabric: Fabric, run: str, pid_of: Callable[[str], int], *, bridge: bool = False) -> PortBytes:
    """Bytes from and to the neighbour of each port, since the link was made.

    pid_of: a process in the namespace of a node. bridge: on gloo's own links. A namespace that is gone has no ports.
    """
    found = {}
    for switch in fabric.connected if bridge else fabric.switches:
        node = bridge_node(switch) if bridge else switch
        try:
            counted = interface_bytes(pid_of(node))
        except OSError:
            continue
        for number in fabric.ports(switch):
            if (bytes_ := counted.get(port_interface(run, number, bridge=bridge))) is not None:
                found[SwitchPort(switch, number)] = bytes_
    return found


def link_bytes(fabric: Fabric, before: PortBytes, after: PortBytes) -> list[LinkBytes]:
    """What has crossed each link between two readings, counted at its upper end; links of gone namespaces left out."""
    found = []
    for lower, upper in links(fabric):
        if upper in before and upper in after:
            up, down = (new - old for old, new in zip(before[upper], after[upper], strict=True))
            found.append(LinkBytes(lower, str(upper), up, down))
    return found


def read(network: Network) -> Reading:
    """Bytes at all ports of a network that is up."""
    sides = (False, True) if network.bridge else (False,)
    return [port_bytes(network.fabric, network.run.id, network.pid_of, bridge=bridge) for bridge in sides]


def crossed(fabric: Fabric, before: Reading, after: Reading) -> list[LinkBytes]:
    """What has crossed each link of a fabric between two readings, gloo's own link of the same place included."""
    found: dict[tuple[str, str], LinkBytes] = {}
    for old, new in zip(before, after, strict=True):
        for link in link_bytes(fabric, old, new):
            other = found.get((link.lower, link.upper))
            up, down = (0, 0) if other is None else (other.up, other.down)
            found[link.lower, link.upper] = replace(link, up=link.up + up, down=link.down + down)
    return list(found.values())


def links(fabric: Fabric) -> Iterable[tuple[str, SwitchPort]]:
    """The lower end of each link as text, and its upper end: links between switches first."""
    yield from ((str(trunk.lower), trunk.upper) for trunk in fabric.trunks)
    yield from ((fabric.host_name(number), port) for number, port in enumerate(fabric.host_ports, 1))


def host_interfaces(network: Network) -> list[list[tuple[int, str]]]:
    """By host, the upper ends of its links: a process in the node, and the interface. gloo's own link comes second."""
    sides = (False, True) if network.bridge else (False,)
    return [
        [
            (
                network.pid_of(bridge_node(port.switch) if bridge else port.switch),
                port_interface(network.run.id, port.port, bridge=bridge),
            )
            for bridge in sides
        ]
        for port in network.fabric.host_ports
    ]
