# SPDX-License-Identifier: Apache-2.0
"""The busiest link of a host."""

import os

from inagg_testbed.bench.busiest_link import HostLinks, busiest
from inagg_testbed.network.interfaces import interface_bytes


def test_the_busier_direction_of_the_busiest_link_counts() -> None:
    before = [(100, 200), (0, 50), (7, 7)]
    after = [(110, 230), (5, 90), (7, 7)]
    assert busiest(before, after) == 40


def test_without_links_nothing_crosses_them() -> None:
    assert busiest(HostLinks(()).read(), HostLinks(()).read()) == 0


def test_a_link_of_two_interfaces_carries_what_both_do() -> None:
    own = os.getpid()
    received, sent = interface_bytes(own)["lo"]
    ((up, down),) = HostLinks([[(own, "lo"), (own, "lo")]]).read()
    assert (up, down) >= (2 * received, 2 * sent)
