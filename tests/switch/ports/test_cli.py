# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch`: errors that a user can act on, and a switch between network namespaces."""

import json
import logging
import os
import signal
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from scapy.utils import rdpcap

from inagg_switch.console.wire import ask
from inagg_switch.p4runtime.device_config import as_json
from inagg_switch.program_log import ProgramLog
from tests import BRIDGE_P4, INAGG_P4
from tests.switch import PROGRAMS
from tests.switch.network import MakeNetwork
from tests.switch.p4runtime.client import Connect
from tests.switch.ports.fan_out import OFTEN, flood, start_switch
from tests.switch.snippets import v1program


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)


def assert_user_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("text", ["veth1", "1@", "@veth1", "x@veth1", "511@veth1", "-1@veth1"])
def test_a_bad_port_is_explained(switch_command: list[str], text: str) -> None:
    assert_user_error(run(switch_command, "run", f"--port={text}"), f"port {text!r}")


def test_a_port_is_required(switch_command: list[str]) -> None:
    assert_user_error(run(switch_command, "run"), "--port")


def test_a_bad_macro_is_explained(switch_command: list[str]) -> None:
    assert_user_error(run(switch_command, "run", "--port", "1@x", "-D", "=1"), "NAME=VALUE")


def test_a_missing_program_is_explained(switch_command: list[str]) -> None:
    done = run(switch_command, "run", "nothere.p4", "--port", "1@x")
    assert_user_error(done, "nothere.p4: No such file or directory")


def test_a_program_that_does_not_compile_is_explained(switch_command: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.p4"
    bad.write_text("header h {\n    bit<8> a\n}\n")
    for arguments in (["run", str(bad), "--port", "1@x"], ["compile", str(bad), "-o", str(tmp_path / "out")]):
        done = run(switch_command, *arguments)
        assert_user_error(done)
        assert done.stderr.startswith(f"{bad}:3:1: error:")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["compile", "explain"])
