# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: capabilities of this machine, probed once, and skips that name what is missing."""

import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest

import inagg_p4runtime.messages  # noqa: F401  tests import p4.v1, before what they test does
from tests import ROOT
from tests.bmv2_commands import bmv2_command
from tests.examples import EXPLORE
from tests.forks import OF_COMMANDS, OF_RANKS, forked_processes, interpreter

# IPython warns in the shells that tests start if another environment is active.
os.environ.pop("VIRTUAL_ENV", None)

# No deadline for an example: other programs on the machine would decide whether a test passes.
hypothesis.settings.register_profile("inagg", deadline=None)
hypothesis.settings.register_profile(EXPLORE, deadline=None)
hypothesis.settings.load_profile("inagg")

MISSING: dict[str, str | None] = {
    "netns": None if os.geteuid() == 0 else "needs root, for network namespaces",
    "bmv2": next(
        (
            f"{tool} is not on PATH"
            for tool in ("p4c-bm2-ss", "simple_switch_grpc")
            if bmv2_command(tool) is None
        ),
        None,
    ),
}

# The files that take longest: half a minute and more. The workers of `make test` begin with them, so that none is left
# with one at the end.
LONGEST = [
    "simulation/test_worlds.py",
    "hostlib/membership/test_joining.py",
    "testbed/compare/test_made_limits.py",
    "testbed/operate/test_operating.py",
    "testbed/test_training.py",
    "testbed/test_stopped_ranks.py",
    "testbed/test_dead_switches.py",
    "hostlib/backend/test_collectives.py",
    "hostlib/backend/test_takeover.py",
    "hostlib/exit/test_exit.py",
    "testbed/test_trees.py",
    "hostlib/backend/test_plain_script.py",
    "testbed/test_shared_slots.py",
    "testbed/network/exercise/test_exercise.py",
    "hostlib/backend/test_torch_suite.py",
    "switch/test_controller_on_switch.py",
    "hostlib/backend/test_frameworks.py",
    "testbed/test_servers.py",
    "switch/runtime/test_runtime.py",
    "testbed/test_own_program.py",
    "switch/runtime/test_conformance.py",
    "testbed/cli/test_cli.py",
    "switch/compiler/test_cache.py",
    "testbed/network/test_fabric_network.py",
    "hostlib/membership/test_path.py",
    "conformance/test_tree.py",
    "controller/test_liveness.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {ROOT / "tests" / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))
    for item in items:
        for marker, reason in MISSING.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _kept_logging() -> Iterator[None]:
    """A command that runs in this process sends its log to a stream that is closed with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _kept_options() -> Iterator[None]:
    """Programs of later tests inherit what a test, or a group that it does not end, leaves in the environment."""
    before = _options()
    yield
    after = _options()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert after == before, "the test leaves variables changed: has it ended its groups?"


def _options() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("INAGG_")}


@pytest.fixture(scope="module", name="forked_processes")
def _forked_processes() -> Iterator[None]:
    """For modules with many testbeds or ranks: their processes are forked from interpreters with imports done."""
    with forked_processes(interpreter(OF_RANKS), interpreter(OF_COMMANDS)):
        yield
