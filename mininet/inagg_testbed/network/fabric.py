# SPDX-License-Identifier: Apache-2.0
"""Fabrics: which switches there are, which links connect them, and on which of their ports the hosts are.

`Fabric.parse` reads what `--topology` takes:

star             one switch, s1, with all hosts.
tree:AxB..xW     W hosts below each leaf, and above the leaves a tree: `root` has A switches below it, each of these has
                 B, and so on. tree:2x4 is two racks of four hosts. Switches between root and leaves are agg1, agg2, ...
leaf-spine:RxWxK R leaves with W hosts each, and K spines. Every leaf has a link to every spine. Chunks take turns among
                 the largest power of two of the spines (protocol.md, 5.5).

A leaf and its hosts are a rack. Hosts are numbered rack by rack. Ports are 1, 2, ... to hosts and to switches below,
101, 102, ... to switches above, and 255 to the controller, which is in the node of the topmost switch (of a
leaf-spine: of spine1). There may be further hosts, in no rack, for aggregation servers (`with_servers`), dealt out to
the leaves. No rank runs there.

A topology file of P4 exercises (`exercise`) describes another kind of fabric: its hosts have names and addresses
(`Station`), any two switches may have links, and there is no controller's port.

This module knows no Mininet: commands parse options before they check the machine.
"""

import itertools
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from inagg_testbed.errors import ConfigurationError

MAX_HOSTS = 64
MAX_SWITCHES = 128
CONTROL_PORT = 255
STAR = "star"
STAR_SWITCH = "s1"
FORMS = "star, tree:2x4, tree:2x2x2, leaf-spine:2x4x2"

RankOrder = Literal["contiguous", "interleaved"]
_FIRST_UPLINK = 101
_SIZES = re.compile(r"\d{1,4}(x\d{1,4})*", re.ASCII)


def host_name(number: int) -> str:
    """h1, h2, ..."""
    return f"h{number}"


@dataclass(frozen=True, order=True)
class SwitchPort:
    """A port of a switch."""

    switch: str
    port: int

    def __str__(self) -> str:
        return f"{self.switch}:{self.port}"


@dataclass(frozen=True)
class Trunk:
    """A link between two switches."""

    lower: SwitchPort
    upper: SwitchPort

    @property
    def ends(self) -> tuple[SwitchPort, SwitchPort]:
        """Both ports."""
        return self.lower, self.upper


