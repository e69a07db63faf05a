# SPDX-License-Identifier: Apache-2.0
"""Testbeds go on when parts of them end; parts are killed and started again by hand, or by themselves."""

import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.lifecycle import find_run
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.operate.parts import Attendant, parse_kinds
from tests.testbed.commands import inagg, inagg_process
from tests.testbed.keeping import Up, bring_up, endless_run, take_down
from tests.waiting import wait_until

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two hosts and a server. The controller starts again by itself."""
    options = ("--workers", "2", "--servers", "1", "--link", "unshaped", "--restart", "controller")
    up = bring_up(tmp_path_factory.mktemp("parts"), *options)
    yield up
    take_down(up)


def pids(testbed: Up) -> dict[str, int]:
    """Of the processes that run, by name."""
    return {each.name: each.pid for each in find_run(testbed.run).processes if each.alive()}


@pytest.mark.parametrize(("part", "name"), [("switch", "switch"), ("h3", "server h3")])
def test_a_part_is_killed_and_started_again(testbed: Up, part: str, name: str) -> None:
    before = pids(testbed)[name]
    assert inagg("kill", "--run", testbed.run, part).returncode == 0
    status = inagg("status", "--run", testbed.run, "--interval", "0.1")
    assert (status.returncode, f"the {name} has ended" in status.stdout) == (1, True)
    assert f"inagg: {part} has ended" in inagg("kill", "--run", testbed.run, part).stderr
    done = inagg("restart", "--run", testbed.run, part)
    assert f"{part} is ready; its log is " in done.stdout
    assert pids(testbed)[name] != before

    def status_is_well() -> bool:
        return inagg("status", "--run", testbed.run, "--interval", "0.1").returncode == 0

    wait_until(status_is_well, "the controller has all parts", 60)


def test_a_part_that_runs_is_started_again(testbed: Up) -> None:
    before = pids(testbed)["switch"]
    assert inagg("restart", "--run", testbed.run, "switch").returncode == 0
    assert pids(testbed)["switch"] != before


def test_a_part_starts_again_by_itself(testbed: Up) -> None:
    before = pids(testbed)["controller"]
    assert inagg("kill", "--run", testbed.run, "controller").returncode == 0
    wait_until(lambda: pids(testbed).get("controller", before) != before, "it runs again", 60)


@pytest.mark.parametrize(
    "request_",
    [
        *(b"", b"[]", b"{}", b"[" * 4096, b'{"do":"restart","part":[]}'),
        b'{"do":"signal","part":"switch","signal":"X"}',
    ],
)
def test_a_request_that_makes_no_sense_ends_nothing(testbed: Up, request_: bytes) -> None:
    before = pids(testbed)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(find_run(testbed.run).settings["requests"])
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answers:
            assert "validation error" in answers.readline()
    assert pids(testbed) == before


def test_a_part_that_is_killed_before_it_is_ready_is_told(testbed: Up) -> None:
    with ThreadPoolExecutor(1) as other:
        restart = other.submit(inagg_process, "restart", "--run", testbed.run, "h3")
        pid = pids(testbed)["server h3"]
        wait_until(lambda: pids(testbed).get("server h3", pid) != pid, "it is started", 60)
        assert inagg("kill", "--run", testbed.run, "h3").returncode == 0
        done = restart.result()
    assert done.returncode == 1
    assert "server h3 ended with signal SIGKILL" in done.stderr
    assert inagg("restart", "--run", testbed.run, "h3").returncode == 0


def test_a_part_stands_still_until_it_may_go_on(testbed: Up) -> None:
    stat = Path(f"/proc/{pids(testbed)['switch']}/stat")

    def state() -> str:
        return stat.read_text().rpartition(")")[2].split()[0]

    assert inagg("kill", "--run", testbed.run, "switch", "--signal", "STOP").returncode == 0
    wait_until(lambda: state() == "T", "it stands still")
    assert inagg("kill", "--run", testbed.run, "switch", "--signal", "CONT").returncode == 0
    wait_until(lambda: state() != "T", "it goes on")


def test_a_link_is_cut_and_mended(testbed: Up) -> None:
    def ping(most_s: int) -> int:
        words = ("exec", "--run", testbed.run, "h2", "--", "ping", "-c", "1", "-w", str(most_s), "h1")
        return inagg_process(*words).returncode

    assert ping(30) == 0
    assert inagg("link", "--run", testbed.run, "h1", "down").returncode == 0
    assert ping(1) == 1
    assert inagg("link", "--run", testbed.run, "h1", "up").returncode == 0
    assert ping(30) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("kill", "leaf1"), "there is no leaf1 here; there is switch, controller, h3"),
        (("restart", "h1"), "there is no h1 here; there is switch, controller, h3"),
        (("link", "h9", "down"), "no host h9; there are h1 to h3"),
    ],
)
def test_what_is_not_there_is_explained(testbed: Up, words: tuple[str, ...], complaint: str) -> None:
    done = inagg(words[0], "--run", testbed.run, *words[1:])
    assert done.returncode == 1
    assert complaint in done.stderr


# Two sums, between which rank 0 has killed the switch.
SUMS = """
import json, os, signal, torch, torch.distributed as dist
dist.init_process_group("inagg")
for count in range(2):
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    print("sum", tensor[0].item(), flush=True)
    if count == 0 and dist.get_rank() == 0:
        manifest = json.load(open(f"/run/inagg/{os.environ['INAGG_RUN']}.json"))
        (pid,) = [each["pid"] for each in manifest["processes"] if each["name"] == "switch"]
        os.kill(pid, signal.SIGKILL)
