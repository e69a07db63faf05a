# SPDX-License-Identifier: Apache-2.0
"""`inagg compare` on a testbed: trainings under several architectures, and what is measured of them."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from inagg_testbed.cli.main import app
from inagg_testbed.compare.diagnosis import Found, diagnose
from inagg_testbed.compare.figures import ComparisonFigures, RunFigures

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

# Names a backend, and knows nothing of inagg.
PROGRAM = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
draw = torch.Generator().manual_seed(dist.get_rank())
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(16, 64, generator=draw)
    loss = nn.functional.mse_loss(model(inputs).squeeze(1), inputs.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert __name__ == "__main__" and dist.get_backend() == "gloo"
dist.destroy_process_group()
"""


def compare(results: Path, *arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["compare", "--results", str(results), *arguments])


def with_ways(*ways: str) -> list[str]:
    """Options."""
    return [word for way in ways for word in ("--with", way)]


def read(results: Path) -> ComparisonFigures:
    """What it has written."""
    return ComparisonFigures.model_validate_json((results / "compare.json").read_text())


def test_models_end_with_the_same_weights_and_move_what_theory_says(tmp_path: Path) -> None:
    ways = with_ways("ring", "server:sync", "inagg:32", "server:ssp=0", "local:2")
    done = compare(tmp_path, "--workers", "3", "--model", "digits-cnn", "--steps", "8", *ways)
    assert done.exit_code == 0, done.output
    runs = {run.way: run for run in read(tmp_path).runs}
    assert [run.steps for run in runs.values()] == [8] * 5
    assert [len(run.weights) for run in runs.values()] == [1] * 5
    for way, run in runs.items():
        assert 1.0 < run.busiest_link_bytes / run.theory_bytes < 1.15, way
        parts = run.parts_ms
        assert 0 < parts.ran <= run.step_ms
        assert 0 < parts.waited <= parts.communication
        assert run.losses[-1] is not None
        check_timeline(run)
    # Stale-synchronous with S = 0 is synchronous SGD to rounding.
    assert runs["server:ssp=0"].losses == pytest.approx(runs["ring"].losses, abs=2e-3)
    assert runs["inagg:32"].losses == pytest.approx(runs["ring"].losses, abs=2e-3)
    assert runs["ring"].quality == pytest.approx(runs["inagg:32"].quality, abs=0.02)
    assert runs["ring"].links[0].up > 8 * 1e6


def check_timeline(run: RunFigures) -> None:
    """Of a step the timeline has what the architecture does on each of three ranks."""
    assert run.timeline is not None
    assert len(run.timeline.ranks) == 3
    exchanges = run.way in ("server:ssp=0", "local:2")
    for spans in run.timeline.ranks:
        kinds = [span.kind for span in spans]
        assert {"forward", "backward", "optimizer"} <= set(kinds), run.way
        assert exchanges == ("exchange" in kinds) == ("all_reduce" not in kinds), run.way
        (backward,) = (span for span in spans if span.kind == "backward")
        for wait in (span for span in spans if span.kind == "wait"):
            assert backward.end_ms <= wait.begin_ms < wait.end_ms
            assert wait.end_ms <= max(span.end_ms for span in spans if span.kind == "all_reduce")


def test_a_training_ends_at_its_target_and_an_interrupted_comparison_goes_on(tmp_path: Path) -> None:
    options = [
        "--workers",
        "2",
        "--link",
        "1gbit",
        "--model",
        "linear",
        "--until",
        "loss=0.5",
        "--steps",
        "90",
    ]
    options += with_ways("ring", "server:async", "gossip:random")
    done = compare(tmp_path, *options)
    assert done.exit_code == 0, done.output
    before = read(tmp_path)
    for run in before.runs:
        assert run.steps < 90
        assert run.reached_s is not None
        assert 0 < run.reached_s <= run.seconds + 1e-9
    (tmp_path / "runs" / "server-async-0.json").unlink()
    done = compare(tmp_path, *options)
    assert done.exit_code == 0, done.output
    assert "2 of 3 trainings are in" in done.output
    after = read(tmp_path)
    assert [run.way for run in after.runs] == ["ring", "server:async", "gossip:random"]
    assert [after.runs[0], after.runs[2]] == [before.runs[0], before.runs[2]]
    other = compare(tmp_path, *options, "--mtu", "9000")
    assert other.exit_code == 1
    assert "has another comparison (mtu was 1500, and is 9000)" in other.output.replace("\n", " ")


