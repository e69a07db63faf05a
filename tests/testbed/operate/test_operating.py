# SPDX-License-Identifier: Apache-2.0
"""Commands on testbeds that are up, as processes: two testbeds at once, a job on one of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import UDP
from scapy.utils import rdpcap

from inagg_testbed.network.lifecycle import manifests, tagged_processes
from tests.switch.snippets import v1program
from tests.testbed.commands import inagg, inagg_process
from tests.testbed.keeping import INAGG, Up, bring_up, take_down
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

# Sums that do not end, with pauses that leave the processors to other tests.
SUMS = """
import time
import torch, torch.distributed as dist
dist.init_process_group("inagg")
while True:
    dist.all_reduce(torch.ones(1000))
    time.sleep(0.01)
"""
# A sum that waits for rank 1, which waits for a line on its stdin.
LATE = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("inagg")
if dist.get_rank():
    sys.stdin.readline()
dist.all_reduce(torch.ones(4, dtype=torch.int32))
dist.destroy_process_group()
"""
AGGREGATOR_PORT = 0x4941


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of a testbed that is stopped (SIGSTOP) before its switch starts."""
    folder = tmp_path_factory.mktemp("starting")
    keeper = subprocess.Popen(
        [*INAGG, "up", "--workers", "2", "--results", str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    line = keeper.stdout.readline()
    keeper.send_signal(signal.SIGSTOP)
    run = line.removeprefix("run ").partition(":")[0]
    yield run
    keeper.send_signal(signal.SIGTERM)
    keeper.send_signal(signal.SIGCONT)
    keeper.communicate(timeout=60)
    assert tagged_processes(run, besides=0) == []


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two hosts on the switch model."""
    up = bring_up(tmp_path_factory.mktemp("model"), "--workers", "2", "--link", "unshaped")
    yield up
    take_down(up)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two hosts on a bridge: a second testbed of this installation."""
    up = bring_up(tmp_path_factory.mktemp("bridge"), "--workers", "2", "--switch", "bridge")
    yield up
    take_down(up)


@pytest.fixture(scope="module")
def job(testbed: Up) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """A job that does not end, one rank in each host."""
    ranks = []
    for rank in range(2):
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "h1",
            "MASTER_PORT": "29400",
            "LOCAL_RANK": "0",
        }
        command = [*INAGG, "exec", "--run", testbed.run, f"h{rank + 1}", "--"]
        ranks.append(
            subprocess.Popen(
                [*command, sys.executable, "-c", SUMS],
                env={**os.environ, **own},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    wait_until(lambda: running(testbed), "the job runs", timeout_s=60)
    yield ranks
    for process in ranks:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two racks of one host on the switch model, with slower links between the switches."""
    rates = ("--link", "100mbit", "--uplink", "50mbit")
    up = bring_up(tmp_path_factory.mktemp("tree"), "--topology", "tree:2x1", *rates)
    yield up
    take_down(up)


