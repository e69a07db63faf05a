# SPDX-License-Identifier: Apache-2.0
"""Whole jobs: hosts, switch, controller and workers as processes."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import inagg_testbed.network.testbed
from inagg_testbed.bench.plan import Case, Plan
from inagg_testbed.bench.report import write_report
from inagg_testbed.demo.run import INAGG_32_LOSS, train
from inagg_testbed.errors import ControllerRefusedError, ProcessFailedError, WorkerFailedError
from inagg_testbed.network.lifecycle import manifests, tagged_processes
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.network.workers import WorkerGroup
from tests.testbed import commands

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

WORKERS = 3
ELEMENTS = 20_003
Command = Callable[..., "subprocess.CompletedProcess[str]"]
SLOWEST_S = 10.0  # one all-reduce, on a busy machine, with every fifth packet lost each way


@pytest.fixture(scope="module")
def testbed(folder: Path) -> Iterator[Testbed]:
    """Three hosts on the switch model."""
    with open_testbed(
        hosts=WORKERS,
        link=LinkSpec.parse("unshaped"),
        results_root=folder / "results",
        state_dir=folder / "state",
    ) as opened:
        yield opened


def test_ordinary_traffic_crosses_the_same_switch(testbed: Testbed) -> None:
    for number in range(1, WORKERS + 1):
        others = [f"10.0.0.{other}" for other in range(1, WORKERS + 1) if other != number]
        script = " && ".join(f"ping -c 2 -i 0.2 -W 5 {address}" for address in [*others, "10.0.0.254"])
        run_in_namespace(testbed.network.host(number).pid, script)


def start_sums(testbed: Testbed, name: str, *, iterations: int = 3) -> WorkerGroup:
    """All-reduces through the switch, in 32-bit and 16-bit lanes."""
    case = Case(
        workers=WORKERS,
        elements=ELEMENTS,
        backends=("inagg:32", "inagg:16"),
        iterations=iterations,
        warmup=0,
    )
    plan = Plan(cases=(case,), seed=3, words=4)
    return testbed.launch(
        [sys.executable, "-m", "inagg_testbed.bench.allreduce_worker", plan.to_json(), "{events}"], name=name
    )


def collect_sums(testbed: Testbed, group: WorkerGroup) -> dict[tuple[str, int], str]:
    """Digest of each result by backend and iteration; checks that every one is right and the same at all ranks."""
    digests: dict[tuple[str, int], set[str]] = {}

    def check(_rank: int, event: dict[str, Any]) -> None:
        assert event.get("wrong_index") is None, event
        assert event["seconds"] < SLOWEST_S, event
        digests.setdefault((event["backend"], event["index"]), set()).add(event["digest"])

    group.follow(check, timeout_s=120, watch=testbed.services)
    assert all(len(found) == 1 for found in digests.values())
    return {key: found.pop() for key, found in digests.items()}


@pytest.fixture(scope="module")
def lossless(testbed: Testbed) -> dict[tuple[str, int], str]:
    """The sums without injected loss."""
    return collect_sums(testbed, start_sums(testbed, "lossless"))


def test_every_sum_is_right_at_every_rank(lossless: dict[tuple[str, int], str]) -> None:
    assert len(lossless) == 6
    assert len(set(lossless.values())) == 6


@pytest.mark.parametrize(
    "loss", [pytest.param(0.01, marks=pytest.mark.long), 0.05, pytest.param(0.2, marks=pytest.mark.long)]
)
def test_sums_are_bit_identical_under_loss(
    testbed: Testbed, lossless: dict[tuple[str, int], str], loss: float
) -> None:
    with testbed.loss(loss, "aggregation"):
        assert collect_sums(testbed, start_sums(testbed, f"loss-{loss}")) == lossless
    assert testbed.controller is not None
    assert any(
        port.packets > 0 for port in testbed.controller.counters()["s1"]["ingress_loss_injected"].values()
    )


def test_a_killed_worker_is_reported_by_the_others_and_the_next_job_is_right(
    testbed: Testbed, lossless: dict[tuple[str, int], str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "inagg_testbed.demo.train_digits",
        "--backend",
        "inagg",
        "--steps",
        "100000",
    ]
    group = testbed.launch([*command, "--events", "{events}"], name="killed")
    killed_at = 0.0

    def kill_in_mid_training(rank: int, event: dict[str, Any]) -> None:
        nonlocal killed_at
        if rank == 0 and event["event"] == "step" and event["step"] >= 5 and not killed_at:
            killed_at = time.monotonic()
            group.workers[1].process.signal(signal.SIGKILL)

    with pytest.raises(WorkerFailedError) as caught:
        group.follow(kill_in_mid_training, timeout_s=120, watch=testbed.services)
    assert time.monotonic() - killed_at < 7.5  # a rank without heartbeats is lost after 8 s
    assert "signal SIGKILL" in caught.value.failures.pop(1)
    assert set(caught.value.failures) == {0, 2}
    shown = str(caught.value)
    for rank in (0, 2):
        assert f"rank {rank}: lost rank 1" in shown
        assert str(group.workers[rank].process.log_path) in shown
    assert shown.count("PeerLostError: ") == 2
    assert shown.count("the oldest chunk without a result is ") == 2
    assert collect_sums(testbed, start_sums(testbed, "after-the-kill")) == lossless


@pytest.mark.parametrize("name", ["switch", pytest.param("controller", marks=pytest.mark.long)])
def test_a_killed_service_is_named_in_mid_training_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setattr(
        inagg_testbed.network.testbed, "NodeProcess", NodeProcess
    )  # leftovers carry the run's name
    runs = []

    def train_until_killed() -> None:
        with open_testbed(
            hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path, state_dir=tmp_path / "state"
        ) as testbed:
            runs.append(testbed.run.id)
            (service,) = (process for process in testbed.services if process.name == name)

            def on_progress(_run: str, done: int, _total: int, _note: str) -> None:
                if done >= 5:
                    service.signal(signal.SIGKILL)

            train(testbed, INAGG_32_LOSS, 100_000, on_progress)

    with pytest.raises(ProcessFailedError, match=rf"^{name} ended with signal SIGKILL") as caught:
        train_until_killed()
    assert type(caught.value) is ProcessFailedError  # not the workers, which are affected
    assert tagged_processes(runs[0], besides=0) == []
    assert manifests(tmp_path / "state") == {}


def inagg(
    *arguments: str, folder: Path, start: Command = commands.inagg
) -> "subprocess.CompletedProcess[str]":
    """Run the command. Fails if it leaves anything behind."""
    done = start(*arguments, "--results", str(folder))
    for run in [path.name.rpartition("-")[2] for path in folder.glob("2*-*")]:
        assert tagged_processes(run, besides=0) == []
        assert run not in manifests()
    return done


def assert_repeatable(settings: dict[str, Any]) -> None:
    """The settings in a benchmark's JSON file say what to run again, with what, and on what."""
    assert settings["inagg"] == metadata.version("inagg")
    assert settings["processors"] == os.cpu_count()
    assert (settings["topology"], settings["switch"]) == ("star", "model")
    assert "MTU 1500" in settings["link"]


