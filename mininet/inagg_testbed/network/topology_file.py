# SPDX-License-Identifier: Apache-2.0
"""topology.toml: the fabric as `inagg-controller --topology` reads it.

[[switch]] has a name, the address and device id of its P4Runtime server, and its aggregator's addresses; [[link]] two
ends such as leaf1:101; [[host]] a name, addresses and a port. The controller's interface is a host of the file too.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inagg_testbed.network.fabric import CONTROL_PORT, Fabric, SwitchPort, host_name
from inagg_testbed.network.topology import (
    CONTROL_ADDRESS,
    CONTROL_INTERFACE,
    CONTROL_MAC,
    aggregator_address,
    aggregator_mac,
    host_address,
    host_mac,
)


def topology_toml(fabric: Fabric, addresses: Mapping[str, str]) -> str:
    """The file's text. addresses: where each switch serves P4Runtime."""
    return "\n".join(_table(kind, values) for kind, values in _tables(fabric, addresses))


def _tables(fabric: Fabric, addresses: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for device_id, switch in enumerate(fabric.switches, 1):
        yield (
            "switch",
            {
                "name": switch,
                "p4runtime": addresses[switch],
                "device_id": device_id,
                "aggregator_ip": aggregator_address(fabric, switch),
                "aggregator_mac": aggregator_mac(fabric, switch),
            },
        )
    for trunk in fabric.trunks:
        yield "link", {"ends": [str(trunk.lower), str(trunk.upper)]}
    for number, port in enumerate(fabric.host_ports, 1):
        name, ip, mac = host_name(number), host_address(number), host_mac(number)
        yield "host", {"name": name, "ip": ip, "mac": mac, "at": str(port)}
    station = {"name": CONTROL_INTERFACE, "ip": CONTROL_ADDRESS, "mac": CONTROL_MAC}
    yield "host", {**station, "at": str(SwitchPort(fabric.control_switch, CONTROL_PORT))}


def _table(kind: str, values: Mapping[str, Any]) -> str:
    """One table of an array. Strings, numbers and lists of strings are written alike in TOML and JSON."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join([f"[[{kind}]]", *lines, ""])
