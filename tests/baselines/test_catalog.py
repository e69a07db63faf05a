# SPDX-License-Identifier: Apache-2.0
"""The names of architectures, and their theory."""

import re
import subprocess
import sys

import pytest

from inagg_baselines.catalog import ARCHITECTURES, BASELINES, parse
from tests import ROOT

RACKS = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("name", "kind", "share", "formula", "steps"),
    [
        ("ring", "sums", 1.5, "2(N-1)/N S", 6),
        ("hierarchical", "sums", 2.5, "2.5 S", 5),
        ("server:sync", "sums", 1.5, "2(N-1)/N S", 2),
        ("server:sync=1", "sums", 3, "(N-1) S", 2),
        ("server:sync=2", "sums", 2, "N/2 S", 2),
        ("server:async", "weights", 1.5, "2(N-1)/N S", 2),
        ("server:async=3", "weights", 5 / 3, "(N+1)/3 S", 2),
        ("server:ssp=0", "weights", 1.5, "2(N-1)/N S", 2),
        ("server:ssp=12", "weights", 1.5, "2(N-1)/N S", 2),
        ("server:leaves", "weights", 2.5, "2.5 S", 5),
        ("gossip", "weights", 2, "2 S", 1),
        ("gossip:random", "weights", 1, "S", 1),
        ("local:8", "weights", 1.5 / 8, "2(N-1)/(8N) S", 6 / 8),
    ],
)
def test_four_ranks_in_two_racks(name: str, kind: str, share: float, formula: str, steps: float) -> None:
    architecture = parse(name)
    assert (architecture.name, architecture.kind) == (name, kind)
    found = architecture.theory(4, RACKS)
    assert (found.formula, found.steps) == (formula, steps)
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize(
    "name",
    [
        "ring",
        "hierarchical",
        "server:sync=1",
        "server:async",
        "server:ssp=1",
        "server:leaves",
        "gossip",
        "gossip:random",
        "local:2",
    ],
)
def test_a_rank_alone_sends_nothing(name: str) -> None:
    found = parse(name).theory(1)
    assert (found.share, found.steps) == (0, 0)


def test_two_ranks_have_one_neighbour() -> None:
    assert parse("gossip").theory(2) == parse("gossip:random").theory(2)


def test_a_description_has_the_number() -> None:
    assert "more than 3 steps ahead" in parse("server:ssp=3").about
    assert parse("local:08") == parse("local:8")


@pytest.mark.parametrize(
    "text", ["", "server", "server:ssp", "server:ssp=", "local:H", "local:-1", "gossip:2", "local:²"]
)
def test_an_unknown_name_lists_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match="is unknown") as raised:
        parse(text)
    assert all(f"\n  {name}: {about}" in str(raised.value) for name, about in ARCHITECTURES.items())


@pytest.mark.parametrize("text", ["local:0", "server:sync=0", "server:async=0"])
def test_a_number_that_is_too_small(text: str) -> None:
    with pytest.raises(ValueError, match="is at least 1"):
        parse(text)


def test_a_shard_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="server:async=5 needs a rank for each shard, and there are 4"):
        parse("server:async=5").theory(4)


def test_the_benchmark_knows_the_sums() -> None:
    names = {name: architecture.name for name, architecture in BASELINES.items()}
    assert names == {
        "gloo": "ring",
        "gloo-hierarchical": "hierarchical",
        "gloo-server": "server:sync",
        "gloo-server-1": "server:sync=1",
    }


def test_the_documentation_has_all() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    section = page.partition("\n## Architectures\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE) == list(ARCHITECTURES)


def test_no_torch() -> None:
    code = "import sys, inagg_baselines.catalog; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
