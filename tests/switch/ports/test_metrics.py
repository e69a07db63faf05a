# SPDX-License-Identifier: Apache-2.0
"""A running switch as operators see it: metrics, the version, p4runtime-shell, a stderr without gRPC's lines."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from google.protobuf import text_format

from inagg_switch import Switch
from inagg_switch._ports import ProgramControl
from inagg_switch.metrics import MetricsServer, SwitchMetrics
from inagg_switch.p4runtime.server import ServerError, SwitchServer
from inagg_switch.ports import Ports
from tests import INAGG_P4
from tests.switch.network import MakeNetwork
from tests.switch.p4runtime.client import SMALL_P4, Connect, arp_entry, delete, insert, table_id
from tests.switch.ports.fan_out import OFTEN, flood, start_switch
from tests.waiting import wait_until


def samples(text: str) -> dict[str, float]:
    """Prometheus' text format: 'name{labels}' -> value."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@pytest.fixture
def scrape(tmp_path: Path) -> Iterator[Callable[[], dict[str, float]]]:
    """The metrics of a switch without ports, with P4Runtime at s.sock."""
    ports = Ports([])
    server = SwitchServer(ports, device_id=1, address=f"unix:{tmp_path}/s.sock")
    metrics = MetricsServer("127.0.0.1:0", SwitchMetrics(ports, server))
    server.start()
    yield lambda: samples(httpx.get(f"http://127.0.0.1:{metrics.port}/metrics").raise_for_status().text)
    metrics.stop()
    server.stop()


def test_metrics_show_the_program_its_entries_and_p4runtime(
    scrape: Callable[[], dict[str, float]], tmp_path: Path, connect: Connect, inagg: Switch
) -> None:
    before = scrape()
    assert before[f'inagg_switch_info{{version="{version("inagg")}"}}'] == 1
    assert before["inagg_switch_program_loaded"] == before["inagg_switch_program_loads_total"] == 0
    lead = connect(f"unix:{tmp_path}/s.sock")
    lead.arbitrate()
    lead.next()
    lead.configure(inagg)
    entries = [arp_entry(inagg, ip) for ip in range(1, 12)]
    lead.write(*map(insert, entries))
    lead.write(delete(entries[4]))
    with pytest.raises(Exception, match="failed"):
        lead.write(insert(entries[0]))
    lead.read()
    found = scrape()
    name = next(
        t.preamble.name for t in inagg.p4info.tables if t.preamble.id == table_id(inagg, "arp_responder")
    )
    assert found[f'inagg_switch_table_entries{{table="{name}"}}'] == 10
    assert found["inagg_switch_program_loaded"] == found["inagg_switch_program_loads_total"] == 1
    calls = {
        match[1]: value
        for key, value in found.items()
        if (match := re.fullmatch(r"inagg_switch_p4runtime_calls_total{(.*)}", key))
    }
    assert calls == {
        'method="Read",status="OK"': 1,
        'method="SetForwardingPipelineConfig",status="OK"': 1,
        'method="Write",status="OK"': 2,
        'method="Write",status="UNKNOWN"': 1,
    }
    assert found['inagg_switch_p4runtime_open{method="StreamChannel"}'] == 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 16])
def test_entries_are_counted(count: int) -> None:
    with Switch.from_p4(SMALL_P4) as program:
        (table,) = (t for t in program.p4info.tables if t.preamble.name.endswith(".forward"))
        field = table.match_fields[0].name
        for value in range(count):
            program.insert("forward", {field: value}, "send", {"port": 1})
        control = ProgramControl(program.api_address, program.handle)
        assert control.table_count(table.preamble.id) == count


def test_an_address_that_metrics_cannot_use_is_explained() -> None:
    ports = Ports([])
    switch = SwitchServer(ports, device_id=1, address="127.0.0.1:0")
    metrics = SwitchMetrics(ports, switch)
    with pytest.raises(ServerError, match="expected HOST:PORT"):
        MetricsServer("9561", metrics)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ServerError, match=f"cannot serve metrics at 127.0.0.1:{port}: Address already in use"
        ):
            MetricsServer(f"127.0.0.1:{port}", metrics)
    switch.stop()


def test_connections_without_a_request_are_bounded_and_end(capfd: pytest.CaptureFixture[str]) -> None:
    ports = Ports([])
    server = SwitchServer(ports, device_id=1, address="127.0.0.1:0")
    metrics = MetricsServer("127.0.0.1:0", SwitchMetrics(ports, server), most_connections=2, request_s=1)
    url = f"http://127.0.0.1:{metrics.port}/metrics"

    def answered() -> bool:
        try:
            return httpx.get(url).status_code == 200
        except httpx.TransportError:
            return False

    try:
        with ExitStack() as stack:
            address = ("127.0.0.1", metrics.port)
            silent, slow, third = (
                stack.enter_context(socket.create_connection(address, 20)) for _ in range(3)
            )
            slow.sendall(b"GET /metr")
            assert third.recv(1) == b""
            assert silent.recv(1) == b""
            wait_until(answered, "room for a request")
        assert capfd.readouterr().err == ""
    finally:
        metrics.stop()
        server.stop()


