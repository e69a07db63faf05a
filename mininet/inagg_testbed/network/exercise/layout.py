# SPDX-License-Identifier: Apache-2.0
"""What a topology.json describes: the fabric, its links, and each switch's program and runtime JSON.

Names of files are relative to the exercise's folder, in which `make` runs: that of topology.json, or the one above it
(pod-topo/topology.json). Both are searched, in this order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.exercise.documents import (
    HIGHEST_PORT,
    Link,
    Runtime,
    Switch,
    Topology,
    parse_port,
    read_document,
)
from inagg_testbed.network.fabric import Fabric, Station, SwitchPort, Trunk
from inagg_testbed.network.links import LinkSpec

HOST_INTERFACE = "eth0"


@dataclass(frozen=True, kw_only=True)
class ExerciseSwitch:
    """A switch: its program, its runtime JSON and where that was read, commands of simple_switch_CLI, the controller's
    port, and queues a port."""

    name: str
    program: Path
    runtime: Runtime | None
    runtime_path: Path | None
    cli_input: Path | None
    cpu_port: int | None
    priority_queues: int


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise. specs: the links with a latency or a bandwidth, or all. commands: by host."""

    fabric: Fabric
    specs: Mapping[SwitchPort, LinkSpec]
    commands: Mapping[str, Sequence[str]]
    switches: Sequence[ExerciseSwitch]

    @property
    def programs(self) -> list[Path]:
        """The programs, each once."""
        return list(dict.fromkeys(switch.program for switch in self.switches))


def read_exercise(path: Path, *, program: Path | None, link: LinkSpec) -> Exercise:
    """Read topology.json and the files that it names. program: of the user (--p4). link: MTU and offloads of all links.

    Raises ConfigurationError, which names the file and the fault.
    """
    topology = read_document(Topology, path)
    folders = _folders(path)
    try:
        fabric, specs = _fabric(path, topology, link)
        runtimes = {name: _runtime(folders, name, switch) for name, switch in topology.switches.items()}
        programs = _programs(folders, topology, runtimes, program)
        switches = [
            ExerciseSwitch(
                name=name,
                program=programs[name],
                runtime=None if (found := runtimes[name]) is None else found[1],
                runtime_path=None if found is None else found[0],
                cli_input=_named(folders, name, "cli_input", switch.cli_input),
                cpu_port=switch.cpu_port,
                priority_queues=switch.priority_queues,
            )
            for name, switch in topology.switches.items()
        ]
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    commands = {name: host.commands for name, host in topology.hosts.items() if host.commands}
    return Exercise(fabric=fabric, specs=specs, commands=commands, switches=switches)


def _folders(path: Path) -> list[Path]:
    folder = path.absolute().parent
    return [folder, folder.parent]


