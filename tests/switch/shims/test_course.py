# SPDX-License-Identifier: Apache-2.0
"""An exercise of a course, with the command lines that its Makefile and its Mininet script have."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from scapy.utils import rdpcap

from tests.switch.network import MakeNetwork, Network
from tests.switch.p4runtime.client import Connect, SetRequest
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

EXERCISE = Path(__file__).parent / "exercise.p4"
MAKEFILE = """
P4C_ARGS += --p4runtime-files build/$(basename $@).p4.p4info.txtpb

build: dirs exercise.json
%.json: %.p4
	p4c-bm2-ss --p4v 16 $(P4C_ARGS) -o build/$@ $<
dirs:
	mkdir -p build pcaps logs
"""
COMMANDS = """\
// routes of the hosts
table_set_default ipv4_lpm drop
table_add MyIngress.ipv4_lpm forward 10.0.0.1/32 => 02:00:00:00:00:01 2
table_add MyIngress.ipv4_lpm forward 10.0.0.2/32 => 02:00:00:00:00:02 3

# every packet also goes to port 4
mirroring_add 5 4
"""
CLI_PORT = 9090


class Course:
    """A folder with the exercise, and its commands on PATH."""

    def __init__(self, folder: Path, shims: Path, net: Network) -> None:
        self.folder, self.net = folder, net
        self.env = {**os.environ, "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}"}
        (folder / "exercise.p4").write_text(EXERCISE.read_text())
        (folder / "Makefile").write_text(MAKEFILE)
        (folder / "s1-commands.txt").write_text(COMMANDS)
        subprocess.run(
            ["make", "build"], cwd=folder, env=self.env, check=True, capture_output=True, timeout=60
        )

    def switch(self, command: str) -> subprocess.Popen[bytes]:
        """Start a switch in its namespace through a shell, as Mininet's scripts do, and wait for its ports."""
        # Numbers of ports differ from those of hosts and interfaces: host n is on port n + 1.
        ports = " ".join(f"-i {n + 1}@{self.net.port_interface(n)}" for n in range(1, self.net.hosts + 1))
        line = f"exec {command.format(ports=ports)} > logs/s1.log 2>&1"
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.net.switch, "sh", "-c", line], cwd=self.folder, env=self.env
        )
        wait_until(
            lambda: f":{CLI_PORT} " in self.net.run(self.net.switch, "ss -ltn"), "it listens", timeout_s=60
        )
        return process

    def cli(self, commands: str) -> str:
        """What simple_switch_CLI prints for commands on stdin."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.net.switch, "simple_switch_CLI", "--thrift-port", str(CLI_PORT)],
            input=commands, capture_output=True, text=True, env=self.env, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    def ping(self) -> None:
        """Ping from host 1 to host 2 through the switch, which answers no ARP."""
        for one, other in ((1, 2), (2, 1)):
            neighbour = f"ip neighbour replace {self.net.ip(other)} lladdr {self.net.mac(other)} dev eth0"
            self.net.run(self.net.host(one), neighbour)
        assert "2 received" in self.net.run(self.net.host(1), f"ping -c 2 -i 0.2 -W 5 {self.net.ip(2)}")

    @property
    def log(self) -> str:
        return (self.folder / "logs/s1.log").read_text()


@pytest.fixture
def course(network: MakeNetwork, shims: Path, tmp_path: Path) -> Course:
    return Course(tmp_path, shims, network(3))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a switch as scripts do that find it by its name (pkill simple_switch)."""
    assert Path(f"/proc/{process.pid}/comm").read_text().startswith("simple_switch")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_an_exercise_with_command_files(course: Course) -> None:
    """As p4-learning has them, and tutorials with cli_input."""
    process = course.switch(
        "simple_switch {ports} --pcap pcaps --thrift-port 9090 --nanolog ipc:///tmp/bm-0-log.ipc --device-id 0"
        " build/exercise.json --log-console"
    )
    try:
        printed = course.cli((course.folder / "s1-commands.txt").read_text())
        assert printed.startswith("Control utility for runtime P4 table manipulation\nRuntimeCmd: ")
        assert printed.count("Entry has been added with handle") == 2
        assert "Error" not in printed
        assert "Invalid" not in printed
        course.ping()
        # The packets' path is in the log, clones are in the capture of host 3.
        assert "RuntimeCmd: seen= 0, 0, 2, 2" in course.cli("register_read seen\n")
        action = "action MyIngress.forward(mac=0x20000000002, port=0x3)"
        wait_until(lambda: action in course.log, "the log has the packet's path")
        assert "no effect here: --nanolog" in course.log
    finally:
        end(process)
    names = {f"port{n}_{way}.pcap" for n in (1, 2, 3) for way in ("in", "out")}
    assert {path.name for path in (course.folder / "pcaps").iterdir()} == names
    assert len(rdpcap(str(course.folder / "pcaps/port3_out.pcap"))) == 4


def test_an_exercise_with_a_p4runtime_controller(course: Course, connect: Connect) -> None:
    """As most of the tutorials; the console works beside the controller."""
    address = f"unix:{course.folder}/s1.sock"
    process = course.switch(
        f"simple_switch_grpc {{ports}} --nanolog ipc:///tmp/bm-1-log.ipc --device-id 1 build/exercise.json"
        f" --log-console --log-level info --thrift-port 9090 -- --grpc-server-addr {address} --cpu-port 510"
    )
    try:
        controller = connect(address)
        controller.arbitrate()
        controller.next()
        request = SetRequest(device_id=1, action=SetRequest.VERIFY_AND_COMMIT)
        request.election_id.low = 1
        info = (course.folder / "build/exercise.p4.p4info.txtpb").read_text()
        text_format.Parse(info, request.config.p4info)
        request.config.p4_device_config = (course.folder / "build/exercise.json").read_bytes()
        controller.stub.SetForwardingPipelineConfig(request)
        controller.write(*(route(course.net, request.config.p4info, host) for host in (1, 2)))
        course.ping()
        dump = course.cli("table_dump ipv4_lpm\n")
        assert "Action entry: MyIngress.forward - 020000000002, 0003" in dump
        assert "packet of" not in course.log  # --log-level info
    finally:
        end(process)


def route(net: Network, info: p4info_pb2.P4Info, host: int) -> p4runtime_pb2.Update:
    table = next(one for one in info.tables if one.preamble.name == "MyIngress.ipv4_lpm")
    action = next(one for one in info.actions if one.preamble.name == "MyIngress.forward")
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
    entry = update.entity.table_entry
    entry.table_id = table.preamble.id
    match = entry.match.add(field_id=1)
    match.lpm.value, match.lpm.prefix_len = bytes([10, 0, 0, host]), 32
    entry.action.action.action_id = action.preamble.id
    values = (bytes([2, 0, 0, 0, 0, host]), bytes([host + 1]))
    for number, value in enumerate(values, start=1):
        entry.action.action.params.add(param_id=number, value=value)
    return update


def test_without_a_switch_the_client_says_where_it_looked(course: Course) -> None:
    done = subprocess.run(
        ["ip", "netns", "exec", course.net.switch, "simple_switch_CLI", "--thrift-port", "9090"],
        input="", capture_output=True, text=True, env=course.env, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Could not connect to the switch at localhost:9090" in done.stderr
