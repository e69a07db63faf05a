# SPDX-License-Identifier: Apache-2.0
"""What exchanges do with weights, between processes."""

from pathlib import Path

import pytest

from tests.baselines.ranks import run

STEPS = 12
ROUNDING = 1e-5
ALL = [
    "server:async",
    "server:async=1",
    "server:ssp=0",
    "server:ssp=2",
    "server:leaves",
    "gossip",
    "gossip:random",
    "local:1",
    "local:5",
]


def difference(some: list[float], others: list[float]) -> float:
    """The largest."""
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[float]]:
    """Weights after synchronous training, by number of ranks."""
    folder = tmp_path_factory.mktemp("synchronous")
    return {
        ranks: run("sum_gradients", ranks, folder, architecture="ring", steps=STEPS)[0] for ranks in (1, 3, 4)
    }


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_server_sums_as_the_ring(ranks: int, tmp_path: Path, synchronous: dict[int, list[float]]) -> None:
    found = run("sum_gradients", ranks, tmp_path, architecture="server:sync=2", steps=STEPS)
    assert found[1:] == found[:-1]
    assert difference(found[0], synchronous[ranks]) < ROUNDING


@pytest.mark.parametrize(
    ("name", "ranks", "ddp"),
    [
        *(("server:ssp=0", 3, False), ("server:ssp=0", 4, True), ("local:1", 3, True), ("local:1", 4, False)),
        ("server:leaves", 3, False),  # in one rack
    ],
)
def test_ranks_that_wait_train_synchronously(
    name: str, ranks: int, ddp: bool, tmp_path: Path, synchronous: dict[int, list[float]]
) -> None:
    found = run("exchange_weights", ranks, tmp_path, architecture=name, steps=STEPS, ddp=ddp)
    assert found[1:] == found[:-1]
    assert difference(found[0], synchronous[ranks]) < ROUNDING


@pytest.mark.parametrize(
    "name", ["server:async", "server:async=3", "server:ssp=2", "gossip", "gossip:random", "local:5"]
)
def test_others_train_otherwise_and_end_with_the_same_bits(
    name: str, tmp_path: Path, synchronous: dict[int, list[float]]
) -> None:
    found = run("exchange_weights", 4, tmp_path, architecture=name, steps=STEPS, ddp=False)
    assert found[1:] == found[:-1]
    assert ROUNDING < difference(found[0], synchronous[4]) < 1


@pytest.mark.parametrize("racks", [[[0, 1], [2, 3]], [[3, 1, 0], [2]]], ids=str)
def test_leaves_train_otherwise_and_end_with_the_same_bits(
    racks: list[list[int]], tmp_path: Path, synchronous: dict[int, list[float]]
) -> None:
    settings = {"architecture": "server:leaves", "racks": racks}
    found = run("exchange_weights", 4, tmp_path, steps=STEPS, ddp=False, **settings)
    assert found[1:] == found[:-1]
    assert ROUNDING < difference(found[0], synchronous[4]) < 1


@pytest.mark.parametrize("name", ALL)
def test_one_rank_trains_alone(name: str, tmp_path: Path, synchronous: dict[int, list[float]]) -> None:
    (found,) = run("exchange_weights", 1, tmp_path, architecture=name, steps=STEPS, ddp=True)
    assert difference(found, synchronous[1]) < ROUNDING


@pytest.mark.parametrize("name", ALL)
def test_a_weight_may_be_alone(name: str, tmp_path: Path) -> None:
    """Of three ranks, two have no shard. The first begins with 0, and the ranks add 0, 1 and 2."""
    assert run("few", 3, tmp_path, architecture=name) == [[1.0]] * 3


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("ring", True, "ring sums gradients: make it with inagg_baselines.collectives"),
        ("gossip", False, "gossip exchanges weights: make it with inagg_baselines.exchanges"),
        ("server:async=2", True, "server:async=2 needs a rank for each shard, and there are 1"),
        ("server:sync=2", False, "server:sync=2 needs a rank for each shard, and there are 1"),
    ],
)
def test_what_cannot_be_made(name: str, weights: bool, message: str, tmp_path: Path) -> None:
    (said,) = run("make", 1, tmp_path, architecture=name, weights=weights)
    assert said.startswith(message)
