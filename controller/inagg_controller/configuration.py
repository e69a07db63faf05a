# SPDX-License-Identifier: Apache-2.0
"""The controller's configuration, parsed and checked. Each function raises ConfigurationError."""

import ipaddress
import math
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from inagg_contract.addresses import (
    Address,
    format_mac,
    parse_ip,
    parse_mac,
    parse_multicast_network,
    parse_source,
)
from inagg_contract.documents import DEFAULT_PORT
from inagg_controller.errors import ConfigurationError
from inagg_controller.fabric.file import HIGHEST_PORT, read_topology
from inagg_controller.fabric.topology import Host, Place, SwitchNode, Topology
from inagg_controller.jobs.classes import JobClass
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.network import Network
from inagg_controller.switch.program import Program
from inagg_controller.tenants_file import TenantsFile
from inagg_controller.tls import SwitchTls

ONLY_SWITCH = "s1"
NO_SWITCHES = Topology(())
# The numbers of words in a packet that servers sum (hostlib/native/server), and the default.
SERVER_WORDS = (4, 5, 32)
DEFAULT_SHARED_SLOTS = 2048
_NONE = "none"
_JOB_NUMBERS = 1 << 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that the command line configures.

    tls: of the API; None: it is HTTP. proxies: addresses and networks whose X-Forwarded-For is believed. state: the
    file that keeps jobs; None: nothing does. state_given: it must be there. tenants: their file; None: everybody
    may create jobs. program: None: there is no switch. switch_tls: of P4Runtime; None: it is not encrypted.
    """

    switch_timeout_s: float
    listen: tuple[str, int]
    tls: ssl.SSLContext | None
    operators_token: str
    state: Path | None
    state_given: bool
    tenants: TenantsFile | None
    connections_per_host: int
    proxies: tuple[str, ...]
    idle_timeout_s: float
    program: Program | None
    switch_tls: SwitchTls | None
    network: Network
    limits: Limits
    policy: Policy


def state_file(given: str | None, token_file: Path, listen: tuple[str, int]) -> Path | None:
    """The file of --state; None for none. By default beside the token, and another for each address."""
    if given == _NONE:
        return None
    return (
        token_file.with_name(f"controller-{listen[0]}-{listen[1]}.sqlite") if given is None else Path(given)
    )


def star(switch: str, device_id: int, ports: str, hosts: Iterable[str], ip: str, mac: str) -> Topology:
    """The topology of --switch, --device-id, --ports, --host, --aggregator-ip and --aggregator-mac: one switch."""
    numbers = tuple(sorted({_number(port, "--ports", HIGHEST_PORT) for port in ports.split(",")}))
    known = parse_hosts(hosts)
    unknown = sorted({host.place.port for host in known} - set(numbers))
    if unknown:
        raise ConfigurationError(f"--host names ports {unknown}, which are not in --ports")
    aggregator = (_parsed(parse_ip, ip, "--aggregator-ip"), _parsed(parse_mac, mac, "--aggregator-mac"))
    if any(host.mac == aggregator[1] or host.ip == aggregator[0] for host in known):
        raise ConfigurationError("--host names an address of the aggregator")
    _check_p4runtime(switch, "--switch")
    node = SwitchNode(ONLY_SWITCH, switch, device_id, *aggregator, numbers)
    return Topology((node,), hosts=known)


def parse_topology(path: Path) -> Topology:
    """The topology of --topology."""
    topology = read_topology(path)
    for switch in topology.switches:
        _check_p4runtime(switch.address, f"{path}: switch {switch.name}: p4runtime")
    return topology


def check_size(program: Program, topology: Topology) -> Topology:
    """Return the topology if the program's tables hold its stations."""
    bound = sum(host.mac is not None for host in topology.hosts) + len(topology.switches)
    if bound > program.max_stations:
        raise ConfigurationError(
            f"the topology has {bound} stations to bind (hosts with a MAC address, and switches); the tables of the "
            f"program hold {program.max_stations}"
        )
    return topology


