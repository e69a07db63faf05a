# SPDX-License-Identifier: Apache-2.0
"""Shows and changes the impairments of a testbed's links while it is up, on the consoles of its switches, and of the
bridges where gloo has links of its own."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import cast, get_args

from inagg_testbed.errors import ConfigurationError, ProcessFailedError
from inagg_testbed.network import impairments
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.impairments import Direction
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.switch_console import ask_switch
from inagg_testbed.network.topology import bridge_node

_ONE_OF_TWO = ("the switch's", "gloo's own")  # links of a place


def change(manifest: Manifest, place: str, direction: str | None, spec: str) -> None:
    """Impair a place (`impairments`); spec `off`: no longer.

    A switch that has ended does not keep the others from the change. Raises ConfigurationError, ProcessFailedError.
    """
    _refuse_impossible(manifest)
    if spec != impairments.OFF:
        impairments.check(spec)
    fabric = Fabric.from_settings(manifest.settings)
    found = impairments.find(fabric, place, direction)
    failures = []
    for console in _consoles(manifest, fabric):
        lines = [f"impair {port.port} {way} {spec}" for port, way in found if console.has(port)]
        if lines:
            try:
                console.ask(lines)
            except ProcessFailedError as error:
                failures.append(error)
    if failures:
        raise failures[0]


def rows(manifest: Manifest, place: str | None = None) -> list[tuple[str, Direction, str]]:
    """Each place that is impaired, its direction, and the impairment; of one place, or of all.

    If the two links of a place differ, as after the start of a switch, each has a row. Raises ConfigurationError,
    ProcessFailedError.
    """
    _refuse_impossible(manifest)
    fabric = Fabric.from_settings(manifest.settings)
    wanted = None if place is None else impairments.find(fabric, place)
    found: dict[impairments.PortDirection, dict[str, str]] = {}
    consoles = [
        console
        for console in _consoles(manifest, fabric)
        if wanted is None or any(console.has(port) for port, _ in wanted)
    ]
    for console in consoles:
        for at, spec in console.impaired():
            if wanted is None or at in wanted:
                found.setdefault(at, {})[console.link] = spec
    shown = []
    for at, specs in found.items():
        name, direction = impairments.named(fabric, *at)
        links = sum(console.has(at[0]) for console in consoles)
        if len(specs) == links and len(set(specs.values())) == 1:
            shown.append((name, direction, next(iter(specs.values()))))
        else:
            shown += [(f"{name}, {link} link", direction, spec) for link, spec in specs.items()]
    return shown


@dataclass(frozen=True)
class _Console:
    """The console of a switch, or of the bridge that stands in for it on gloo's own links. pid: in its namespace."""

    name: str
    switch: str
    pid: int
    ports: Container[int]
    link: str

    def has(self, port: SwitchPort) -> bool:
        return port.switch == self.switch and port.port in self.ports

    def impaired(self) -> Iterator[tuple[impairments.PortDirection, str]]:
        for line in self.ask(["impair"])[0].splitlines():
            port, direction, spec = line.split()
            assert direction in get_args(Direction)
            yield (SwitchPort(self.switch, int(port)), cast(Direction, direction)), spec

    def ask(self, lines: list[str]) -> list[str]:
        """What the console prints. Raises ConfigurationError, ProcessFailedError."""
        answers = ask_switch(self.pid, self.name, lines)
        for answer in answers:
            if answer.refusal:
                raise ConfigurationError(f"{self.name}: {answer.refusal.removeprefix('Error: ')}")
        return [answer.text for answer in answers]


def _consoles(manifest: Manifest, fabric: Fabric) -> Iterator[_Console]:
    of_switches, own = _ONE_OF_TWO
    for switch in fabric.switches:
        pid = manifest.namespace(switch).pid
        yield _Console(f"switch {switch}", switch, pid, fabric.ports(switch), of_switches)
    for switch in fabric.connected if manifest.settings.get("bridges") else ():
        node = bridge_node(switch)
        pid = manifest.namespace(node).pid
        yield _Console(f"bridge {node}", switch, pid, fabric.spanning_ports(switch), own)


def _refuse_impossible(manifest: Manifest) -> None:
    impairments.refuse_impossible(manifest.settings["switch"], manifest.settings.get("bridges"))
