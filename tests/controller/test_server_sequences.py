# SPDX-License-Identifier: Apache-2.0
"""Invariants of the job table with jobs of all kinds under any sequence of events, in virtual time."""

from hypothesis import settings

from tests.controller.life_with_servers import LifeWithServers

TestLifeWithServers = LifeWithServers.TestCase
TestLifeWithServers.settings = settings(max_examples=300, stateful_step_count=50)
