# SPDX-License-Identifier: Apache-2.0
"""Shows a topology: as text, and as a drawing in SVG."""

from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from inagg_contract.addresses import format_ip
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.fabric.topology import Host, Place, Topology

_WIDTH, _HEIGHT = 88.0, 34.0  # of a switch
_HOST_WIDTH, _HOST_HEIGHT = 66.0, 30.0
_GAP, _LEVEL = 14.0, 100.0
_MARGIN = 24.0


def listing(topology: Topology) -> str:
    """One line for each switch, link and host."""
    lines = [
        f"switch {switch.name}: {switch.address}, device {switch.device_id}, aggregator {format_ip(switch.ip)}, "
        f"ports {', '.join(map(str, switch.ports))}"
        for switch in topology.switches
    ]
    ordinary = OrdinaryTree.shortest(topology).links
    lines += [
        f"link {link}{'' if link in ordinary else ' (aggregation only, while all links are up)'}"
        for link in topology.links
    ]
    lines += [f"host {host.name}: {format_ip(host.ip)} at {host.place}" for host in topology.hosts]
    return "\n".join(lines)


def draw(topology: Topology) -> str:
    """The topology as an SVG document: hosts at the bottom, each switch above what is nearer to a host.

    Links that only aggregation uses, while all links are up, are dashed.
    """
    rows = _rows(topology)
    width = max(sum(max(_WIDTH, _hosts_width(topology, name)) + _GAP for name in row) for row in rows)
    places: dict[str, tuple[float, float]] = {}
    for height, row in enumerate(rows):
        share = width / len(row)
        for index, name in enumerate(row):
            y = _MARGIN + _HEIGHT / 2 + (len(rows) - 1 - height) * _LEVEL
            places[name] = (_MARGIN + share * (index + 0.5), y)
    total_height = 2 * _MARGIN + len(rows) * _LEVEL + _HOST_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 2 * _MARGIN:g} {total_height:g}" '
        'font-family="sans-serif" font-size="11" text-anchor="middle">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_links(topology, places),
        *_hosts(topology, places),
        *(_box(*places[switch.name], switch.name, format_ip(switch.ip)) for switch in topology.switches),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rows(topology: Topology) -> list[list[str]]:
    """Switches by the number of links to the nearest switch with hosts, in the topology's order."""
    graph = topology.graph(topology.by_name)
    near = [switch.name for switch in topology.switches if _hosts_at(topology, switch.name)]
    rows, seen = [near or list(graph)], set(near or graph)
    while following := [
        name for name in graph if name not in seen and any(each in seen for each in graph[name])
    ]:
        rows.append(following)
        seen.update(following)
    if rest := [name for name in graph if name not in seen]:
        rows.append(rest)
    return rows


def _hosts_at(topology: Topology, name: str) -> list[Host]:
    return [host for host in topology.hosts if host.place.switch == name]


def _hosts_width(topology: Topology, name: str) -> float:
    return len(_by_port(topology, name)) * (_HOST_WIDTH + _GAP / 2)


def _by_port(topology: Topology, name: str) -> list[tuple[Place, list[Host]]]:
    hosts = sorted(_hosts_at(topology, name), key=lambda host: host.place.port)
    return [(place, list(those)) for place, those in groupby(hosts, key=lambda host: host.place)]


def _links(topology: Topology, places: dict[str, tuple[float, float]]) -> list[str]:
    parts = []
    width = max(x for x, _ in places.values()) + min(x for x, _ in places.values())
    ordinary = OrdinaryTree.shortest(topology).links
    for link in topology.links:
        (x1, y1), (x2, y2) = (places[end.switch] for end in link.ends)
        dash = "" if link in ordinary else ' stroke-dasharray="5 4"'
        parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#445"{dash}/>')
        for end, (x, y), (to_x, to_y) in (
            (link.ends[0], (x1, y1), (x2, y2)),
            (link.ends[1], (x2, y2), (x1, y1)),
        ):
            outward = 1 if to_x > x or (to_x == x and 2 * x > width) else -1
            parts.append(_port(end.port, (x, y), (to_x, to_y), 0.3, outward))
    return parts


def _hosts(topology: Topology, places: dict[str, tuple[float, float]]) -> list[str]:
    parts = []
    for switch in topology.switches:
        x, y = places[switch.name]
        groups = _by_port(topology, switch.name)
        for index, (place, hosts) in enumerate(groups):
            host_x = x + (index - (len(groups) - 1) / 2) * (_HOST_WIDTH + _GAP / 2)
            host_y = y + _LEVEL
            parts.append(f'<line x1="{x:g}" y1="{y:g}" x2="{host_x:g}" y2="{host_y:g}" stroke="#9aa"/>')
            parts.append(_port(place.port, (x, y), (host_x, host_y), 0.6, -1 if host_x < x else 1))
            more = "" if len(hosts) == 1 else f" +{len(hosts) - 1}"
            title = ", ".join(f"{host.name} {format_ip(host.ip)}" for host in hosts)
            parts.append(
                f"<g><title>{escape(title)}</title>"
                f"{_box(host_x, host_y, hosts[0].name + more, format_ip(hosts[0].ip), host=True)}</g>"
            )
    return parts


def _box(x: float, y: float, name: str, detail: str, *, host: bool = False) -> str:
    width, height = (_HOST_WIDTH, _HOST_HEIGHT) if host else (_WIDTH, _HEIGHT)
    fill, size = ("#eef6ee", 9) if host else ("#e4ebf7", 11)
    return (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" rx="4" '
        f'fill={quoteattr(fill)} stroke="#445"/>'
        f'<text x="{x:g}" y="{y - 2:g}" font-size="{size}" font-weight="bold">{escape(name)}</text>'
        f'<text x="{x:g}" y="{y + 10:g}" font-size="9">{escape(detail)}</text>'
    )


def _port(port: int, near: tuple[float, float], far: tuple[float, float], part: float, side: int) -> str:
    """A port's number beside the line from `near` to `far`, at a part of it, to the left (-1) or right (1)."""
    across, down = far[0] - near[0], far[1] - near[1]
    # A slanting line passes above and below the number, too.
    away = 3 + 3 * len(str(port)) + (5 * abs(across / down) if down else 0)
    x, y = near[0] + part * across + side * away, near[1] + part * down
    return (
        f'<text x="{x:g}" y="{y + 3:g}" font-size="9" stroke="white" stroke-width="3" paint-order="stroke">'
        f"{port}</text>"
    )
