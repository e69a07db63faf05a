# SPDX-License-Identifier: Apache-2.0
"""What theory predicts of a training's step, beside what was measured, and where inagg pays.

A step is predicted from the computation, the share of the communication that the program waits for, and the least
round-trip time, all as measured, and from theory: bytes with headers at the rate of the links, and messages that wait
for one another. What a step waits beyond that is the rest. On other links, for other models and numbers of workers the
rest is taken to grow with the bytes, communication as theory says, and computation not at all.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from inagg.causes import PAYS
from inagg_contract.constants import ETHERNET_HEADER_BYTES, IPV4_HEADER_BYTES, WORD_BYTES
from inagg_contract.sizes import FRAME_HEADERS_BYTES
from inagg_testbed.compare.figures import ComparisonFigures, RunFigures
from inagg_testbed.compare.ways import Way
from inagg_testbed.network.fabric import STAR
from inagg_testbed.network.links import WORDS, words_within

# Up to a frame with offloads, the rest is a matter of messages, not of bytes.
_SMALL_BYTES = 65536.0
_TCP_HEADER_BYTES = 32  # with timestamps
_RATES_BPS = [step * 10**power for power in range(6, 12) for step in (1, 2, 5)]
_WORKERS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024]
_ELEMENTS = [step * 10**power for power in range(2, 11) for step in (1, 2, 5)]


PREDICTED = (
    "MB",
    "headers",
    "round trips",
    "RTT ms",
    "ran ms",
    "comm. ms",
    "predicted step ms",
    "mean step ms",
)


@dataclass(frozen=True)
class Setting:
    """What theory depends on. rate_bps: None for links that are not shaped."""

    workers: int
    racks: Sequence[Sequence[int]]
    elements: float
    rate_bps: float | None


@dataclass(frozen=True)
class Prediction:
    """Of a step. bytes: on the busiest link of a host, with headers. header_share: of these bytes. messages: that wait
    for one another, each a round trip of rtt_ms. computation_ms: as measured. communication_ms, step_ms: predicted."""

    way: str
    bytes: float
    header_share: float
    messages: float
    rtt_ms: float
    computation_ms: float
    communication_ms: float
    step_ms: float
    measured_ms: float

    @property
    def row(self) -> tuple[str, ...]:
        """The columns of `PREDICTED`."""
        return (
            f"{self.bytes / 1e6:.3g}",
            f"{self.header_share:.1%}",
            f"{self.messages:.3g}",
            f"{self.rtt_ms:.3g}",
            f"{self.computation_ms:.3g}",
            f"{self.communication_ms:.3g}",
            f"{self.step_ms:.3g}",
            f"{self.measured_ms:.3g}",
        )

    def __str__(self) -> str:
        return (
            f"{self.way}: {self.step_ms:.3g} ms predicted, {self.measured_ms:.3g} ms measured; of these"
            f" {self.computation_ms:.3g} ms computation, {self.communication_ms:.3g} ms for {self.bytes / 1e6:.3g} MB"
            f" ({self.header_share:.1%} headers) and {self.messages:.3g} x RTT of {self.rtt_ms:.3g} ms"
        )


class Model:
    """Predicts the steps of one training's architecture."""

    def __init__(self, run: RunFigures, setting: Setting, mtu: int) -> None:
        self._run, self._way = run, Way.parse(run.way)
        self.setting = setting
        self.header_share = _header_share(self._way, mtu)
        parts = run.parts_ms
        self._exposed = parts.waited / parts.communication if parts.communication > 0 else 0.0
        self._rtt_ms = (run.least_rtt_ms if self._way.backend is None else run.switch_rtt_ms) or 0.0
        self._measured_ms = parts.computation + parts.waited + parts.other
        self.own_ms = parts.computation + parts.other
        self._rest_ms = max(0.0, parts.waited - self._waiting_ms(setting))

    def prediction(self) -> Prediction:
        """Of the step that was measured."""
        size, messages = self._needs(self.setting)
        return Prediction(
            self._run.way,
            size,
            self.header_share,
            messages,
            self._rtt_ms,
            self._run.parts_ms.ran,
            self._communication_ms(self.setting),
            self._run.parts_ms.ran + self._waiting_ms(self.setting),
            self._measured_ms,
        )

    def step_ms(self, setting: Setting, own_ms: float) -> float:
        """A step in another setting that takes own_ms without waiting. Raises ValueError where the architecture makes
        no sense."""
        size, before = (max(self._needs(each)[0], _SMALL_BYTES) for each in (setting, self.setting))
        return own_ms + self._waiting_ms(setting) + self._rest_ms * size / before

    def _needs(self, setting: Setting) -> tuple[float, float]:
        """Bytes with headers, and messages that wait for one another."""
        theory, element_bytes = self._way.theory(setting.workers, setting.racks)
        size = theory.share * element_bytes * setting.elements / (1 - self.header_share)
        return size, theory.steps * max(self._run.sums, 1)

    def _communication_ms(self, setting: Setting) -> float:
        size, messages = self._needs(setting)
        return (8e3 * size / setting.rate_bps if setting.rate_bps else 0.0) + messages * self._rtt_ms

    def _waiting_ms(self, setting: Setting) -> float:
        return self._exposed * self._communication_ms(setting)


