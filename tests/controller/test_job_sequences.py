# SPDX-License-Identifier: Apache-2.0
"""Invariants of the job table under any sequence of events, in virtual time."""

from hypothesis import settings

from tests.controller.life import Life
from tests.controller.serving import LEAF_SPINE


class LifeOnATree(Life):
    """The same with jobs on two leaves and a spine."""

    topology = LEAF_SPINE


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=40)
TestLifeOnATree = LifeOnATree.TestCase
TestLifeOnATree.settings = settings(max_examples=200, stateful_step_count=40)
