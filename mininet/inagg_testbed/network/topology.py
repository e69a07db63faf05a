# SPDX-License-Identifier: Apache-2.0
"""The network of a testbed in Mininet: hosts, the nodes of a `fabric`, and one link for each pair of ports.

A star:

    h1 10.0.0.1 ---- port 1 \
    h2 10.0.0.2 ---- port 2 -- s1 -- port 255 ---- ctl0 10.0.0.254 (in the node of s1)
    ...                     /

Every switch has a node, and its ports are interfaces there. Host n has address 10.0.0.n/24, in every fabric. In the
switch's namespace the switch process reads and writes the ports. The controller listens on ctl0, in the node of the
topmost switch: hosts reach it through the switches. The ports have no address and answer no ARP, so that the kernel of
that namespace forwards nothing. Links between switches may have another rate than those of hosts.

To measure host all-reduce at its best, each host has a second link of the same rate, with offloads, to a Linux bridge
in its own node (b1, 10.0.1.n): on fast links a switch in userspace would slow gloo down. With several switches, each
has a bridge (leaf1-b, ...), and links of the same rates as the switches' connect the bridges. Bridges allow no loops:
gloo has all links of a tree, and of a leaf-spine those to the first spine. A Linux bridge impairs nothing, so where
links may be impaired the switch model forwards in these nodes (`bridges`).

With a management network the bridges also have the controller, at 10.0.1.254 (ctl1): the hosts then reach one another
and the controller when the switches have died.

With a controller, hosts know the MAC addresses of one another, of the controller and of the switches' aggregators: they
use no ARP for them.

In each node /etc/hosts also names h1, h2, ..., s1 (the controller's address), and h1-b1, ... on the bridge. With
several switches ctl0 is the controller's address, and each switch's name its aggregator's. The file is mounted in the
node's mount namespace; the machine's file does not change.

Interfaces are called ia-RUN-h3 and ia-RUN-p3 (IFNAMSIZ allows 15 characters); a name is unique in its node. They are
never in the machine's root namespace. Hosts of a topology file have eth0.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from inagg_testbed.errors import NetworkError
from inagg_testbed.network._mininet import Host, Intf, Link, Switch, Topo, make_net
from inagg_testbed.network.fabric import (
    CONTROL_PORT,
    STAR_SWITCH,
    Fabric,
    Station,
    SwitchPort,
    host_name,
)
from inagg_testbed.network.lifecycle import Manifest, Run
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import BridgeKind

CONTROL_ADDRESS = "10.0.0.254"
CONTROL_MAC = "02:00:0a:00:00:fe"
CONTROL_INTERFACE = "ctl0"
MANAGEMENT_ADDRESS = "10.0.1.254"
MANAGEMENT_INTERFACE = "ctl1"
BRIDGE_NODE = "b1"
LinkState = Literal["up", "down"]
SpecOf = Callable[[SwitchPort], LinkSpec]  # of the link at a port of Fabric.link_ports
_BRIDGE = "br0"
_STAR_AGGREGATOR = "10.0.0.253"
_QUIET = (
    "for knob in all default; do"
    " [ ! -e /proc/sys/net/ipv6/conf/$knob/disable_ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/$knob/disable_ipv6;"
    " done; ip link set dev lo up"
)


def bridge_node(switch: str) -> str:
    """The node of the bridge that stands in for a switch on gloo's own links."""
    return BRIDGE_NODE if switch == STAR_SWITCH else f"{switch}-b"


def aggregator_address(fabric: Fabric, switch: str) -> str:
    """The address at which workers, or the switches below, reach a switch: in the hosts' subnet, so without routes."""
    return _STAR_AGGREGATOR if fabric.is_star else f"10.0.0.{101 + fabric.switches.index(switch)}"


def aggregator_mac(fabric: Fabric, switch: str) -> str:
    """The MAC address of a switch's aggregator: 02:49:41:00:00:NN."""
    return f"02:49:41:00:00:{1 + fabric.switches.index(switch):02x}"


