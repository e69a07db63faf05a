# SPDX-License-Identifier: Apache-2.0
"""The star: one switch, N hosts, one link each, in Mininet.

    h1 10.0.0.1 ---- port 1 \
    h2 10.0.0.2 ---- port 2 -- switch -- port 255 ---- ctl0 10.0.0.254 (in the switch's namespace)
    ...                     /
Host n has address 10.0.0.n/24 and is on port n. In the switch node's namespace the switch process reads and writes the
ports, and the controller listens on ctl0: hosts reach it through the switch. The ports have no address and answer no
ARP, so that the kernel of that namespace forwards nothing.

To measure host all-reduce at its best, each host has a second link of the same rate, with offloads, to a Linux bridge
in its own node (b1, 10.0.1.n): on fast links a switch in userspace would slow gloo down.

In each node /etc/hosts also names h1, h2, ..., s1 (the controller's address), and h1-b1, ... on the bridge. The file is
mounted in the node's mount namespace; the machine's file does not change.

Interfaces are called ia-RUN-h3 and ia-RUN-p3 (IFNAMSIZ allows 15 characters). They are never in the machine's root
namespace.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inagg_testbed.errors import ConfigurationError, NetworkError
from inagg_testbed.network._mininet import Host, Intf, Link, Switch, Topo, make_net
from inagg_testbed.network.lifecycle import Run
from inagg_testbed.network.links import LinkSpec

MAX_HOSTS = 64
CONTROL_PORT = 255
CONTROL_ADDRESS = "10.0.0.254"
CONTROL_MAC = "02:00:0a:00:00:fe"
CONTROL_INTERFACE = "ctl0"
SWITCH_NODE = "s1"
BRIDGE_NODE = "b1"
_BRIDGE = "br0"
_QUIET = (
    "for knob in all default; do"
    " [ ! -e /proc/sys/net/ipv6/conf/$knob/disable_ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/$knob/disable_ipv6;"
    " done; ip link set dev lo up"
)


def host_name(number: int) -> str:
    """h1, h2, ..."""
    return f"h{number}"


def port_node(port: int) -> str:
    """Name of the node on a port of the switch."""
    return CONTROL_INTERFACE if port == CONTROL_PORT else host_name(port)


def host_address(number: int, *, bridge: bool = False) -> str:
    """10.0.0.1, 10.0.0.2, ...; 10.0.1.1, ... on the bridge."""
    return f"10.0.{int(bridge)}.{number}"


def host_mac(number: int) -> str:
    """MAC address of a host, locally administered and readable in a capture: 02:00:0a:00:00:NN."""
    return f"02:00:0a:00:00:{number:02x}"


def hosts_file(size: int, *, bridge: bool) -> str:
    """The contents of /etc/hosts in a node: the testbed's names, then the machine's.

    The lines of IPv4-mapped addresses are for torch, which looks up the names of its TCP clients as ::ffff:10.0.0.1.
    Their names differ, so that h1 never resolves to an IPv6 address.
    """
    numbers = range(1, size + 1)
    names = {host_address(number): host_name(number) for number in numbers} | {CONTROL_ADDRESS: SWITCH_NODE}
    if bridge:
        names |= {
            host_address(number, bridge=True): f"{host_name(number)}-{BRIDGE_NODE}" for number in numbers
        }
    lines = [f"{address} {name}\n::ffff:{address} {name}-mapped" for address, name in names.items()]
    return "\n".join([*lines, Path("/etc/hosts").read_text()])


def run_in_namespace(pid: int, script: str) -> str:
    """Run a shell script (-e) in the namespaces of a process; returns its output. Raises NetworkError."""
    done = subprocess.run(
        ["mnexec", "-a", str(pid), "sh", "-ec", script], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NetworkError(f"`{script}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class _Namespace:
    """Base of hosts and switches: their shell dies with the launcher and is recorded in the run's manifest."""

    run: Run
    pid: int
    name: str

    def _popen(self, cmd: Sequence[str], **params: Any) -> "subprocess.Popen[bytes]":
        environment = dict(params.pop("env", None) or os.environ) | self.run.environment
        command = ["setpriv", "--pdeathsig", "KILL", *cmd]
        return subprocess.Popen(command, env=environment, **params)

    def config(self, **_params: Any) -> None:
        """Do nothing: Mininet calls this after the node's links are configured."""

    def quiet(self) -> None:
        """Record the namespace, set loopback up and IPv6 off (its traffic would cross the links)."""
        self.run.record_namespace(self.name, self.pid)
        run_in_namespace(self.pid, _QUIET)


class AggregationHost(_Namespace, Host):  # type: ignore[misc]
    """A Mininet host in which a worker runs."""

    def __init__(self, name: str, *, run: Run, **params: Any) -> None:
        self.run = run
        Host.__init__(self, name, inNamespace=True, **params)
        self.quiet()


class AggregationSwitch(_Namespace, Switch):  # type: ignore[misc]
    """The node of the switch. `switches` starts the switch process in it."""

    def __init__(self, name: str, *, run: Run, **params: Any) -> None:
        self.run = run
        params["inNamespace"] = True
        Switch.__init__(self, name, **params)
        self.controlIntf = None  # this switch has no OpenFlow channel
        self.quiet()

    def start(self, _controllers: Sequence[Any]) -> None:
        """Do nothing: `switches` starts the switch process."""


class ShapedInterface(Intf):  # type: ignore[misc]
    """One end of a link, configured by a `LinkSpec`."""

    def config(self, *, spec: LinkSpec, address: str | None = None, **_params: Any) -> None:
        """Set offloads, MTU and shaping; then the address of a host, or no ARP on a port of the switch."""
        commands = spec.commands(self.name)
        if address is None:
            commands.append(f"ip link set dev {self.name} arp off up")
        else:
            commands.append(f"ip addr add {address}/24 dev {self.name}; ip link set dev {self.name} up")
            self.ip, self.prefixLen = address, "24"
        run_in_namespace(self.node.pid, "; ".join(commands))