@dataclass(frozen=True)
class Station:
    """A host: its name, its address with the length of the prefix, and its MAC address.

    interface: the name of its interface; None: one that names the run.
    """

    name: str
    address: str
    mac: str
    interface: str | None = None

    @property
    def ip(self) -> str:
        """The address without the prefix."""
        return self.address.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The switches of a testbed, and what they connect.

    name: the text that it was parsed from. switches: from the top down, the controller's first. racks: the numbers of
    the workers' hosts below each leaf. host_ports: where host 1, 2, ... is, those of servers last. spanning: trunks
    that connect all leaves without a loop. stations: the hosts, if a file describes them; else they are h1, h2, ....
    """

    name: str
    switches: tuple[str, ...]
    racks: tuple[tuple[int, ...], ...]
    host_ports: tuple[SwitchPort, ...]
    trunks: tuple[Trunk, ...] = ()
    spanning: tuple[Trunk, ...] = ()
    stations: tuple[Station, ...] = ()
    rank_order: RankOrder = "contiguous"
    _ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rank_order not in get_args(RankOrder):
            known = " or ".join(get_args(RankOrder))
            raise ConfigurationError(f"rank order {self.rank_order!r}: want {known}")
        columns = itertools.zip_longest(*self.racks) if self.rank_order == "interleaved" else self.racks
        hosts = tuple(host for group in columns for host in group if host is not None)
        object.__setattr__(self, "_ranks", hosts)

    @classmethod
    def star(cls, hosts: int) -> "Fabric":
        """One switch with all hosts. Raises ConfigurationError."""
        _check_hosts(hosts)
        numbers = tuple(range(1, hosts + 1))
        ports = tuple(SwitchPort(STAR_SWITCH, number) for number in numbers)
        return cls(name=STAR, switches=(STAR_SWITCH,), racks=(numbers,), host_ports=ports)

    @classmethod
    def parse(cls, text: str, *, hosts: int | None = None, rank_order: RankOrder = "contiguous") -> "Fabric":
        """Parse a topology. `hosts`: the number of hosts that was asked for; a star needs it, others may leave it out.

        Raises ConfigurationError.
        """
        if text == STAR:
            if hosts is None:
                raise ConfigurationError("a star needs the number of hosts")
            return replace(cls.star(hosts), rank_order=rank_order)
        if text.endswith(".json"):
            raise ConfigurationError(f"topology {text}: only `inagg up` takes a file")
        kind, _, sizes = text.partition(":")
        if kind not in ("tree", "leaf-spine") or not _SIZES.fullmatch(sizes):
            raise ConfigurationError(f"topology {text!r}: want one such as {FORMS}")
        numbers = [int(number) for number in sizes.split("x")]
        if 0 in numbers:
            raise ConfigurationError(f"topology {text}: every number must be 1 or more")
        made = _tree(text, numbers) if kind == "tree" else _leaf_spine(text, numbers)
        if hosts not in (None, made.size):
            raise ConfigurationError(
                f"topology {text} has {made.size} hosts, so {hosts} workers contradict it: leave --workers out"
            )
        return replace(made, rank_order=rank_order)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "Fabric":
        """The fabric of a testbed whose manifest has these settings."""
        if "stations" in settings:
            return cls.described_by(
                settings["topology"],
                switches=settings["switches"],
                stations=[(Station(*host), _port(at)) for *host, at in settings["stations"]],
                trunks=[Trunk(_port(lower), _port(upper)) for lower, upper in settings["trunks"]],
            )
        text, hosts = settings.get("topology", STAR), int(settings["hosts"])
        made = cls.parse(text, hosts=hosts, rank_order=settings.get("rank_order", "contiguous"))
        return made.with_servers(int(settings.get("servers", 0)))

    @classmethod
    def described_by(
        cls,
        name: str,
        *,
        switches: Sequence[str],
        stations: Sequence[tuple[Station, SwitchPort]],
        trunks: Sequence[Trunk],
    ) -> "Fabric":
        """The fabric that a file describes. name: of the file. stations: each host with its port."""
        return cls(
            name=name,
            switches=tuple(switches),
            racks=(tuple(range(1, len(stations) + 1)),),
            host_ports=tuple(port for _, port in stations),
            trunks=tuple(trunks),
            stations=tuple(station for station, _ in stations),
        )

    def with_servers(self, count: int) -> "Fabric":
        """The fabric with `count` further hosts, behind the workers', for aggregation servers.

        Raises ConfigurationError.
        """
        if count == 0:
            return self
        if count < 0 or self.servers:
            raise ConfigurationError(
                f"{count} servers beside {len(self.servers)}: want one number, 0 or more"
            )
        _check_hosts(self.size + count, f"a testbed with {self.size} workers and {count} servers")
        turns = itertools.cycle(enumerate(self.leaves))
        ports = [
            SwitchPort(leaf, len(self.racks[rack]) + index // len(self.racks) + 1)
            for index, (rack, leaf) in zip(range(count), turns, strict=False)
        ]
        return replace(self, host_ports=(*self.host_ports, *ports))

    @property
    def settings(self) -> dict[str, Any]:
        """What a manifest says of the fabric."""
        said: dict[str, Any] = {
            "topology": self.name,
            "hosts": self.size,
            "servers": len(self.servers),
            "rank_order": self.rank_order,
        }
        if self.described:
            said["switches"] = list(self.switches)
            said["stations"] = [
                [*astuple(station), str(port)]
                for station, port in zip(self.stations, self.host_ports, strict=True)
            ]
            said["trunks"] = [[str(end) for end in trunk.ends] for trunk in self.trunks]
        return said

    @property
    def described(self) -> bool:
        """Whether a file describes it."""
        return bool(self.stations)

    def host_name(self, number: int) -> str:
        """The name of a host."""
        return self.stations[number - 1].name if self.described else host_name(number)

    @property
    def size(self) -> int:
        """Number of workers' hosts: those of servers do not count."""
        return len(self._ranks)

    @property
    def servers(self) -> range:
        """The numbers of the hosts for servers."""
        return range(self.size + 1, len(self.host_ports) + 1)

    @property
    def hosts(self) -> range:
        """The numbers of all hosts."""
        return range(1, len(self.host_ports) + 1)

    @property
    def is_star(self) -> bool:
        """Whether there is one switch, with all hosts."""
        return self.name == STAR

    def leaf_of(self, number: int) -> str:
        """The switch of a host."""
        return self.host_ports[number - 1].switch

    @property
    def control_switch(self) -> str:
        """The switch in whose node the controller runs."""
        return self.switches[0]

    @property
    def leaves(self) -> tuple[str, ...]:
        """The switches with hosts, one a rack, in the order of `racks`."""
        return tuple(dict.fromkeys(port.switch for port in self.host_ports))

    def host_of(self, rank: int) -> int:
        """The number of the host that rank `rank` runs on."""
        return self._ranks[rank]

    @property
    def link_ports(self) -> tuple[SwitchPort, ...]:
        """A port at each link, between switches the lower one. Loss there, in and out, is loss on the link."""
        return *self.host_ports, *(trunk.lower for trunk in self.trunks)

    @property
    def ranks_of_racks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks in each rack, in ascending order."""
        ranks = {host: rank for rank, host in enumerate(self._ranks)}
        return tuple(tuple(sorted(ranks[host] for host in rack)) for rack in self.racks)

    def ports(self, switch: str) -> list[int]:
        """Numbers of a switch's ports, in ascending order, the controller's included."""
        ends = [*self.host_ports, *(end for trunk in self.trunks for end in trunk.ends)]
        found = [end.port for end in ends if end.switch == switch]
        controlled = switch == self.control_switch and not self.described
        return sorted([*found, CONTROL_PORT] if controlled else found)

    @property
    def connected(self) -> list[str]:
        """The switches that `spanning` connects: all but the further spines."""
        ends = {end.switch for trunk in self.spanning for end in trunk.ends}
        return [switch for switch in self.switches if switch in ends or switch in self.leaves]

    def spanning_ports(self, switch: str) -> list[int]:
        """The ports of a switch without those of trunks that `spanning` leaves out, so without loops."""
        others = [end for trunk in self.trunks if trunk not in self.spanning for end in trunk.ends]
        return [port for port in self.ports(switch) if SwitchPort(switch, port) not in others]

    @cached_property
    def neighbours(self) -> dict[SwitchPort, str]:
        """What each port leads to: a host, ctl0 (the controller's interface), or a port such as leaf1:101."""
        found = {port: self.host_name(number) for number, port in enumerate(self.host_ports, 1)}
        for trunk in self.trunks:
            found[trunk.lower], found[trunk.upper] = str(trunk.upper), str(trunk.lower)
        if not self.described:
            found[SwitchPort(self.control_switch, CONTROL_PORT)] = "ctl0"
        return found

    def find_port(self, text: str) -> SwitchPort | None:
        """The port that leaf1:101 names; in a star also 1 and p1, of a file also s1-p1. None if there is no such
        port."""
        switch, _, number = text.rpartition("-p" if self.described and ":" not in text else ":")
        if self.is_star and not switch:
            switch, number = STAR_SWITCH, number.removeprefix("p")
        if not (number.isascii() and number.isdecimal()):
            return None
        port = SwitchPort(switch, int(number))
        return port if port in self.neighbours else None


def _port(text: str) -> SwitchPort:
    """The port that str() of a SwitchPort names."""
    switch, _, number = text.rpartition(":")
    return SwitchPort(switch, int(number))


def _check_hosts(hosts: int, what: str = "a testbed") -> None:
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigurationError(f"{what} has 1 to {MAX_HOSTS} hosts, not {hosts}")


def _check_switches(text: str, switches: int) -> None:
    if switches > MAX_SWITCHES:
        raise ConfigurationError(f"topology {text}: {switches} switches; at most {MAX_SWITCHES} are possible")


def _tree(text: str, numbers: Sequence[int]) -> Fabric:
    *branches, workers = numbers
    if not branches:
        raise ConfigurationError(
            f"topology {text}: want a number of switches for each level and then the workers a leaf, as in tree:2x4"
        )
    _check_hosts(math.prod(numbers), f"topology {text}: a testbed")
    widths = list(itertools.accumulate(branches, operator.mul))
    _check_switches(text, 1 + sum(widths))
    levels = [["root"], *_named_levels(widths)]
    trunks = [
        Trunk(SwitchPort(name, _FIRST_UPLINK), SwitchPort(above[index // branch], 1 + index % branch))
        for branch, above, below in zip(branches, levels, levels[1:], strict=False)
        for index, name in enumerate(below)
    ]
    return _fabric(text, levels, workers, trunks, trunks)


def _named_levels(widths: Sequence[int]) -> Iterator[list[str]]:
    """Names of the switches of each level below the root."""
    middle = itertools.count(1)
    for width in widths[:-1]:
        yield [f"agg{next(middle)}" for _ in range(width)]
    yield [f"leaf{number}" for number in range(1, widths[-1] + 1)]


def _leaf_spine(text: str, numbers: Sequence[int]) -> Fabric:
    if len(numbers) != 3:
        raise ConfigurationError(
            f"topology {text}: want leaves, workers a leaf and spines, as in leaf-spine:2x4x2"
        )
    racks, workers, count = numbers
    _check_hosts(racks * workers, f"topology {text}: a testbed")
    _check_switches(text, racks + count)
    spines = [f"spine{number}" for number in range(1, count + 1)]
    leaves = [f"leaf{number}" for number in range(1, racks + 1)]
    trunks = [
        Trunk(SwitchPort(leaf, _FIRST_UPLINK + above), SwitchPort(spine, 1 + below))
        for below, leaf in enumerate(leaves)
        for above, spine in enumerate(spines)
    ]
    first = [trunk for trunk in trunks if trunk.upper.switch == spines[0]]
    return _fabric(text, [spines, leaves], workers, trunks, first)


def _fabric(
    text: str, levels: list[list[str]], workers: int, trunks: Sequence[Trunk], spanning: Sequence[Trunk]
) -> Fabric:
    """The fabric with `workers` hosts below each switch of the last level."""
    leaves = levels[-1]
    ports = [SwitchPort(leaf, number) for leaf in leaves for number in range(1, workers + 1)]
    racks = [range(first, first + workers) for first in range(1, len(ports) + 1, workers)]
    return Fabric(
        name=text,
        switches=tuple(name for level in levels for name in level),
        racks=tuple(tuple(rack) for rack in racks),
        host_ports=tuple(ports),
        trunks=tuple(trunks),
        spanning=tuple(spanning),
    )