def test_a_mesh_of_ranks_learns_as_data_parallel_ones(tmp_path: Path) -> None:
    """Data x tensor x pipeline parallel, the same weights and batches: the same losses up to rounding."""
    mesh = ["--mesh", "dp=2,tp=2,pp=2", *with_ways("ring", "inagg:32")]
    plain = ["--workers", "2", *with_ways("ring")]
    for name, options in (("mesh", mesh), ("plain", plain)):
        settings = ["--model", "gpt", "--steps", "4", "--link", "unshaped"]
        done = compare(tmp_path / name, *settings, *options)
        assert done.exit_code == 0, done.output
    (expected,) = read(tmp_path / "plain").runs
    for run in read(tmp_path / "mesh").runs:
        assert run.losses == pytest.approx(expected.losses, abs=2e-3)
        assert run.quality == pytest.approx(expected.quality, abs=2e-3)
        assert len(run.weights) == 4
        found = {(group.name, group.kind): group for group in run.groups}
        assert set(found) == {("dp", "all_reduce"), ("tp", "all_reduce"), ("pp", "send"), ("pp", "recv")}
        # A stage's two blocks have four sums in each direction, for each of four parts of the batch.
        assert found["tp", "all_reduce"].calls == 32
        assert found["tp", "all_reduce"].path == ("switch" if run.way == "inagg:32" else "gloo")
        assert found["pp", "send"].path == "gloo"
        assert 1 < run.busiest_link_bytes / run.theory_bytes < 1.25


