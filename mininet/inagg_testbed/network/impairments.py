# SPDX-License-Identifier: Apache-2.0
"""Impairments of a testbed's links: loss, delay and the like of every packet, by host and direction.

The ports of the switch model impair (`inagg_switch.impairment`), so every packet of a link must cross such a port. A
*place* is a host (`h2`), a link between switches (`leaf1-spine1`), or all hosts (`all`). Its direction is `out`, what
the host or the first switch sends, or `in`, what it receives. Where gloo has links of its own, a place has two links,
whose ports have the same numbers (`bridges`). Both are impaired, each with its own draws.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.requirements import BridgeKind, SwitchKind

Direction = Literal["in", "out"]
PortDirection = tuple[SwitchPort, Direction]  # a port receives (`in`) or sends (`out`)
OFF = "off"
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_OTHER: dict[Direction, Direction] = {"in": "out", "out": "in"}


def refuse_impossible(switch: SwitchKind, bridges: BridgeKind | None = None) -> None:
    """Raise ConfigurationError where the ports of the switch model do not see every packet of the links.

    bridges: of gloo's own links; None if gloo has none, or if they are still to be made.
    """
    if switch != "model":
        raise ConfigurationError(
            f"impairments are made by the ports of the switch model, and --switch {switch} has none: use --switch model"
        )
    if bridges == "linux":
        raise ConfigurationError(
            "gloo's own links lead over Linux bridges here, which impair nothing, so only inagg would suffer: start the"
            " testbed with --impair; with --impair off no link is impaired at first"
        )


def find(fabric: Fabric, place: str, direction: str | None = None) -> list[PortDirection]:
    """The ports of a place, each with its own direction; by default in both directions. Raises ConfigurationError."""
    if direction is not None and direction not in _DIRECTIONS:
        raise ConfigurationError(
            f"direction {direction}: want in (what {place} receives) or out (what it sends)"
        )
    wanted = [each for each in _DIRECTIONS if direction in (None, each)]
    hosts = {fabric.host_name(number): port for number, port in enumerate(fabric.host_ports, 1)}
    if place in hosts or place == "all":
        ports = [hosts[place]] if place in hosts else list(hosts.values())
        return [(port, _OTHER[each]) for port in ports for each in wanted]
    if (port := _port_of_link(fabric, place)) is not None:
        return [(port, each) for each in wanted]
    links = "".join(f", links such as {_link_name(trunk.lower, trunk.upper)}" for trunk in fabric.trunks[:1])
    raise ConfigurationError(f"no host {place}; there are {', '.join(hosts)}{links}, and all")


def named(fabric: Fabric, port: SwitchPort, direction: Direction) -> tuple[str, Direction]:
    """The place of a port, and the place's direction."""
    for number, host_port in enumerate(fabric.host_ports, 1):
        if host_port == port:
            return fabric.host_name(number), _OTHER[direction]
    for trunk in fabric.trunks:
        for this, other in (trunk.ends, trunk.ends[::-1]):
            if this == port:
                return _link_name(this, other), direction
    return str(port), direction


def of_ports(fabric: Fabric, options: Sequence[str]) -> dict[PortDirection, str]:
    """The impairments of ports that options such as `loss=1%` (all hosts), `h2=loss=1%` or `h2:out=delay=5ms` ask for.

    A later option replaces earlier ones, and `off` or `h2=off` takes them back. Raises ConfigurationError.
    """
    from inagg_switch.impairment import EFFECTS

    found: dict[PortDirection, str] = {}
    for option in options:
        before, _, after = option.partition("=")
        place, spec = ("all", option) if before in (*EFFECTS, OFF) else (before, after)
        name, separator, direction = place.rpartition(":")
        name, wanted = (name, direction) if separator else (place, None)
        if spec != OFF:
            check(spec)
        found.update(dict.fromkeys(find(fabric, name, wanted), spec))
    return {port: spec for port, spec in found.items() if spec != OFF}


def check(spec: str) -> None:
    """Raise ConfigurationError if an impairment is not well-formed."""
    from inagg_switch.impairment import Impairment, ImpairmentError

    try:
        Impairment.parse(spec)
    except ImpairmentError as error:
        raise ConfigurationError(str(error)) from None


def _link_name(this: SwitchPort, other: SwitchPort) -> str:
    return f"{this.switch}-{other.switch}"


def _port_of_link(fabric: Fabric, name: str) -> SwitchPort | None:
    """The port of the first switch of a link between two switches, such as leaf1-spine1."""
    ends = (pair for trunk in fabric.trunks for pair in (trunk.ends, trunk.ends[::-1]))
    return next((this for this, other in ends if _link_name(this, other) == name), None)