def check_pool(slot_versions: int, pool: int | None, asked: int | None) -> tuple[int, int]:
    """The slot versions of a switch that jobs have, and how many of these they share.

    slot_versions: of the program. pool: --pool, the slots that can be leased; the shared ones are behind them. asked:
    --shared-slots; by default as many as can be leased with --pool, else a quarter at most.
    """
    most = slot_versions // 2
    if pool is not None:
        if pool > most:
            raise ConfigurationError(f"--pool is {pool}; the program has {most} slots")
        most = min(2 * pool, slot_versions - 2 * pool)
    if asked is None:
        bound = min(slot_versions // 4 if pool is None else most, DEFAULT_SHARED_SLOTS)
        asked = (1 << bound.bit_length()) >> 1
    elif asked > 0 and most == 0:
        raise ConfigurationError(
            f"--shared-slots is {asked}; --pool {pool} leaves no slots that could be shared"
        )
    elif asked & (asked - 1) or asked > most:
        raise ConfigurationError(
            f"--shared-slots is {asked}; it must be 0 or a power of two, at most {most} of the program's "
            f"{slot_versions} slot versions"
        )
    return (slot_versions if pool is None else 2 * pool + asked), asked


def check_share(share: float, option: str) -> float:
    """Return the share if something can be had with it, and no more than there is."""
    if not 0 < share <= 1:
        raise ConfigurationError(f"{option} is {share:g}; it must be above 0 and at most 1")
    return share


def _check_p4runtime(address: str, option: str) -> None:
    if not address.startswith("unix:"):
        parse_address(address, option)


def parse_multicast(text: str) -> int | None:
    """The first address of --multicast; None for unicast."""
    if text == _NONE:
        return None
    try:
        network = parse_multicast_network(text)
    except ValueError as error:
        raise ConfigurationError(f"--multicast: {error}") from error
    if network.num_addresses < _JOB_NUMBERS:
        raise ConfigurationError(
            f"--multicast: {text} is too small: every job needs an address, so /16 or shorter"
        )
    return int(network.network_address)


def parse_hosts(texts: Iterable[str]) -> tuple[Host, ...]:
    """The hosts of --host."""
    hosts: dict[int, Host] = {}
    ports: dict[int, int] = {}
    for text in texts:
        host_ip, separator, place = text.partition("=")
        port_text, with_mac, mac_text = place.partition(",")
        if not separator:
            raise ConfigurationError(
                f"--host {text} is not of the form 10.0.0.1=1 or 10.0.0.1=1,02:00:00:00:00:01"
            )
        ip, port = _parsed(parse_ip, host_ip, "--host"), _number(port_text, "--host", HIGHEST_PORT)
        mac = _parsed(parse_mac, mac_text, "--host") if with_mac else None
        if ip in hosts:
            raise ConfigurationError(f"--host names {host_ip} twice")
        if mac is not None and ports.setdefault(mac, port) != port:
            raise ConfigurationError(f"--host names {format_mac(mac)} at two ports")
        hosts[ip] = Host(host_ip, ip, mac, Place(ONLY_SWITCH, port))
    return tuple(hosts.values())


def parse_host_addresses(texts: Iterable[str]) -> dict[Address, frozenset[int]]:
    """The addresses of --host-address, by the address that the host's requests come from."""
    addresses: dict[Address, frozenset[int]] = {}
    for text in texts:
        source, separator, address = text.partition("=")
        if not separator:
            raise ConfigurationError(f"--host-address {text} is not of the form 192.0.2.1=10.0.0.1")
        asker = _parsed(parse_source, source, "--host-address")
        known = addresses.get(asker, frozenset())
        addresses[asker] = known | {_parsed(parse_ip, address, "--host-address")}
    return addresses


def parse_job_classes(texts: Iterable[str]) -> tuple[JobClass, ...]:
    """The classes of --job-class."""
    classes: dict[str, JobClass] = {}
    for text in texts:
        name, *quotas = text.split(",")
        given = dict(quota.split("=", 1) for quota in quotas if "=" in quota)
        if len(given) < len(quotas) or "name" in given:
            raise ConfigurationError(
                f"--job-class {text} is not of the form NAME,jobs=4,slots=256, each quota at most once"
            )
        if name in classes:
            raise ConfigurationError(f"--job-class names {name} twice")
        try:
            classes[name] = JobClass.model_validate({"name": name, **given})
        except ValidationError as error:
            raise ConfigurationError(f"--job-class {text}: {_first_problem(error)}") from error
    return tuple(classes.values())


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        known = ", ".join(name for name in JobClass.model_fields if name != "name")
        return f"{first['loc'][0]} is not a quota; these are {known}"
    return f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}"


def parse_proxies(texts: Iterable[str]) -> tuple[str, ...]:
    """The addresses and networks of --proxy, as uvicorn takes them."""
    proxies = tuple(texts)
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise ConfigurationError(f"--proxy: {error}") from error
    return proxies


def check_words(words: int | None) -> int:
    """The words of --words, which is used without a switch."""
    if words is None:
        return SERVER_WORDS[0]
    if words not in SERVER_WORDS:
        raise ConfigurationError(f"--words is {words}; it must be one of {', '.join(map(str, SERVER_WORDS))}")
    return words


def check_policy(policy: Policy) -> Policy:
    """Return the policy if its times are consistent."""
    for name in policy.__slots__:
        if not 0 < getattr(policy, name) < math.inf:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be positive")
    if not policy.rto_min_s <= policy.rto_initial_s <= policy.rto_max_s:
        raise ConfigurationError("--rto-min-s, --rto-initial-s and --rto-max-s must be in this order")
    if policy.heartbeat_timeout_s < 2 * policy.heartbeat_interval_s:
        raise ConfigurationError("--heartbeat-timeout-s must be at least twice --heartbeat-interval-s")
    return policy


def parse_listen(text: str) -> tuple[str, int]:
    """Parse --listen into (host, port)."""
    host, port = parse_address(text, "--listen")
    if ":" in host:
        raise ConfigurationError(
            f"--listen {text}: the controller listens at an IPv4 address, because ranks have IPv4 addresses; a reverse "
            "proxy before it may have others (--proxy)"
        )
    return host, port


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT into (host, port)."""
    host, separator, port = text.rpartition(":")
    if not separator or not host:
        raise ConfigurationError(f"{option} {text} is not of the form 127.0.0.1:{DEFAULT_PORT}")
    return host.strip("[]"), _number(port, option, 65535)


def _number(text: str, option: str, highest: int) -> int:
    if not text.strip().isdecimal() or int(text) > highest:
        raise ConfigurationError(f"{option}: {text!r} is not a number from 0 to {highest}")
    return int(text)


def _parsed(parse: Callable[[str], _T], text: str, option: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from error
