# SPDX-License-Identifier: Apache-2.0
"""A running switch has few capabilities, and does with them all that it did as root. It needs no root either."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.privileges import as_nobody, capabilities_of, home_of_nobody, user_of
from tests.switch.network import MakeNetwork, Network
from tests.switch.p4runtime.client import Connect
from tests.switch.ports.fan_out import (
    FAN_OUT_P4,
    devices_of,
    flood,
    packet_socket,
    skip_unless_kernel_clones,
    start_switch,
)
from tests.switch.ports.frames import PROBE_FRAME
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

# The switch gives up the capability by which other commands of these tests do.
READS_THE_CLONE = "dac_override"
CAP_DAC_OVERRIDE, CAP_NET_ADMIN, CAP_NET_RAW = 1, 12, 13  # linux/capability.h


@pytest.fixture(scope="module")  # the program is compiled once
def home() -> Iterator[Path]:
    with home_of_nobody() as folder:
        yield folder


def program_in(home: Path) -> Path:
    """A copy of the program where nobody may read it."""
    program = home / "program.p4"
    program.write_bytes(FAN_OUT_P4.read_bytes())
    return program


def bring_back(net: Network, number: int) -> None:
    """Removes the interface of a port, and makes another one with its name; waits until frames pass."""
    net.run(net.switch, f"ip link delete {net.port_interface(number)}")
    net.add_link(number)
    await_frame(net, number)


def await_frame(net: Network, number: int) -> None:
    with packet_socket(net, net.host(1)) as raw, packet_socket(net, net.host(number)) as receiver:
        receiver.setblocking(False)

        def arrives() -> bool:
            raw.send(PROBE_FRAME)
            try:
                return bool(receiver.recv(100))
            except BlockingIOError:
                return False

        wait_until(arrives, f"a frame at host {number}")


def test_no_thread_of_a_switch_keeps_a_capability_that_it_does_not_need(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net = network(2)
    process = start_switch(net, switch_command, tmp_path, connect, "--threads", "2", program=FAN_OUT_P4)
    flood(net, 1)
    found = capabilities_of(process.pid)
    kept = {CAP_DAC_OVERRIDE, CAP_NET_ADMIN, CAP_NET_RAW}
    assert found["CapEff"] == found["CapPrm"] == found["CapBnd"] == kept
    assert found["CapInh"] == found["CapAmb"] == set()
    assert found["NoNewPrivs"] == {1}


def test_a_port_goes_on_after_its_interface_was_down_or_was_made_again(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net = network(2)
    start_switch(net, switch_command, tmp_path, connect, program=FAN_OUT_P4)
    flood(net, 3)
    net.run(net.switch, f"ip link set {net.port_interface(2)} down")
    net.run(net.switch, f"ip link set {net.port_interface(2)} up")
    await_frame(net, 2)
    bring_back(net, 2)
    flood(net, 3)


def test_the_kernel_clones_for_a_switch_with_the_capabilities_that_are_left(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net = network(3)
    skip_unless_kernel_clones(net)
    start_switch(net, switch_command, tmp_path, connect, program=FAN_OUT_P4)

    def made() -> bool:
        flood(net)
        return devices_of(net) != []

    wait_until(made, "a device")


def test_root_writes_into_the_folder_of_the_user_that_called_sudo(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> None:
    net = network(1)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    program = home / "p.p4"
    program.write_bytes(FAN_OUT_P4.read_bytes())
    program.chmod(0o600)
    os.chown(program, 65534, 65534)
    arguments = ["run", str(program), *net.port_arguments, "--stats", str(home / "stats.json")]
    process = net.start_and_wait(net.switch, *switch_command, *arguments, "--grpc", f"unix:{home}/s.sock")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert json.loads((home / "stats.json").read_text())["ports"][0]["interface"] == "port1"
    assert not (home / "s.sock").exists()


@pytest.mark.parametrize("capabilities", [("net_raw",), ("net_raw", "net_admin")])
def test_a_switch_runs_as_an_ordinary_user_with_its_capabilities(
    network: MakeNetwork,
    switch_command: list[str],
    home: Path,
    connect: Connect,
    capabilities: tuple[str, ...],
) -> None:
    net = network(3)
    command = [*as_nobody(home, *capabilities, READS_THE_CLONE), *switch_command]
    process = start_switch(net, command, home, connect, program=program_in(home))
    assert user_of(process.pid) != 0
    flood(net, 3)
    bring_back(net, 2)
    flood(net, 3)
    numbers = {"net_raw": CAP_NET_RAW, "net_admin": CAP_NET_ADMIN, READS_THE_CLONE: CAP_DAC_OVERRIDE}
    assert capabilities_of(process.pid)["CapEff"] == {
        numbers[name] for name in (*capabilities, READS_THE_CLONE)
    }


def test_an_ordinary_user_with_its_capabilities_clones_too(
    network: MakeNetwork, switch_command: list[str], home: Path, connect: Connect
) -> None:
    net = network(3)
    skip_unless_kernel_clones(net)
    command = [*as_nobody(home, "net_raw", "net_admin", READS_THE_CLONE), *switch_command]
    start_switch(net, command, home, connect, program=program_in(home))

    def made() -> bool:
        flood(net)
        return devices_of(net) != []

    wait_until(made, "a device")
