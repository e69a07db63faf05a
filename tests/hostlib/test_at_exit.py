# SPDX-License-Identifier: Apache-2.0
"""What happens to groups when the program ends."""

import random
import weakref
from dataclasses import dataclass, field

import pytest

from inagg import at_exit


@dataclass(eq=False)
class Group:
    """A group that notes when it leaves."""

    made: float
    left: list[float]
    fails: bool = False
    failed: bool = field(default=False, init=False)

    def leave(self, cause: str | None, since: float) -> None:
        self.left.append(self.made)
        if self.fails:
            raise KeyboardInterrupt


@pytest.mark.parametrize("fails", [False, True])
def test_groups_leave_in_the_order_in_which_they_were_made(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """So ranks that each wait in a job for the others do not wait in different ones."""
    left: list[float] = []
    groups = [Group(float(number), left, fails) for number in range(20)]
    random.Random(1).shuffle(groups)
    monkeypatch.setattr(at_exit, "living", weakref.WeakSet(groups))
    at_exit.leave_all()
    assert left == [float(number) for number in range(20)]
