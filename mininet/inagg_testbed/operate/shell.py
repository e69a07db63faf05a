# SPDX-License-Identifier: Apache-2.0
"""`inagg shell`: Mininet's command line on a testbed that another process keeps.

The nodes are Mininet nodes attached to the launcher's: their shells join its namespaces, their interfaces exist
already. Nothing is created, configured or removed. Processes that a shell starts have the run's id in their
environment, so the testbed's teardown ends them.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network._mininet import CLI, Intf, Link, Node, lg, make_net, output
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.topology import (
    CONTROL_ADDRESS,
    CONTROL_INTERFACE,
    bridge_node,
    port_interface,
    station,
    station_interface,
)


class AttachedNode(Node):  # type: ignore[misc]
    """A node whose namespaces exist."""

    def __init__(self, name: str, *, manifest: Manifest) -> None:
        self._manifest = manifest
        Node.__init__(self, name, inNamespace=False)

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 (Mininet's name)
        """Start a shell in the node: mnexec -a PID in place of -n."""
        Node.startShell(self, mnopts=f"-cda{self._manifest.namespace(self.name).pid}")

    def _popen(self, cmd: Sequence[str], **params: Any) -> "subprocess.Popen[bytes]":
        environment = self._manifest.node_environment(self.name, os.environ)
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *cmd], env=environment, **params)


class AttachedInterface(Intf):  # type: ignore[misc]
    """An interface that exists and is configured."""

    def config(self, *, address: str | None = None, **_params: Any) -> None:
        """Record the interface's address."""
        if address is not None:
            self.ip, _, self.prefixLen = address.partition("/")

    def updateIP(self) -> str | None:  # noqa: N802 (Mininet's name)
        """The address that the command line substitutes for the node's name."""
        address: str | None = self.ip
        return address


class AttachedLink(Link):  # type: ignore[misc]
    """A link that exists."""

    @classmethod
    def makeIntfPair(cls, *_names: Any, **_options: Any) -> None:  # noqa: N802 (Mininet's name)
        """Do nothing: the interfaces exist."""


class TestbedCLI(CLI):  # type: ignore[misc]
    """Mininet's command line without commands that do harm here.

    The constructor runs `lines`, or else what is typed.
    """

    def __init__(self, net: Any, manifest: Manifest, lines: Iterable[str] | None, stdin: TextIO) -> None:
        self._manifest, self._lines = manifest, lines
        CLI.__init__(self, net, stdin=stdin)

    def run(self) -> None:
        """Called by CLI's constructor."""
        if self._lines is None:
            CLI.run(self)
            return
        for line in self._lines:
            if self.onecmd(self.precmd(line.strip())):
                return

    def precmd(self, line: str) -> str:
        """Called before each command. Raises ConfigurationError if the testbed has ended."""
        if not self._manifest.launcher.alive():
            raise ConfigurationError(f"run {self._manifest.run} is down")
        return str(CLI.precmd(self, line))

    def do_iperf(self, _line: str) -> None:
        """Disabled: Mininet's command would end every iperf process on the machine."""
        output(
            "*** disabled: it would end every iperf process on the machine; use h2 iperf -s -D, h1 iperf -c h2\n"
        )

    def do_switch(self, _line: str) -> None:
        """Disabled: the switches do not speak OpenFlow."""
        output("*** disabled: the switches do not speak OpenFlow; use inagg status and inagg counters\n")

    do_iperfudp = do_iperf
    do_dpctl = do_wait = do_switch


def operate(manifest: Manifest, lines: Iterable[str] | None) -> None:
    """Run `lines`, or what is typed, in Mininet's command line. Raises ConfigurationError if the testbed goes down."""
    lg.propagate = False  # Mininet's logger has its own handlers
    for handler in lg.handlers:
        handler.setStream(sys.stdout)
    net = attached_net(manifest)
    silent, _writer = os.pipe()  # standard input of commands that `lines` run: always empty
    try:
        with os.fdopen(silent) as nothing:
            TestbedCLI(net, manifest, lines, sys.stdin if lines is None else nothing)
    except (OSError, AssertionError) as error:
        if manifest.launcher.alive():
            raise
        raise ConfigurationError(f"run {manifest.run} is down") from error
    finally:
        for node in net.values():
            node.terminate()
        os.close(_writer)


def attached_net(manifest: Manifest) -> Any:
    """A Mininet object of the existing nodes and links. Never call its stop(), which removes links."""
    net = make_net(topo=None, build=False, controller=None)
    fabric, run = Fabric.from_settings(manifest.settings), manifest.run
    switches = {name for switch in fabric.switches for name in (switch, bridge_node(switch))}
    for name in manifest.namespaces:
        node = AttachedNode(name, manifest=manifest)
        net.nameToNode[name] = node
        (net.switches if name in switches else net.hosts).append(node)
    if not fabric.described:
        AttachedInterface(
            CONTROL_INTERFACE, node=net[fabric.control_switch], port=0, address=f"{CONTROL_ADDRESS}/24"
        )
    for number, port in enumerate(fabric.host_ports, 1):
        host = station(fabric, number)
        link = AttachedLink(
            net[host.name],
            net[port.switch],
            port1=0,
            port2=port.port,
            intfName1=station_interface(run, fabric, number),
            intfName2=port_interface(run, port.port),
            addr1=host.mac,
            intf=AttachedInterface,
            params1={"address": host.address},
        )
        net.links.append(link)
    for trunk in fabric.trunks:
        link = AttachedLink(
            net[trunk.lower.switch],
            net[trunk.upper.switch],
            port1=trunk.lower.port,
            port2=trunk.upper.port,
            intfName1=port_interface(run, trunk.lower.port),
            intfName2=port_interface(run, trunk.upper.port),
            intf=AttachedInterface,
        )
        net.links.append(link)
    return net
