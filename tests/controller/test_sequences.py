# SPDX-License-Identifier: Apache-2.0
"""Invariants of the job table under any sequence of events, in virtual time."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from inagg_controller.configuration import parse_job_classes
from inagg_controller.jobs.tenants import Tenant, digest_of
from tests.controller.life import Life, Setting
from tests.controller.serving import LEAF_SPINE, SHARED_SLOTS
from tests.controller.shared_tables import HOSTS

CLASSES = parse_job_classes(
    [
        "few,jobs=2",
        "small,slots=6,memory=8864,priority=1",
        "servers,jobs=3,aggregation=shared+server",
        "closed,jobs=0",
    ]
)
# The first comes and goes: its quota is of a kind that jobs which go on without it cannot exceed.
TENANTS = (
    Tenant(name="guest", token_sha256=(digest_of("1"),), classes=("default", "few"), jobs=2),
    Tenant(name="vision", token_sha256=(digest_of("2"),), classes=("default", "small"), slots=4, memory=4432),
    Tenant(name="text", token_sha256=(digest_of("3"),), classes=("default", "servers"), jobs=1, priority=0),
)
SHARED = {"shared_slots": SHARED_SLOTS}
STAR_SETTING = Setting()
TREE = Setting(topology=LEAF_SPINE)
ALL_KINDS = Setting(topology=HOSTS, servers=True, limits=SHARED)
WITH_CLASSES = Setting(
    topology=HOSTS,
    servers=True,
    limits=SHARED | {"classes": CLASSES, "host_share": 0.5},
    classes=True,
)
WITH_TENANTS = replace(WITH_CLASSES, tenants=TENANTS)


@pytest.mark.parametrize(
    ("setting", "examples", "steps"),
    [
        pytest.param(STAR_SETTING, 200, 40, id="star"),
        pytest.param(TREE, 200, 40, id="tree"),
        pytest.param(ALL_KINDS, 300, 50, id="all-kinds"),
        pytest.param(WITH_CLASSES, 150, 50, id="classes"),
        pytest.param(WITH_TENANTS, 150, 50, id="tenants"),
    ],
)
def test_invariants_hold_under_any_sequence(setting: Setting, examples: int, steps: int) -> None:
    make: Any = partial(Life, setting)  # a factory will do, though the annotation asks for a class
    run_state_machine_as_test(make, settings=settings(max_examples=examples, stateful_step_count=steps))