class Star(Topo):  # type: ignore[misc]
    """The star as a Mininet topology. Topo's constructor calls `build` with its keywords."""

    def build(self, *, run: Run, hosts: int, spec: LinkSpec, bridge: bool) -> None:
        """Add nodes and links."""
        self.addSwitch(SWITCH_NODE, cls=AggregationSwitch, run=run)
        if bridge:
            self.addSwitch(BRIDGE_NODE, cls=AggregationSwitch, run=run)
        for number in range(1, hosts + 1):
            self.addHost(host_name(number), cls=AggregationHost, run=run, ip=None)
            self.addLink(
                host_name(number),
                SWITCH_NODE,
                port1=0,
                port2=number,
                intfName1=host_interface(run.id, number),
                intfName2=port_interface(run.id, number),
                addr1=host_mac(number),
                params1={"address": host_address(number)},
                spec=spec,
            )
            if bridge:
                self.addLink(
                    host_name(number),
                    BRIDGE_NODE,
                    port1=1,
                    port2=number,
                    intfName1=host_interface(run.id, number, bridge=True),
                    intfName2=port_interface(run.id, number, bridge=True),
                    params1={"address": host_address(number, bridge=True)},
                    spec=replace(spec, offloads=True),
                )


def host_interface(run: str, number: int, *, bridge: bool = False) -> str:
    """Name of a host's interface to the switch, or to the bridge."""
    return f"ia-{run}-{'g' if bridge else 'h'}{number}"


def port_interface(run: str, number: int, *, bridge: bool = False) -> str:
    """Name of a port's interface at the switch, or at the bridge."""
    return f"ia-{run}-{'b' if bridge else 'p'}{number}"


def make_bridge(pid: int, interfaces: Iterable[str], mtu: int) -> None:
    """Make a Linux bridge over interfaces of a node. Raises NetworkError."""
    commands = [f"ip link add name {_BRIDGE} type bridge", f"ip link set dev {_BRIDGE} mtu {mtu}"]
    commands += [f"ip link set dev {interface} master {_BRIDGE}" for interface in interfaces]
    run_in_namespace(pid, "; ".join([*commands, f"ip link set dev {_BRIDGE} arp off up"]))


class Network:
    """A star that is up. Its namespaces are recorded in the run's manifest; `stop` removes it."""

    def __init__(self, run: Run, *, hosts: int, spec: LinkSpec, bridge: bool = False) -> None:
        """Create nodes and links; `bridge` adds the second links.

        Raises ConfigurationError, NetworkError; the run's teardown removes what was created by then.
        """
        if not 1 <= hosts <= MAX_HOSTS:
            raise ConfigurationError(f"{hosts} hosts: want 1 to {MAX_HOSTS}")
        self.run, self.spec, self.size, self.bridge = run, spec, hosts, bridge
        topology = Star(run=run, hosts=hosts, spec=spec, bridge=bridge)
        try:
            self._net = make_net(topo=topology, link=Link, intf=ShapedInterface, controller=None, build=True)
        except OSError as error:
            raise NetworkError(f"a network of {hosts} hosts cannot be made: {error}") from error
        self.switch = self._net[SWITCH_NODE]
        self._name_hosts()
        self._make_control_port()
        if bridge:
            interfaces = [port_interface(run.id, number, bridge=True) for number in range(1, hosts + 1)]
            make_bridge(self._net[BRIDGE_NODE].pid, interfaces, spec.mtu)

    def _name_hosts(self) -> None:
        """Mount a hosts file over the machine's in each node; the mounts keep the file after its name is removed."""
        if not Path("/etc/hosts").is_file():
            return
        with tempfile.NamedTemporaryFile("w", prefix=f"inagg-{self.run.id}-hosts-") as file:
            file.write(hosts_file(self.size, bridge=self.bridge))
            file.flush()
            Path(file.name).chmod(0o644)
            for node in (*self._net.hosts, *self._net.switches):
                run_in_namespace(node.pid, f"mount --bind {file.name} /etc/hosts")

    def _make_control_port(self) -> None:
        port = port_interface(self.run.id, CONTROL_PORT)
        unshaped = LinkSpec(rate_bps=None, mtu=self.spec.mtu, offloads=self.spec.offloads)
        commands = [
            f"ip link add name {CONTROL_INTERFACE} address {CONTROL_MAC} type veth peer name {port}",
            *unshaped.commands(CONTROL_INTERFACE),
            *unshaped.commands(port),
            f"ip addr add {CONTROL_ADDRESS}/24 dev {CONTROL_INTERFACE}",
            f"ip link set dev {port} arp off up",
            f"ip link set dev {CONTROL_INTERFACE} up",
        ]
        run_in_namespace(self.switch.pid, "; ".join(commands))

    @property
    def ports(self) -> dict[int, str]:
        """Interfaces by port number, the controller's port included."""
        numbers = [*range(1, self.size + 1), CONTROL_PORT]
        return {number: port_interface(self.run.id, number) for number in numbers}

    def gloo_interface(self, number: int) -> str:
        """The interface of a host that gloo uses."""
        return host_interface(self.run.id, number, bridge=self.bridge)

    def host(self, number: int) -> Any:
        """The Mininet node of host `number`, 1 to N."""
        return self._net[host_name(number)]

    def stop(self) -> None:
        """Remove links, then nodes. The run's teardown removes what Mininet leaves."""
        self._net.stop()
