# SPDX-License-Identifier: Apache-2.0
"""Which small tensors of a call are summed together."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from inagg.sums.bundle import MOST_ELEMENTS, Bundle, divided

TENSORS = st.lists(st.tuples(st.sampled_from([16, 32]), st.integers(0, 2 * MOST_ELEMENTS)), max_size=60)


@given(TENSORS)
def test_each_tensor_is_in_one_sum_with_its_lanes(tensors: list[tuple[int, int]]) -> None:
    sums = divided(tensors)
    assert sorted(index for together in sums for index in together) == list(range(len(tensors)))
    assert sums == sorted(sums, key=lambda together: together[0])
    for together in sums:
        assert together == sorted(together)
        assert len({tensors[index][0] for index in together}) == 1
        if len(together) > 1:
            assert max(tensors[index][1] for index in together) <= MOST_ELEMENTS
            assert sum(tensors[index][1] for index in together) <= 1 << 20


def test_small_tensors_are_together_up_to_a_limit() -> None:
    assert divided([(32, 10), (16, 10), (32, MOST_ELEMENTS + 1), (32, 7), (16, 1)]) == [[0, 3], [1, 4], [2]]
    assert divided([(32, MOST_ELEMENTS)] * 40) == [[*range(16)], [*range(16, 32)], [*range(32, 40)]]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.sampled_from([64, 256]))
def test_a_bundle_has_each_tensor_at_a_block_and_zeros_between(sizes: list[int], block: int) -> None:
    tensors = [torch.randn(size) + 10 for size in sizes]
    bundle = Bundle(tensors, torch.float32, block)
    blocks = bundle.flat.view(-1, block)
    ends = torch.tensor([0, *(-(-size // block) for size in sizes)]).cumsum(0).tolist()
    assert len(blocks) == ends[-1]
    for tensor, (first, last) in zip(tensors, pairwise(ends), strict=True):
        found = blocks[first:last].reshape(-1)
        assert torch.equal(found[: tensor.numel()], tensor)
        assert not found[tensor.numel() :].any()
    expected = [tensor + 1 for tensor in tensors]
    bundle.flat.add_(1)
    bundle.deliver()
    assert all(map(torch.equal, tensors, expected))