def status(testbed: Up, *options: str) -> dict[str, Any]:
    done = inagg("status", "--run", testbed.run, "--json", "--interval", "0.2", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def running(testbed: Up) -> list[dict[str, Any]]:
    """Jobs in which all ranks add."""
    jobs = status(testbed)["jobs"]
    return [job for job in jobs if all(rank["packets_per_s"] for rank in job["ranks"])]


def test_the_hints_work_while_another_testbed_is_up(testbed: Up, other: Up) -> None:
    for up in (testbed, other):
        ping = subprocess.run([*up.hint("in a host"), "-c", "1"], capture_output=True, text=True, check=False)
        assert ping.returncode == 0, ping.stdout + ping.stderr
        assert "1 received" in ping.stdout
        look = subprocess.run(up.hint("look at it"), capture_output=True, text=True, check=False)
        assert look.returncode == 0, look.stderr
        assert look.stdout.startswith(f"run {up.run}: 2 hosts")
        assert up.hint("take down")[-2:] == ["--run", up.run]
    unnamed = inagg("status")
    assert unnamed.returncode == 1
    assert unnamed.stderr.startswith("inagg: name one with --run; these testbeds of this checkout are up:\n")
    assert {testbed.run, other.run} <= set(re.findall(r"  (\w+): ", unnamed.stderr))


@pytest.mark.parametrize("command", ["counters", "slots", "registers", "loss", "impair", "exec"])
def test_a_testbed_that_starts_says_so(starting: str, command: str) -> None:
    words = ("h1", "true") if command == "exec" else ()
    done = inagg(command, "--run", starting, *words)
    why = "is starting (compiling the P4 program): wait until `inagg status` shows it up"
    assert (done.returncode, done.stderr) == (1, f"inagg: run {starting} {why}\n")


def test_status_names_what_is_starting(starting: str) -> None:
    done = inagg("status", "--run", starting)
    assert (done.returncode, done.stdout) == (1, f"run {starting} is starting: compiling the P4 program\n")
    assert done.stderr == ""
    found = json.loads(inagg("status", "--run", starting, "--json").stdout)
    assert (found["starting"], found["ports"], found["jobs"]) == ("compiling the P4 program", [], [])


def test_status_shows_jobs_ranks_and_rates(testbed: Up, job: list[Any]) -> None:
    found = status(testbed)
    (shown,) = found["jobs"]
    assert (shown["state"], shown["workers"]) == ("running", 2)
    assert [rank["state"] for rank in shown["ranks"]] == ["joined", "joined"]
    assert [port["node"] for port in found["ports"]] == ["h1", "h2", "ctl0"]
    assert all(port["from_mbit_s"] > 0 and port["to_mbit_s"] > 0 for port in found["ports"][:2])
    assert found["controller"]["switch"] == "connected"
    assert [(each["name"], each["alive"]) for each in found["processes"]] == [
        ("switch", True),
        ("controller", True),
    ]
    text = inagg("status", "--run", testbed.run, "--interval", "0.2").stdout
    assert "running; 2 ranks" in text
    assert f"{shown['slots'] * 2:,} of " in text  # two versions of each slot


def test_slots_that_a_job_has_used(testbed: Up, job: list[Any]) -> None:
    run = ("--run", testbed.run)
    assert re.search(
        r"^job \d+.* on s1, versions of [\d,]+ slots: .*[\d,]+ final", inagg_process("slots", *run).stdout
    )
    every = inagg_process("slots", *run, "--all").stdout
    assert re.search(r"^\d+\.[01] +[\d,]+ +final +ranks 0-1 +-", every, re.MULTILINE), every


def test_registers_of_a_running_switch(testbed: Up, job: list[Any]) -> None:
    run = ("--run", testbed.run)
    listed = inagg_process("registers", *run).stdout
    assert re.search(r"^InaggIngress.slot_epoch +16,384 +32", listed, re.MULTILINE), listed
    epochs = json.loads(inagg_process("registers", *run, "slot_epoch", "--json").stdout)
    assert len(epochs) == 16384
    index, epoch = next((int(index), epoch) for index, epoch in epochs.items() if epoch)
    shown = inagg_process("registers", *run, "slot_epoch", str(index)).stdout
    assert re.search(rf"^ *{index} +{epoch:,} +{epoch:#x}", shown, re.MULTILINE), shown
    for name, message in [
        (("none",), "the program has no register none; there are: InaggIngress.slot_epoch, "),
        (("pool", "70000"), "register InaggIngress.pool has the indices 0 to 65535, not 70000\n"),
        (("pool", "--switch", "s2"), "no switch s2; there are s1\n"),
    ]:
        refused = inagg_process("registers", *run, *name)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"inagg: {message}"), refused.stderr


def ping_each_other(testbed: Up) -> None:
    for host, other in (("h1", "h2"), ("h2", "h1")):
        inagg_process("exec", "--run", testbed.run, host, "--", "ping", "-c", "1", "-W", "1", other)


