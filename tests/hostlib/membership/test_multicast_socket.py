# SPDX-License-Identifier: Apache-2.0
"""The socket at a job's group address, on the loopback interface."""

import socket
from collections.abc import Iterator

import pytest

from inagg.membership.multicast import open_socket
from inagg_contract.documents import Endpoint

LOOPBACK = "127.0.0.1"
GROUP, OTHER_GROUP = "239.192.0.7", "239.192.0.8"


def sending_socket() -> socket.socket:
    """Sends multicast on the loopback interface, in order: what it sends has arrived when sendto() returns."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((LOOPBACK, 0))
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    return udp


def receiving_socket(results: Endpoint, aggregator: socket.socket) -> socket.socket:
    udp = open_socket(results, LOOPBACK, aggregator.getsockname())
    udp.settimeout(10)
    return udp


@pytest.fixture
def aggregator() -> Iterator[socket.socket]:
    with sending_socket() as udp:
        yield udp


@pytest.fixture
def port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        number: int = probe.getsockname()[1]
        return number


def test_all_ranks_of_a_host_get_a_result(aggregator: socket.socket, port: int) -> None:
    results = Endpoint(ip=GROUP, udp_port=port)
    with receiving_socket(results, aggregator) as first, receiving_socket(results, aggregator) as second:
        aggregator.sendto(b"a result", (GROUP, port))
        assert first.recv(100) == second.recv(100) == b"a result"


def test_what_others_send_is_refused_from_the_beginning(aggregator: socket.socket, port: int) -> None:
    results = Endpoint(ip=GROUP, udp_port=port)
    with sending_socket() as stranger, receiving_socket(results, aggregator) as udp:
        stranger.sendto(b"forged", (GROUP, port))
        aggregator.sendto(b"a result", (GROUP, port))
        assert udp.recv(100) == b"a result"


def test_the_results_of_another_job_of_the_host_do_not_arrive(aggregator: socket.socket, port: int) -> None:
    ours, other = (Endpoint(ip=ip, udp_port=port) for ip in (GROUP, OTHER_GROUP))
    with receiving_socket(ours, aggregator) as udp, receiving_socket(other, aggregator) as others:
        aggregator.sendto(b"of the other job", (OTHER_GROUP, port))
        aggregator.sendto(b"ours", (GROUP, port))
        assert (udp.recv(100), others.recv(100)) == (b"ours", b"of the other job")


def test_an_address_of_no_interface_is_an_error_and_leaves_no_socket(port: int) -> None:
    results = Endpoint(ip=GROUP, udp_port=port)
    with pytest.raises(OSError, match="No such device"):
        open_socket(results, "203.0.113.1", (LOOPBACK, 9))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((GROUP, port))  # without SO_REUSEADDR
