# SPDX-License-Identifier: Apache-2.0
"""`inagg.StepFigures`, in a loop of one's own and in the callbacks of docs/performance.md."""

import importlib.util
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

import inagg
from inagg.causes import OF_GROUP
from inagg.errors import ConfigurationError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event

WORKER = Path(__file__).with_name("step_figures_worker.py")
DOCS = (Path(__file__).parents[3] / "docs/performance.md").read_text()
RANKS, STEPS, ELEMENTS = 2, 4, 250_000
OF_ANY_GROUP = {"step_s", "sums", "sums_MB", "sums_s", "on_switch"}
NEEDS = {"lightning": "lightning", "trainer": "transformers"}


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("results")
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("100mbit"), results_root=folder) as testbed:
        yield testbed


def steps(testbed: Testbed, what: str) -> list[list[dict[str, Any]]]:
    """The events of each rank's steps."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]

    def on_event(rank: int, event: Event) -> None:
        if event["event"] == "step":
            found[rank].append(event)

    command = [sys.executable, str(WORKER), "{events}", str(STEPS), str(ELEMENTS), what]
    testbed.launch(command, name=what).follow(on_event, timeout_s=120, watch=testbed.services)
    return found


@pytest.mark.netns
def test_each_step_has_its_own_figures(testbed: Testbed) -> None:
    for of_rank in steps(testbed, "loop"):
        figures = [event["figures"] for event in of_rank]
        assert [step["sums"] for step in figures] == list(range(STEPS))
        assert [step["sums_MB"] for step in figures] == [4e-6 * ELEMENTS * count for count in range(STEPS)]
        for step in figures:
            assert step["on_switch"] == 1
            assert step["changes"] == 0
            assert step.keys() == figures[0].keys()
            assert {name.removeprefix("share/") for name in step if "/" in name} == set(OF_GROUP)
            assert sum(step[f"share/{cause}"] for cause in OF_GROUP) == pytest.approx(1)
        assert figures[-1]["share/link"] > 0.5
        assert sum(step["step_s"] for step in figures) == pytest.approx(of_rank[-1]["so_far_s"], rel=0.1)
        assert min(event["call_s"] for event in of_rank) < 1e-3


@pytest.mark.netns
@pytest.mark.parametrize("what", NEEDS)
def test_the_callbacks_of_the_documentation_log_them(testbed: Testbed, what: str) -> None:
    if importlib.util.find_spec(NEEDS[what]) is None:
        pytest.skip(f"{NEEDS[what]} is not installed")
    first = steps(testbed, what)[0]  # only rank 0 logs
    assert len(first) >= STEPS
    for event in first[1:STEPS]:
        assert event["figures"]["inagg/on_switch"] == 1
        assert event["figures"]["inagg/sums"] >= 1
        assert event["figures"]["inagg/step_s"] > 0


def test_a_group_of_one_rank_has_only_the_figures_of_any_group() -> None:
    group = inagg.ProcessGroup(HashStore(), 0, 1, timedelta(seconds=10), inagg.Options())
    figures = inagg.StepFigures(group)
    group.allreduce([torch.ones(1000)]).wait()
    first, second = figures.step(), figures.step()
    assert first.keys() == second.keys() == OF_ANY_GROUP
    assert (first["sums"], second["sums"]) == (1, 0)
    group.shutdown()


def test_a_group_of_another_backend_is_refused() -> None:
    gloo: Any = ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=10))
    with pytest.raises(ConfigurationError, match="not an inagg process group: ProcessGroupGloo"):
        inagg.StepFigures(gloo)


def test_the_documentation_names_the_figures_of_any_group() -> None:
    section = DOCS[DOCS.index("## Figures of each step") :]
    section = section[: section.index("\n## ")]
    assert set(re.findall(r"`(\w+)`", section)) >= OF_ANY_GROUP