def test_counters_of_any_program_and_of_the_others_once_a_switch_has_died(tmp_path: Path) -> None:
    """Two racks of one host on a program that counts each port's packets and drops them, without a controller."""
    program = tmp_path / "count.p4"
    locals = "counter(512, CounterType.packets_and_bytes) passed;"
    program.write_text(v1program("passed.count((bit<32>) sm.ingress_port); mark_to_drop(sm);", locals=locals))
    up = bring_up(tmp_path, "--topology", "tree:2x1", "--p4", str(program), "--no-controller")
    run = ("--run", up.run)
    try:
        assert inagg_process("counters", *run).stdout == "nothing has been counted yet\n"
        ping_each_other(up)
        counted = json.loads(inagg_process("counters", *run, "--json").stdout)
        assert counted["root"] == {"passed": {}}
        assert [counted[leaf]["passed"].keys() for leaf in ("leaf1", "leaf2")] == [{"1"}, {"1"}]
        assert re.search(r"^leaf1 passed +1 +\d", inagg_process("counters", *run).stdout, re.MULTILINE)
        (dead,) = (each for each in manifests()[up.run].processes if each.name == "switch leaf1")
        up.keeper.send_signal(signal.SIGSTOP)  # it would take the testbed down
        try:
            dead.signal(signal.SIGKILL)
            wait_until(lambda: not dead.alive(), "the switch has ended")
            as_json = inagg_process("counters", *run, "--json")
            shown = inagg_process("counters", *run)
        finally:
            up.keeper.send_signal(signal.SIGCONT)
    finally:
        take_down(up)
    assert json.loads(as_json.stdout).keys() == {"root", "leaf2"}
    assert re.search(r"^leaf2 passed +1 +\d", shown.stdout, re.MULTILINE), shown.stdout
    for done in (as_json, shown):
        assert done.returncode == 1
        why = "inagg: switch leaf1: the program cannot be read: UNAVAILABLE: .*\n"
        assert re.fullmatch(why, done.stderr), done.stderr


def test_counters_do_not_wait_long_for_a_switch_that_is_stopped(tree: Up) -> None:
    (stopped,) = (each for each in manifests()[tree.run].processes if each.name == "switch leaf1")
    stopped.signal(signal.SIGSTOP)
    try:
        done = inagg_process("counters", "--run", tree.run, "--json", timeout=20)
    finally:
        stopped.signal(signal.SIGCONT)
    assert json.loads(done.stdout).keys() == {"root", "leaf2"}
    assert re.fullmatch(
        "inagg: switch leaf1: the program cannot be read: DEADLINE_EXCEEDED: .*\n", done.stderr
    )
    assert done.returncode == 1


def test_status_in_a_host_is_of_the_testbed(testbed: Up) -> None:
    done = inagg_process("exec", "--run", testbed.run, "h1", "--", *INAGG, "status")
    # With several testbeds up, the command lists all.
    assert re.search(rf"^(run |  ){testbed.run}: ", done.stdout + done.stderr, re.MULTILINE), done.stderr


def test_bridges_have_no_registers_and_no_counters(other: Up) -> None:
    for command in ("registers", "slots", "counters"):
        refused = inagg(command, "--run", other.run)
        assert refused.returncode == 1
        assert f"run {other.run} has bridges for switches" in refused.stderr


def test_status_shows_a_tree_from_the_top_with_the_rates_of_its_links(tree: Up) -> None:
    ping = inagg_process(
        "exec", "--run", tree.run, "h1", "--", "ping", "-c", "3", "-i", "0.1", "-W", "5", "h2"
    )
    assert ping.returncode == 0, ping.stdout
    found = status(tree)
    assert (found["topology"], found["hosts"]) == ("tree:2x1", 2)
    assert [(each["lower"], each["upper"], each["rate_bps"]) for each in found["links"]] == [
        ("leaf1:101", "root:1", 50_000_000),
        ("leaf2:101", "root:2", 50_000_000),
        ("h1", "leaf1:1", 100_000_000),
        ("h2", "leaf2:1", 100_000_000),
    ]
    assert {"switch": "root", "port": 255, "node": "ctl0"}.items() <= found["ports"][2].items()
    text = inagg("status", "--run", tree.run, "--interval", "0.1").stdout
    rows = re.findall(r"^( *\w+) +(\w+:\d+)? +(\d+ Mbit/s)?", text.partition("node ")[2], re.MULTILINE)
    assert [row for row in rows if row[0].strip() in ("root", "leaf1", "h1", "leaf2", "h2")] == [
        ("root", "", ""),
        ("  leaf1", "root:1", "50 Mbit/s"),
        ("    h1", "leaf1:1", "100 Mbit/s"),
        ("  leaf2", "root:2", "50 Mbit/s"),
        ("    h2", "leaf2:1", "100 Mbit/s"),
    ], text


