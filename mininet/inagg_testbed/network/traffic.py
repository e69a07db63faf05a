# SPDX-License-Identifier: Apache-2.0
"""Bytes on the links of a fabric, as the kernel counts them at the interfaces of the switches' nodes.

Ethernet headers are included. A frame with offloads counts once, with its headers once, unless the link's token bucket
has segmented it. A copy that a queue drops is not counted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inagg_testbed.network.fabric import Fabric, SwitchPort, host_name
from inagg_testbed.network.topology import bridge_node, port_interface

PortBytes = Mapping[SwitchPort, tuple[int, int]]


@dataclass(frozen=True)
class LinkBytes:
    """Bytes on one link. lower: a host, or a port of the lower switch. upper: a port of a switch. up: towards upper."""

    lower: str
    upper: str
    up: int
    down: int


def port_bytes(fabric: Fabric, run: str, pid_of: Callable[[str], int], *, bridge: bool = False) -> PortBytes:
    """Bytes from and to the neighbour of each port, since the link was made, from /proc/PID/net/dev.

    pid_of: a process in the namespace of a node. bridge: on gloo's own links. A namespace that is gone has no ports.
    """
    found = {}
    for switch in fabric.connected if bridge else fabric.switches:
        node = bridge_node(switch) if bridge else switch
        try:
            counted = _interfaces(Path(f"/proc/{pid_of(node)}/net/dev").read_text())
        except OSError:
            continue
        for number in fabric.ports(switch):
            if (bytes_ := counted.get(port_interface(run, number, bridge=bridge))) is not None:
                found[SwitchPort(switch, number)] = bytes_
    return found


def _interfaces(text: str) -> dict[str, tuple[int, int]]:
    """Received and sent bytes by interface."""
    found = {}
    for line in text.splitlines():
        name, colon, numbers = line.strip().partition(":")
        if colon:
            values = numbers.split()
            found[name] = int(values[0]), int(values[8])
    return found


def link_bytes(fabric: Fabric, before: PortBytes, after: PortBytes) -> list[LinkBytes]:
    """What has crossed each link between two readings, counted at its upper end; links of gone namespaces left out."""
    found = []
    for lower, upper in links(fabric):
        if upper in before and upper in after:
            up, down = (new - old for old, new in zip(before[upper], after[upper], strict=True))
            found.append(LinkBytes(lower, str(upper), up, down))
    return found


def links(fabric: Fabric) -> Iterable[tuple[str, SwitchPort]]:
    """The lower end of each link as text, and its upper end: links between switches first."""
    yield from ((str(trunk.lower), trunk.upper) for trunk in fabric.trunks)
    yield from ((host_name(number), port) for number, port in enumerate(fabric.host_ports, 1))
