# SPDX-License-Identifier: Apache-2.0
"""Impaired links of testbeds: gloo and inagg suffer alike, sums stay right, and a job sees changes while it runs."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import MANAGEMENT_ADDRESS, host_address, run_in_namespace
from inagg_testbed.network.workers import WorkerGroup
from inagg_testbed.operate import impair
from tests.testbed.commands import inagg, inagg_process
from tests.testbed.conftest import OpenTestbed
from tests.testbed.keeping import Up, bring_up, take_down
from tests.testbed.programs import sum_rightly
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

# Sums that do not end, by both backends in turn, and their times.
TIMED = """
import time, torch, torch.distributed as dist
dist.init_process_group("inagg")
groups = {"inagg": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
while True:
    for name, group in groups.items():
        tensor = torch.full((1000,), dist.get_rank() + 1.0)
        began = time.monotonic()
        dist.all_reduce(tensor, group=group)
        assert bool((tensor == 3).all())
        print(name, time.monotonic() - began, flush=True)
"""


# The same sum by both backends, and how many segments TCP has sent again on gloo's own link.
RESENT = """
import re, subprocess, torch, torch.distributed as dist
dist.init_process_group("inagg")
for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
    tensor = torch.full((1_000_000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor, group=group)
    assert bool((tensor == 10).all())
shown = subprocess.check_output(["ss", "-Htin", "src", "10.0.1.0/24"], text=True)
print("resent", sum(map(int, re.findall(r" retrans:\\d+/(\\d+)", shown))), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


# A sum of some thousand packets, and how many results were not used because they failed a check.
COUNTED = """
import inagg, torch, torch.distributed as dist
dist.init_process_group("inagg")
tensor = torch.full((500_000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
assert bool((tensor == 3).all())
print("corrupt", inagg.stats()["corrupt"], flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three hosts; packets to and from h2 are delayed."""
    folder = tmp_path_factory.mktemp("impaired")
    testbed = bring_up(folder, "--workers", "3", "--link", "unshaped", "--impair", "h2=delay=20ms")
    yield testbed
    take_down(testbed)


@pytest.fixture(scope="module")
def testbed(open_network: OpenTestbed) -> Iterator[Testbed]:
    """Two hosts."""
    with open_network(hosts=2) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def tree(open_network: OpenTestbed) -> Iterator[Testbed]:
    """Four hosts below two leaves; gloo has links of its own. All packets of hosts are delayed."""
    options = SwitchOptions(impair=["delay=5ms"])
    with open_network(topology="tree:2x2", gloo_over="bridge", switch_options=options) as testbed:
        yield testbed


PING = ("ping", "-c", "5", "-i", "0.2")


def round_trip_ms(up: Up, host: str) -> float:
    """The shortest of five round trips from h1."""
    done = inagg_process("exec", "--run", up.run, "h1", "--", *PING, host)
    return shortest_ms(done.stdout + done.stderr)


def round_trip_from_h1_ms(testbed: Testbed, address: str) -> float:
    """The same of a testbed of this process."""
    return shortest_ms(run_in_namespace(testbed.network.pid_of("h1"), " ".join([*PING, address])))


def shortest_ms(output: str) -> float:
    found = re.search(r"rtt min/avg/max/mdev = ([\d.]+)/", output)
    assert found is not None, output
    return float(found[1])


def test_a_delay_is_seen_until_it_is_taken_back(up: Up) -> None:
    assert 40 <= round_trip_ms(up, "h2") < 50
    assert round_trip_ms(up, "h3") < 20
    assert "no link is impaired" in inagg_process("impair", "--run", up.run, "h2", "off").stdout
    assert round_trip_ms(up, "h2") < 20


def test_an_impairment_is_set_shown_and_ended(up: Up) -> None:
    command = ("impair", "--run", up.run)
    shown = "loss=0.5%,delay=10ms,jitter=1ms"
    done = inagg_process(*command, "h3", "out", "delay=10ms,jitter=1ms,loss=0.5%")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row for row in rows if row[0] == "h3"] == [["h3", "out", shown]]
    assert round_trip_ms(up, "h3") >= 9
    assert "h3" not in inagg_process(*command, "h1").stdout
    assert "h3" in inagg_process(*command).stdout
    assert inagg_process(*command, "all", "off").stdout == "no link is impaired\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("h9", "loss=1%"), "no host h9; there are h1, h2, h3"),
        (("h1", "loss=200%"), "loss 2: a probability is 0 to 1"),
        (("h1", "up", "loss=1%"), "direction up: want in"),
        (("h1", "out"), "out: want [in|out] and then a SPEC or off, as in: inagg impair h1 out loss=5%"),
    ],
)
def test_what_is_typed_wrong_is_explained(up: Up, words: tuple[str, ...], message: str) -> None:
    done = inagg("impair", "--run", up.run, *words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"inagg: {message}")


def times_ms(group: WorkerGroup, name: str) -> list[float]:
    """Of the sums of a backend, so far."""
    log = group.workers[0].process.log_path.read_text()
    return [float(found) * 1e3 for found in re.findall(rf"^{name} (\S+)$", log, re.MULTILINE)]