def test_the_device_benchmark_writes_each_iteration_and_a_trace(tmp_path: Path) -> None:
    json_path, plot, timeline = (tmp_path / name for name in ("device.json", "device.png", "timeline.json"))
    size = ("--on", "cpu", "--workers", "2", "--elements", "100", "--elements", "10000", "--iters", "3")
    files = ("--json", str(json_path), "--plot", str(plot), "--timeline", str(timeline))
    done = inagg("bench", "device", *size, *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(json_path.read_text())
    assert_repeatable(figures["settings"])
    assert [row["lane_bits"] for row in figures["stages"]] == [8, 16, 32]
    ways = ("cpu", "auto", "host", "torch")
    wanted: set[tuple[int, int | None, str]] = {(size, None, "gloo") for size in (100, 10_000)}
    wanted |= {(size, bits, way) for size in (100, 10_000) for bits in (32, 8) for way in ways}
    assert {(row["elements"], row["lane_bits"], row["way"]) for row in figures["sums"]} == wanted
    assert len(figures["overlap"]) == 3
    assert figures["steps"] == []
    for row in figures["sums"] + figures["overlap"]:
        assert len(row["times_ms"]) == 3
        assert row["ms"] == statistics.median(row["times_ms"])

    events = json.loads(timeline.read_text())["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    ranges = {
        (threads[event["tid"]], event["name"]) for event in events if event["name"].startswith("inagg::wait")
    }
    assert ("inagg-scan-cpu", "inagg::wait for the device") in ranges
    assert ("inagg-unpack-cpu", "inagg::wait for the sum") in ranges


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--gpu-ranks", "3"), "there are 2 workers"),
        (("--steps",), "add --gpu-ranks 2"),
        (("--timeline", "/proc/none/timeline.json"), "/proc/none"),
    ],
)
def test_the_device_benchmark_refuses_what_it_cannot_measure(
    tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    done = inagg("bench", "device", "--on", "cpu", *arguments, folder=tmp_path)
    assert done.returncode == 1
    assert reason in done.stderr


def test_the_bench_command_writes_its_rows(tmp_path: Path) -> None:
    backends = ("--backend", "gloo", "--backend", "inagg:32", "--backend", "inagg:16")
    size = ("--workers", "2", "--elements", "10000", "--elements", "64", "--link", "unshaped")
    rounds = ("--iters", "2", "--warmup", "1", "--back-to-back", "2", "--loss", "0", "--loss", "0.02")
    json_path, plot = tmp_path / "rows.json", tmp_path / "rows.svg"
    done = inagg(
        *("bench", "allreduce", *size, *backends, *rounds, "--json", str(json_path), "--plot", str(plot)),
        folder=tmp_path,
        start=commands.inagg_process,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<svg" in plot.read_text()
    figures = json.loads(json_path.read_text())
    assert figures["settings"]["command"][1:3] == ["bench", "allreduce"]
    assert_repeatable(figures["settings"])
    assert figures["settings"]["seed"] == 1
    rows = figures["rows"]
    contestants = [
        ("gloo", None, 0),
        ("inagg", 32, 0),
        ("inagg", 16, 0),
        ("inagg", 32, 0.02),
        ("inagg", 16, 0.02),
    ]
    assert [(row["backend"], row["lane_bits"], row["loss"], row["elements"]) for row in rows] == [
        (*contestant, elements) for elements in (10000, 64) for contestant in contestants
    ]
    for row in rows:
        assert row["checked"]
        assert len(row["times_ms"]) == 2
        assert statistics.median(row["times_ms"]) == pytest.approx(row["time_ms"]["p50"])
        assert (row["workers"], row["mtu"], row["words"]) == (2, 1500, 4 if row["lane_bits"] else None)
        assert row["cpu_s_per_GB"] > 0
        assert (row["ratio_to_gloo"] is None) == (row["loss"] > 0) == (row["ratio_to_lossless"] is not None)
    # 2 ranks x 2 iterations x 2 all-reduces of 40 blocks and, where they are sent ahead, their exponents; and queries
    assert 8 * 40 <= rows[1]["packets"] - rows[1]["retransmits"] <= 2 * 8 * 80
    assert rows[1]["transport"]["srtt_s"] > 0
    assert "inagg:16" in done.stdout
    assert "64 float32 (40,000, 256 bytes), 2 workers" in done.stdout
    assert "inputs: normal floats (mean 0, standard deviation 1) on a grid of 2^-40" in done.stdout
    assert "; seed 1" in done.stdout
    (logs,) = tmp_path.glob("2*-*")
    assert {"switch.log", "controller.log", "bench-1-rank0.log"} <= {path.name for path in logs.iterdir()}


@pytest.mark.long
def test_the_bench_command_sums_half_floats(tmp_path: Path) -> None:
    backends = [word for name in ("gloo", "inagg", "inagg:32") for word in ("--backend", name)]
    size = ("--dtype", "bfloat16", "--workers", "3", "--elements", "20000", "--link", "unshaped")
    json_path = tmp_path / "rows.json"
    done = inagg(
        *("bench", "allreduce", *size, *backends, "--iters", "2", "--json", str(json_path)), folder=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(json_path.read_text())["rows"]
    assert [(row["dtype"], row["lane_bits"], row["theory_bytes"], row["checked"]) for row in rows] == [
        ("bfloat16", None, pytest.approx(4 / 3 * 40_000), True),
        ("bfloat16", 16, 40_000, True),
        ("bfloat16", 32, 80_000, True),
    ]
    for row in rows:
        assert row["algbw_MBps"] == pytest.approx(40_000 / row["time_ms"]["p50"] / 1e3)
    assert "20,000 bfloat16 (40,000 bytes), 3 workers" in done.stdout


def test_jumbo_frames_carry_32_words(tmp_path: Path) -> None:
    size = ("--workers", "2", "--elements", "100000", "--link", "unshaped", "--mtu", "9000", "--iters", "2")
    json_path = tmp_path / "rows.json"
    done = inagg(
        *("bench", "allreduce", *size, "--backend", "inagg:32", "--json", str(json_path)), folder=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(json_path.read_text())["rows"]
    assert (row["checked"], row["mtu"], row["words"]) == (True, 9000, 32)
    # 2 ranks x 2 iterations of 49 blocks of 2048 elements, at most as many exponents sent ahead, and queries
    assert 4 * 49 <= row["packets"] - row["retransmits"] <= 2 * 4 * 98


def test_a_jumbo_switch_refuses_a_worker_whose_mtu_is_too_small(tmp_path: Path) -> None:
    with open_testbed(
        hosts=1,
        link=LinkSpec.parse("unshaped", mtu=9000),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
    ) as testbed:
        assert testbed.controller is not None
        job = testbed.controller.request("POST", "/jobs", {"workers": 1, "slots": 2})
        assert job["words"] == 32
        worker = {"rank": 0, "ip": "10.0.0.1", "mac": "02:00:0a:00:00:01", "udp_port": 4000, "mtu": 1500}
        with pytest.raises(
            ControllerRefusedError, match=r"mtu is 1500, but a DATA packet .* needs 8240 bytes"
        ):
            testbed.controller.request("POST", f"/jobs/{job['id']}/workers", worker)
        testbed.controller.request("POST", f"/jobs/{job['id']}/workers", worker | {"mtu": 9000})


def test_the_straggler_command_tells_what_the_others_send(tmp_path: Path) -> None:
    size = ("--workers", "3", "--elements", "100000", "--link", "unshaped", "--sleep", "1")
    json_path, plot = tmp_path / "straggler.json", tmp_path / "straggler.pdf"
    files = ("--json", str(json_path), "--plot", str(plot))
    done = inagg("bench", "straggler", *size, *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert plot.read_bytes().startswith(b"%PDF")
    figures = json.loads(json_path.read_text())
    assert_repeatable(figures["settings"])
    assert statistics.median(figures["prompts_ms"]) == figures["prompt_ms"]
    assert [rank["rank"] for rank in figures["ranks"]] == [0, 1]
    for rank in figures["ranks"]:
        assert len(rank["samples"]) == 3  # every quarter of the second, but the last
        # at most its window once, nothing new until rank 2 joins, and the rest are repeats
        assert 0 < rank["packets"] - rank["resent"] <= figures["window"]
    assert figures["behind_ms"] > 0
    assert "rank 2 of 3 joins 1 s late" in done.stdout


def test_a_quick_suite_writes_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    options = ("--quick", "--folder", str(folder), "--backend", "gloo", "--backend", "inagg:32")
    done = inagg("bench", "suite", *options, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} == {
        *("allreduce.json", "latency.json", "loss.json", "scaling.json", "straggler.json"),
        *("targets.json", "report.md", "report.json", "report.html", "ratios.png", "scaling.png"),
    }
    assert "targets are not judged at these sizes" in done.stdout
    assert json.loads((folder / "targets.json").read_text()) == []
    assert "unshaped, N=2, 10,000: inagg:32 vs gloo" in [one.what for one in write_report(folder)]


def test_the_demo_command_writes_summary_plots_and_report(tmp_path: Path) -> None:
    options = ("--quick", "--workers", "2", "--link", "unshaped")
    done = inagg("demo", *options, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert [(run["backend"], run["lane_bits"], run["loss"]) for run in summary["runs"]] == [
        ("gloo", None, 0.0),
        ("inagg", 32, 0.0),
        ("inagg", 16, 0.0),
        ("inagg", 32, 0.01),
    ]
    assert summary["weights_identical_under_loss"] is True
    assert 900_000 < summary["elements"] < 1_100_000
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {
        "summary.json",
        "report.html",
        "report.json",
        "loss.png",
        "steps.png",
        "links.json",
        "fabric.png",
    }
    assert "bit-identical" in done.stdout
    assert "quick run: so few steps" in done.stdout
    page = (tmp_path / "demo" / "report.html").read_text()
    done = commands.inagg_process("report", str(tmp_path / "demo"), "--output", str(tmp_path / "again.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.html").read_text() == page


@pytest.mark.bmv2
def test_sums_are_right_on_the_reference_switch(folder: Path, lossless: dict[tuple[str, int], str]) -> None:
    with open_testbed(
        hosts=WORKERS,
        link=LinkSpec.parse("100mbit"),
        results_root=folder / "results",
        state_dir=folder / "state",
        switch="bmv2",
    ) as reference:
        assert collect_sums(reference, start_sums(reference, "bmv2")) == lossless
