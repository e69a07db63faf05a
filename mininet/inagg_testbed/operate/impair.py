# SPDX-License-Identifier: Apache-2.0
"""Shows and changes the impairments of a testbed's links while it is up, on the consoles of its switches."""

from typing import cast, get_args

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network import impairments
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.impairments import Direction
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.switch_console import ask_switch


def change(manifest: Manifest, place: str, direction: str | None, spec: str) -> None:
    """Impair a place (`impairments`); spec `off`: no longer. Raises ConfigurationError, ProcessFailedError."""
    _refuse_impossible(manifest)
    if spec != impairments.OFF:
        impairments.check(spec)
    found = impairments.find(Fabric.from_settings(manifest.settings), place, direction)
    for switch in dict.fromkeys(port.switch for port, _ in found):
        lines = [f"impair {port.port} {way} {spec}" for port, way in found if port.switch == switch]
        _ask(manifest, switch, lines)


def rows(manifest: Manifest, place: str | None = None) -> list[tuple[str, Direction, str]]:
    """Each place that is impaired, its direction, and the impairment; of one place, or of all.

    Raises ConfigurationError, ProcessFailedError.
    """
    _refuse_impossible(manifest)
    fabric = Fabric.from_settings(manifest.settings)
    wanted = None if place is None else impairments.find(fabric, place)
    found = []
    for switch in fabric.switches:
        if wanted is None or any(port.switch == switch for port, _ in wanted):
            for line in _ask(manifest, switch, ["impair"])[0].splitlines():
                port, direction, spec = line.split()
                assert direction in get_args(Direction)
                at = SwitchPort(switch, int(port)), cast(Direction, direction)
                if wanted is None or at in wanted:
                    found.append((*impairments.named(fabric, *at), spec))
    return found


def _refuse_impossible(manifest: Manifest) -> None:
    impairments.refuse_impossible(manifest.settings["switch"], manifest.settings.get("gloo", "switch"))


def _ask(manifest: Manifest, switch: str, lines: list[str]) -> list[str]:
    answers = ask_switch(manifest.namespace(switch).pid, switch, lines)
    for answer in answers:
        if answer.startswith("Error: "):
            raise ConfigurationError(f"switch {switch}: {answer.removeprefix('Error: ').strip()}")
    return answers
