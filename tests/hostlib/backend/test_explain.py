# SPDX-License-Identifier: Apache-2.0
"""`inagg.explain` names the cause where the cause is known, and docs/performance.md documents every figure."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from inagg.causes import OF_GROUP
from inagg_contract.documents import Chunks
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

WORKER = Path(__file__).with_name("explain_worker.py")
DOCS = (Path(__file__).parents[3] / "docs/performance.md").read_text()
RANKS = 3

# Situation -> the event of each rank.
Explained = dict[str, list[dict[str, Any]]]


def explained(testbed: Testbed, *situations: str, **environment: str) -> Explained:
    found: Explained = {}

    def on_event(rank: int, event: Event) -> None:
        if event["event"] == "explained":
            found.setdefault(event["situation"], [{}] * RANKS)[rank] = event

    command = [sys.executable, str(WORKER), "{events}", *situations]
    group = testbed.launch(command, name=f"explain-{len(testbed.groups)}", environment=environment)
    group.follow(on_event, timeout_s=120, watch=testbed.services)
    return found


@pytest.fixture(scope="module")
def unshaped(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """The links have no limit. Their interfaces report 10 Gbit/s."""
    situations = ("large sums", "tiny sums", "last rank late", "every rank busy")
    folder = tmp_path_factory.mktemp("unshaped")
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=folder) as testbed:
        return explained(testbed, *situations, INAGG_LINK_RATE="1e12")


@pytest.fixture(scope="module")
def slow_links(tmp_path_factory: pytest.TempPathFactory) -> tuple[Explained, Explained]:
    """Results without loss, and with 5% loss in each direction."""
    folder = tmp_path_factory.mktemp("slow")
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("100mbit"), results_root=folder) as testbed:
        lossless = explained(testbed, "large sums")
        with testbed.loss(0.05, traffic="aggregation"):
            return lossless, explained(testbed, "large sums", "small sums")


def test_a_slow_link(slow_links: tuple[Explained, Explained]) -> None:
    lossless, _ = slow_links
    for rank in lossless["large sums"]:
        assert rank["verdict"] == "link", rank["report"]
        assert "the link of this host carried results at its rate, 100 Mbit/s" in rank["report"]
        assert "loss" not in rank["causes"]


def test_loss(slow_links: tuple[Explained, Explained]) -> None:
    """While a rank recovers a loss at the end of a sum, the others wait for it to begin the next sum."""
    _, lossy = slow_links
    for rank in lossy["large sums"]:
        assert rank["shares"]["loss"] > 0.02, rank["report"]
        assert rank["shares"]["link"] > 0.5
    for rank in lossy["small sums"]:
        assert "loss" in rank["causes"], rank["report"]


def test_processors_where_links_have_no_limit(unshaped: Explained) -> None:
    """The limit is the processor of this host, which runs the rank's packet thread, or of the switch."""
    for rank in unshaped["large sums"]:
        assert rank["verdict"] in ("processors", "switch"), rank["report"]
        assert rank["shares"]["processors"] + rank["shares"]["switch"] > 0.5, rank["report"]


def test_tiny_tensors(unshaped: Explained) -> None:
    for rank in unshaped["tiny sums"]:
        assert rank["verdict"] in ("latency", "ranks"), rank["report"]  # on a busy machine ranks are late too
        assert rank["shares"]["latency"] > 0.25, rank["report"]
        assert "Sum fewer and larger tensors" in rank["report"]


def test_a_late_rank(unshaped: Explained) -> None:
    *others, late = unshaped["last rank late"]
    for rank in others:
        assert rank["verdict"] == "ranks", rank["report"]
        assert f"the last one is rank {RANKS - 1} (" in " ".join(rank["report"].split())
    assert late["verdict"] == "program", late["report"]
    assert "the others wait for this rank" in late["report"]


def test_one_long_wait_is_told_at_once_with_its_rank_and_its_call(tmp_path: Path) -> None:
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path) as testbed:
        report = explained(testbed, "late once")["late once"][0]["report"]
    text = " ".join(report.split())
    late = r"rank 2 \(h3, 10\.0\.0\.3\)"
    assert re.search(rf"the last one is {late}, (1\.\d s|9\d\d\.\d ms) late on average", text), text
    assert re.search(rf"longest wait of a rank: 2\.\d s, for {late}, in collective 2: all_reduce", text), text
    assert max(map(len, report.splitlines())) <= 80


def test_a_program_that_does_something_else(unshaped: Explained) -> None:
    for rank in unshaped["every rank busy"]:
        assert rank["verdict"] == "program", rank["report"]


def test_shares_add_up(unshaped: Explained, slow_links: tuple[Explained, Explained]) -> None:
    for runs in (unshaped, *slow_links):
        for rank in (rank for ranks in runs.values() for rank in ranks):
            assert sum(rank["shares"].values()) == pytest.approx(1.0)
            assert all(share >= 0 for share in rank["shares"].values())


def documented(heading: str) -> set[str]:
    """The keys in the first column of the table under a heading, or a line, of the page."""
    rows = DOCS.split(heading)[1].split("|---|---|")[1].split("\n\n")[0].splitlines()[1:]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_every_figure_is_documented_and_no_other(unshaped: Explained) -> None:
    figures = unshaped["large sums"][0]["figures"]
    assert documented("## All figures of `inagg.stats`") == figures.keys() | {"reason"}
    assert documented("In `calls`, for each kind:") == figures["calls"]["all_reduce"].keys()
    assert documented("In `chunks` and") == Chunks.model_fields.keys()
    assert documented("In `waits`, by rank") == (
        figures["waits"]["0"].keys()
        | figures["straggler"].keys()
        | figures["longest_wait"].keys()
        | unshaped["last rank late"][0]["figures"]["late"][0].keys()
    )


def test_every_cause_is_documented_and_no_other() -> None:
    rows = DOCS.split("## Causes and remedies")[1].split("\n\n")[1].splitlines()[2:]
    assert [row.split("|")[1].strip(" `") for row in rows] != []
    assert {row.split("|")[1].strip(" `") for row in rows} == OF_GROUP.keys()