def _header_share(way: Way, mtu: int) -> float:
    """Headers in full frames, of all bytes."""
    if way.backend is not None:
        return FRAME_HEADERS_BYTES / (FRAME_HEADERS_BYTES + WORD_BYTES * (words_within(mtu) or min(WORDS)))
    return (ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + _TCP_HEADER_BYTES) / (ETHERNET_HEADER_BYTES + mtu)


def models(comparison: ComparisonFigures) -> Iterator[Model]:
    """Of each architecture's first training; none on a mesh, whose groups have sizes of their own."""
    settings = comparison.settings
    if settings.get("mesh") is not None:
        return
    for way in comparison.ways:
        run = comparison.of(way)[0]
        setting = Setting(
            settings["workers"], comparison.fabric.ranks_of_racks, run.elements, comparison.rate_bps
        )
        yield Model(run, setting, settings["mtu"])


def predictions(comparison: ComparisonFigures) -> list[Prediction]:
    """Of each architecture's first training."""
    return [model.prediction() for model in models(comparison)]


def payoffs(comparison: ComparisonFigures) -> Iterator[str]:
    """For each inagg of a comparison, on which links, with how many workers and for which models it is 1.1 times as
    fast as the first architecture. One of these changes, the others are those of the comparison."""
    found = list(models(comparison))
    for other in found[1:]:
        if Way.parse(other.prediction().way).backend is not None:
            yield _payoff(found[0], other, star=comparison.settings["topology"] == STAR)


def _payoff(first: Model, other: Model, *, star: bool) -> str:
    own = other.setting
    own_ms = min(first.own_ms, other.own_ms)  # the same training: they differ by what else the machine does

    def pays(setting: Setting) -> bool:
        try:
            return first.step_ms(setting, own_ms) >= PAYS * other.step_ms(setting, own_ms)
        except ValueError:  # the first architecture is not for so many workers
            return False

    where = [
        _range("links", "on {}", [(_rate(rate), pays(replace(own, rate_bps=rate))) for rate in _RATES_BPS]),
        _range(
            "parameters", "with {}", [(_count(size), pays(replace(own, elements=size))) for size in _ELEMENTS]
        ),
    ]
    if star:
        counts = [(str(count), pays(replace(own, workers=count, racks=[range(count)]))) for count in _WORKERS]
        where.append(_range("workers", "with {}", counts))
    names = (
        f"{other.prediction().way} is predicted to be at least {PAYS:g}x as fast as {first.prediction().way}"
    )
    return f"{names}: {'; '.join(where)}"


def _range(what: str, text: str, tried: Sequence[tuple[str, bool]]) -> str:
    """Where it pays, of values in ascending order with their names."""
    several = what if what == "links" else f"number of {what}"
    if all(pays for _, pays in tried):
        return text.format(f"any {several}")
    amounts = [
        f"up to {names[-1]}"
        if names[0] == tried[0][0]
        else f"at least {names[0]}"
        if names[-1] == tried[-1][0]
        else f"{names[0]} to {names[-1]}"
        for pays, group in groupby(tried, key=lambda each: each[1])
        if pays and (names := [name for name, _ in group])
    ]
    if not amounts:
        return text.format(f"no {several}")
    amount = " or ".join(amounts)
    return text.format(f"{what} of {amount}" if what == "links" else f"{amount} {what}")


def _rate(bps: int) -> str:
    return f"{bps / 1e9:g} Gbit/s" if bps >= 1e9 else f"{bps / 1e6:g} Mbit/s"


def _count(number: int) -> str:
    power = max(0, int(math.log10(number)) // 3)
    return f"{number / 1000**power:g}{('', ' thousand', ' million', ' billion')[power]}"
