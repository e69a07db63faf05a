# SPDX-License-Identifier: Apache-2.0
"""Integers and half floats as float32 elements, and their sums in the core's arithmetic."""

import random

import pytest
import torch

from inagg.sums.elements import decode, digits, encode, is_integer, summable

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def exact_lanes(contributions: list[torch.Tensor], ranks: int) -> torch.Tensor:
    """What 32-bit lanes make of float32 contributions (docs/protocol.md, 3.1 and 3.2), as one block; in float64,
    where all of it is exact."""
    guard = (ranks - 1).bit_length()
    stacked = torch.stack(contributions).double()
    greatest = stacked.abs().max()
    step = 2.0 ** (torch.frexp(greatest)[1].item() - (31 - guard))
    return ((stacked / step).round().sum(0) * step).to(torch.float32)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_summed_exactly_and_wrap_around(dtype: torch.dtype, ranks: int) -> None:
    limits = torch.iinfo(dtype)
    draw = random.Random(ranks)
    rows = [[draw.randint(limits.min, limits.max) for _ in range(500)] for _ in range(ranks)]
    for extreme, value in enumerate((limits.min, limits.max, 0, 1)):
        for row in rows:
            row[extreme] = value
    sums = exact_lanes([encode(torch.tensor(row, dtype=dtype), ranks) for row in rows], ranks)
    result = decode(sums, dtype, ranks)
    assert result.dtype == dtype
    modulus = 1 << limits.bits
    expected = [sum(column) % modulus for column in zip(*rows, strict=True)]
    assert [value % modulus for value in result.tolist()] == expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 33, 64])
def test_the_greatest_digits_of_all_ranks_add_up_to_what_float32_holds(ranks: int) -> None:
    for value in (torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max):
        encoded = encode(torch.tensor([value]), ranks)
        assert (encoded.double().sum() * ranks).abs() <= digits(torch.int64, ranks) * 2**24
        assert (encoded.abs() * ranks).max() <= 2**24


def test_digits_for_each_type() -> None:
    assert [digits(torch.int64, ranks) for ranks in (1, 2, 8, 16, 64)] == [3, 3, 3, 4, 4]
    assert [digits(torch.int32, ranks) for ranks in (1, 64)] == [2, 2]
    assert digits(torch.int16, 64) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_floats_are_one_element_each_and_come_back_as_they_were(dtype: torch.dtype) -> None:
    matrix = torch.randn(5, 7).to(dtype).t()
    encoded = encode(matrix, 4)
    assert encoded.shape == (1, 35)
    assert encoded.dtype == torch.float32
    assert torch.equal(decode(encoded, dtype, 4).view(matrix.shape), matrix)


def test_what_is_summable() -> None:
    assert all(summable(dtype) and is_integer(dtype) for dtype in INTEGERS)
    assert not is_integer(torch.bfloat16)
    assert not any(summable(dtype) for dtype in (torch.float64, torch.bool, torch.complex64))