def test_includes_are_found_in_the_folders_of_an_option(
    switch_command: list[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "inner.p4").write_text("const bit<8> a = b;\n")
    program = tmp_path / "main.p4"
    program.write_text("#include <inner.p4>\n")
    output = ["-o", str(tmp_path / "out")] if command == "compile" else []
    done = run(switch_command, command, str(program), *output)
    assert done.stderr.startswith(f"{program}:1:10: error: inner.p4: No such file or directory")
    done = run(switch_command, command, str(program), *output, "-I", str(tmp_path / "there"))
    assert done.stderr.startswith(f"{tmp_path / 'there' / 'inner.p4'}:1:18: error: `b` is not declared")


def test_compile_writes_p4info_and_a_device_config_that_compiles_to_the_same(
    switch_command: list[str], tmp_path: Path
) -> None:
    done = run(switch_command, "compile", str(INAGG_P4), "-o", str(tmp_path / "a"), "-D", "WORDS=2")
    assert done.returncode == 0, done.stderr
    device_config = tmp_path / "a" / "inagg.p4"
    assert run(switch_command, "compile", str(device_config), "-o", str(tmp_path / "b")).returncode == 0
    for name in ("p4info.txtpb", "inagg.p4"):
        # cpp may put more blanks around what it has expanded once more.
        first, second = ((tmp_path / folder / name).read_text().split() for folder in "ab")
        assert first == second
    assert as_json((tmp_path / "a" / "inagg.p4").read_text()) == (tmp_path / "a" / "inagg.json").read_text()
    assert '#include "v1model.hpp"' in (tmp_path / "a" / "inagg.cpp").read_text()


@pytest.mark.netns
@pytest.mark.parametrize("linked", [False, True])
def test_compile_does_not_write_over_its_program(
    switch_command: list[str], tmp_path: Path, linked: bool
) -> None:
    program = tmp_path / "p.p4"
    program.write_text("#include <v1model.p4>\n")
    output = tmp_path
    if linked:
        output = tmp_path / "out"
        output.mkdir()
        (output / "p.p4").symlink_to(program)
    assert_user_error(run(switch_command, "compile", str(program), "-o", str(output)), "p.p4", "--output")
    assert program.read_text() == "#include <v1model.p4>\n"
    assert {path.name for path in output.iterdir()} == {"p.p4"}


def test_a_missing_interface_is_explained(switch_command: list[str]) -> None:
    done = run(switch_command, "run", "--port", "1@isw-nothere")
    assert_user_error(done, "port 1@isw-nothere: there is no such interface")


@pytest.mark.netns
def test_a_missing_permission_is_explained(network: MakeNetwork, switch_command: list[str]) -> None:
    net = network(1)
    # Root without CAP_NET_RAW and CAP_NET_ADMIN.
    command = [
        "ip",
        "netns",
        "exec",
        net.switch,
        "setpriv",
        "--bounding-set=-net_raw,-net_admin",
        *switch_command,
    ]
    assert_user_error(run(command, "run", *net.port_arguments), "port 1@port1: no permission", "CAP_NET_RAW")


@pytest.mark.netns
def test_an_address_in_use_is_explained(network: MakeNetwork, switch_command: list[str]) -> None:
    net = network(1)
    with net.inside(net.switch), socket.create_server(("127.0.0.1", 9559)):
        command = ["ip", "netns", "exec", net.switch, *switch_command]
        assert_user_error(run(command, "run", *net.port_arguments), "127.0.0.1:9559", "in use")


@pytest.mark.netns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_switch_says_ready_serves_and_stops_cleanly(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    net = network(2)
    path, figures = tmp_path / "s.sock", tmp_path / "stats.json"
    arguments = ["run", *net.port_arguments, "--grpc", f"unix:{path}", "--stats", str(figures)]
    process = net.start_and_wait(net.switch, *switch_command, *arguments)
    assert path.is_socket()
    with net.packet_socket(1) as raw:
        raw.send(b"\xff" * 12 + struct.pack("!H", 0x88B5) + b"dropped: there is no program")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err
    assert not path.exists()
    found = json.loads(figures.read_text())
    assert [port["interface"] for port in found["ports"]] == ["port1", "port2"]
    assert all(port["up"] for port in found["ports"])
    assert found["fan_out"] == {"devices": 0, "packets": 0, "refusal": None}


@pytest.mark.netns
def test_a_switch_with_open_connections_leaves_nothing_behind(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net, path = network(1), tmp_path / "s.sock"
    places = ("--console", "127.0.0.1:9090", "--metrics", "127.0.0.1:9561", "--grpc", f"unix:{path}")
    process = net.start_and_wait(net.switch, *switch_command, "run", *net.port_arguments, *places)
    controller = connect(f"unix:{path}")
    controller.arbitrate()
    controller.next()
    with net.inside(net.switch):
        console = socket.create_connection(("127.0.0.1", 9090), 20)
        metrics = socket.create_connection(("127.0.0.1", 9561), 20)
    with console, metrics, console.makefile("rwb") as stream:
        assert "Commands" in ask(stream, "help").text
        metrics.sendall(b"GET /metrics HTTP/1.0\r\n")  # no more
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    said = [line.partition(": ")[2] for line in err.splitlines()]
    assert said[0].startswith("threads: ")
    assert said[1:] == ["stream ended: the switch is stopping"]


@pytest.mark.netns
def test_a_program_given_on_the_command_line_runs_at_once(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> None:
    net = network(2)
    arguments = ["run", str(INAGG_P4), *net.port_arguments, "--grpc", f"unix:{tmp_path}/s.sock"]
    process = net.start_and_wait(net.switch, *switch_command, *arguments)
    # Without a controller there is no flood group. Unicast to a learned address works.
    with net.packet_socket(1) as first, net.packet_socket(2) as second:
        first.send(frame(dst=2, src=1, payload=b"learn 1"))
        second.send(frame(dst=1, src=2, payload=b"to 1"))
        while (data := first.recv(2000))[14:] != b"to 1":
            pass
        assert data == frame(dst=1, src=2, payload=b"to 1")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.netns
def test_commands_are_carried_out_before_the_first_packet(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> None:
    net, commands = network(3), tmp_path / "commands.txt"
    commands.write_text("# floods\n\nmc_mgrp_create 1\nmc_node_create 0 1 2 3\nmc_node_associate 1 0\n")
    arguments = ["run", str(BRIDGE_P4), *net.port_arguments, "--commands", str(commands)]
    process = net.start_and_wait(net.switch, *switch_command, *arguments)
    with net.packet_socket(1) as first, net.packet_socket(2) as second, net.packet_socket(3) as third:

        def received(receiver: socket.socket, until: bytes) -> list[bytes]:
            """The payloads of a host, up to this one."""
            found = [b""]
            while found[-1] != until:
                found.append(receiver.recv(2000)[14:])
            return found

        first.send(frame(dst=2, src=1, payload=b"flooded"))
        received(second, b"flooded")
        received(third, b"flooded")
        second.send(frame(dst=1, src=2, payload=b"to 1"))
        assert b"flooded" not in received(first, b"to 1")
        third.send(frame(dst=2, src=3, payload=b"to 2"))
        assert b"to 1" not in received(second, b"to 2")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.netns
@pytest.mark.parametrize(
    ("program", "content", "words"),
    [
        (
            [str(BRIDGE_P4)],
            b"mc_mgrp_create 1\nmc_node_associate 1 7\n",
            ":2: `mc_node_associate 1 7`: Invalid",
        ),
        ([str(BRIDGE_P4)], b"nonsense 1\n", ":1: `nonsense 1`: *** Unknown syntax"),
        ([str(BRIDGE_P4)], b"\xff\n", "it is not text"),
        ([], b"mc_mgrp_create 1\n", "there is no PROGRAM to carry them out on"),
    ],
)
def test_commands_that_cannot_be_carried_out_are_explained(
    network: MakeNetwork,
    switch_command: list[str],
    tmp_path: Path,
    program: list[str],
    content: bytes,
    words: str,
) -> None:
    net, commands = network(1), tmp_path / "commands.txt"
    commands.write_bytes(content)
    arguments = ["run", *program, *net.port_arguments, "--commands", str(commands)]
    with net.inside(net.switch):
        assert_user_error(run(switch_command, *arguments), words)


@pytest.mark.netns
@pytest.mark.parametrize(("option", "devices"), [("--fan-out", 1), ("--no-fan-out", 0)])
def test_an_option_turns_fan_out_devices_off(
    network: MakeNetwork,
    switch_command: list[str],
    tmp_path: Path,
    connect: Connect,
    option: str,
    devices: int,
) -> None:
    net = network(3)
    process = start_switch(net, switch_command, tmp_path, connect, option, "--log-level", "debug")
    flood(net, 2 * OFTEN)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)  # a device that was asked for is made before the end
    assert process.returncode == 0, err
    assert err.count("fan0 clones to port2, port3") == devices


@pytest.mark.netns
@pytest.mark.parametrize(
    ("options", "names"), [((), ("port11", "port12")), (("--pcap-by-interface",), ("port1", "port2"))]
)
def test_packets_are_captured_by_port_and_direction_and_traced(
    options: tuple[str, ...],
    names: tuple[str, str],
    network: MakeNetwork,
    switch_command: list[str],
    tmp_path: Path,
) -> None:
    net = network(2)
    program = PROGRAMS / "state.p4"
    ports = ["--port", "11@port1", "--port", "12@port2"]
    arguments = ["run", str(program), *ports, "--grpc", f"unix:{tmp_path}/s.sock",
                 "--pcap", str(tmp_path / "captures"), *options, "--trace"]  # fmt: skip
    process = net.start_and_wait(net.switch, *switch_command, *arguments)
    assert process.stdout is not None
    sent = b"\x02\0\0\0\0\x07" + bytes(54)  # to tell this frame from those that the kernel sends
    with net.packet_socket(1) as first:
        first.send(sent)
        while process.stdout.readline() != "packet of 60 bytes received on port 11\n":
            pass
        assert process.stdout.readline().startswith("    parser ")
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert {path.name for path in (tmp_path / "captures").iterdir()} == {
        f"{name}_{way}.pcap" for name in names for way in ("in", "out")
    }
    captured = rdpcap(str(tmp_path / "captures" / f"{names[0]}_in.pcap"))
    assert sent in [bytes(packet) for packet in captured]


@pytest.mark.netns
def test_a_switch_whose_trace_nobody_reads_ends(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> None:
    net = network(2)
    program = PROGRAMS / "state.p4"
    arguments = [str(program), *net.port_arguments, "--grpc", f"unix:{tmp_path}/s.sock", "--trace"]
    process = net.start_and_wait(net.switch, *switch_command, "run", *arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with net.packet_socket(1) as first:
        first.send(b"\x02\0\0\0\0\x07" + bytes(54))
    assert process.wait(20) == 0
    assert "Traceback" not in process.stderr.read()


@pytest.mark.netns
def test_messages_and_failed_assertions_of_a_program_are_in_the_log(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> None:
    net = network(2)
    program = tmp_path / "says.p4"
    program.write_text(
        v1program('if (hdr.h.a == 7) { log_msg("b is {}", { hdr.h.b }); assert(hdr.h.b == 1); }')
    )
    arguments = ["run", str(program), *net.port_arguments, "--grpc", f"unix:{tmp_path}/s.sock"]
    process = net.start_and_wait(net.switch, *switch_command, *arguments)
    assert process.stderr is not None
    lines = []
    with net.packet_socket(1) as first:
        for b in (1, 2):
            first.send(bytes([7, b]) + bytes(58))
            while " is " not in (line := process.stderr.readline()):
                assert line
            lines.append(line)
        # The first packet went to port 0, and the log may say so before.
        while "Assert" not in (line := process.stderr.readline()):
            assert line
        lines.append(line)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    said = [line.split(" ", 2)[2].strip() for line in lines]
    assert said[:2] == [f"INFO inagg_switch.program_log: b is {b}" for b in (1, 2)]
    assert said[2].startswith("WARNING inagg_switch.program_log: Assert error")


def test_waiting_messages_are_bounded_and_lost_messages_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = ProgramLog(max_waiting=2)
    for number in range(5):
        log.write(f"message {number}")
    caplog.set_level(logging.INFO)
    log.start()
    log.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "message 0",
        "3 lines of the program were lost: it has more than can be written",
        "message 1",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpu-port", "511"], ["CPU port 511", "between 1 and 510"]),
        (["--tls-cert", "x.pem"], ["--tls-key"]),
        (["--threads", "65"], ["--threads", "less than or equal to 64"]),
    ],
)
def test_bad_options_are_explained(switch_command: list[str], arguments: list[str], words: list[str]) -> None:
    assert_user_error(run(switch_command, "run", "--port", "1@x", *arguments), *words)


def frame(dst: int, src: int, payload: bytes) -> bytes:
    return (
        b"\x02\0\0\0\0" + bytes([dst]) + b"\x02\0\0\0\0" + bytes([src]) + struct.pack("!H", 0x88B5) + payload
    )
