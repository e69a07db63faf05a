# SPDX-License-Identifier: Apache-2.0
"""The turns of a group and of a late program, and when a gradient is late."""

import pytest
import torch

from inagg.late.arrivals import FEWEST, KEPT, Arrivals
from inagg.late.turns import Bucket, Turn, Turns

W, B = torch.zeros(2, 3), torch.zeros(3)


def bucket(*parameters: torch.Tensor, last: bool = False, dtype: torch.dtype = torch.float32) -> Bucket:
    return Bucket(
        parameters,
        tuple(0 if one is W else 1 for one in parameters),
        tuple(one.stride() for one in parameters),
        dtype,
        torch.device("cpu"),
        last,
    )


def test_the_first_step_expects_nothing() -> None:
    turns = Turns()
    assert turns.expected is None
    turns.begin(bucket(B))
    assert turns.group == Turn(0, 1)
    assert turns.expected is None


def test_a_step_expects_the_buckets_of_the_step_before() -> None:
    turns = Turns()
    for one in (bucket(B), bucket(W, last=True)):
        turns.begin(one)
    assert turns.group == Turn(1, 0)
    assert turns.expected == bucket(B)
    turns.begin(bucket(B))
    assert turns.expected == bucket(W, last=True)


def test_a_step_that_goes_on_after_the_last_bucket_of_the_one_before_expects_nothing() -> None:
    turns = Turns()
    turns.begin(bucket(W, B, last=True))
    turns.begin(bucket(W))
    assert turns.group == Turn(1, 1)
    assert turns.expected is None


def test_a_late_program_is_behind_until_it_has_handed_in_what_the_others_have() -> None:
    turns = Turns()
    for _ in range(2):
        turns.begin(bucket(W, last=True))
    assert turns.behind == 2
    assert turns.hand_in(bucket(W, last=True)) == Turn(0, 0)
    assert turns.hand_in(bucket(W, last=True)) == Turn(1, 0)
    assert turns.behind == 0
    assert turns.program == turns.group


@pytest.mark.parametrize(
    "other", [bucket(B, W), bucket(W), bucket(W, B, last=True), bucket(W, B, dtype=torch.bfloat16)]
)
def test_buckets_that_cannot_be_summed_together_have_other_digests(other: Bucket) -> None:
    assert bucket(W, B).digest != other.digest


def test_gradients_are_views_with_the_strides_of_the_parameters() -> None:
    column_major = torch.empty_strided((2, 3), (1, 2))
    one = Bucket((B, column_major), (1, 0), ((1,), (1, 2)), torch.float32, torch.device("cpu"), True)
    first, second = one.gradients(torch.arange(9.0))
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [[3, 5, 7], [4, 6, 8]]


def test_there_is_no_deadline_before_enough_has_been_observed() -> None:
    arrivals = Arrivals(0.9, 1.5)
    for _ in range(FEWEST - 1):
        arrivals.note(0, 1.0)
    assert arrivals.deadline(0) is None
    arrivals.note(0, 1.0)
    assert arrivals.deadline(0) == 1.5
    assert arrivals.deadline(1) is None


def test_the_deadline_is_a_multiple_of_a_quantile() -> None:
    arrivals = Arrivals(0.75, 2.0)
    for seconds in (4.0, 1.0, 3.0, 2.0):
        arrivals.note(0, seconds)
    assert arrivals.deadline(0) == 6.0
    assert arrivals.deadline(0, own_s=5.0) == 10.0
    assert arrivals.deadline(0, own_s=1.0) == 6.0


def test_old_arrivals_and_those_of_other_buckets_are_forgotten() -> None:
    arrivals = Arrivals(1.0, 1.0)
    arrivals.note(0, 9.0)
    for _ in range(KEPT):
        arrivals.note(0, 1.0)
    assert arrivals.deadline(0) == 1.0
    arrivals.forget(0)
    assert arrivals.deadline(0) is None
