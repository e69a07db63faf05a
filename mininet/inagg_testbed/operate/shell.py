# SPDX-License-Identifier: Apache-2.0
"""`inagg shell`: Mininet's command line on a testbed that another process keeps.

The nodes here are Mininet's, but attached: shells that join the namespaces which the launcher has made, and interfaces
that are there already. Nothing is created, configured or removed. What a shell starts has the run's id in its
environment, so it ends with the testbed at the latest.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network._mininet import CLI, Intf, Link, Node, lg, make_net, output
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.topology import (
    BRIDGE_NODE,
    CONTROL_ADDRESS,
    CONTROL_INTERFACE,
    SWITCH_NODE,
    host_address,
    host_interface,
    host_mac,
    host_name,
    port_interface,
)


class AttachedNode(Node):  # type: ignore[misc]
    """A node whose namespaces are there."""

    def __init__(self, name: str, *, manifest: Manifest) -> None:
        self._manifest = manifest
        Node.__init__(self, name, inNamespace=False)

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 (Mininet's name)
        """A shell in the node: mnexec -a PID in place of -n."""
        Node.startShell(self, mnopts=f"-cda{self._manifest.namespace(self.name).pid}")

    def _popen(self, cmd: Sequence[str], **params: Any) -> "subprocess.Popen[bytes]":
        environment = self._manifest.node_environment(self.name, os.environ)
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *cmd], env=environment, **params)


class AttachedInterface(Intf):  # type: ignore[misc]
    """An interface that is configured."""

    def config(self, *, address: str | None = None, **_params: Any) -> None:
        """Know its address, as far as it has one."""
        if address is not None:
            self.ip, self.prefixLen = address, "24"

    def updateIP(self) -> str | None:  # noqa: N802 (Mininet's name)
        """The address that is put in place of the node's name."""
        address: str | None = self.ip
        return address


class AttachedLink(Link):  # type: ignore[misc]
    """A link that is there."""

    @classmethod
    def makeIntfPair(cls, *_names: Any, **_options: Any) -> None:  # noqa: N802 (Mininet's name)
        """Nothing to make."""


class TestbedCLI(CLI):  # type: ignore[misc]
    """Mininet's command line, less what would be wrong here. Runs `lines`, or else what is typed, when it is made."""

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
        """Called before each command. Raises ConfigurationError when the testbed is gone."""
        if not self._manifest.launcher.alive():
            raise ConfigurationError(f"run {self._manifest.run} is down")
        return str(CLI.precmd(self, line))

    def do_iperf(self, _line: str) -> None:
        """Not here: Mininet's would end every iperf on the machine."""
        output(
            "*** not here: it would end every iperf on the machine; try h2 iperf -s -D, then h1 iperf -c h2\n"
        )

    def do_switch(self, _line: str) -> None:
        """Not here: this is no OpenFlow switch."""
        output("*** not here: s1 is no OpenFlow switch; see inagg status and inagg counters\n")

    do_iperfudp = do_iperf
    do_dpctl = do_wait = do_switch


def operate(manifest: Manifest, lines: Iterable[str] | None) -> None:
    """Mininet's command line on a testbed: what is typed, or `lines`. Raises ConfigurationError when it goes down."""
    lg.propagate = False  # it writes for itself
    for handler in lg.handlers:
        handler.setStream(sys.stdout)
    net = attached_net(manifest)
    silent, _writer = os.pipe()  # no input for what scripts run
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
    """A Mininet object of the nodes and links that are there. Never call its stop(), which removes links."""
    net = make_net(topo=None, build=False, controller=None)
    for name in manifest.namespaces:
        node = AttachedNode(name, manifest=manifest)
        net.nameToNode[name] = node
        (net.switches if name in (SWITCH_NODE, BRIDGE_NODE) else net.hosts).append(node)
    AttachedInterface(CONTROL_INTERFACE, node=net[SWITCH_NODE], port=0, address=CONTROL_ADDRESS)
    for number in range(1, int(manifest.settings["hosts"]) + 1):
        link = AttachedLink(
            net[host_name(number)],
            net[SWITCH_NODE],
            port1=0,
            port2=number,
            intfName1=host_interface(manifest.run, number),
            intfName2=port_interface(manifest.run, number),
            addr1=host_mac(number),
            intf=AttachedInterface,
            params1={"address": host_address(number)},
        )
        net.links.append(link)
    return net
