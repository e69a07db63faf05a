# SPDX-License-Identifier: Apache-2.0
"""examples/torchft_digits.py, with torchft's Manager and lighthouse: a replica is killed, the others go on without it,
and its replacement goes on where they are. `make torchft` installs torchft."""

import pytest

from tests.torchft.training import REPLICAS, Recovery, Step, Training, interpreter, training
from tests.waiting import BUSY_S

PYTHON = interpreter()
KILLED = 1

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="torchft is not installed: make torchft, or the extra torchft"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Recovery]:
    """What the replicas have printed, with a replica killed in between."""
    assert PYTHON is not None
    with training(PYTHON, tmp_path_factory.mktemp("results"), "inagg") as replicas:
        return replicas, replicas.kill(KILLED)


def committed(steps: list[Step]) -> dict[int, float]:
    """The loss of each step."""
    return {step.number: step.loss for step in steps if step.loss is not None}


def test_the_others_go_on_after_one_repeated_step_at_most(run: tuple[Training, Recovery]) -> None:
    replicas, recovery = run
    assert recovery.lost <= 1
    assert recovery.seconds < 5.0 + BUSY_S
    for number, replica in replicas.replicas.items():
        done = list(committed(replica.steps))
        assert done == list(range(done[0], done[0] + len(done)))  # none is skipped, none is done twice
        assert {step.replicas for step in replica.steps} >= (
            {REPLICAS} if number == KILLED else {2, REPLICAS}
        )


def test_the_replacement_heals_and_the_loss_goes_on(run: tuple[Training, Recovery]) -> None:
    replicas, _ = run
    healed = committed(replicas.replicas[KILLED].steps)
    assert min(healed) > 1
    for number, replica in replicas.replicas.items():
        if number != KILLED:
            others = committed(replica.steps)
            assert {step: others[step] for step in healed if step in others} == {
                step: loss for step, loss in healed.items() if step in others
            }
            assert others[max(others)] < others[min(others)] / 2
