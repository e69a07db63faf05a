# SPDX-License-Identifier: Apache-2.0
"""Which ports of which switch an impairment of a link is for."""

import pytest

from inagg_testbed.bench.allreduce import AllReduceBench
from inagg_testbed.bench.plan import Case
from inagg_testbed.demo.run import Demo
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.impairments import find, named, of_ports
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions

STAR = Fabric.star(3)
TREE = Fabric.parse("tree:2x2")
H2 = SwitchPort("s1", 2)


def test_what_a_host_sends_is_what_its_port_receives() -> None:
    assert find(STAR, "h2", "out") == [(H2, "in")]
    assert find(STAR, "h2", "in") == [(H2, "out")]
    assert sorted(find(STAR, "h2")) == [(H2, "in"), (H2, "out")]


def test_all_are_the_links_of_all_hosts_those_of_servers_included() -> None:
    ports = [port for port, _ in find(TREE.with_servers(1), "all", "out")]
    assert ports == [
        SwitchPort(*at) for at in [("leaf1", 1), ("leaf1", 2), ("leaf2", 1), ("leaf2", 2), ("leaf1", 3)]
    ]


def test_a_link_between_switches_is_impaired_at_its_first_switch() -> None:
    assert find(TREE, "leaf2-root", "out") == [(SwitchPort("leaf2", 101), "out")]
    assert find(TREE, "root-leaf2", "in") == [(SwitchPort("root", 2), "in")]


@pytest.mark.parametrize("place", ["h1", "h4", "leaf1-root", "root-leaf2"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_port_is_named_as_its_place(place: str, direction: str) -> None:
    assert [named(TREE, *found) for found in find(TREE, place, direction)] == [(place, direction)]


@pytest.mark.parametrize(
    ("fabric", "place", "direction", "reason"),
    [
        (STAR, "h4", None, "no host h4; there are h1, h2, h3, and all"),
        (TREE, "leaf1-leaf2", None, "links such as leaf1-root, and all"),
        (STAR, "h1", "both", r"direction both: want in \(what h1 receives\)"),
    ],
)
def test_an_unknown_place_is_refused(fabric: Fabric, place: str, direction: str | None, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        find(fabric, place, direction)


def test_a_later_option_replaces_an_earlier_one() -> None:
    found = of_ports(STAR, ["loss=1%,delay=5ms", "h2:out=loss=5%", "h3=delay=1ms"])
    assert found[SwitchPort("s1", 1), "in"] == found[SwitchPort("s1", 1), "out"] == "loss=1%,delay=5ms"
    assert found[H2, "in"] == "loss=5%"
    assert found[H2, "out"] == "loss=1%,delay=5ms"
    assert found[SwitchPort("s1", 3), "in"] == "delay=1ms"


def test_each_switch_gets_the_options_of_its_ports() -> None:
    options = SwitchOptions(impair=["h3:out=loss=5%", "leaf1-root:out=delay=1ms"])
    assert options.impair_options(TREE, "leaf2") == ["--impair", "1:in:loss=5%"]
    assert options.impair_options(TREE, "leaf1") == ["--impair", "101:out:delay=1ms"]
    assert options.impair_options(TREE, "root") == []


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("loss=200%", "loss 2: a probability is 0 to 1"),
        ("h9=loss=1%", "no host h9"),
        ("h1:up=loss=1%", "direction up"),
        ("h1=off", "'off' is not NAME=VALUE"),
        ("h1", "'' is not NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_refused(option: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        SwitchOptions(impair=[option]).check("model", STAR, controlled=True)


def test_impairments_need_the_ports_of_the_model_on_every_link() -> None:
    options = SwitchOptions(impair=["loss=1%"])
    options.check("model", STAR, controlled=True, gloo="switch")
    with pytest.raises(ConfigurationError, match="--switch bmv2 has none: use --switch model"):
        options.check("bmv2", STAR, controlled=True)
    with pytest.raises(ConfigurationError, match="--switch bridge has none"):
        options.check("bridge", STAR, controlled=True)
    with pytest.raises(ConfigurationError, match="give --gloo-over switch"):
        options.check("model", STAR, controlled=True, gloo="bridge")
    with pytest.raises(ConfigurationError, match="leave --management out"):
        options.check("model", STAR, controlled=True, gloo="management")


def test_on_impaired_links_gloo_is_measured_through_the_switch() -> None:
    case = Case(workers=2, elements=10, backends=("gloo", "inagg:32"), iterations=1, warmup=0)
    unshaped = LinkSpec.parse("unshaped")
    assert AllReduceBench(link_name="unshaped", link=unshaped, cases=(case,)).gloo_path == "bridge"
    impaired = AllReduceBench(link_name="unshaped", link=unshaped, cases=(case,), impair=("loss=1%",))
    assert impaired.gloo_path == "switch"
    assert impaired.settings["impair"] == ["loss=1%"]
    assert Demo(topology="tree:2x2", impair=("loss=1%",)).gloo_over == "switch"
