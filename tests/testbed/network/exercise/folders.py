# SPDX-License-Identifier: Apache-2.0
"""A small exercise: two switches, a host at each, a runtime JSON for each switch."""

import json
import shutil
from pathlib import Path
from typing import Any

ROUTES = Path(__file__).parent / "routes.p4"


def route(prefix: str, length: int, mac: str, port: int) -> dict[str, Any]:
    """An entry of the table of routes."""
    return {
        "table": "I.routes",
        "match": {"h.ipv4.dst": [prefix, length]},
        "action_name": "I.forward",
        "action_params": {"mac": mac, "port": port},
    }


def runtime(*entries: dict[str, Any], program: str = "routes", **more: Any) -> dict[str, Any]:
    """A runtime JSON."""
    return {
        "target": "bmv2",
        "p4info": f"build/{program}.p4.p4info.txtpb",
        "bmv2_json": f"build/{program}.json",
        "table_entries": list(entries),
        **more,
    }


def topology(latency: str = "0") -> dict[str, Any]:
    """h1 - s1 - s2 - h2. latency: between the switches, in each direction."""
    hosts = {
        f"h{n}": {
            "ip": f"10.0.{n}.{n}/24",
            "mac": f"08:00:00:00:0{n}:{n}{n}",
            "commands": [
                f"route add default gw 10.0.{n}.{n}0 dev eth0",
                f"arp -i eth0 -s 10.0.{n}.{n}0 08:00:00:00:0{n}:00",
            ],
        }
        for n in (1, 2)
    }
    return {
        "hosts": hosts,
        "switches": {"s1": {"runtime_json": "topo/s1.json"}, "s2": {"runtime_json": "topo/s2.json"}},
        "links": [["h1", "s1-p1"], ["h2", "s2-p1"], ["s1-p2", "s2-p2", latency, 10]],
    }


def runtimes() -> dict[str, dict[str, Any]]:
    """Routes to both hosts. s2 has more: an entry of each other kind of key, a group and a clone session."""
    guard = {
        "table": "guard",
        "match": {
            "h.ipv4.src": ["10.9.0.0", "255.255.0.0"],
            "h.ipv4.protocol": [1, 6],
            "h.ethernet.type": 2048,
        },
        "action_name": "flood",
        "action_params": {"group": 7},
        "priority": 10,
    }
    default = {"table": "I.routes", "default_action": True, "action_name": "I.drop", "action_params": {}}
    replicas = [{"egress_port": 1, "instance": 1}, {"egress_port": 2, "instance": 2}]
    return {
        "s1": runtime(
            route("10.0.1.1", 32, "08:00:00:00:01:11", 1), route("10.0.2.0", 24, "08:00:00:00:02:00", 2)
        ),
        "s2": runtime(
            default,
            route("10.0.1.0", 24, "08:00:00:00:01:00", 2),
            route("10.0.2.2", 32, "08:00:00:00:02:22", 1),
            guard,
            multicast_group_entries=[{"multicast_group_id": 7, "replicas": replicas}],
            clone_session_entries=[{"clone_session_id": 5, "replicas": replicas, "packet_length_bytes": 64}],
        ),
    }


def write_exercise(folder: Path, described: Any = None, runtime_jsons: dict[str, Any] | None = None) -> Path:
    """The exercise in a folder, as p4lang/tutorials has it: the files of the network in a folder below the program's.

    Returns the path of topology.json.
    """
    (folder / "topo").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROUTES, folder)
    path = folder / "topo" / "topology.json"
    path.write_text(json.dumps(topology() if described is None else described))
    for name, document in (runtimes() if runtime_jsons is None else runtime_jsons).items():
        (folder / "topo" / f"{name}.json").write_text(json.dumps(document))
    return path