def host_address(number: int, *, bridge: bool = False) -> str:
    """10.0.0.1, 10.0.0.2, ...; 10.0.1.1, ... on the bridge."""
    return f"10.0.{int(bridge)}.{number}"


def host_mac(number: int, *, bridge: bool = False) -> str:
    """MAC address of a host, locally administered and readable in a capture: 02:00:0a:00:00:NN; 02:00:0a:00:01:NN on
    the bridge."""
    return f"02:00:0a:00:{int(bridge):02x}:{number:02x}"


def station(fabric: Fabric, number: int) -> Station:
    """A host of a fabric."""
    if fabric.described:
        return fabric.stations[number - 1]
    return Station(host_name(number), f"{host_address(number)}/24", host_mac(number))


def hosts_file(fabric: Fabric, *, bridge: bool) -> str:
    """The contents of /etc/hosts in a node: the testbed's names, then the machine's.

    The lines of IPv4-mapped addresses are for torch, which looks up the names of its TCP clients as ::ffff:10.0.0.1.
    Their names differ, so that h1 never resolves to an IPv6 address.
    """
    numbers = fabric.hosts
    names = {station(fabric, number).ip: fabric.host_name(number) for number in numbers}
    if not fabric.described:
        names[CONTROL_ADDRESS] = STAR_SWITCH if fabric.is_star else CONTROL_INTERFACE
    if not fabric.is_star and not fabric.described:
        names |= {aggregator_address(fabric, switch): switch for switch in fabric.switches}
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
    """A Mininet host in which a worker or an aggregation server runs."""

    def __init__(self, name: str, *, run: Run, **params: Any) -> None:
        self.run = run
        Host.__init__(self, name, inNamespace=True, **params)
        self.quiet()


class AggregationSwitch(_Namespace, Switch):  # type: ignore[misc]
    """The node of a switch or a bridge. `switches` starts the switch process in it."""

    def __init__(self, name: str, *, run: Run, **params: Any) -> None:
        self.run = run
        # Mininet would derive the OpenFlow datapath id, which nothing here uses, from digits in the name.
        params |= {"inNamespace": True, "dpid": "1"}
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
            commands.append(f"ip addr add {address} dev {self.name}; ip link set dev {self.name} up")
            self.ip, _, self.prefixLen = address.partition("/")
        run_in_namespace(self.node.pid, "; ".join(commands))


class FabricTopo(Topo):  # type: ignore[misc]
    """A fabric as a Mininet topology. Topo's constructor calls `build` with its keywords."""

    def build(self, *, run: Run, fabric: Fabric, spec_of: SpecOf, bridge: bool) -> None:
        """Add nodes and links; `bridge` adds gloo's own."""
        for number in fabric.hosts:
            self.addHost(fabric.host_name(number), cls=AggregationHost, run=run, ip=None)
        self._add_network(run, fabric, spec_of, bridge=False)
        if bridge:
            self._add_network(run, fabric, lambda end: replace(spec_of(end), offloads=True), bridge=True)

    def _add_network(self, run: Run, fabric: Fabric, spec_of: SpecOf, *, bridge: bool) -> None:
        def node(switch: str) -> str:
            return bridge_node(switch) if bridge else switch

        trunks = fabric.spanning if bridge else fabric.trunks
        for switch in fabric.connected if bridge else fabric.switches:
            self.addSwitch(node(switch), cls=AggregationSwitch, run=run)
        for number, port in enumerate(fabric.host_ports, 1):
            host = station(fabric, number)
            self.addLink(
                host.name,
                node(port.switch),
                port1=int(bridge),
                port2=port.port,
                intfName1=host_interface(run.id, number, bridge=True)
                if bridge
                else station_interface(run.id, fabric, number),
                intfName2=port_interface(run.id, port.port, bridge=bridge),
                addr1=host_mac(number, bridge=True) if bridge else host.mac,
                params1={"address": f"{host_address(number, bridge=True)}/24" if bridge else host.address},
                spec=spec_of(port),
            )
        for trunk in trunks:
            self.addLink(
                node(trunk.lower.switch),
                node(trunk.upper.switch),
                port1=trunk.lower.port,
                port2=trunk.upper.port,
                intfName1=port_interface(run.id, trunk.lower.port, bridge=bridge),
                intfName2=port_interface(run.id, trunk.upper.port, bridge=bridge),
                spec=spec_of(trunk.lower),
            )


