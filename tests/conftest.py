# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: capabilities of this machine, probed once, and skips that name what is missing."""

import os
import shutil
from collections.abc import Iterator

import hypothesis
import pytest

import inagg_p4runtime.messages  # noqa: F401  tests import p4.v1, before what they test does
from tests.examples import EXPLORE
from tests.rank_forks import Forks, forked_ranks

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
            if shutil.which(tool) is None
        ),
        None,
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, reason in MISSING.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def _forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="module", name="forked_ranks")
def _forked_ranks(_forks: Forks) -> Iterator[None]:
    """For modules whose testbeds start many ranks: these are forked from an interpreter that has imported torch."""
    with forked_ranks(_forks):
        yield
