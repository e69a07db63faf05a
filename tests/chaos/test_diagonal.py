# SPDX-License-Identifier: Apache-2.0
"""A few cases of chaos: each part, fault, phase and kind at least once."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.cases import Case, cases
from tests.chaos.run import run, undisturbed

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

DIAGONAL = [
    Case("restart", "controller", "join", "leased"),
    Case("stop", "worker", "exponents", "shared"),
    Case("restart", "leaf", "data", "leased"),
    Case("kill", "spine", "last block", "leased"),
    Case("kill", "switch", "between steps", "leased", managed=True),
    Case("kill", "server", "data", "server"),
    Case("link", "switch", "leave", "shared"),
]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("case", DIAGONAL, ids=str)
def test_a_fault_ends_as_promised(case: Case, right: Mapping[int, str], tmp_path: Path) -> None:
    outcome = run(case, tmp_path, right)
    assert outcome.broken == [], outcome.errors
    assert outcome.sums > 0


def test_the_diagonal_has_all_parts_faults_phases_and_kinds() -> None:
    everything = list(cases())
    assert set(DIAGONAL) <= set(everything)
    for name in ("victim", "fault", "when", "kind", "managed"):
        assert {getattr(case, name) for case in DIAGONAL} == {getattr(case, name) for case in everything}