@pytest.mark.netns
def test_a_switch_counts_its_ports_packets_and_prints_no_lines_of_grpc(
    network: MakeNetwork, switch_command: list[str]
) -> None:
    net = network(2)
    arguments = ["run", str(INAGG_P4), *net.port_arguments, "--metrics", "127.0.0.1:9561"]
    process = net.start_and_wait(net.switch, *switch_command, *arguments)

    def counted() -> dict[str, float]:
        with net.inside(net.switch):
            return samples(httpx.get("http://127.0.0.1:9561/metrics").text)

    received = 'inagg_switch_port_packets_total{direction="rx",interface="port1",port="1"}'
    with net.packet_socket(1) as raw:
        before = counted()[received]
        for _ in range(5):
            raw.send(b"\xff" * 12 + b"\x88\xb5" + bytes(50))
        wait_until(lambda: counted()[received] >= before + 5, "the packets to be counted")
    assert counted()['inagg_switch_port_up{interface="port2",port="2"}'] == 1
    assert 'inagg_switch_port_drops_total{interface="port1",port="1",reason="rx_no_program"}' in counted()
    # A second switch at the same address: gRPC would print an error of its own, with a line of its source.
    second = net.start(net.switch, *switch_command, "run", *net.port_arguments)
    _, said = second.communicate(timeout=30)
    assert second.returncode == 2
    assert "in use" in said
    assert "add_port" not in said
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0, said
    assert not re.search(r"^[EWI]\d{4} ", said, re.MULTILINE)


@pytest.mark.netns
def test_multicasts_that_leave_once_are_counted(
    network: MakeNetwork, switch_command: list[str], tmp_path: Path, connect: Connect
) -> None:
    net = network(3)
    start_switch(net, switch_command, tmp_path, connect, "--metrics", "127.0.0.1:9561")

    def counted(name: str) -> float:
        with net.inside(net.switch):
            return samples(httpx.get("http://127.0.0.1:9561/metrics").text)[f"inagg_switch_fan_out_{name}"]

    assert (counted("devices"), counted("packets_total")) == (0, 0)
    flood(net, 2 * OFTEN)
    wait_until(lambda: counted("devices") == 1, "a device")
    before = counted("packets_total")
    flood(net)
    wait_until(lambda: counted("packets_total") >= before + OFTEN, "the packets to be counted")


def test_the_users_verbosity_of_grpc_stays() -> None:
    code = "import inagg_p4runtime.quiet, os; print(os.environ['GRPC_VERBOSITY'])"
    for own, expected in ({}, "NONE"), ({"GRPC_VERBOSITY": "DEBUG"}, "DEBUG"):
        environment = {**{k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}, **own}
        said = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
        )
        assert said.stdout.strip() == expected


def test_the_version(switch_command: list[str]) -> None:
    done = subprocess.run([*switch_command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"inagg-switch {version('inagg')}\n")


def test_p4runtime_shell_opens(
    switch_command: list[str], p4runtime_server: Callable[[], str], tmp_path: Path, inagg: Switch
) -> None:
    (tmp_path / "p4info.txtpb").write_text(text_format.MessageToString(inagg.p4info))
    (tmp_path / "inagg.p4").write_text(inagg.source)
    command = [*switch_command, "shell", "--grpc-addr", p4runtime_server(), "--device-id", "1"]
    command += ["--election-id", "0,1", "--config", f"{tmp_path}/p4info.txtpb,{tmp_path}/inagg.p4"]
    typed = """
entry = multicast_group_entry(5)
entry.add(3, 1)
entry.insert()
multicast_group_entry(5).read(lambda e: print("read", e.group_id, len(e.replicas)))
registers()
register_entry["slot_final"](index=3, value=7).modify()
print([e.value for e in register_entry["slot_final"](index=3).read()])
print(sum(e.value for e in register_entry["slot_final"].read()), "in all")
register_entry["slot_final"](index=3, value=256).modify()
register_entry["slot_final"](index=16384).read(print)
register_entry["nothing"]
"""
    home = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "TERM": "dumb"}
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=100, env=home)
    for expected in (
        "read 5 1",
        "InaggIngress.slots.slot_final  16384 x bit<8>",
        "[7]",
        "7 in all",
        "256 is not a value of register InaggIngress.slots.slot_final, a bit<8>",
        "register InaggIngress.slots.slot_final has the indices 0 to 16383, not 16384",
        "the program has no register nothing; there are: InaggIngress.slot_epoch, ",
    ):
        assert expected in done.stdout + done.stderr, done.stdout + done.stderr
