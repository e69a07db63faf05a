# SPDX-License-Identifier: Apache-2.0
"""A user's P4 program between hosts: the commands of docs/switch.md, word for word."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from inagg_switch.cli.main import app as switch_app
from inagg_testbed.cli.main import app
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.switches import P4RUNTIME_ADDRESS, command_path
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.network.topology import run_in_namespace
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

MANUAL = Path(__file__).parents[2] / "docs" / "switch.md"
# Everything leaves by port OUT.
TO_ONE_PORT = """
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"
parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    state start { transition accept; }
}
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) { apply { sm.egress_spec = OUT; } }
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) { apply { } }
control V(inout headers_t h, inout metadata_t m) { apply { } }
control U(inout headers_t h, inout metadata_t m) { apply { } }
control D(packet_out packet, in headers_t h) { apply { } }
V1Switch(P(), V(), I(), E(), U(), D()) main;
"""


def test_the_manuals_program_forwards_once_its_entries_are_there(tmp_path: Path) -> None:
    section = MANUAL.read_text().partition("### On a testbed")[2].partition("\n## ")[0]
    program = tmp_path / "l2.p4"
    program.write_text(section.partition("```p4\n")[2].partition("```")[0])
    typed = "\n".join(re.findall(r"^P4Runtime sh >>> (.*)$", section, re.MULTILINE)) + "\n"
    assert "entry.insert()" in typed
    with open_testbed(
        hosts=2,
        link=LinkSpec.parse("unshaped", mtu=600),  # too small for inagg's own program
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        program=program,
        controlled=False,
    ) as testbed:
        assert [process.name for process in testbed.services] == ["switch"]
        assert "INAGG_CONTROLLER" not in testbed.node_environments()["h1"]
        host = testbed.network.host(1).pid
        assert run_in_namespace(host, "ip neighbour show") == ""  # ARP may be what the program is about

        def reached() -> bool:
            done = subprocess.run(
                ["mnexec", "-a", str(testbed.network.host(1).pid), "ping", "-c", "1", "-w", "3", "h2"],
                capture_output=True,
                check=False,
            )
            return done.returncode == 0

        assert not reached()
        switch = command_path("inagg-switch")
        shell = f"{switch} shell --grpc-addr {P4RUNTIME_ADDRESS} --device-id 1 --election-id 0,1"
        said = run_in_namespace(
            testbed.network.switch.pid,
            f"cd {tmp_path}; printf %s {shlex.quote(typed)} | HOME={tmp_path} {shell}",
        )
        assert "Error" not in said
        assert reached()

        script = tmp_path / "learn.py"
        script.write_text(section.partition("```python\n")[2].partition("```")[0])
        inside = ["mnexec", "-a", str(testbed.network.switch.pid), "sh", "-c"]
        with subprocess.Popen(
            [*inside, f"exec {shell.replace('0,1', '0,2')} < {script}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "HOME": str(tmp_path)},
        ) as learning:
            assert learning.stdout is not None
            try:
                assert learning.stdout.readline() == "learning\n"
                assert reached()
                learnt = {learning.stdout.readline() for _ in range(2)}
            finally:
                learning.kill()
        assert learnt == {"02000a000001 is at port 1\n", "02000a000002 is at port 2\n"}


def test_the_switches_options_reach_compiler_and_switch(tmp_path: Path) -> None:
    program, include, captures = tmp_path / "one.p4", tmp_path / "include", tmp_path / "captures"
    include.mkdir()
    program.write_text(TO_ONE_PORT)
    (include / "headers.p4").write_text("struct headers_t { }\nstruct metadata_t { }\n")
    options = SwitchOptions(
        define=["OUT=2"], include=[include], cpu_port=255, trace=True, pcap=captures / "of the switch"
    )
    with open_testbed(
        hosts=2,
        link=LinkSpec.parse("unshaped"),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        program=program,
        switch_options=options,
        controlled=False,
    ) as testbed:
        # packet_out of the shell needs a program with a header for it.
        typed = (
            "import p4runtime_sh.shell; from p4.v1 import p4runtime_pb2\n"
            "message = p4runtime_pb2.StreamMessageRequest()\n"
            "message.packet.payload = b'from the controller'\n"
            "p4runtime_sh.shell.client.stream_out_q.put(message)\n"
        )
        shell = f"{command_path('inagg-switch')} shell --grpc-addr {P4RUNTIME_ADDRESS} --device-id 1"
        run_in_namespace(
            testbed.network.switch.pid,
            f"printf %s {shlex.quote(typed)} | HOME={tmp_path} {shell} --election-id 0,1",
        )
        log = testbed.services[0].log_path
        wait_until(
            lambda: "packet of 19 bytes received on port 255" in log.read_text(), "the packet is traced", 10
        )
        wait_until(lambda: "sent to port 2" in log.read_text(), "it is sent", 10)
    sent = (captures / "of the switch" / "port2_out.pcap").read_bytes()
    assert sent.endswith(b"from the controller")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--switch", "bridge", "--trace"), "--pcap need a switch that runs P4 programs; a bridge does not"),
        (("--cpu-port", "7"), "--cpu-port 7: inagg's controller has port 510"),
        (("--no-controller", "--workers", "2", "--cpu-port", "2"), "--cpu-port 2: s1:2 is the port of h2"),
        (("--no-controller", "--topology", "tree:2x1", "--cpu-port", "101"), "leaf1:101 is the port of root"),
        (("-D", "WORDS=4"), "-D WORDS: the testbed sets it for inagg.p4"),
        (
            ("--switch", "bridge", "--threads", "2"),
            "--threads is for the switch model; --switch bridge has no",
        ),
        (("--threads", "3"), "--threads 3: a switch has 1, 2, 4, ... 64 threads"),
    ],
)
def test_options_that_cannot_be_are_explained_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(app, ["up", "--results", str(tmp_path / "results"), *options])
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "results").exists()


def test_a_faulty_program_is_reported_before_there_is_a_network(tmp_path: Path) -> None:
    program = tmp_path / "bad.p4"
    headers = "struct headers_t { } struct metadata_t { }"
    program.write_text(TO_ONE_PORT.replace('#include "headers.p4"', headers).replace("OUT", "nosuch"))
    options = (
        "--results",
        str(tmp_path / "results"),
        "--p4",
        str(program),
        "--no-controller",
        "--workers",
        "2",
    )
    done = CliRunner().invoke(app, ["up", *options])
    assert done.exit_code == 1
    assert re.search(r"bad.p4:8:\d+: error: `nosuch` is not declared\n", done.output)
    assert "network of" not in done.output


def test_the_switches_options_are_called_and_explained_as_inagg_switch_does() -> None:
    def described(command: str, of: typer.Typer) -> dict[str, tuple[str | None, str | None]]:
        found = typer.main.get_command(of).commands[command].params  # type: ignore[attr-defined]
        return {" ".join(each.opts): (each.help, each.metavar) for each in found if hasattr(each, "help")}

    ours, theirs = described("up", app), described("run", switch_app)
    for name in ("--define -D", "--include -I", "--cpu-port", "--trace", "--pcap"):
        assert ours[name] == theirs[name]


def test_a_program_that_is_not_inaggs_needs_no_controller(tmp_path: Path) -> None:
    program = tmp_path / "l2.p4"
    program.write_text(
        MANUAL.read_text().partition("### On a testbed")[2].partition("```p4\n")[2].partition("```")[0]
    )
    command = [sys.executable, "-m", "inagg_testbed", "up", "--workers", "1", "--p4", str(program)]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "r")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "A program that is not inagg's runs with --no-controller." in done.stderr


def test_a_bridge_runs_no_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inagg_testbed", "up", "--switch", "bridge", "--no-controller"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "r")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        "inagg: --no-controller needs a switch that runs P4 programs; a bridge does not\n",
    )
    assert not (tmp_path / "r").exists()
