# SPDX-License-Identifier: Apache-2.0
"""Which ports of which switch an impairment of a link is for."""

import pytest

from inagg_testbed.bench.allreduce import AllReduceBench
from inagg_testbed.bench.plan import Case
from inagg_testbed.demo.run import Demo
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.impairments import find, named, of_ports, refuse_impossible
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


def test_off_takes_earlier_options_back() -> None:
    assert of_ports(STAR, ["off"]) == of_ports(STAR, ["loss=1%", "off"]) == {}
    assert of_ports(STAR, ["loss=1%", "h1=off", "h2:in=off", "h3=off"]) == {(H2, "in"): "loss=1%"}


def test_each_switch_gets_the_options_of_its_ports() -> None:
    options = SwitchOptions(impair=["h3:out=loss=5%", "leaf1-root:out=delay=1ms"])
    assert options.impair_options(TREE, "leaf2", TREE.ports("leaf2")) == ["--impair", "1:in:loss=5%"]
    assert options.impair_options(TREE, "leaf1", TREE.ports("leaf1")) == ["--impair", "101:out:delay=1ms"]
    assert options.impair_options(TREE, "root", TREE.ports("root")) == []


def test_a_bridge_has_no_impairments_of_links_that_gloo_does_not_have() -> None:
    spines = Fabric.parse("leaf-spine:2x2x2")
    options = SwitchOptions(impair=["leaf1-spine1:out=loss=1%", "leaf1-spine2:out=loss=2%"])
    own = options.impair_options(spines, "leaf1", spines.spanning_ports("leaf1"))
    assert own == ["--impair", "101:out:loss=1%"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("loss=200%", "loss 2: a probability is 0 to 1"),
        ("h9=loss=1%", "no host h9"),
        ("h1:up=loss=1%", "direction up"),
        ("h1=on", "'on' is not NAME=VALUE"),
        ("h1", "'' is not NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_refused(option: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        SwitchOptions(impair=[option]).check("model", STAR, controlled=True)


def test_impairments_need_the_ports_of_the_model_on_every_link() -> None:
    options = SwitchOptions(impair=["loss=1%"])
    options.check("model", STAR, controlled=True)
    with pytest.raises(ConfigurationError, match="--switch bmv2 has none: use --switch model"):
        options.check("bmv2", STAR, controlled=True)
    with pytest.raises(ConfigurationError, match="--switch bridge has none"):
        options.check("bridge", STAR, controlled=True)
    assert SwitchOptions().bridges == "linux"
    assert SwitchOptions(impair=["off"]).bridges == options.bridges == "model"
    refuse_impossible("model", "model")
    with pytest.raises(ConfigurationError, match="start the testbed with --impair; with --impair off"):
        refuse_impossible("model", "linux")


def test_impairments_do_not_change_which_links_gloo_crosses() -> None:
    case = Case(workers=2, elements=10, backends=("gloo", "inagg:32"), iterations=1, warmup=0)
    unshaped = LinkSpec.parse("unshaped")
    impaired = AllReduceBench(link_name="unshaped", link=unshaped, cases=(case,), impair=("loss=1%",))
    assert impaired.gloo_path == "bridge"
    assert impaired.settings["impair"] == ["loss=1%"]
    assert Demo(topology="tree:2x2", impair=("loss=1%",)).gloo_over == "bridge"
