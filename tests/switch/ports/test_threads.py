# SPDX-License-Identifier: Apache-2.0
"""A switch of several threads: they divide the ports, and run the program one packet after the other."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.ports import PortError, PortOptions, Ports, PortSpec
from tests.switch.network import MakeNetwork, Network
from tests.switch.snippets import v1program
from tests.waiting import wait_until

HOSTS = 3
CPU_PORT = 64
MESSAGES, PACKETS, PACKET_BYTES = 1000, 60, 100  # of each host; packets of each message
UDP_SEGMENT = 103
GROUP = ("239.0.0.9", 5009)

# Counts packets in a way that loses some if two run at once.
COUNT = v1program(
    "bit<32> count; counted.read(count, 0); counted.write(0, count + 1); sm.egress_spec = 64;",
    locals="register<bit<32>>(1) counted;",
)

pytestmark = pytest.mark.netns


@pytest.fixture
def counting(network: MakeNetwork) -> Iterator[tuple[Network, Ports, Switch]]:
    """A switch of three threads whose program counts packets and sends them to the CPU port."""
    net = network(HOSTS)
    with ExitStack() as stack:
        program = stack.enter_context(Switch.from_source(preprocess_text(COUNT, "count.p4").text))
        with net.inside(net.switch):
            specs = [PortSpec(number, net.port_interface(number)) for number in range(1, HOSTS + 1)]
            ports = Ports(specs, PortOptions(threads=HOSTS, cpu_port=CPU_PORT))
            stack.callback(ports.stop)
            ports.set_program(program)
            ports.start()
        yield net, ports, program


def udp_socket(net: Network, host: int) -> socket.socket:
    """Sends messages that reach the switch as one frame of many packets."""
    with net.inside(net.host(host)):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PACKET_BYTES)
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(net.ip(host)))
    return udp


def test_packets_of_all_threads_run_one_after_the_other(counting: tuple[Network, Ports, Switch]) -> None:
    net, ports, program = counting
    sockets = [udp_socket(net, host) for host in range(1, HOSTS + 1)]

    def send(udp: socket.socket) -> None:
        for _ in range(MESSAGES):
            udp.sendto(bytes(PACKETS * PACKET_BYTES), GROUP)

    senders = [threading.Thread(target=send, args=(raw,)) for raw in sockets]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    for udp in sockets:
        udp.close()

    def received() -> int:
        return sum(one.rx_packets for one in ports.statistics())

    wait_until(lambda: received() >= HOSTS * MESSAGES * PACKETS, "the switch receives all frames")
    # The kernel sends packets too, of IPv6.
    wait_until(lambda: program.register("counted")[0] == received(), "each packet is counted once")
    taken = 0
    while taken + ports.to_cpu_drops() < received() and ports.next_to_cpu() is not None:
        taken += 1
    assert taken > 0
    assert taken + ports.to_cpu_drops() == received()


def test_each_thread_is_one_of_the_process(counting: tuple[Network, Ports, Switch]) -> None:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert names.count("inagg-ports") == HOSTS


@pytest.mark.parametrize(("threads", "words"), [(0, "0 threads"), (2, "a switch of 1 ports has 1 to 1")])
def test_there_are_no_more_threads_than_ports(threads: int, words: str) -> None:
    with pytest.raises(PortError, match=words):
        Ports([PortSpec(1, "lo")], PortOptions(threads=threads))


def test_captures_need_one_thread(tmp_path: Path) -> None:
    specs = [PortSpec(1, "lo"), PortSpec(2, "nothere")]
    with pytest.raises(PortError, match="captures need a switch of one thread"):
        Ports(specs, PortOptions(threads=2, captures=tmp_path))


def test_an_interface_that_is_missing_for_a_later_thread_opens_none(network: MakeNetwork) -> None:
    net = network(2)
    with net.inside(net.switch), pytest.raises(PortError, match="no such interface"):
        Ports([PortSpec(1, net.port_interface(1)), PortSpec(2, "nothere")], PortOptions(threads=2))
