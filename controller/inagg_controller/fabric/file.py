# SPDX-License-Identifier: Apache-2.0
"""Reads the topology file (docs/deployment.md)."""

import tomllib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from inagg_contract.addresses import parse_ip, parse_mac
from inagg_contract.constants import CPU_PORT
from inagg_contract.documents import Ip, Mac
from inagg_controller.errors import ConfigurationError
from inagg_controller.fabric.topology import Host, Link, Place, SwitchNode, Topology

HIGHEST_PORT = CPU_PORT - 1  # and BMv2 drops what is sent to 511

_Key = TypeVar("_Key", bound=Hashable)


def _place(text: str) -> Place:
    name, separator, port = text.rpartition(":")
    if not separator or not name or not port.isdecimal() or int(port) > HIGHEST_PORT:
        raise ValueError(f"{text!r} is not a switch and a port from 0 to {HIGHEST_PORT}, such as leaf1:49")
    return Place(name, int(port))


def _checked_place(text: str) -> str:
    _place(text)
    return text


_PlaceText = Annotated[str, AfterValidator(_checked_place)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=63)]
_PortNumber = Annotated[int, Field(ge=0, le=HIGHEST_PORT)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _SwitchTable(_Table):
    name: _Name
    p4runtime: str
    device_id: Annotated[int, Field(ge=0, lt=1 << 64)] = 1
    aggregator_ip: Ip
    aggregator_mac: Mac
    ports: list[_PortNumber] = []


class _LinkTable(_Table):
    ends: Annotated[list[_PlaceText], Field(min_length=2, max_length=2)]


class _HostTable(_Table):
    name: str
    ip: Ip
    mac: Mac | None = None
    at: _PlaceText


class _File(_Table):
    switch: Annotated[list[_SwitchTable], Field(min_length=1)]
    link: list[_LinkTable] = []
    host: list[_HostTable] = []


def read_topology(path: Path) -> Topology:
    """Read and check a topology file. Raises ConfigurationError, which names the file and the first fault."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    try:
        return _topology(_File.model_validate(document))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
        raise ConfigurationError(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _topology(file: _File) -> Topology:
    _check_names(file)
    links = tuple(Link((_place(link.ends[0]), _place(link.ends[1]))) for link in file.link)
    hosts = tuple(
        Host(host.name, parse_ip(host.ip), None if host.mac is None else parse_mac(host.mac), _place(host.at))
        for host in file.host
    )
    ports: dict[str, set[int]] = {switch.name: set(switch.ports) for switch in file.switch}
    for place in [end for link in links for end in link.ends] + [host.place for host in hosts]:
        if place.switch not in ports:
            raise ValueError(f"{place}: there is no switch {place.switch}")
        ports[place.switch].add(place.port)
    _check_links(file, links, hosts)
    return Topology(
        tuple(
            SwitchNode(
                name=switch.name,
                address=switch.p4runtime,
                device_id=switch.device_id,
                ip=parse_ip(switch.aggregator_ip),
                mac=parse_mac(switch.aggregator_mac),
                ports=tuple(sorted(ports[switch.name])),
            )
            for switch in file.switch
        ),
        links,
        hosts,
    )


def _check_links(file: _File, links: Iterable[Link], hosts: Iterable[Host]) -> None:
    _check_unique("port", [end for link in links for end in link.ends], "has two links")
    listed = {Place(switch.name, port) for switch in file.switch for port in switch.ports}
    linked: Mapping[Place, Link] = {end: link for link in links for end in link.ends}
    for link in links:
        if link.ends[0].switch == link.ends[1].switch:
            raise ValueError(f"the link {link} joins a switch to itself")
    for place in [*listed, *(host.place for host in hosts)]:
        if place in linked:
            raise ValueError(f"port {place} has a link to another switch, so no host can be there")


def _check_names(file: _File) -> None:
    _check_unique("switch", [switch.name for switch in file.switch], "is there twice")
    _check_unique(
        "P4Runtime device",
        [f"{switch.device_id} at {switch.p4runtime}" for switch in file.switch],
        "is there twice",
    )
    _check_unique("host", [host.name for host in file.host], "is there twice")
    ips = [switch.aggregator_ip for switch in file.switch] + [host.ip for host in file.host]
    _check_unique("address", ips, "is there twice")
    stations = {(host.mac.lower(), host.at) for host in file.host if host.mac is not None}
    macs = [switch.aggregator_mac.lower() for switch in file.switch] + [mac for mac, _ in stations]
    _check_unique("MAC address", macs, "is there twice")


def _check_unique(what: str, keys: Iterable[_Key], fault: str) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            raise ValueError(f"{what} {key} {fault}")
