# SPDX-License-Identifier: Apache-2.0
"""Beacons in p4/inagg.p4 (docs/protocol.md, 7.3), run in process."""

import pytest

from inagg_contract.constants import CPU_PORT, ETHERTYPE_BEACON
from inagg_controller.fabric.links import Links
from inagg_controller.fabric.topology import Place
from inagg_switch import Switch
from tests.controller.serving import LEAF_SPINE
from tests.switch.inagg.packets import ethernet

LINKED, HOSTS = 101, 1


@pytest.fixture
def program(fresh: Switch) -> Switch:
    fresh.insert("linked_port", {"port": LINKED}, "to_controller", {})
    fresh.multicast_group(1, [(HOSTS, 0), (2, 0), (LINKED, 0)])
    return fresh


@pytest.fixture
def links() -> Links:
    return Links(LEAF_SPINE, 0.0, interval_s=0.5, timeout_s=5.0)


def test_a_beacon_leaves_by_the_port_that_it_names_unchanged(program: Switch, links: Links) -> None:
    frame = links.beacon(Place("leaf1", LINKED))
    assert program.process(CPU_PORT, frame) == [(LINKED, frame)]


def test_a_beacon_from_another_switch_goes_to_the_controller_with_its_port(
    program: Switch, links: Links
) -> None:
    for port in (1, 2, 102):
        program.insert("linked_port", {"port": port}, "to_controller", {})
    for link in links.topology.links:
        for sent, came in (link.ends, link.ends[::-1]):
            ((port, frame),) = program.process(came.port, links.beacon(sent))
            assert port == CPU_PORT
            links.hear(came.switch, frame, 1.0)
    assert {change.state for change in links.tick(1.0)} == {"up"}
    assert set(links.states.values()) == {"up"}


def test_a_host_cannot_send_a_beacon_to_the_controller_nor_through_the_switch(
    program: Switch, links: Links
) -> None:
    for frame in (links.beacon(Place("leaf1", LINKED)), ethernet(1, 2, ETHERTYPE_BEACON, b"\0\0\0\0")):
        assert program.process(HOSTS, frame) == []
    assert program.counter("beacon_refused")[HOSTS][0] == 2


def test_a_frame_too_short_for_a_beacon_is_ordinary_traffic(program: Switch) -> None:
    frame = ethernet(0xFFFFFFFFFFFF, 2, ETHERTYPE_BEACON, b"\0\0")
    assert [port for port, _ in program.process(HOSTS, frame)] == [2, LINKED]
