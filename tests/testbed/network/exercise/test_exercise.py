# SPDX-License-Identifier: Apache-2.0
"""A testbed from a topology.json, in network namespaces, with switches that run P4: `inagg up --topology`."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from typer.testing import CliRunner

from inagg_testbed.cli.main import app
from inagg_testbed.errors import ConfigurationError, MissingRequirementError, NetworkError
from inagg_testbed.network.exercise.relay import Relay
from inagg_testbed.network.exercise.testbed import open_exercise
from inagg_testbed.network.lifecycle import tagged_processes
from inagg_testbed.network.requirements import has_netem
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.operate import switch_reader
from inagg_testbed.operate.capture import find_place
from inagg_testbed.operate.shell import operate
from inagg_testbed.operate.status import document, take_snapshot, troubles
from tests.free_ports import free_port
from tests.testbed.network.exercise.folders import ROUTES, route, runtimes, topology, write_exercise
from tests.waiting import wait_until

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exercise")


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def testbed(folder: Path, grpc_port: int) -> Iterator[Testbed]:
    """The small exercise. h1 has two further commands: one that fails, one that goes on."""
    described = topology()
    described["hosts"]["h1"]["commands"] += ["ls /nosuch", "sleep 1000 &"]
    described["switches"]["s2"] |= {"cpu_port": "200", "priority_queues": 2}
    with open_exercise(
        write_exercise(folder / "files", described),
        results_root=folder / "results",
        state_dir=folder / "state",
        grpc_port=grpc_port,
        options=SwitchOptions(trace=True, pcap=folder / "captures"),
    ) as up:
        yield up
        run = up.run.id
    assert tagged_processes(run, besides=0) == []


def in_host(testbed: Testbed, number: int, script: str) -> str:
    return run_in_namespace(testbed.network.host(number).pid, script)


def test_hosts_reach_each_other(testbed: Testbed) -> None:
    in_host(testbed, 1, "ping -c 1 -W 5 10.0.2.2")
    in_host(testbed, 2, "ping -c 1 -W 5 h1")


def test_links_have_the_files_bandwidth(testbed: Testbed) -> None:
    for switch in ("s1", "s2"):
        interface = testbed.network.ports(switch)[2]
        shown = run_in_namespace(testbed.network.pid_of(switch), f"tc qdisc show dev {interface}")
        assert "rate 10Mbit" in shown


def test_links_have_the_files_latency(tmp_path: Path) -> None:
    if not has_netem():
        pytest.skip("the kernel has no netem")
    path = write_exercise(tmp_path, topology(latency="20ms"))
    with open_exercise(
        path, results_root=tmp_path, state_dir=tmp_path / "state", grpc_port=free_port()
    ) as made:
        said = in_host(made, 1, "ping -c 1 -W 5 10.0.2.2")
        assert (found := re.search(r"time=([\d.]+) ms", said)) is not None, said
        assert float(found[1]) >= 40
        shown = run_in_namespace(made.network.pid_of("s1"), "tc qdisc show")
        assert "rate 10Mbit" in shown


def test_without_netem_a_latency_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_testbed.network.exercise.testbed.has_netem", lambda: False)
    path = write_exercise(tmp_path, topology(latency="20ms"))
    with (
        pytest.raises(MissingRequirementError, match="links with a latency need netem"),
        open_exercise(path, results_root=tmp_path, grpc_port=free_port()),
    ):
        pass


def test_hosts_have_what_the_exercises_scripts_expect(testbed: Testbed) -> None:
    assert "10.0.1.1/24" in in_host(testbed, 1, "ip addr show dev eth0")
    assert "08:00:00:00:01:11" in in_host(testbed, 1, "ip link show dev eth0")
    assert "tx-checksumming: off" in in_host(testbed, 1, "ethtool -k eth0")
    assert "/nosuch" in (testbed.results / "h1.log").read_text()
    assert "sleep" in {Path(f"/proc/{each.pid}/comm").read_text().strip() for each in tagged(testbed)}


def tagged(testbed: Testbed) -> list[Any]:
    return tagged_processes(testbed.run.id, besides=0)


def test_controllers_find_each_switch_at_its_port(testbed: Testbed, grpc_port: int) -> None:
    for device_id, entries in ((0, 2), (1, 3)):
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port + device_id}") as channel:
            request = p4runtime_pb2.ReadRequest(device_id=device_id)
            request.entities.add().table_entry.table_id = 0
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            (answer,) = stub.Read(request, timeout=10)
            assert len(answer.entities) == entries


def test_the_commands_that_look_into_a_testbed_know_it(
    testbed: Testbed, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = testbed.run.manifest
    assert find_place(manifest, "h2").interface == "eth0"
    assert find_place(manifest, "s2-p1") == find_place(manifest, "s2:1")
    for unknown in ("s2-p9", "ctl0", "s1"):
        with pytest.raises(ConfigurationError):
            find_place(manifest, unknown)
    operate(manifest, ["pingall"])
    assert "0% dropped (2/2 received)" in capfd.readouterr().out
    snapshot = take_snapshot(manifest)
    found = document(manifest, snapshot, take_snapshot(manifest))
    assert troubles(found) == []
    assert {(link["lower"], link["upper"]): link["rate_bps"] for link in found["links"]} == {
        ("s2:2", "s1:2"): 10_000_000,
        ("h1", "s1:1"): None,
        ("h2", "s2:1"): None,
    }


def test_registers_of_each_switch_can_be_read(testbed: Testbed) -> None:
    in_host(testbed, 2, "ping -c 1 -W 5 -t 78 10.0.1.1")
    for switch, expected in (("s1", {1: 64, 2: 78}), ("s2", {1: 78, 2: 64})):
        with switch_reader.opened(testbed.run.manifest, switch) as reader:
            found = reader.read(reader.find("last_ttl"))
        assert {port: ttl for port, ttl in found.items() if ttl} == expected


def test_switches_write_their_traces_and_captures(testbed: Testbed, folder: Path) -> None:
    in_host(testbed, 1, "ping -c 1 -W 5 10.0.2.2")
    log = testbed.results / "switch-s2.log"
    wait_until(lambda: "table I.routes: hit" in log.read_text(), "the trace of s2")
    assert (folder / "captures" / "s2" / "port1_out.pcap").stat().st_size > 24
    (s2,) = (each for each in testbed.services if each.name == "switch s2")
    assert {"--cpu-port 200", "--priority-queues 2"} <= {" ".join(pair) for pair in pairwise(s2.command)}


def test_a_switch_that_is_started_again_has_its_entries(testbed: Testbed) -> None:
    testbed.restart("s2")
    in_host(testbed, 1, "ping -c 1 -W 5 10.0.2.2")


def up(folder: Path, *options: str) -> Any:
    port = str(free_port())
    return CliRunner().invoke(
        app,
        ["up", "--results", str(folder / "r"), "--grpc-port", port, *options],
    )


def test_a_table_that_the_program_lacks_is_named_with_file_and_entry(tmp_path: Path) -> None:
    wrong = runtimes()
    wrong["s2"]["table_entries"][1] = route("10.0.1.0", 24, "08:00:00:00:01:00", 2) | {"table": "I.nosuch"}
    done = up(tmp_path, "--topology", str(write_exercise(tmp_path, runtime_jsons=wrong)))
    assert done.exit_code == 1
    assert "s2.json: table_entries.1: the program has no table `I.nosuch`" in done.output.replace("\n", " ")


def test_an_entry_that_the_switch_refuses_is_named_with_file_and_entry(tmp_path: Path) -> None:
    wrong = runtimes()
    wrong["s1"]["table_entries"].append(wrong["s1"]["table_entries"][0])
    done = up(tmp_path, "--topology", str(write_exercise(tmp_path, runtime_jsons=wrong)))
    assert done.exit_code == 1
    assert "s1.json: table_entries.2: the switch refuses the entry: " in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    "options",
    [("--workers", "2"), ("--no-controller",), ("--switch", "bmv2"), ("--link", "1gbit"), ("--pool", "8")],
)
def test_options_that_a_file_leaves_no_place_for_are_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = up(tmp_path, "--topology", str(write_exercise(tmp_path)), *options)
    assert done.exit_code == 1
    assert re.search(rf"{options[0]}(/-\S+)?: a topology file says", done.output)
    assert not (tmp_path / "r").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127.0.0.1:{port}, for P4Runtime, is not free"):
            Relay(port, 2)


def test_a_relay_passes_both_ways_until_either_side_ends(tmp_path: Path) -> None:
    path, port = tmp_path / "socket", free_port()
    with socket.socket(socket.AF_UNIX) as server, Relay(port, 1) as relay:
        server.bind(str(path))
        server.listen()
        server.settimeout(10)
        relay.serve([str(path)])
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        there, _ = server.accept()
        there.settimeout(10)
        client.sendall(b"ask" * 100_000)
        got = b""
        while len(got) < 300_000:
            got += there.recv(1 << 20)
        assert got == b"ask" * 100_000
        there.sendall(b"answer")
        assert client.recv(100) == b"answer"
        there.close()
        assert client.recv(100) == b""
        client.close()
        server.close()
        path.unlink()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as lost:
            assert lost.recv(100) == b""  # no server: the connection ends


def test_commands_of_simple_switch_cli_are_run_and_refusals_are_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    described = topology()
    described["switches"]["s1"] = {"cli_input": "topo/s1-commands.txt"}
    path = write_exercise(tmp_path, described)
    (tmp_path / "topo" / "s1-commands.txt").write_text(
        "table_add I.routes I.forward 10.0.1.1/32 => 08:00:00:00:01:11 1\n"
        "\n"
        "table_add I.routes I.forward 10.0.2.0/24 => 08:00:00:00:02:00 2\n"
        "table_add I.nosuch I.forward 10.0.2.0/24 => 08:00:00:00:02:00 2\n"
    )
    with open_exercise(
        path, results_root=tmp_path, state_dir=tmp_path / "state", grpc_port=free_port()
    ) as made:
        in_host(made, 1, "ping -c 1 -W 5 10.0.2.2")
        assert "s1-commands.txt:4: `table_add I.nosuch" in caplog.text
        assert "s1-commands.txt:3" not in caplog.text
        assert "Entry has been added" in (made.results / "cli-s1.log").read_text()


def test_a_command_that_takes_the_network_away_is_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    described = topology()
    described["hosts"]["h1"]["commands"] = ["ip link set eth0 down", "exit 3"]
    path = write_exercise(tmp_path, described)
    with open_exercise(
        path, results_root=tmp_path, state_dir=tmp_path / "state", grpc_port=free_port(), program=ROUTES
    ) as made:
        assert "host h1: `exit 3` ended with exit status 3" in caplog.text
        with pytest.raises(NetworkError):
            in_host(made, 1, "ping -c 1 -W 1 10.0.2.2")


def test_up_says_how_to_use_it(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "inagg_testbed", "up", "--topology", str(write_exercise(tmp_path))]
    command += ["--results", str(tmp_path / "r"), "--grpc-port", str(port)]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert keeper.stdout is not None
    lines: list[str] = []
    try:
        while not (lines and "logs:" in lines[-1]):
            lines.append(keeper.stdout.readline())
            assert lines[-1], "".join(lines)
        said = "".join(lines)
        assert "hosts h1 (10.0.1.1), h2 (10.0.2.2), switches s1, s2" in said
        assert f"127.0.0.1:{port} is s1, device id 0" in said
        assert f"127.0.0.1:{port + 1} is s2, device id 1" in said
        (p4info,) = re.findall(r"P4Info: (\S+)", said)
        (config,) = re.findall(r"device config: (\S+)", said)
        assert Path(p4info).is_file()
        assert "p4_source" in json.loads(Path(config).read_text())
    finally:
        keeper.terminate()
        keeper.communicate(timeout=60)
