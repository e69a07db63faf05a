# SPDX-License-Identifier: Apache-2.0
"""`inagg explain`: what limits a run whose figures are in a folder, and what to change."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from inagg.causes import CAUSES
from inagg_testbed.compare.figures import Parts
from inagg_testbed.demo.run import GLOO, Demo, DemoResult, TrainingResult
from inagg_testbed.report.record import Record, write_record
from tests.testbed import commands
from tests.testbed.compare.examples import comparison, run


def explained(folder: Path) -> str:
    """What the command prints."""
    done = commands.inagg("explain", str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(folder: Path) -> str:
    """Why it does not."""
    done = commands.inagg("explain", str(folder))
    assert done.returncode == 1
    return " ".join(done.stderr.split())


def test_a_comparison_has_remedies_in_order_of_gain_and_what_theory_says(tmp_path: Path) -> None:
    parts = Parts(ran=20.0, queued=0.0, waited=80.0, other=0.0, communication=80.0)
    runs = [
        run(way, 100).model_copy(update={"parts_ms": parts, "theory_bytes": 1e6})
        for way in ("ring", "inagg:32")
    ]
    (tmp_path / "compare.json").write_text(comparison(*runs).model_dump_json())
    lines = explained(tmp_path).splitlines()
    assert lines[0].startswith(
        "ring: link 80% (84 ms for 1 MB), computation 20%; with sums that cost nothing"
    )
    assert lines[1].startswith(f"  1. link, up to 5.00x: {CAUSES['link'].remedy}")
    assert lines[2].startswith(f"  2. computation, up to 1.25x: {CAUSES['computation'].remedy}")
    theory = lines[lines.index("theory:") :]
    assert [line.split(":")[0] for line in theory[1:3]] == ["  ring", "  inagg"]
    assert "is predicted to be at least 1.1x as fast as ring" in theory[3]


def write_demo(folder: Path, **figures: Any) -> None:
    """A demo of gloo alone: four workers, 100 Mbit/s, 11 steps of 100 ms, of which 40 ms compute."""
    training = TrainingResult(
        **{
            "spec": GLOO,
            "accuracy": 0.97,
            "weights_sha256": "aa",
            "step_ms": [100.0] * 11,
            "compute_ms": 40.0,
            "losses": [1.0] * 11,
            "bytes_sent_per_worker": 6_250_000,
            "retransmits": 0,
            "elements": 100,
            **figures,
        }
    )
    result = DemoResult(Demo(runs=(GLOO,)), [training], folder, "abcdef", 60.0)
    write_record(folder, Record("demo", asdict(result)))


def test_a_demo_tells_computation_from_the_link(tmp_path: Path) -> None:
    """A host sends 625 kB a step, which takes 50 ms."""
    write_demo(tmp_path)
    said = explained(tmp_path)
    assert said.startswith("gloo: link 50%, computation 40%, other 10%; with sums that cost nothing")
    assert "2.50x as fast" in said
    assert "`inagg compare --model digits-cnn` measures the rest" in said


def test_a_demo_with_packets_sent_again_has_loss(tmp_path: Path) -> None:
    write_demo(tmp_path, retransmits=1000, bytes_sent_per_worker=1_250_000)
    assert explained(tmp_path).startswith(
        "gloo: loss 50% (1000 packets sent again), computation 40%, link 10%"
    )


def test_what_has_no_figures_is_refused_with_what_to_do(tmp_path: Path) -> None:
    assert "has neither compare.json of `inagg compare` nor report.json" in refused(tmp_path)
    (tmp_path / "run-rank0.log").touch()
    assert "Let the program print(inagg.explain()) at its end" in refused(tmp_path)


def test_figures_without_a_training_are_refused(tmp_path: Path) -> None:
    write_record(tmp_path, Record("allreduce", {}))
    assert "`inagg bench allreduce`, which has no training steps" in refused(tmp_path)
    (tmp_path / "compare.json").write_text("{}")
    assert "compare.json: settings: Field required" in refused(tmp_path)
    (tmp_path / "compare.json").unlink()
    write_record(tmp_path, Record("demo", {}))
    assert "report.json: demo: Field required" in refused(tmp_path)
