# SPDX-License-Identifier: Apache-2.0
"""Bridges of gloo's own links that can be impaired: the switch model with p4/bridge.p4, instead of Linux bridges.

Each is a process in the bridge's node, on the ports of the switch for which it stands in, with their numbers.
"""

from pathlib import Path

from inagg_contract.constants import FLOOD_GROUP
from inagg_contract.program import bridge_p4
from inagg_testbed.files import write_text
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.switch_console import CONSOLE_PORT
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.switches import P4RUNTIME_ADDRESS, READY_TIMEOUT_S, command_path
from inagg_testbed.network.topology import Network, bridge_node

_BRIDGE_PROCESS = "bridge"


def start_bridges(network: Network, results: Path, options: SwitchOptions) -> list[NodeProcess]:
    """Start a bridge for each switch that gloo's own links connect. Raises ProcessFailedError."""
    processes = [_started(network, switch, results, options) for switch in network.fabric.connected]
    for process in processes:
        process.wait_for_line("ready", timeout_s=READY_TIMEOUT_S)
    return processes


def is_bridge(process: NodeProcess) -> bool:
    """Whether a process is that of a bridge."""
    return process.kind == _BRIDGE_PROCESS


def _started(network: Network, switch: str, results: Path, options: SwitchOptions) -> NodeProcess:
    node, ports = bridge_node(switch), network.own_ports(switch)
    numbers = " ".join(str(number) for number in ports)
    commands = results / f"bridge-{node}.txt"
    write_text(
        commands,
        f"mc_mgrp_create {FLOOD_GROUP}\nmc_node_create 0 {numbers}\nmc_node_associate {FLOOD_GROUP} 0\n",
    )
    command = [command_path("inagg-switch"), "run", str(bridge_p4()), "--commands", str(commands)]
    # Behind the device ids of the switches: impairments with the same seed draw differently for each id.
    fabric = network.fabric
    command += ["--device-id", str(len(fabric.switches) + 1 + fabric.switches.index(switch))]
    command += ["--grpc", P4RUNTIME_ADDRESS, "--console", f"127.0.0.1:{CONSOLE_PORT}", "--threads", "1"]
    command += ["--stats", str(results / f"bridge-{node}-ports.json")]
    for number, interface in ports.items():
        command += ["--port", f"{number}@{interface}"]
    command += options.impair_options(fabric, switch, ports)
    log_path = results / f"bridge-{node}.log"
    return NodeProcess(
        network.run, network.switch_node(node), f"{_BRIDGE_PROCESS} {node}", command, log_path=log_path
    )
