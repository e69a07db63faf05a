# SPDX-License-Identifier: Apache-2.0
"""When the jobs sum: phases of random length, drawn from a seed, so that each policy gets the same ones.

A phase is a pause and then a number of all-reduces: work, not time, so that a job that is disturbed takes longer. The
lengths are drawn from exponential distributions. They are scaled: every undisturbed job takes the same time, and sums
for the same part of it. Otherwise the luck of the draw would decide how busy the network is.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

PHASES = 8


@dataclass(frozen=True)
class Phase:
    """A pause, and then all-reduces one after another."""

    pause_s: float
    sums: int


def draw_schedule(seed: str, *, seconds: float, active: float, sum_s: float) -> tuple[Phase, ...]:
    """The phases of a job that takes about `seconds` if undisturbed, of which it spends the part `active` on sums.

    sum_s: the time of an all-reduce of this job, undisturbed. Each phase has one all-reduce or more. So a schedule
    takes longer than `seconds` if its all-reduces are long.
    """
    draw = random.Random(seed)
    work, pauses = _shares(draw, PHASES), _shares(draw, PHASES)
    return tuple(
        Phase(pause * (1 - active) * seconds, max(1, round(busy * active * seconds / sum_s)))
        for pause, busy in zip(pauses, work, strict=True)
    )


def undisturbed_s(phases: Sequence[Phase], sum_s: float) -> float:
    """How long a job takes for these phases if undisturbed."""
    return sum(phase.pause_s + phase.sums * sum_s for phase in phases)


def _shares(draw: random.Random, count: int) -> list[float]:
    """Exponentially distributed lengths, scaled so that their sum is 1."""
    lengths = [draw.expovariate(1.0) for _ in range(count)]
    return [length / sum(lengths) for length in lengths]