def host_interface(run: str, number: int, *, bridge: bool = False) -> str:
    """Name of a host's interface to the switch, or to the bridge."""
    return f"ia-{run}-{'g' if bridge else 'h'}{number}"


def station_interface(run: str, fabric: Fabric, number: int) -> str:
    """Name of a host's interface to the switch."""
    return station(fabric, number).interface or host_interface(run, number)


def port_interface(run: str, number: int, *, bridge: bool = False) -> str:
    """Name of a port's interface at the switch, or at the bridge."""
    return f"ia-{run}-{'b' if bridge else 'p'}{number}"


def set_link(manifest: Manifest, port: SwitchPort, state: LinkState) -> None:
    """Cut the link at a port of a switch, or mend it. A cut link has no carrier at either end. Raises NetworkError."""
    interface = port_interface(manifest.run, port.port)
    run_in_namespace(manifest.namespace(port.switch).pid, f"ip link set dev {interface} {state}")


def make_bridge(pid: int, interfaces: Iterable[str], mtu: int) -> None:
    """Make a Linux bridge over interfaces of a node. Raises NetworkError."""
    commands = [f"ip link add name {_BRIDGE} type bridge", f"ip link set dev {_BRIDGE} mtu {mtu}"]
    commands += [f"ip link set dev {interface} master {_BRIDGE}" for interface in interfaces]
    run_in_namespace(pid, "; ".join([*commands, f"ip link set dev {_BRIDGE} arp off up"]))


