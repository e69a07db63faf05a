# SPDX-License-Identifier: Apache-2.0
"""Whether NCCL or gloo does the collectives of CUDA tensors: all ranks choose alike, from what each rank sees."""

import pytest

from inagg.errors import ConfigurationError
from inagg.inner.cuda import Gpus, choose


def rank(visible: str = "all", gpus: int = 8, machine: str = "a", **rest: object) -> Gpus:
    return Gpus(machine, visible, gpus, **{"nccl": True, "wish": "auto", **rest})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        pytest.param([rank()] * 8, "nccl", id="as many GPUs as ranks"),
        pytest.param([rank()] * 9, "gloo", id="one GPU too few"),
        pytest.param([rank(gpus=1)] * 2, "gloo", id="two ranks share the only GPU"),
        pytest.param([rank(str(i), 1) for i in range(4)], "nccl", id="each rank sees a GPU of its own"),
        pytest.param([rank("0", 1), rank("0", 1)], "gloo", id="both see the same one"),
        pytest.param([rank(machine=one) for one in "ab" for _ in range(8)], "nccl", id="two machines of 8"),
        pytest.param([rank(), rank(gpus=0)], "gloo", id="a rank without a GPU"),
        pytest.param([rank(), rank(nccl=False)], "gloo", id="a rank whose torch has no NCCL"),
        pytest.param([rank(gpus=1, wish="nccl")] * 2, "nccl", id="NCCL is asked for, and can say no itself"),
        pytest.param([rank(wish="gloo")] * 2, "gloo", id="gloo is asked for"),
    ],
)
def test_nccl_where_no_two_ranks_need_share_a_gpu(ranks: list[Gpus], chosen: str) -> None:
    assert choose(ranks) == chosen


def test_ranks_that_wish_for_different_things_are_told() -> None:
    with pytest.raises(ConfigurationError, match="auto at rank 0, gloo at rank 1"):
        choose([rank(), rank(wish="gloo"), rank()])


def test_nccl_that_cannot_be_is_told_by_all() -> None:
    with pytest.raises(ConfigurationError, match="rank 1 sees 0 GPUs and its torch has no NCCL"):
        choose([rank(wish="nccl"), rank(gpus=0, nccl=False, wish="nccl")])