def test_slots_name_whom_sums_wait_for(tree: Up) -> None:
    run = ("--run", tree.run)
    assert inagg("slots", *run).stdout == "no running job has slots in a switch\n"
    ranks = []
    for rank, host in enumerate(("h1", "h2")):
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "29400"}
        command = [*INAGG, "exec", *run, host, "--", sys.executable, "-c", LATE]
        ranks.append(subprocess.Popen(command, env={**os.environ, **own}, stdin=subprocess.PIPE))

    def unfinished() -> dict[str, list[tuple[str, list[str], list[str]]]]:
        done = inagg("slots", *run, "--json")
        assert done.returncode == 0, done.stderr
        return {
            switch: [
                (each["state"], each["has"], each["misses"])
                for job in jobs
                for each in job["versions"]
                if each["state"] != "final"
            ]
            for switch, jobs in json.loads(done.stdout).items()
        }

    waiting = {
        "root": [("summing", ["leaf1"], ["leaf2"])],
        "leaf1": [("sent up", ["rank 0"], [])],
        "leaf2": [],
    }
    try:
        wait_until(lambda: unfinished() == waiting, f"{waiting}", timeout_s=60)
        text = inagg("slots", *run).stdout
        assert re.search(r"^leaf1 +leaf2 +1 +[\d,]+ *$", text, re.MULTILINE), text
        leaf = json.loads(inagg("registers", *run, "slot_members", "--switch", "leaf1", "--json").stdout)
        assert set(leaf.values()) == {0, 1}
        for process in reversed(ranks):
            process.communicate(b"go on\n", timeout=60)
        assert [process.returncode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_loss_on_a_link_between_switches(tree: Up) -> None:
    run = ("--run", tree.run)
    done = inagg("loss", *run, "leaf1:101", "100%", "--traffic", "other", "--direction", "egress")
    assert re.search(r"^leaf1:101 +egress +other +100%", done.stdout, re.MULTILINE), done.stdout + done.stderr
    ping = ("exec", *run, "h1", "--", "ping", "-c", "1", "-W", "1", "h2")
    assert inagg_process(*ping).returncode == 1
    assert inagg("loss", *run, "all", "off").stdout == "no loss is injected\n"
    assert inagg_process(*ping).returncode == 0
    wrong = inagg("loss", *run, "leaf1:9", "1%")
    assert wrong.stderr == "inagg: no host leaf1:9; there are h1 to h2, ports such as leaf1:101, and all\n"


def test_status_shows_the_switches_and_links_that_the_controller_watches(tree: Up) -> None:
    found = status(tree)
    names = ["switch root", "switch leaf1", "switch leaf2", "controller"]
    assert [(each["name"], each["alive"]) for each in found["processes"]] == [(name, True) for name in names]
    assert [each["state"] for each in found["controller"]["switches"]] == ["connected"] * 3
    assert [each["state"] for each in found["controller"]["links"]] == ["up"] * 2


def test_loss_is_injected_at_the_leaf_of_a_host(tree: Up) -> None:
    run = ("--run", tree.run)
    done = inagg("loss", *run, "h2", "100%", "--traffic", "other", "--direction", "ingress")
    assert re.search(r"^h2 +ingress +other +100%", done.stdout, re.MULTILINE), done.stdout + done.stderr
    lost = inagg_process("exec", *run, "h2", "--", "ping", "-c", "1", "-W", "1", "h1")
    assert "100% packet loss" in lost.stdout
    counted = json.loads(inagg_process("counters", *run, "--json").stdout)
    assert set(counted["leaf2"]["ingress_loss_injected"]) == {"1"}
    assert re.search(r"ingress_loss_injected +leaf2:1 \(h2\) ", inagg_process("counters", *run).stdout)
    assert inagg("loss", *run, "all", "off").stdout == "no loss is injected\n"


def test_mininets_command_line_knows_the_links_of_a_tree(tree: Up) -> None:
    done = inagg_process("shell", "--run", tree.run, "-c", "net", "-c", "h1 ping -c 1 h2")
    assert "1 received" in done.stdout, done.stdout + done.stderr
    assert re.search(r"leaf1 .*-p101:ia-\w+-p1", done.stdout)


def test_a_capture_names_a_port_of_a_switch(tree: Up, tmp_path: Path) -> None:
    pinging = subprocess.Popen(
        [*INAGG, "exec", "--run", tree.run, "h1", "--", "ping", "-i", "0.1", "h2"], stdout=subprocess.DEVNULL
    )
    path = tmp_path / "out.pcap"
    done = inagg("capture", "--run", tree.run, "leaf2:101", "--count", "2", "-o", str(path))
    pinging.terminate()
    pinging.wait()
    assert done.returncode == 0, done.stderr
    assert len(rdpcap(str(path))) == 2
    for where, message in [
        ("leaf1:7", "no port leaf1:7; there are leaf1:1"),
        ("leaf1", "leaf1 is no host and no port"),
    ]:
        refused = inagg("capture", "--run", tree.run, where)
        assert refused.returncode == 1
        assert message in refused.stderr


def test_watching_goes_on_until_ctrl_c(testbed: Up, job: list[Any]) -> None:
    command = [*INAGG, "status", "--run", testbed.run, "--watch", "--json", "--interval", "0.1"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
    assert second["up_s"] >= first["up_s"]
    watch.send_signal(signal.SIGINT)
    _, complaint = watch.communicate(timeout=60)
    assert (watch.returncode, complaint) == (0, "")


def test_loss_is_set_shown_counted_and_cleared(testbed: Up, job: list[Any]) -> None:
    run = ("--run", testbed.run)
    done = inagg("loss", *run, "h2", "5%", "--traffic", "aggregation", "--direction", "ingress")
    assert done.returncode == 0, done.stderr
    assert "h2  ingress    aggregation" in done.stdout
    assert "5%" in done.stdout

    def counted() -> dict[str, Any]:
        found = json.loads(inagg_process("counters", *run, "--json").stdout)
        return dict(found["s1"].get("ingress_loss_injected", {}))

    wait_until(counted, "packets are lost", timeout_s=60)
    assert set(counted()) == {"2"}
    table = inagg_process("counters", *run).stdout
    assert re.search(r"ingress_loss_injected +h2 +[\d,]+ ", table)
    assert re.search(r"completed +h1 ", table)
    assert inagg("loss", *run, "all", "off").stdout == "no loss is injected\n"
    assert inagg("loss", *run).stdout == "no loss is injected\n"


@pytest.mark.parametrize("where", ["h1", "2", "s1"])
def test_a_capture_can_be_read(testbed: Up, job: list[Any], tmp_path: Path, where: str) -> None:
    path = tmp_path / "out.pcap"
    done = inagg("capture", "--run", testbed.run, where, "--count", "20", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert f"20 frames in {path}" in done.stdout.replace("\n", " ")
    packets = rdpcap(str(path))
    assert len(packets) == 20
    assert abs(float(packets[0].time) - time.time()) < 60
    assert any(UDP in packet and packet[UDP].dport == AGGREGATOR_PORT for packet in packets) == (
        where != "s1"
    )


def test_ctrl_c_ends_a_capture_with_all_it_has(testbed: Up, job: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"
    command = [*INAGG, "capture", "--run", testbed.run, "h2", "-o", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: path.exists() and path.stat().st_size > 10_000, "frames are in the file", timeout_s=60)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    (frames,) = re.findall(r"(\d+) frames in", told)
    assert len(rdpcap(str(path))) == int(frames) > 0


def test_a_capture_goes_through_a_pipe(testbed: Up, job: list[Any]) -> None:
    done = subprocess.run(
        [*INAGG, "capture", "--run", testbed.run, "h1", "-c", "3", "-o", "-"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\x4d\x3c\xb2\xa1")


def test_mininets_command_line(testbed: Up) -> None:
    commands = (
        "h1 ping -c 1 h2",
        "h2 echo $INAGG_CONTROLLER",
        "pingall",
        "iperf",
        "nosuch thing",
        "h2 ping -c 1 s1",
    )
    done = inagg_process(
        "shell", "--run", testbed.run, *(part for command in commands for part in ("-c", command))
    )
    assert done.returncode == 0, done.stderr
    assert "10.0.0.2 ping statistics" in done.stdout
    assert "http://10.0.0.254:9560" in done.stdout
    assert "0% dropped (2/2 received)" in done.stdout
    assert "it would end every iperf process on the machine" in done.stdout
    assert "Unknown command: nosuch thing" in done.stdout
    assert "10.0.0.254 ping statistics" in done.stdout
    typed = inagg_process(
        "shell", "--run", testbed.run, input="h1 ip -4 -br addr show up\nexit\nh2 echo never\n"
    )
    assert "10.0.0.1/24" in typed.stdout
    assert "never" not in typed.stdout
    # all links are still there
    assert (
        inagg_process("exec", "--run", testbed.run, "h1", "--", "ping", "-c", "1", "-W", "5", "h2").returncode
        == 0
    )


def test_logs_are_shown_and_followed(testbed: Up) -> None:
    done = inagg("logs", "--run", testbed.run)
    assert re.search(r"^controller +ready$", done.stdout, re.MULTILINE)
    assert re.search(r"^switch +ready$", done.stdout, re.MULTILINE)
    command = [*INAGG, "logs", "--run", testbed.run, "-f", "-n", "1"]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert follower.stdout.readline().split()[0] == "controller"
    (results,) = (each.settings["results"] for run, each in manifests().items() if run == testbed.run)
    (Path(results) / "late.log").write_text("whole\npart")  # a log that is created later
    while (line := follower.stdout.readline().split())[0] != "late":
        assert line[0] == "switch"
    assert line == ["late", "whole"]
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=60)
    assert follower.returncode == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("capture", "h9"), "no node h9; there are h1, h2, s1"),
        (("capture", "9"), "no port 9; the switch has 1 to 2 and 255"),
        (("capture", "h1", "-o", "/proc/x.pcap"), "cannot write /proc/x.pcap"),
        (("loss", "h9", "1%"), "no host h9; there are h1 to h2"),
        (("loss", "h1"), "the probability is missing, as in: inagg loss h1 5%"),
        (("loss", "h1", "120%"), "loss 120%: want a percentage like 5%"),
        (("loss", "h1", "nan"), "loss nan: want a percentage"),
        (("logs", "nosuch"), "no log of nosuch; the logs in "),
    ],
)
def test_what_is_typed_wrong_is_explained_in_one_line(
    testbed: Up, command: tuple[str, ...], message: str
) -> None:
    done = inagg(command[0], "--run", testbed.run, *command[1:])
    assert done.returncode == 1
    assert done.stderr.startswith(f"inagg: {message}")
    assert done.stderr.count("\n") == 1


def test_a_bridge_drops_nothing(other: Up) -> None:
    done = inagg("loss", "--run", other.run, "h1", "1%")
    why = "has bridges for switches, which neither count nor drop packets for inagg"
    assert (done.returncode, done.stderr) == (1, f"inagg: run {other.run} {why}\n")


def test_a_bridge_has_a_controller_without_a_switch(other: Up) -> None:
    assert (status(other)["controller"]["switch"], status(other)["controller"]["words"]) == ("none", 4)
    done = inagg("status", "--run", other.run, "--interval", "0.1")
    assert done.returncode == 0, done.stdout
    assert "controller: without a switch: servers do the sums" in done.stdout
    assert "processes: controller" in done.stdout


def test_a_rank_that_is_killed_is_shown_as_lost(testbed: Up, job: list["subprocess.Popen[bytes]"]) -> None:
    job[1].kill()  # last: it ends the job

    def failed() -> bool:
        (shown,) = status(testbed)["jobs"]
        return bool(shown["state"] == "failed")

    wait_until(failed, "the job has failed", timeout_s=60)
    text = inagg("status", "--run", testbed.run, "--interval", "0.1", "--all").stdout
    assert re.search(r"1 +h2 +10\.0\.0\.2 +lost ", text), text
    assert "rank 1: lost: its process has ended" in text
    assert "jobs: none now; 1 ended" in inagg("status", "--run", testbed.run, "--interval", "0.1").stdout


def test_no_host_writes_lines_of_its_own_into_the_operators_terminal(testbed: Up) -> None:
    name = "x\n! the switch has ended\x1b[2J\u2028"
    create = f"""
import json, os, urllib.request
body = json.dumps({{"workers": 1, "slots": 2, "name": {name!r}}}).encode()
url = os.environ["INAGG_CONTROLLER"] + "/jobs"
urllib.request.urlopen(urllib.request.Request(url, body, {{"Content-Type": "application/json"}}))
"""
    made = inagg_process("exec", "--run", testbed.run, "h1", "--", sys.executable, "-c", create)
    assert "HTTP Error 422" in made.stderr
    assert "the switch has ended" not in inagg("status", "--run", testbed.run, "--interval", "0.1").stdout
