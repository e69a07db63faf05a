# SPDX-License-Identifier: Apache-2.0
"""`inagg run --timeline` and `inagg trace`: real ranks and switches in one file."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app
from tests.testbed import commands
from tests.testbed.trace.validity import Event, check, threads_of

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

dist.init_process_group("BACKEND")
model = DDP(nn.Sequential(nn.Linear(64, 4000), nn.ReLU(), nn.Linear(4000, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs in DataLoader(torch.randn(8 * 12, 64), batch_size=8):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def words(tmp_path: Path, backend: str, *options: str) -> list[str]:
    """The command line of a run of the program."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("BACKEND", backend))
    files = ["--results", str(tmp_path / "results"), "--timeline", str(tmp_path / "trace.json")]
    return ["run", *files, *options, str(program)]


def read(tmp_path: Path) -> dict[str, Any]:
    """The trace of a run."""
    found: dict[str, Any] = json.loads((tmp_path / "trace.json").read_text())
    check(found)
    assert found["otherData"] == {"steps": [9, 10, 11], "clock_error_us": {}}
    return found


def interval(slices: list[Event]) -> tuple[float, float]:
    """From the first to the last, in us."""
    return min(one["ts"] for one in slices), max(one["ts"] + one["dur"] for one in slices)


def check_rank(threads: dict[str, list[Event]]) -> None:
    names = [one["name"] for one in threads["program"]]
    for name in ("step 9", "step 10", "step 11"):
        assert names.count(name) == 1
    for name in ("forward", "backward", "wait", "optimizer"):
        assert names.count(name) == 3, name
    assert len(threads["data loading"]) == 3
    moved = [one["args"]["bytes"] for one in threads["collectives"]]
    assert sum(moved) == 3 * 4 * (65 * 4000 + 4001)


def check_arrows(found: dict[str, Any], rank: int) -> None:
    """In each step the first contribution reaches the switch after the all-reduce begins, and before the last result
    leaves, which is before the all-reduce ends."""
    pairs: dict[int, list[Event]] = {}
    for event in found["traceEvents"]:
        if event["ph"] in "sf":
            pairs.setdefault(event["id"], []).append(event)
    process = rank + 1
    out = [(start["ts"], end["ts"]) for start, end in pairs.values() if start["pid"] == process]
    back = [(start["ts"], end["ts"]) for start, end in pairs.values() if end["pid"] == process]
    assert len(out) == len(back) == 3
    for (begins, arrives), (leaves, ends) in zip(sorted(out), sorted(back), strict=True):
        assert begins < arrives < leaves < ends


@pytest.mark.netns
@pytest.mark.usefixtures("forked_processes")
def test_the_events_of_ranks_and_switches_are_on_one_clock(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words(tmp_path, "inagg", "--topology", "tree:2x1"))
    assert done.exit_code == 0, done.output
    assert "ui.perfetto.dev" in done.output
    found = read(tmp_path)
    ranks = [threads_of(found, f"rank {number} (h{number + 1})") for number in range(2)]
    for threads in ranks:
        check_rank(threads)
    for number, threads in enumerate(ranks):
        leaf = threads_of(found, f"switch leaf{number + 1}")
        for row in (f"h{number + 1}: contributions in", f"root:{number + 1}: contributions out"):
            packets = sum(one["args"]["packets"] for one in leaf[row])
            assert packets >= 3 * 4 * 264_001 / 1024, row
        begin, end = interval(threads["collectives"])
        assert any(begin < one["ts"] < end for one in leaf["summing"])
        check_arrows(found, number)

    (folder,) = (tmp_path / "results").glob("*/trace")
    again = tmp_path / "again.json"
    done = CliRunner().invoke(app, ["trace", str(folder), str(again), "--steps", "2"])
    assert done.exit_code == 0, done.output
    merged = json.loads(again.read_text())
    check(merged)
    assert merged["otherData"]["steps"] == [10, 11]
    assert [one["name"] for one in threads_of(merged, "rank 1 (h2)")["program"]].count("wait") == 2


@pytest.mark.netns
def test_a_program_that_is_taken_over_over_bridges_has_its_ranks_events(tmp_path: Path) -> None:
    options = ("--take-over", "gloo", "--switch", "bridge", "--workers", "2")
    done = commands.inagg_process(*words(tmp_path, "gloo", *options))
    assert done.returncode == 0, done.stdout + done.stderr
    found = read(tmp_path)
    for number in range(2):
        check_rank(threads_of(found, f"rank {number} (h{number + 1})"))
    assert not [event for event in found["traceEvents"] if event["ph"] in "Csf"]


GROUPS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.01)
for members in ([0, 1], [1, 2]):
    group = dist.new_group(members, backend="inagg")
    if dist.get_rank() in members:
        dist.all_reduce(torch.ones(1000), group=group)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.netns
def test_groups_of_some_ranks_have_one_trace(tmp_path: Path) -> None:
    """Ranks 1 and 2 are both the last of their first group, and rank 0 is not in rank 2's."""
    arguments = words(tmp_path, "", "--workers", "3", "--switch", "bridge")
    Path(arguments[-1]).write_text(GROUPS)
    done = commands.inagg_process(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "trace.json").read_text())
    check(found)
    assert found["otherData"] == {"steps": [2], "clock_error_us": {}}
    for number in range(3):
        names = [one["name"] for one in threads_of(found, f"rank {number} (h{number + 1})")["program"]]
        assert names == ["step 2", "forward", "backward", "optimizer"]


@pytest.mark.netns
@pytest.mark.usefixtures("forked_processes")
def test_a_program_without_groups_of_inaggs_succeeds_without_a_trace(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words(tmp_path, "gloo", "--workers", "2", "--switch", "bridge"))
    assert done.exit_code == 0, done.output
    assert "no trace: no rank has written a trace" in done.output
    assert "logs: " in done.output
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.netns
@pytest.mark.usefixtures("forked_processes")
def test_a_run_that_fails_has_the_trace_of_its_steps(tmp_path: Path) -> None:
    arguments = words(tmp_path, "inagg", "--workers", "2", "--switch", "bridge")
    with Path(arguments[-1]).open("a") as program:
        program.write("raise ValueError('after the training')\n")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1, done.output
    assert "after the training" in done.output
    found = read(tmp_path)
    for number in range(2):
        check_rank(threads_of(found, f"rank {number} (h{number + 1})"))


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    done = CliRunner().invoke(app, words(tmp_path, "inagg"))
    assert done.exit_code == 1
    assert "cannot write" in done.output
    assert not (tmp_path / "results").exists()
