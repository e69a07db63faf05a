# SPDX-License-Identifier: Apache-2.0
"""Aggregation servers on hosts of their own: one process `inagg-server` a host, named like the host.

They register with the controller. Workers send contributions straight to their hosts, and the switch forwards these
packets like all others.
"""

from pathlib import Path

from inagg_testbed.network.control import controller_url, token_path
from inagg_testbed.network.fabric import host_name
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.switches import command_path
from inagg_testbed.network.topology import Network, host_address

_SERVER_PROCESS = "server"
_READY_TIMEOUT_S = 60.0


def start_servers(network: Network, results: Path) -> list[NodeProcess]:
    """Start a server on each host for servers, and wait until all have registered. Logs are server1.log, ...

    Raises ProcessFailedError, MissingRequirementError.
    """
    processes = []
    for index, number in enumerate(network.fabric.servers, 1):
        name = host_name(number)
        command = [command_path("inagg-server"), "--controller", controller_url(network), "--name", name]
        command += ["--listen", host_address(number), "--token-file", str(token_path(results))]
        processes.append(
            NodeProcess(
                network.run,
                network.host(number),
                f"{_SERVER_PROCESS} {name}",
                command,
                log_path=results / f"server{index}.log",
            )
        )
    for process in processes:
        process.wait_for_line("ready", timeout_s=_READY_TIMEOUT_S)
    return processes


def is_server(process: NodeProcess) -> bool:
    """Whether a process is that of a server."""
    return process.kind == _SERVER_PROCESS
