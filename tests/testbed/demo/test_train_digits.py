# SPDX-License-Identifier: Apache-2.0
"""The samples that each rank of the demo's training gets."""

import pytest
import torch
from torch.utils.data import TensorDataset

from inagg_testbed.demo.train_digits import batches


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count), torch.arange(count))


@pytest.mark.parametrize(("world", "size"), [(4, 32), (39, 32), (40, 31), (64, 19)])
def test_a_share_smaller_than_a_batch_is_a_batch(world: int, size: int) -> None:
    found = list(batches(samples(1257), 32, seed=2, steps=60, rank=world - 1, world=world))
    assert [len(images) for images, _ in found] == [size] * 60


def test_ranks_share_an_epoch_without_overlap() -> None:
    seen = [
        int(sample)
        for rank in range(4)
        for images, _ in batches(samples(64), 8, seed=2, steps=2, rank=rank, world=4)
        for sample in images
    ]
    assert sorted(seen) == list(range(64))


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 samples are too few for 4 ranks"):
        next(batches(samples(3), 32, seed=2, steps=1, rank=0, world=4))