def next_times_ms(group: WorkerGroup, count: int = 5) -> dict[str, float]:
    """The medians of the next sums of each backend. The first of them may have begun before."""
    before = {name: len(times_ms(group, name)) for name in ("inagg", "gloo")}
    wait_until(
        lambda: all(len(times_ms(group, name)) >= at + 1 + count for name, at in before.items()), "sums", 60
    )
    return {name: sorted(times_ms(group, name)[at + 1 :][:count])[count // 2] for name, at in before.items()}


@pytest.mark.parametrize(("links", "hosts"), [("testbed", (1, 2)), ("tree", (1, 3))])
def test_gloo_and_inagg_suffer_alike_while_a_job_runs(
    request: pytest.FixtureRequest, links: str, hosts: tuple[int, int]
) -> None:
    testbed: Testbed = request.getfixturevalue(links)
    impair.change(testbed.run.manifest, "all", None, "off")
    group = testbed.launch([sys.executable, "-c", TIMED], name="timed", hosts=hosts)
    try:
        wait_until(
            lambda: group.workers[0].process.log_path.exists() and times_ms(group, "gloo") != [], "a sum", 60
        )
        impair.change(testbed.run.manifest, "h1", None, "delay=25ms")
        delayed = next_times_ms(group)
        assert delayed["inagg"] >= 50  # there and back
        assert delayed["gloo"] >= 50
        impair.change(testbed.run.manifest, "h1", None, "off")
        assert max(next_times_ms(group).values()) < 50
    finally:
        group.stop()


@pytest.mark.parametrize("spec", ["loss=2%", "duplicate=5%", "reorder=5%", "delay=2ms,jitter=1ms"])
def test_sums_stay_right(testbed: Testbed, spec: str) -> None:
    impair.change(testbed.run.manifest, "all", None, f"{spec},seed=1")
    try:
        sum_rightly(testbed, name=re.sub(r"\W", "-", spec))
    finally:
        impair.change(testbed.run.manifest, "all", None, "off")


def test_results_that_are_corrupted_are_asked_for_again(testbed: Testbed) -> None:
    impair.change(testbed.run.manifest, "all", "in", "corrupt=0.5%,seed=1")
    try:
        group = testbed.launch([sys.executable, "-c", COUNTED], name="corrupt")
        group.follow(lambda _rank, _event: None, timeout_s=120)
    finally:
        impair.change(testbed.run.manifest, "all", "in", "off")
    logs = [worker.process.log_path.read_text() for worker in group.workers]
    assert sum(int(found) for log in logs for found in re.findall(r"^corrupt (\d+)$", log, re.MULTILINE)) > 0


def test_sums_stay_right_when_gloo_has_links_of_its_own(tree: Testbed) -> None:
    impair.change(tree.run.manifest, "all", None, "loss=2%,seed=1")
    try:
        group = tree.launch([sys.executable, "-c", RESENT], name="resent")
        group.follow(lambda _rank, _event: None, timeout_s=120)
    finally:
        impair.change(tree.run.manifest, "all", None, "off")
    logs = [worker.process.log_path.read_text() for worker in group.workers]
    assert sum(int(found) for log in logs for found in re.findall(r"^resent (\d+)$", log, re.MULTILINE)) > 0


@pytest.mark.parametrize(("place", "delays"), [("h3", 2), ("leaf2-root", 2), ("all", 4)])
def test_both_links_of_a_place_are_impaired(tree: Testbed, place: str, delays: int) -> None:
    impair.change(tree.run.manifest, "all", None, "off")
    impair.change(tree.run.manifest, place, None, "delay=5ms")
    try:
        for address in (host_address(3), host_address(3, bridge=True)):
            assert 5 * delays <= round_trip_from_h1_ms(tree, address) < 5 * delays + 10
    finally:
        impair.change(tree.run.manifest, place, None, "off")


def test_the_two_links_of_a_place_draw_differently(tree: Testbed) -> None:
    commands = [process.command for process in tree.services if "--device-id" in process.command]
    ids = [command[command.index("--device-id") + 1] for command in commands]
    assert sorted(ids) == ["1", "2", "3", "4", "5", "6"]


def test_a_bridge_that_starts_again_forwards_with_the_impairments_of_the_start(tree: Testbed) -> None:
    manifest = tree.run.manifest
    impair.change(manifest, "all", None, "off")
    tree.restart("leaf1-b").wait_for_line("ready", timeout_s=60)
    assert impair.rows(manifest, "h1") == [("h1, gloo's own link", way, "delay=5ms") for way in ("out", "in")]
    assert 10 <= round_trip_from_h1_ms(tree, host_address(3, bridge=True)) < 20
    impair.change(manifest, "all", None, "off")
    assert impair.rows(manifest) == []


def test_a_management_network_is_impaired_too(tmp_path: Path) -> None:
    up = bring_up(tmp_path, "--workers", "2", "--management", "--link", "unshaped", "--impair", "off")
    try:
        assert round_trip_ms(up, "h2-b1") < 10
        shown = inagg_process("impair", "--run", up.run, "h2", "delay=10ms").stdout
        assert [line.split() for line in shown.splitlines()[2:]] == [
            ["h2", way, "delay=10ms"] for way in ("out", "in")
        ]
        assert 20 <= round_trip_ms(up, "h2-b1") < 40
        # A dead switch does not keep the links of the others from a change.
        inagg("kill", "--run", up.run, "switch")
        done = inagg_process("impair", "--run", up.run, "all", "off")
        assert "the console of switch s1 does not answer" in done.stderr
        assert round_trip_ms(up, "h2-b1") < 10
        assert round_trip_ms(up, MANAGEMENT_ADDRESS) < 10
    finally:
        take_down(up)


def test_a_run_over_bridges_is_refused(tmp_path: Path) -> None:
    done = inagg("up", "--switch", "bridge", "--impair", "loss=1%", "--results", str(tmp_path))
    assert done.returncode == 1
    assert "--switch bridge has none: use --switch model" in done.stderr