def _find(folders: Sequence[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _fabric(path: Path, topology: Topology, usual: LinkSpec) -> tuple[Fabric, dict[SwitchPort, LinkSpec]]:
    """The fabric, and the specs of its links by `Fabric.link_ports`. Raises ValueError."""
    for name in topology.hosts.keys() & topology.switches.keys():
        raise ValueError(f"{name} is a host and a switch")
    places: dict[str, SwitchPort] = {}
    trunks, specs = [], {}
    taken: set[SwitchPort] = set()
    for number, link in enumerate(topology.links):
        try:
            host, ports = _ends(topology, link)
            for port in ports:
                if port in taken:
                    raise ValueError(f"port {port.switch}-p{port.port} has a link already")
                taken.add(port)
            if host in places:
                raise ValueError(f"host {host} has a link already")
            upper, lower = min(ports), max(ports)
            if host is None:
                trunks.append(Trunk(lower, upper))
            else:
                places[host] = lower
        except ValueError as error:
            raise ValueError(f"links.{number}: {error}") from error
        specs[lower] = LinkSpec(
            rate_bps=link.rate_bps, delay_s=link.delay_s, mtu=usual.mtu, offloads=usual.offloads
        )
    if lonely := [name for name in topology.hosts if name not in places]:
        raise ValueError(f"hosts.{lonely[0]}: the host has no link")
    stations = [
        (Station(name, host.ip, host.mac, HOST_INTERFACE), places[name])
        for name, host in topology.hosts.items()
    ]
    made = Fabric.described_by(str(path), switches=list(topology.switches), stations=stations, trunks=trunks)
    return made, specs


def _ends(topology: Topology, link: Link) -> tuple[str | None, list[SwitchPort]]:
    """The host of a link, or None, and its ports. Raises ValueError."""
    hosts = [end for end in link.ends if end in topology.hosts]
    if len(hosts) == 2:
        raise ValueError(f"{hosts[0]} and {hosts[1]} are hosts: a host's link leads to a switch")
    ports = [_port(topology, end) for end in link.ends if end not in hosts]
    if not hosts and ports[0].switch == ports[1].switch:
        raise ValueError(f"the link joins {ports[0].switch} to itself")
    return hosts[0] if hosts else None, ports


def _port(topology: Topology, end: str) -> SwitchPort:
    parsed = parse_port(end)
    if parsed is None:
        hosts = ", ".join(topology.hosts)
        raise ValueError(
            f"{end!r} is neither a host ({hosts}) nor a port of a switch, which is written s1-p1"
        )
    switch, port = parsed
    if switch not in topology.switches:
        raise ValueError(f"{end}: there is no switch {switch}; there are {', '.join(topology.switches)}")
    if port > HIGHEST_PORT:
        raise ValueError(f"{end}: ports are 0 to {HIGHEST_PORT}")
    if port == topology.switches[switch].cpu_port:
        raise ValueError(f"{end}: is the switch's cpu_port")
    return SwitchPort(switch, port)


def _runtime(folders: Sequence[Path], name: str, switch: Switch) -> tuple[Path, Runtime] | None:
    """The runtime JSON of a switch. Raises ValueError, ConfigurationError."""
    found = _named(folders, name, "runtime_json", switch.runtime_json)
    return None if found is None else (found, read_document(Runtime, found))


def _named(folders: Sequence[Path], switch: str, key: str, name: str | None) -> Path | None:
    """The file that a key of a switch names. Raises ValueError."""
    if name is None:
        return None
    found = _find(folders, name)
    if found is None:
        raise ValueError(f"switches.{switch}: there is no {key} {name} in {folders[0]} or {folders[1]}")
    return found


def _programs(
    folders: Sequence[Path],
    topology: Topology,
    runtimes: Mapping[str, tuple[Path, Runtime] | None],
    given: Path | None,
) -> dict[str, Path]:
    """The program of each switch, as the Makefile and run_exercise.py choose it. Raises ValueError.

    The runtime JSON names it, or else the topology, by the compiler's output (build/basic.json); without both it is the
    only .p4 file of the folder. given: takes the place of the one of the same name, or of the only one.
    """
    names = {
        name: _stem(runtime[1].bmv2_json if (runtime := runtimes[name]) is not None else switch.program)
        for name, switch in topology.switches.items()
    }
    named = {name for name in names.values() if name is not None}
    if given is not None and not given.is_file():
        raise ConfigurationError(f"no P4 program {given}")
    if given is not None and given.stem not in named and len(named) > 1:
        wanted = " or ".join(f"{name}.p4" for name in sorted(named))
        raise ConfigurationError(
            f"--p4 {given}: the switches run several programs; call the file {wanted}, as the one that it replaces"
        )
    found = {}
    for switch, name in names.items():
        if given is not None and (name in (None, given.stem) or given.stem not in named):
            found[switch] = given
        elif name is None:
            found[switch] = _only_program(folders)
        elif (program := _find(folders, f"{name}.p4")) is not None:
            found[switch] = program
        else:
            raise ValueError(
                f"switches.{switch}: its program {name}.p4 is neither in {folders[0]} nor in {folders[1]}: give it"
                " with --p4"
            )
    return found


def _stem(name: str | None) -> str | None:
    return None if name is None else Path(name).name.partition(".")[0]


def _only_program(folders: Sequence[Path]) -> Path:
    for folder in folders:
        programs = sorted(folder.glob("*.p4"))
        if len(programs) == 1:
            return programs[0]
        if programs:
            names = ", ".join(program.name for program in programs)
            raise ValueError(f"{folder} has {names}: say with --p4 which one the switches run")
    raise ValueError(f"no .p4 file in {folders[0]} or {folders[1]}: give the program with --p4")
