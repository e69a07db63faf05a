# SPDX-License-Identifier: Apache-2.0
"""The order in which the ranks sum their buckets: the same at all ranks, whoever begins a sum.

A turn is the sum of one bucket in one step. The group's turn is the next one that this rank has to contribute to. The
program's turn is the next one that it hands a gradient in for. If the program is late, its turn is behind the group's.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch


class Turn(NamedTuple):
    """step: counts the steps that synchronise gradients. position: of the bucket in the step."""

    step: int
    position: int

    def after(self, last: bool) -> "Turn":
        """The turn after this one. last: whether its bucket is the step's last one."""
        return Turn(self.step + 1, 0) if last else Turn(self.step, self.position + 1)


@dataclass(frozen=True)
class Bucket:
    """A bucket of DDP's.

    parameters: in the order of their gradients; places: their indices in the model. strides: of each gradient.
    last: whether it is the step's last bucket.
    """

    parameters: tuple[torch.Tensor, ...]
    places: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    device: torch.device
    last: bool

    @property
    def elements(self) -> int:
        """Elements of all its gradients."""
        return sum(parameter.numel() for parameter in self.parameters)

    @cached_property
    def digest(self) -> str:
        """Equal for buckets that can be summed with each other."""
        text = (
            f"{self.places} {[parameter.numel() for parameter in self.parameters]} {self.dtype} {self.last}"
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def gradients(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        """The gradients of its parameters, as views of the flat tensor of all of them."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [
            part.as_strided(parameter.shape, strides, part.storage_offset())
            for part, parameter, strides in zip(parts, self.parameters, self.strides, strict=True)
        ]


class Turns:
    """The turns of the group and of the program at one rank. Not thread-safe."""

    def __init__(self) -> None:
        self.group = Turn(0, 0)
        self.program = Turn(0, 0)
        self.last_step: list[Bucket] = []
        self._this_step: list[Bucket] = []

    @property
    def expected(self) -> Bucket | None:
        """The bucket of the group's turn, if this step has the buckets of the last one. None if it has more."""
        position = self.group.position
        return self.last_step[position] if position < len(self.last_step) else None

    @property
    def behind(self) -> int:
        """How many steps the program is behind the group."""
        return self.group.step - self.program.step

    def begin(self, bucket: Bucket) -> Turn:
        """The group's turn is taken, with this bucket."""
        turn = self.group
        self._this_step.append(bucket)
        if bucket.last:
            self.last_step, self._this_step = self._this_step, []
        self.group = turn.after(bucket.last)
        return turn

    def hand_in(self, bucket: Bucket) -> Turn:
        """The program's turn is taken, with this bucket."""
        turn = self.program
        self.program = turn.after(bucket.last)
        return turn
