# SPDX-License-Identifier: Apache-2.0
"""summary.json, the plots and the report, made from the events of a training's workers."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.demo.figures import QUICK, TABLE_HEADER, heading, table_rows, unmeasured, verdicts
from inagg_testbed.demo.page import contents
from inagg_testbed.demo.report import write_report
from inagg_testbed.demo.run import (
    GLOO,
    INAGG_16,
    INAGG_32,
    INAGG_32_LOSS,
    Demo,
    DemoResult,
    Fault,
    TrainingResult,
    TrainingSpec,
    summarise_run,
    summary,
)
from inagg_testbed.errors import ConfigurationError, WrongResultError
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report.fabric import layout
from inagg_testbed.report.page import page_of, render
from inagg_testbed.report.parts import Bars, FabricPicture, Plot, Table, Verdict
from inagg_testbed.report.record import Record, Run, named_runs

RUN_FIELDS = [
    *("backend", "lane_bits", "loss", "accuracy", "step_ms_p50", "comm_ms_p50", "bytes_sent_per_worker"),
    *("retransmits", "weights_sha256", "speedup_comm"),
]


def reported(rank: int, *, weights: str = "aa") -> list[tuple[int, dict[str, Any]]]:
    """Three steps of a rank; rank 1 is 10 ms slower and has twice the loss."""
    late = 0.01 * rank
    steps = [
        {
            "event": "step",
            "step": step,
            "seconds": seconds + late,
            "update_seconds": 0.002,
            "loss": loss * (1 + rank),
        }
        for step, seconds, loss in ((0, 0.9, 2.0), (1, 0.5, 1.0), (2, 0.6, 0.5))
    ]
    end = {
        "event": "end",
        "accuracy": 0.98,
        "weights_sha256": weights,
        "bytes_sent": 100 + rank,
        "retransmits": 3,
    }
    events = [
        {"event": "start", "elements": 1234},
        {"event": "compute", "step": 0, "seconds": 0.05 + late},
        *steps,
        end,
    ]
    return [(rank, event) for event in events]


def result_of(
    spec: TrainingSpec, *, comm_ms: float, accuracy: float = 0.98, weights: str = "aa"
) -> TrainingResult:
    return TrainingResult(
        spec=spec,
        accuracy=accuracy,
        weights_sha256=weights * 32,
        step_ms=[20.0 + comm_ms] * 4,
        compute_ms=20.0,
        losses=[2.0, 1.0, 0.5, 0.25],
        bytes_sent_per_worker=4_000_000,
        retransmits=7,
        elements=1234,
    )


def demo_result(tmp_path: Path, *, lossy_weights: str = "aa", accuracy_16: float = 0.975) -> DemoResult:
    runs = [
        result_of(GLOO, comm_ms=500.0),
        result_of(INAGG_32, comm_ms=250.0),
        result_of(INAGG_16, comm_ms=125.0, accuracy=accuracy_16, weights="bb"),
        result_of(INAGG_32_LOSS, comm_ms=400.0, weights=lossy_weights),
    ]
    settings = {"link": "100 Mbit/s each way", "slots": 128, "words": 4}
    return DemoResult(Demo(), runs, tmp_path / "logs", "abcdef", 12.0, settings)


def demo_of_a_tree(tmp_path: Path) -> DemoResult:
    demo = Demo(workers=2, topology="tree:2x1", uplink_name="1gbit", rank_order="interleaved")
    found = demo_result(tmp_path)
    for number, run in enumerate(found.runs, 1):
        run.links = [
            LinkBytes("leaf1:101", "root:1", number * 10**6, 2),
            LinkBytes("leaf2:101", "root:2", 3, 4),
            LinkBytes("h1", "leaf1:1", 5, 6),
            LinkBytes("h2", "leaf2:1", 7, 8),
        ]
    return replace(found, demo=demo, settings=found.settings | {"uplink": "1000 Mbit/s each way"})


def test_the_bytes_on_each_link_are_written_and_drawn(tmp_path: Path) -> None:
    files = write_report(demo_of_a_tree(tmp_path), tmp_path / "demo")
    found = json.loads(files.links.read_text())
    assert {name: found[name] for name in ("topology", "rank_order", "link", "uplink", "gloo_over")} == {
        "topology": "tree:2x1",
        "rank_order": "interleaved",
        "link": "100mbit",
        "uplink": "1gbit",
        "gloo_over": "bridge",
    }
    assert [run["run"] for run in found["runs"]] == ["gloo", "inagg:32", "inagg:16", "inagg:32, 1% loss"]
    assert found["runs"][1]["links"][0] == {
        "lower": "leaf1:101",
        "upper": "root:1",
        "up": 2_000_000,
        "down": 2,
    }
    assert files.fabric.read_bytes().startswith(b"\x89PNG")
    page = files.report.read_text()
    assert "3 switches (tree:2x1) connect the hosts" in page
    assert "Links between switches: 1gbit. Ranks are placed interleaved." in page
    assert page.count('data-tip="leaf1:101 to root:1: ') == 4
    assert 'data-tip="leaf1:101 to root:1: 2 MB up, &lt;0.001 MB down"' in page


def test_the_heading_names_a_topology_that_is_no_star(tmp_path: Path) -> None:
    assert heading(Demo()) == "4 workers, 100mbit, switch: model"
    assert heading(demo_of_a_tree(tmp_path).demo) == (
        "2 workers, 100mbit, switch: model, tree:2x1, 1gbit between switches"
    )


@pytest.mark.parametrize(
    "topology", ["tree:2x2x2", "tree:1x1", "leaf-spine:2x4x4", "leaf-spine:1x1x2", "tree:64x1"]
)
def test_every_node_is_drawn_in_a_place_of_its_own(topology: str) -> None:
    fabric = Fabric.parse(topology)
    places = layout(fabric)
    assert len(places) == len(fabric.switches) + fabric.size
    assert len(set(places.values())) == len(places)
    assert min(y for _, y in places.values()) == places["h1"][1]


def test_times_are_those_of_the_slowest_rank() -> None:
    run = summarise_run(GLOO, [*reported(0), *reported(1)])
    assert run.step_ms == pytest.approx([910.0, 510.0, 610.0])
    assert run.step_ms_p50 == pytest.approx(610.0)
    assert run.compute_ms == pytest.approx(62.0)  # the slower rank's 60, and 2 for the update
    assert run.comm_ms_p50 == pytest.approx(548.0)


def test_losses_and_bytes_are_means_and_retransmits_a_sum() -> None:
    run = summarise_run(GLOO, [*reported(0), *reported(1)])
    assert run.losses == pytest.approx([3.0, 1.5, 0.75])
    assert run.bytes_sent_per_worker == 100  # of 100 and 101, rounded to even
    assert run.retransmits == 6
    assert run.elements == 1234


def test_ranks_with_different_weights_are_an_error() -> None:
    with pytest.raises(WrongResultError, match="2 different sets of weights"):
        summarise_run(GLOO, [*reported(0), *reported(1, weights="bb")])


def test_the_summary_has_exactly_the_agreed_fields(tmp_path: Path) -> None:
    figures = summary(demo_result(tmp_path))
    assert list(figures) == [
        *("switch", "workers", "topology", "link", "elements", "runs", "weights_identical_under_loss"),
    ]
    assert [list(run) for run in figures["runs"]] == [RUN_FIELDS] * 4
    assert [run["speedup_comm"] for run in figures["runs"]] == [1.0, 2.0, 4.0, 1.25]


@pytest.mark.parametrize(("gloo", "own"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 2.0), (1.0, -2.0)])
def test_there_is_no_speedup_of_a_communication_that_takes_no_time(
    tmp_path: Path, gloo: float, own: float
) -> None:
    runs = [result_of(GLOO, comm_ms=gloo), result_of(INAGG_32, comm_ms=own)]
    result = DemoResult(Demo(workers=1), runs, tmp_path, "abcdef", 12.0)
    figures = json.loads(json.dumps(summary(result)))
    assert figures["runs"][1]["speedup_comm"] is None
    assert table_rows(result)[1][TABLE_HEADER.index("comm gain")] == "-"


def test_communication_is_never_below_zero_and_the_report_says_where_it_is_not_known(tmp_path: Path) -> None:
    runs = [result_of(GLOO, comm_ms=30.0), result_of(INAGG_32, comm_ms=-5.0)]
    result = DemoResult(Demo(), runs, tmp_path, "abcdef", 12.0, demo_result(tmp_path).settings)
    assert [run["comm_ms_p50"] for run in summary(result)["runs"]] == [30.0, 0.0]
    note = unmeasured(runs)
    assert note is not None
    assert "of inagg:32 is" in note
    assert note in write_report(result, tmp_path / "demo").report.read_text()
    assert unmeasured(runs[:1]) is None


def test_weights_under_loss_are_compared_with_the_lossless_run(tmp_path: Path) -> None:
    assert summary(demo_result(tmp_path))["weights_identical_under_loss"] is True
    assert summary(demo_result(tmp_path, lossy_weights="cc"))["weights_identical_under_loss"] is False


def with_fault(tmp_path: Path, weights: str = "aa") -> DemoResult:
    """A demo with one more run, in which the switch is killed at step 2: steps 3 and 4 take 1 s and 3 s more."""
    faulty = result_of(
        replace(INAGG_32, name="inagg32-fault", fault=Fault("switch", (2,))), comm_ms=250.0, weights=weights
    )
    faulty.step_ms = [270.0, 270.0, 1270.0, 3270.0]
    found = demo_result(tmp_path)
    return replace(found, runs=[*found.runs, faulty])


def test_a_run_with_a_fault_says_how_long_it_was_interrupted(tmp_path: Path) -> None:
    figures = summary(with_fault(tmp_path))
    *others, faulty = figures["runs"]
    assert all("fault" not in run and "interruptions_s" not in run for run in others)
    assert faulty["fault"] == {"part": "switch", "steps": (2,)}
    assert faulty["interruptions_s"] == pytest.approx([3.27 - 0.77])  # the median is between 270 and 1270 ms
    assert figures["weights_identical_after_fault"] is True
    (*_, (good, text)) = verdicts(figures)
    assert good
    assert text == (
        "switch was killed at step 2 and started again: training went on after 2.5 s, and its final weights are "
        "bit-identical to those of the undisturbed run"
    )
    several = with_fault(tmp_path)
    several.runs[-1].spec = replace(several.runs[-1].spec, fault=Fault("switch", (1, 3)))
    several.runs[-1].step_ms = [270.0, 1270.0, 270.0, 3270.0, *[270.0] * 5]
    (*_, (_, text)) = verdicts(summary(several))
    assert "killed 2 times and started again: training went on after 3.0 s (median; 3.0 s at most)" in text
    different = summary(with_fault(tmp_path, weights="cc"))
    (*_, (good, text)) = verdicts(different)
    assert (good, "DIFFERENT" in text) == (False, True)


def test_the_report_shows_the_steps_around_a_fault(tmp_path: Path) -> None:
    files = write_report(with_fault(tmp_path), tmp_path / "demo")
    assert files.fault is not None
    assert files.fault.read_bytes().startswith(b"\x89PNG")
    assert "switch is killed when rank 0 has done step 2" in " ".join(files.report.read_text().split())
    again = write_report(demo_result(tmp_path), tmp_path / "demo")
    assert again.fault is None
    assert not files.fault.exists()
    assert "A dead switch" not in again.report.read_text()


@pytest.mark.parametrize(
    ("text", "topology", "fault"),
    [
        ("switch@20", "star", Fault("switch", (20,))),
        ("switch@29", "star", Fault("switch", (29,))),
        ("switch@20,5,20", "star", Fault("switch", (5, 20))),
        ("spine2@1", "leaf-spine:2x2x2", Fault("spine2", (1,))),
        ("switch@30", "star", "steps must be from 1 to 29, of the 30 steps of a run"),
        ("switch@0", "star", "steps must be from 1 to 29"),
        ("switch", "star", "must be like switch@20 or switch@20,40; parts: controller, switch"),
        ("switch@", "star", "must be like switch@20"),
        ("switch@3,", "star", "must be like switch@20 or switch@20,40"),
        ("switch@-1", "star", "must be like switch@20"),
        ("controller@3", "star", Fault("controller", (3,))),
        ("rank1@3", "star", "must be like switch@20"),
        ("switch@3", "leaf-spine:2x2x2", "parts: controller, spine1, spine2, leaf1, leaf2"),
    ],
)
def test_a_fault_names_a_part_and_a_step(text: str, topology: str, fault: Fault | str) -> None:
    fabric = Fabric.parse(topology, hosts=4)
    if isinstance(fault, Fault):
        assert Fault.parse(text, 30, fabric) == fault
        return
    with pytest.raises(ConfigurationError) as error:
        Fault.parse(text, 30, fabric)
    assert fault in str(error.value)


def test_verdicts_tell_right_from_wrong(tmp_path: Path) -> None:
    assert [good for good, _ in verdicts(summary(demo_result(tmp_path)))] == [True, True]
    bad = demo_result(tmp_path, lossy_weights="cc", accuracy_16=0.96)
    assert [good for good, _ in verdicts(summary(bad))] == [False, False]


def test_gains_are_of_the_whole_step_and_of_communication(tmp_path: Path) -> None:
    rows = [dict(zip(TABLE_HEADER, row, strict=True)) for row in table_rows(demo_result(tmp_path))]
    assert [row["step gain"] for row in rows] == [
        "1.00x",
        "1.93x",
        "3.59x",
        "1.24x",
    ]  # 520 ms over 520, 270, ...
    assert [row["comm gain"] for row in rows] == ["1.00x", "2.00x", "4.00x", "1.25x"]


def test_without_gloo_there_is_no_gain(tmp_path: Path) -> None:
    result = DemoResult(Demo(), [result_of(INAGG_32, comm_ms=1.0)], tmp_path, "abcdef", 12.0)
    (row,) = table_rows(result)
    assert (row[TABLE_HEADER.index("step gain")], row[TABLE_HEADER.index("comm gain")]) == ("-", "-")


def test_a_quick_demo_says_so(tmp_path: Path) -> None:
    result = demo_result(tmp_path)
    assert QUICK not in heading(result.demo)
    assert QUICK not in write_report(result, tmp_path / "demo").report.read_text()
    result.demo = replace(result.demo, quick=True)
    assert QUICK in heading(result.demo)
    assert QUICK in write_report(result, tmp_path / "demo").report.read_text()


def test_the_report_stands_alone(tmp_path: Path) -> None:
    result = demo_result(tmp_path)
    files = write_report(result, tmp_path / "demo")
    page = files.report.read_text()
    assert json.loads(files.summary.read_text()) == summary(result)
    for path in files.plots:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert re.findall(r'(?:src|href)="([^"]{0,30})', page) == ["data:,", "#data"]
    for row in table_rows(result):
        for cell in row:
            assert f">{cell}" in page


def test_the_page_is_made_of_report_json_alone(tmp_path: Path) -> None:
    files = write_report(with_fault(tmp_path), tmp_path / "demo")
    (run,) = named_runs([files.record.parent])
    assert render(page_of([run], {"demo": contents})) == files.report.read_text()


def test_a_diverged_training_has_a_page(tmp_path: Path) -> None:
    result = demo_result(tmp_path)
    result.runs[1].losses = [2.0, math.nan, math.inf, 1.0]
    files = write_report(result, tmp_path / "demo")
    assert render(page_of(named_runs([files.record.parent]), {"demo": contents})) == files.report.read_text()


def test_the_summary_has_three_sentences_made_from_the_figures(tmp_path: Path) -> None:
    result = demo_result(tmp_path)
    result.runs[1].bytes_sent_per_worker = 62_400_000
    page = contents([Run("", Record("demo", asdict(result)))])
    assert page.summary == [
        "A step takes 520 ms with gloo, 96% of it communication, 270 ms with inagg:32 (1.93x as fast) and 145 ms with"
        " inagg:16 (3.59x as fast).",
        "In all steps each worker sends 4 MB with gloo, 62.4 MB with inagg:32 and 4 MB with inagg:16.",
        "After 120 steps the accuracy on the test digits is from 97.50% to 98.00%.",
    ]


def test_a_demo_over_bridges_alone_has_a_page(tmp_path: Path) -> None:
    demo = Demo(workers=1, switch="bridge", runs=(GLOO,))
    result = DemoResult(
        demo, [result_of(GLOO, comm_ms=1.0)], tmp_path, "abcdef", 1.0, demo_result(tmp_path).settings
    )
    page = contents([Run("", Record("demo", asdict(result)))])
    assert page.summary[0] == "A step takes 21 ms with gloo, 5% of it communication."
    assert page.verdicts == [
        Verdict(True, "all accuracies within 0.00 percentage points of gloo's (at most 1)")
    ]


def test_demos_beside_each_other_share_tables_and_plots(tmp_path: Path) -> None:
    folders = [tmp_path / "star", tmp_path / "tree"]
    for folder, result in zip(folders, (demo_result(tmp_path), demo_of_a_tree(tmp_path)), strict=True):
        write_report(result, folder)
    page = contents(named_runs(folders))
    table, steps, losses, _ = next(one.parts for one in page.sections if one.title == "Result")
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows] == ["star"] * 4 + ["tree"] * 4
    assert isinstance(steps, Bars)
    assert [steps.categories[0], steps.categories[-1]] == ["star: gloo", "tree: inagg:32, 1% loss"]
    assert isinstance(losses, Plot)
    assert len(losses.series) == 8
    fabrics = next(one.parts for one in page.sections if one.title == "Bytes on each link")
    assert [one.fabric.name for one in fabrics if isinstance(one, FabricPicture)] == ["star", "tree:2x1"]


def test_figures_of_another_form_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a: not the figures of a demo: demo: Field required"):
        contents([Run("a", Record("demo", {"rows": []}))])
