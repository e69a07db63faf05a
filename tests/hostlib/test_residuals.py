# SPDX-License-Identifier: Apache-2.0
"""A residual stays with its parameter when buckets change, and in a checkpoint."""

import pytest
import torch

from inagg.errors import ConfigurationError
from inagg.residuals import Residuals

A, B, C = torch.zeros(2), torch.zeros(1, 3), torch.zeros(1)


def test_it_stays_with_the_parameter_when_buckets_change() -> None:
    residuals = Residuals([A, B, C])
    residuals.of([C, A]).copy_(torch.tensor([1.0, 2.0, 3.0]))
    residuals.of([B]).copy_(torch.tensor([4.0, 5.0, 6.0]))
    assert residuals.of([B, A]).tolist() == [4.0, 5.0, 6.0, 2.0, 3.0]
    residuals.of([B, A]).mul_(10)
    assert residuals.of([A, B, C]).tolist() == [20.0, 30.0, 40.0, 50.0, 60.0, 1.0]
    assert residuals.of([A, B, C]) is residuals.of([A, B, C])


def test_a_checkpoint_brings_it_back() -> None:
    residuals = Residuals([A, B, C])
    residuals.of([A, B]).copy_(torch.arange(5.0))
    snapshot = residuals.snapshot()
    residuals.of([A, B]).zero_()
    other = Residuals([torch.zeros(2), torch.zeros(3), torch.zeros(1)])
    other.restore(snapshot)
    residuals.restore(snapshot)
    residuals.scale(2)
    assert residuals.of([B, C]).tolist() == [4.0, 6.0, 8.0, 0.0]
    assert {place: part.tolist() for place, part in other.snapshot().items()} == {
        0: [0.0, 1.0],
        1: [2.0, 3.0, 4.0],
    }


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing() -> None:
    residuals = Residuals([A, B])
    residuals.of([A]).fill_(7)
    for wrong in ({0: torch.zeros(3)}, {0: torch.zeros(2), 2: torch.zeros(1)}):
        with pytest.raises(ConfigurationError, match="the checkpoint has"):
            residuals.restore(wrong)
    assert residuals.of([A]).tolist() == [7.0, 7.0]
    with pytest.raises(ConfigurationError, match="another model"):
        residuals.of([C])
