"""How workers and switch share the processors of one machine."""

import os
import subprocess
import sys

import pytest

from inagg.options import parse_cpus
from inagg_testbed.processors import confined_to, share_processors


@pytest.mark.parametrize(
    ("available", "workers", "switch", "others"),
    [
        ({0, 1}, 2, {1}, {0}),
        ({0, 1}, 1, {1}, {0}),
        ({2, 3, 5, 8}, 4, {8}, {2, 3, 5}),
        ({0, 1}, 3, None, None),
        ({0}, 1, None, None),
    ],
)
def test_the_switch_has_one_to_itself_if_that_leaves_enough(
    monkeypatch: pytest.MonkeyPatch,
    available: set[int],
    workers: int,
    switch: set[int] | None,
    others: set[int] | None,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: available)
    division = share_processors(workers)
    if division is None:
        assert switch is None
    else:
        assert (division.of_switch, parse_cpus(division.of_workers)) == (switch, others)


def test_what_is_started_in_the_block_is_confined_and_the_launcher_is_not_afterwards() -> None:
    own = os.sched_getaffinity(0)
    show = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    with confined_to({max(own)}):
        inside = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert inside.split() == [str(max(own))]
    assert os.sched_getaffinity(0) == own
