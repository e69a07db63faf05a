# SPDX-License-Identifier: Apache-2.0
"""What can be compared, and what is refused."""

from dataclasses import replace

import pytest

from inagg_testbed.compare.mesh import Mesh
from inagg_testbed.compare.plan import Quality, Until
from inagg_testbed.compare.ways import Way
from inagg_testbed.errors import ConfigurationError
from tests.testbed.compare.examples import compared


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("inagg", {"INAGG_LANE_BITS": "32", "INAGG_AGGREGATION": "leased"}),
        ("inagg:16", {"INAGG_LANE_BITS": "16", "INAGG_AGGREGATION": "leased"}),
        # The first broadcasts and other sums have wide lanes; the hook's have 16 bits.
        ("inagg:16+ef", {"INAGG_LANE_BITS": "32", "INAGG_AGGREGATION": "leased"}),
        (
            "inagg-shared:8",
            {"INAGG_LANE_BITS": "8", "INAGG_AGGREGATION": "shared", "INAGG_SERVERS": "colocated"},
        ),
        (
            "inagg-server:32",
            {"INAGG_LANE_BITS": "32", "INAGG_AGGREGATION": "server", "INAGG_SERVERS": "colocated"},
        ),
        ("ring", {}),
    ],
)
def test_a_way_sets_the_options_of_groups(text: str, variables: dict[str, str]) -> None:
    assert Way.parse(text).environment() == variables


@pytest.mark.parametrize("text", ["inagg:12", "inagg-server-1:32", "inagg:16+EF", "inaggregate"])
def test_an_unknown_form_of_inagg_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"want inagg, .* such as inagg:16\+ef"):
        Way.parse(text)


@pytest.mark.parametrize(
    "text", ["rings", "server", "server:ssp=-1", "local:0", "gossip:everybody", "", "ring:2"]
)
def test_an_unknown_architecture_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--with"):
        Way.parse(text)


def test_names_in_files_differ() -> None:
    names = ["inagg:16", "inagg:16+ef", "server:ssp=1", "server:async=1", "gossip", "gossip:random"]
    slugs = {Way.parse(name).slug for name in names}
    assert len(slugs) == len(names)
    assert all(slug.replace("-", "").isalnum() for slug in slugs)


def test_only_asynchronous_servers_let_ranks_run_ahead() -> None:
    ahead = {
        name
        for name in (
            *("ring", "inagg:32", "server:sync", "server:async", "server:ssp=0", "server:leaves"),
            *("gossip", "local:4"),
        )
        if not Way.parse(name).in_lockstep
    }
    assert ahead == {"server:async", "server:ssp=0", "server:leaves"}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a star has one rack"):
        compared("ring", "hierarchical")
    with pytest.raises(ConfigurationError, match="twice"):
        compared("inagg", "inagg:32")
    with pytest.raises(ConfigurationError, match="twice"):
        compared("server:ssp=3", "server:ssp=03")
    with pytest.raises(ConfigurationError, match=r"server:sync=5 needs a rank for each shard"):
        compared("server:sync=5")
    assert compared("hierarchical", fabric="tree:2x2").racks == ((0, 1), (2, 3))


def test_theory_is_that_of_the_ranks() -> None:
    theory, element_bytes = Way.parse("ring").theory(4, ((0, 1, 2, 3),))
    assert (theory.share, theory.steps, element_bytes) == (1.5, 6, 4)
    theory, element_bytes = Way.parse("inagg:16+ef").theory(4, ((0, 1, 2, 3),))
    assert (theory.share, theory.steps, element_bytes) == (1, 1, 2)


def test_a_target_is_an_accuracy_or_a_loss() -> None:
    accuracy, loss = Quality("accuracy"), Quality("loss")
    assert Until.parse("accuracy=0.98", accuracy).quality.reached(0.98, 0.98)
    assert not loss.reached(1.6, 1.5)
    assert str(Until.parse("loss=1.50", None)) == "loss=1.5"
    for text, of, problem in [
        ("accuracy=0.9", loss, "this model has a loss"),
        ("loss=0.9", accuracy, "this model has an accuracy"),
        ("accuracy=0.9", None, "of a program only the loss is seen"),
        ("accuracy=98", accuracy, "at most 1"),
        ("accuracy", accuracy, "want accuracy=0.98"),
        ("speed=2", accuracy, "want accuracy=0.98"),
        ("loss=nan", loss, "want a number"),
    ]:
        with pytest.raises(ConfigurationError, match=problem):
            Until.parse(text, of)


def test_a_mesh_is_read_and_written() -> None:
    mesh = Mesh.parse("pp=4, dp=3,tp=2")
    assert (mesh.ranks, mesh.parts, mesh.shape) == (24, 8, (4, 3, 2))
    assert Mesh.parse(str(mesh)) == mesh
    assert Mesh.parse("dp=8") == Mesh(dp=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "want such as dp=2") for text in ("", "dp", "dp=0", "dp=2,dp=2", "cp=2", "dp=2,", "dp=2.5")),
        *((text, "tp is 1, 2 or 4") for text in ("tp=3", "tp=8")),
        ("dp=2,pp=3", "pp is 1, 2 or 4"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Mesh.parse(text)


def test_a_mesh_has_a_rank_on_each_host_and_sums_by_ring_or_inagg() -> None:
    four = replace(compared("ring", "inagg:16+ef"), model="gpt", mesh=Mesh(dp=2, tp=2))
    assert (four.title, four.settings()["mesh"]) == ("gpt on dp=2,tp=2,pp=1", "dp=2,tp=2,pp=1")
    with pytest.raises(ConfigurationError, match="has 8 ranks, and there are 4 hosts"):
        replace(four, mesh=Mesh(dp=8))
    with pytest.raises(ConfigurationError, match="for --model gpt"):
        replace(four, model="linear")
    with pytest.raises(ConfigurationError, match="--with gossip: on a mesh only ring and inagg"):
        replace(compared("gossip"), model="gpt", mesh=Mesh(dp=2, tp=2))