def test_a_program_needs_no_change(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    ways = with_ways("ring", "server:sync", "inagg:16+ef", "local:3")
    done = compare(tmp_path / "results", "--workers", "2", "--model", str(program), *ways, "--", "12")
    assert done.exit_code == 0, done.output
    runs = {run.way: run for run in read(tmp_path / "results").runs}
    for run in runs.values():
        assert (run.steps, run.elements, len(run.weights)) == (12, 33001, 1)
    # The loss of the first step that is measured is that of weights which one step has changed.
    assert runs["server:sync"].losses == pytest.approx(runs["ring"].losses, rel=1e-4)
    assert runs["inagg:16+ef"].losses == pytest.approx(runs["ring"].losses, rel=1e-2)
    assert json.loads((tmp_path / "results" / "settings.json").read_text())["program"] == [str(program), "12"]


def limit(run: RunFigures, rate_bps: int | None = None) -> Found:
    """The largest cause of a step's time."""
    return diagnose(run, rate_bps).causes[0]


def test_long_round_trips_are_the_limit_of_small_sums(tmp_path: Path) -> None:
    options = ["--workers", "3", "--model", "linear", "--steps", "12", "--impair", "delay=10ms"]
    done = compare(tmp_path, *options, *with_ways("ring", "inagg:32"))
    assert done.exit_code == 0, done.output
    ring, inagg = read(tmp_path).runs
    assert limit(ring).name == "latency"
    assert limit(inagg).name == "latency"
    # A round trip takes 40 ms between hosts. A ring of three needs four, one after another; inagg one, to the switch.
    assert ring.least_rtt_ms == pytest.approx(40, abs=4)
    assert inagg.least_rtt_ms == pytest.approx(40, abs=4)
    assert ring.step_ms > 1.5 * inagg.step_ms
    said = " ".join(done.output.split())
    assert "ring: latency" in said
    assert "4 x RTT of 40" in said
    assert "1 x RTT of 20" in said
    assert "inagg:32 is predicted to be at least 1.1x as fast as ring: on any links" in said


def test_a_rank_that_computes_longer_is_named(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    busy = (
        "    end = time.monotonic() + 0.2 * (dist.get_rank() == 1)\n    while time.monotonic() < end: pass\n"
    )
    program.write_text(
        "import time\n" + PROGRAM.replace("    optimizer.zero_grad()", busy + "    optimizer.zero_grad()")
    )
    options = ["--workers", "3", "--link", "unshaped", "--model", str(program)]
    done = compare(tmp_path / "results", *options, *with_ways("ring", "inagg:32"), "--", "20")
    assert done.exit_code == 0, done.output
    for run in read(tmp_path / "results").runs:
        assert limit(run).name == "ranks", run
        assert "rank 1: computation" in limit(run).detail


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--model", "digit"], "neither a file nor one of linear"),
        (["--model", "linear", "--", "x"], "takes no arguments"),
        (["--with", "hierarchical"], "a star has one rack"),
        (["--until", "loss=2"], "this model has an accuracy"),
        (["--with", "ring", "--with", "ring"], "twice"),
        (["--with", "paxos"], "is unknown"),
        (["--model", __file__, "--seed", "2"], "seeds itself"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(tmp_path: Path, options: list[str], problem: str) -> None:
    done = compare(tmp_path / "results", *options)
    assert done.exit_code == 1
    assert problem in done.output.replace("\n", " ")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("way", ["gossip", "server:sync"])
def test_a_rank_that_fails_ends_the_comparison_with_its_error(tmp_path: Path, way: str) -> None:
    program = tmp_path / "train.py"
    failing = "    if dist.get_rank() == 1 and _ == 3: raise OSError('disk full')\n    optimizer.zero_grad()"
    program.write_text(PROGRAM.replace("    optimizer.zero_grad()", failing))
    began = time.monotonic()
    done = compare(
        tmp_path / "results", "--workers", "2", "--model", str(program), *with_ways(way), "--", "9"
    )
    assert done.exit_code == 1
    assert "disk full" in done.output
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("way", ["gossip", "server:sync"])
def test_a_model_that_is_parallel_over_some_ranks_is_refused(tmp_path: Path, way: str) -> None:
    program = tmp_path / "train.py"
    halves = "groups = [dist.new_group([rank]) for rank in range(2)]\nmodel = DDP("
    own = "nn.Linear(500, 1)), process_group=groups[dist.get_rank()])"
    text = PROGRAM.replace("model = DDP(", halves).replace("nn.Linear(500, 1)))", own)
    program.write_text(text)
    done = compare(
        tmp_path / "results", "--workers", "2", "--model", str(program), *with_ways(way), "--", "9"
    )
    assert done.exit_code == 1
    assert "has one that is parallel over 1" in " ".join(done.output.split())


def test_figures_of_another_version_of_a_program_are_not_taken(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    options = ["--workers", "2", "--link", "1gbit", "--model", str(program), *with_ways("ring"), "--", "4"]
    assert compare(tmp_path / "results", *options).exit_code == 0
    program.write_text(PROGRAM + "# changed\n")
    done = compare(tmp_path / "results", *options)
    assert done.exit_code == 1
    assert "train.py has changed since" in " ".join(done.output.split())


def test_a_mistyped_option_does_not_take_the_folder(tmp_path: Path) -> None:
    options = ["--workers", "2", "--model", "linear", "--steps", "3", *with_ways("ring")]
    assert compare(tmp_path, *options, "--link", "100mbitt").exit_code == 1
    assert compare(tmp_path, *options, "--link", "1gbit").exit_code == 0


def test_a_program_without_data_parallel_model_is_compared_where_it_needs_none(tmp_path: Path) -> None:
    """It sums gradients itself. Theory knows the bytes from its calls; what has ended is shown before the error."""
    program = tmp_path / "train.py"
    sums = "    for one in model.parameters(): dist.all_reduce(one.grad)\n    optimizer.step()"
    program.write_text(PROGRAM.replace("model = DDP(", "model = (").replace("    optimizer.step()", sums))
    ways = with_ways("ring", "inagg:32", "local:3")
    options = ["--workers", "3", "--link", "20mbit", "--model", str(program), *ways]
    done = compare(tmp_path / "results", *options, "--", "6")
    said = done.output.replace("\n", " ")
    assert done.exit_code == 1
    assert "needs a DistributedDataParallel" in said
    assert "2 of 3 trainings have ended, and are kept" in said
    found = read(tmp_path / "results")
    assert [run.way for run in found.runs] == ["ring", "inagg:32"]
    for run in found.runs:
        assert 1 < run.busiest_link_bytes / run.theory_bytes < 1.25
        assert "link" in [cause.name for cause in diagnose(run, found.rate_bps).causes[:2]], run