dist.destroy_process_group()
"""


def test_a_script_goes_on_when_the_switch_starts_again(tmp_path: Path) -> None:
    done = inagg_process(
        *("run", "--workers", "2", "--restart", "switch", "--results", str(tmp_path), sys.executable, "-c"),
        SUMS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2
    assert re.search(
        "the switch ended with signal SIGKILL; its log is .*; it starts again$", done.stderr, re.M
    )


def test_a_rank_is_killed_but_not_started_again(tmp_path: Path) -> None:
    with endless_run(tmp_path, workers=2) as running:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")
        run = next(line.split()[1].rstrip(":") for line in lines if line.startswith("run "))
        assert "begun\n" in lines
        refused = inagg("restart", "--run", run, "rank1")
        assert "rank1 cannot be started again" in refused.stderr
        assert inagg("kill", "--run", run, "rank1").returncode == 0
        _, complaint = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "rank 1 ended with signal SIGKILL" in complaint


def test_a_part_that_ends_at_once_waits_longer_each_time(tmp_path: Path) -> None:
    link = LinkSpec.parse("unshaped")
    with open_testbed(hosts=1, link=link, switch="bridge", results_root=tmp_path) as testbed:
        host, log_path = testbed.network.host(1), tmp_path / "broken.log"
        testbed.services.append(NodeProcess(testbed.run, host, "server broken", ["false"], log_path=log_path))
        said: list[str] = []
        with closing(Attendant(testbed, said.append, ["server"])) as attendant:

            def has_ended_four_times() -> bool:
                attendant.attend()
                return len(said) == 4

            wait_until(has_ended_four_times, "it has ended four times", 60)
        assert [line.partition("; it ")[2] for line in said] == [
            "starts again",
            *(f"starts again in {seconds} s" for seconds in (1, 2, 4)),
        ]
        assert {path.name for path in tmp_path.glob("broken*")} == {
            *("broken.log", "broken.2.log", "broken.3.log", "broken.4.log")
        }
        with pytest.raises(ConfigurationError, match="there is no s1 here; there is controller, broken"):
            testbed.kill("s1")


@pytest.mark.parametrize("text", ["leaf1", "switch,", "switch controller"])
def test_what_starts_again_is_a_list_of_kinds(text: str) -> None:
    assert parse_kinds("") == frozenset()
    assert parse_kinds("switch,server") == {"switch", "server"}
    with pytest.raises(
        ConfigurationError, match="must be like switch,controller; there is switch, controller, server"
    ):
        parse_kinds(text)