class Network:
    """A fabric that is up. Its namespaces are recorded in the run's manifest; `stop` removes it."""

    def __init__(
        self,
        run: Run,
        *,
        fabric: Fabric,
        spec: LinkSpec,
        uplink: LinkSpec | None = None,
        specs: Mapping[SwitchPort, LinkSpec] | None = None,
        bridge: bool = False,
        management: bool = False,
        bridges: BridgeKind = "linux",
        resolved: bool = False,
    ) -> None:
        """Create nodes and links. uplink: links between switches, by default like the hosts'. bridge: gloo's own links.

        management: the same links, which also lead to the controller. bridges: model leaves the bridges of gloo's own
        links to `bridges.start_bridges`. specs: links that differ from these, by their
        port in `Fabric.link_ports`. resolved: hosts know the MAC addresses of one another, of the controller and of the
        aggregators. Raises NetworkError; the run's teardown removes what was created by then.
        """
        self.run, self.fabric, self.spec = run, fabric, spec
        self.bridge, self.management = bridge or management, management
        self.uplink = spec if uplink is None else uplink
        usual = dict.fromkeys(fabric.host_ports, spec)
        spec_of = {**dict.fromkeys(fabric.link_ports, self.uplink), **usual, **(specs or {})}.__getitem__
        topology = FabricTopo(run=run, fabric=fabric, spec_of=spec_of, bridge=self.bridge)
        try:
            self._net = make_net(topo=topology, link=Link, intf=ShapedInterface, controller=None, build=True)
        except OSError as error:
            raise NetworkError(f"a network of {len(fabric.hosts)} hosts cannot be made: {error}") from error
        self._name_hosts()
        if not fabric.described:
            self._make_control_port()
        if management:
            self._make_management_port()
        if self.bridge and bridges == "linux":
            self.make_bridges(own_links=True)
        if resolved:
            self._enter_neighbours()

    def _name_hosts(self) -> None:
        """Mount a hosts file over the machine's in each node; the mounts keep the file after its name is removed."""
        if not Path("/etc/hosts").is_file():
            return
        with tempfile.NamedTemporaryFile("w", prefix=f"inagg-{self.run.id}-hosts-") as file:
            file.write(hosts_file(self.fabric, bridge=self.bridge))
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

    def _make_management_port(self) -> None:
        """Link the controller's node with the bridge of its switch."""
        bridge = self._net[bridge_node(self.fabric.control_switch)].pid
        port = port_interface(self.run.id, CONTROL_PORT, bridge=True)
        run_in_namespace(
            self.switch.pid,
            f"ip link add name {MANAGEMENT_INTERFACE} mtu {self.spec.mtu} type veth peer name {port} mtu"
            f" {self.spec.mtu} netns {bridge}; ip addr add {MANAGEMENT_ADDRESS}/24 dev {MANAGEMENT_INTERFACE};"
            f" ip link set dev {MANAGEMENT_INTERFACE} up",
        )
        run_in_namespace(bridge, f"ip link set dev {port} arp off up")

    def _enter_neighbours(self) -> None:
        """Enter the controller, the aggregators and the other hosts into each host's neighbour table.

        The kernel's limit of learned neighbours (gc_thresh3, 1024) is for all namespaces together: 32 hosts that all
        talk to one another exceed it.
        """
        fabric = self.fabric
        known = {CONTROL_ADDRESS: CONTROL_MAC}
        known |= {
            aggregator_address(fabric, switch): aggregator_mac(fabric, switch) for switch in fabric.switches
        }
        for host in fabric.hosts:
            others = [other for other in fabric.hosts if other != host]
            tables = {
                host_interface(self.run.id, host): known
                | {host_address(other): host_mac(other) for other in others}
            }
            if self.bridge:
                tables[host_interface(self.run.id, host, bridge=True)] = {
                    host_address(other, bridge=True): host_mac(other, bridge=True) for other in others
                }
            entries = [
                f"neighbour replace {address} lladdr {mac} nud permanent dev {interface}"
                for interface, neighbours in tables.items()
                for address, mac in neighbours.items()
            ]
            run_in_namespace(
                self.pid_of(fabric.host_name(host)), "ip -batch - <<.\n" + "\n".join([*entries, "."])
            )

    def make_bridges(self, *, own_links: bool) -> None:
        """Make a Linux bridge in each node of a switch, or of gloo's own links, over the ports without a loop.

        A bridge over all links of a leaf-spine would pass frames around for ever. Spines that the spanning tree leaves
        out get no bridge. Raises NetworkError.
        """
        for switch in self.fabric.connected:
            node = bridge_node(switch) if own_links else switch
            ports = self.own_ports(switch) if own_links else self._without_loops(switch)
            make_bridge(self._net[node].pid, ports.values(), self.spec.mtu)

    def own_ports(self, switch: str) -> dict[int, str]:
        """Interfaces of the bridge that stands in for a switch on gloo's own links, by port number."""
        ports = self._without_loops(switch, bridge=True)
        if not self.management:
            ports.pop(CONTROL_PORT, None)
        return ports

    def _without_loops(self, switch: str, *, bridge: bool = False) -> dict[int, str]:
        return {
            port: port_interface(self.run.id, port, bridge=bridge)
            for port in self.fabric.spanning_ports(switch)
        }

    @property
    def size(self) -> int:
        """Number of workers' hosts."""
        return self.fabric.size

    @property
    def switch(self) -> Any:
        """The Mininet node of the switch in which the controller runs."""
        return self.switch_node(self.fabric.control_switch)

    def switch_node(self, name: str) -> Any:
        """The Mininet node of a switch."""
        return self._net[name]

    def pid_of(self, node: str) -> int:
        """A process in the namespaces of a node."""
        return int(self._net[node].pid)

    def ports(self, switch: str) -> dict[int, str]:
        """Interfaces of a switch by port number, the controller's port included."""
        return {number: port_interface(self.run.id, number) for number in self.fabric.ports(switch)}

    def gloo_interface(self, number: int) -> str:
        """The interface of a host that gloo uses."""
        if self.bridge:
            return host_interface(self.run.id, number, bridge=True)
        return station_interface(self.run.id, self.fabric, number)

    def host(self, number: int) -> Any:
        """The Mininet node of a host."""
        return self._net[self.fabric.host_name(number)]

    def stop(self) -> None:
        """Remove links, then nodes. The run's teardown removes what Mininet leaves."""
        self._net.stop()
