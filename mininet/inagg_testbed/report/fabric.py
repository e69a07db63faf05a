# SPDX-License-Identifier: Apache-2.0
"""Pictures of a fabric: where its nodes are, and the geometry that templates/fabric.svg.j2 draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from inagg_testbed.network.fabric import Fabric, host_name
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report.parts import Panel, megabytes

HEATS = 5  # colours of links, by bytes
_HOST_PX, _LEVEL_PX = 46.0, 76.0  # between hosts, and between levels
_LEAST_HOSTS = 6  # so wide is the picture of a small fabric
_MARGIN_PX, _BELOW_PX = 22.0, 42.0  # the figures of a host's link are below the host
_MOST_ABOVE = 2  # switches above a switch whose crossing links have room for figures
_FIGURE_PX = 30.0  # half of the width of a figure

Place = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A link. heat: 0 to HEATS - 1. tip: what the link carried, in words."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    heat: int
    tip: str


@dataclass(frozen=True)
class Label:
    """The bytes towards the upper end, and below these the bytes from it."""

    x: float
    y: float
    anchor: str
    up: str
    down: str


@dataclass(frozen=True)
class Node:
    """A host or a switch."""

    x: float
    y: float
    name: str
    switch: bool


@dataclass(frozen=True)
class Drawing:
    """A panel, in pixels. about: the same in words."""

    title: str
    about: str
    width: float
    height: float
    lines: list[Line]
    labels: list[Label]
    nodes: list[Node]


def draw(fabric: Fabric, panel: Panel, most: int) -> Drawing:
    """Draw a panel. most: bytes in both directions on the busiest link of all panels, which is the widest line."""
    places = layout(fabric)
    wide = max(fabric.size, _LEAST_HOSTS)
    left = (wide - fabric.size) / 2
    pixels = {
        name: (_HOST_PX * (left + x - 0.5) + _MARGIN_PX, _MARGIN_PX - _LEVEL_PX * y)
        for name, (x, y) in places.items()
    }
    drawn = [link for link in panel.links if _node(link.lower) in pixels and _node(link.upper) in pixels]
    return Drawing(
        title=panel.label,
        about=_about(fabric, panel.links),
        width=_HOST_PX * wide + 2 * _MARGIN_PX,
        height=max(y for _, y in pixels.values()) + _BELOW_PX,
        lines=[_line(link, pixels, most) for link in drawn],
        labels=[label for link in drawn if (label := _label(fabric, link, pixels)) is not None],
        nodes=[Node(*pixels[name], name, name in fabric.switches) for name in pixels],
    )


def busiest(panels: Sequence[Panel]) -> int:
    """Bytes in both directions on the busiest link of all panels; at least 1."""
    return max((link.up + link.down for panel in panels for link in panel.links), default=0) or 1


def _node(end: str) -> str:
    return end.partition(":")[0]


def _about(fabric: Fabric, links: Sequence[LinkBytes]) -> str:
    if not links:
        return "no link was counted"
    top = max(links, key=lambda link: link.up + link.down)
    ends = f"{_node(top.lower)} to {_node(top.upper)}"
    text = f"busiest link: {ends}, {megabytes(top.up + top.down)} MB in both directions"
    trunks = sum(link.up + link.down for link in links if ":" in link.lower)
    return text if fabric.is_star else f"{text}; {megabytes(trunks)} MB between switches"


def _line(link: LinkBytes, pixels: dict[str, Place], most: int) -> Line:
    (x1, y1), (x2, y2) = pixels[_node(link.lower)], pixels[_node(link.upper)]
    share = (link.up + link.down) / most
    tip = f"{link.lower} to {link.upper}: {megabytes(link.up)} MB up, {megabytes(link.down)} MB down"
    return Line(x1, y1, x2, y2, 1.5 + 6 * share, min(int(share * HEATS), HEATS - 1), tip)


def _label(fabric: Fabric, link: LinkBytes, pixels: dict[str, Place]) -> Label | None:
    """The figures of a link: below a host, or beside a link between switches where there is room."""
    up, down = megabytes(link.up), megabytes(link.down)
    (x1, y1), (x2, y2) = pixels[_node(link.lower)], pixels[_node(link.upper)]
    if ":" not in link.lower:
        return Label(x1, y1 + 22, "middle", up, down)
    if sum(trunk.lower.switch == _node(link.lower) for trunk in fabric.trunks) > _MOST_ABOVE:
        return None
    x, y = 0.6 * x1 + 0.4 * x2, 0.6 * y1 + 0.4 * y2
    lean = (x2 - x1) / (y1 - y2)
    outer_is_left = lean > 0 or (lean == 0 and x <= _FIGURE_PX)
    away = 8 + 10 * min(abs(lean), 1.5)
    return Label(x - away if outer_is_left else x + away, y, "end" if outer_is_left else "start", up, down)


def layout(fabric: Fabric) -> dict[str, Place]:
    """Where each node is drawn: hosts in the lowest line, a switch above the middle of what is below it.

    Hosts are 1 apart, from 1; the topmost line has y 0, each line below it 1 less. Switches of one level that would be
    in one place, such as spines, share the width.
    """
    levels = _levels(fabric)
    bottom = -float(max(levels.values()) + 1)
    places = {host_name(number): (float(number), bottom) for number in range(1, fabric.size + 1)}
    for level in range(max(levels.values()), -1, -1):
        switches = [switch for switch in fabric.switches if levels[switch] == level]
        middles = [_middle(fabric, switch, places) for switch in switches]
        if len(set(middles)) < len(middles):
            step = fabric.size / len(switches)
            middles = [0.5 + step * (index + 0.5) for index in range(len(switches))]
        places |= {switch: (x, -float(level)) for switch, x in zip(switches, middles, strict=True)}
    return places


def _levels(fabric: Fabric) -> dict[str, int]:
    """The number of switches above each switch."""
    levels = dict.fromkeys(fabric.switches, 0)
    for switch in fabric.switches:  # from the top down
        for trunk in fabric.trunks:
            if trunk.upper.switch == switch:
                levels[trunk.lower.switch] = levels[switch] + 1
    return levels


def _middle(fabric: Fabric, switch: str, places: dict[str, Place]) -> float:
    below = [trunk.lower.switch for trunk in fabric.trunks if trunk.upper.switch == switch]
    below += [host_name(n) for n, port in enumerate(fabric.host_ports, 1) if port.switch == switch]
    return fmean(places[name][0] for name in below)
