# SPDX-License-Identifier: Apache-2.0
"""A linear model learns handwritten digits under each architecture. Its best weights are the same for all."""

from pathlib import Path

import pytest

from tests.baselines.ranks import run

RANKS, EPOCHS = 4, 20


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The accuracy of synchronous training."""
    folder = tmp_path_factory.mktemp("synchronous")
    (accuracy, *_) = run("learn_digits", RANKS, folder, architecture="ring", epochs=EPOCHS)
    assert accuracy > 0.9
    return float(accuracy)


@pytest.mark.parametrize(
    "name",
    [
        *("server:async", "server:ssp=3", "gossip:random"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("server:async=1", "gossip", "local:4")),
    ],
)
def test_the_accuracy_is_within_a_point_of_synchronous_training(
    name: str, synchronous: float, tmp_path: Path
) -> None:
    found = run("learn_digits", RANKS, tmp_path, architecture=name, epochs=EPOCHS)
    assert found == [found[0]] * RANKS
    assert found[0] > synchronous - 0.01


def test_leaves_of_two_racks_learn_as_well(synchronous: float, tmp_path: Path) -> None:
    racks = [[0, 1], [2, 3]]
    found = run("learn_digits", RANKS, tmp_path, architecture="server:leaves", epochs=EPOCHS, racks=racks)
    assert found == [found[0]] * RANKS
    assert found[0] > synchronous - 0.01
