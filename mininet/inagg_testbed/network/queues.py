# SPDX-License-Identifier: Apache-2.0
"""The queues at both ends of each link, as tc(8) counts them: their rate, and the packets that found no room."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.topology import (
    Network,
    bridge_node,
    host_interface,
    port_interface,
    run_in_namespace,
    station_interface,
)

Ends = tuple[str, str]  # the lower and the upper end of a link, as `traffic.LinkBytes` names them


@dataclass(frozen=True)
class Queues:
    """Of one link. rate_bps: bits a second of its slowest token bucket, None without one. dropped: packets."""

    rate_bps: int | None
    dropped: int

    def since(self, earlier: "Queues") -> "Queues":
        """What was added to the count."""
        return Queues(self.rate_bps, self.dropped - earlier.dropped)


def read(network: Network) -> Mapping[Ends, Queues]:
    """Of all links, gloo's own link of the same place included. Raises NetworkError."""
    counted: dict[str, dict[str, Queues]] = {}
    found = {}
    for ends, places in _places(network.fabric, network.run.id, network.bridge):
        queues = []
        for node, interface in places:
            if node not in counted:
                counted[node] = _queues(run_in_namespace(network.pid_of(node), "tc -s -j qdisc show"))
            queues += [counted[node][interface]] if interface in counted[node] else []
        rates = [queue.rate_bps for queue in queues if queue.rate_bps is not None]
        found[ends] = Queues(min(rates, default=None), sum(queue.dropped for queue in queues))
    return found


def between(before: Mapping[Ends, Queues], after: Mapping[Ends, Queues]) -> Mapping[Ends, Queues]:
    """What was counted between two readings."""
    return {ends: queues.since(before[ends]) for ends, queues in after.items() if ends in before}


def _queues(text: str) -> dict[str, Queues]:
    """By interface, its root queue, in the output of tc."""
    found = {}
    for queue in json.loads(text or "[]"):
        if queue.get("root"):
            rate = queue.get("options", {}).get("rate")  # bytes a second
            found[queue["dev"]] = Queues(None if rate is None else 8 * rate, queue["drops"])
    return found


def _places(fabric: Fabric, run: str, bridge: bool) -> Iterator[tuple[Ends, list[tuple[str, str]]]]:
    """The nodes and interfaces at both ends of each link."""
    for trunk in fabric.trunks:
        places = [(end.switch, port_interface(run, end.port)) for end in trunk.ends]
        if bridge:
            places += [
                (bridge_node(end.switch), port_interface(run, end.port, bridge=True))
                for end in trunk.ends
                if end.switch in fabric.connected
            ]
        yield (str(trunk.lower), str(trunk.upper)), places
    for number, port in enumerate(fabric.host_ports, 1):
        name = fabric.host_name(number)
        places = [
            (name, station_interface(run, fabric, number)),
            (port.switch, port_interface(run, port.port)),
        ]
        if bridge:
            places += [
                (name, host_interface(run, number, bridge=True)),
                (bridge_node(port.switch), port_interface(run, port.port, bridge=True)),
            ]
        yield (name, str(port)), places
