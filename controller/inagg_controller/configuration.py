# SPDX-License-Identifier: Apache-2.0
"""The controller's configuration, parsed and checked. Each function raises ConfigurationError."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inagg_contract.addresses import format_mac, parse_ip, parse_mac, parse_multicast_network
from inagg_contract.constants import INAGG_PORT
from inagg_contract.documents import DEFAULT_PORT
from inagg_controller.errors import ConfigurationError
from inagg_controller.jobs.job import Limits, Policy
from inagg_controller.service import Network, port_list
from inagg_controller.switch.entries import Binding
from inagg_controller.switch.program import Program

_HIGHEST_PORT = 511
_UNICAST = "none"
_JOB_NUMBERS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that the command line configures."""

    switch: str
    device_id: int
    switch_timeout_s: float
    listen: tuple[str, int]
    operators_token: str
    connections_per_host: int
    idle_timeout_s: float
    program: Program
    network: Network
    limits: Limits
    policy: Policy


def parse_network(
    program: Program, ports: str, hosts: Iterable[str], ip: str, mac: str, multicast: str
) -> Network:
    """The network of --ports, --host, --aggregator-ip, --aggregator-mac and --multicast."""
    numbers = port_list(_number(port, "--ports", _HIGHEST_PORT) for port in ports.split(","))
    known, bindings = parse_hosts(hosts)
    unknown = sorted(set(known.values()) - set(numbers))
    if unknown:
        raise ConfigurationError(f"--host names ports {unknown}, which are not in --ports")
    aggregator = (_parsed(parse_ip, ip, "--aggregator-ip"), _parsed(parse_mac, mac, "--aggregator-mac"))
    if any(binding.mac == aggregator[1] for binding in bindings) or aggregator[0] in known:
        raise ConfigurationError("--host names an address of the aggregator")
    return Network(
        ports=numbers,
        hosts=known,
        bindings=bindings,
        aggregator_ip=aggregator[0],
        aggregator_mac=aggregator[1],
        aggregator_udp_port=INAGG_PORT,
        words=program.words,
        multicast=_parsed_multicast(multicast),
    )


def _parsed_multicast(text: str) -> int | None:
    if text == _UNICAST:
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


def parse_hosts(texts: Iterable[str]) -> tuple[dict[int, int], tuple[Binding, ...]]:
    """From --host: {IPv4 address: port}, and the bindings of hosts whose MAC address is given."""
    known: dict[int, int] = {}
    bindings = []
    for text in texts:
        host_ip, separator, place = text.partition("=")
        port_text, with_mac, mac_text = place.partition(",")
        if not separator:
            raise ConfigurationError(
                f"--host {text} is not of the form 10.0.0.1=1 or 10.0.0.1=1,02:00:00:00:00:01"
            )
        ip, port = _parsed(parse_ip, host_ip, "--host"), _number(port_text, "--host", _HIGHEST_PORT)
        if ip in known:
            raise ConfigurationError(f"--host names {host_ip} twice")
        known[ip] = port
        if with_mac:
            bindings.append(Binding(ip=ip, mac=_parsed(parse_mac, mac_text, "--host"), port=port))
    ports: dict[int, int] = {}
    for binding in bindings:
        if ports.setdefault(binding.mac, binding.port) != binding.port:
            raise ConfigurationError(f"--host names {format_mac(binding.mac)} at two ports")
    return known, tuple(bindings)


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


def _parsed(parse: Callable[[str], int], text: str, option: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from error
