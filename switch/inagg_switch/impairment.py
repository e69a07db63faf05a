# SPDX-License-Identifier: Apache-2.0
"""What a bad link does to packets, as text such as `loss=1%,delay=5ms,jitter=1ms,corrupt=0.01%,seed=7`.

native/ports/impairment.hpp carries it out, and says what each effect is.
"""

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Literal

from inagg_switch.errors import SwitchError

# Of a port: the packets that it receives, or those that it sends.
Direction = Literal["in", "out"]

MOST_DELAY_S = 60.0
MAX_SEED = (1 << 64) - 1
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PROBABILITIES = ("loss", "duplicate", "reorder", "corrupt")
_TIMES = ("delay", "jitter")
EFFECTS = (*_PROBABILITIES, *_TIMES, "seed")  # the names that a text may have


class ImpairmentError(SwitchError):
    """An impairment is not well-formed."""


@dataclass(frozen=True, kw_only=True)
class Impairment:
    """Probabilities, 0 to 1; times in seconds, which are kept to the microsecond.

    delay is uniform in delay - jitter to delay + jitter. A reordered packet is not delayed although others are; without
    a delay it is held back for 1 ms. corrupt: one bit behind the Ethernet header is flipped.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ImpairmentError."""
        for name in _PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise ImpairmentError(
                    f"{name} {getattr(self, name):g}: a probability is 0 to 1, or 0% to 100%"
                )
        for name in _TIMES:
            if not 0 <= getattr(self, name) <= MOST_DELAY_S:
                raise ImpairmentError(f"{name} {getattr(self, name):g} s: it must be 0 to {MOST_DELAY_S:g} s")
        if self.jitter > self.delay:
            raise ImpairmentError(
                f"jitter {_time(self.jitter)} is more than the delay, {_time(self.delay)}: a packet cannot leave before"
                " it comes"
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise ImpairmentError(f"seed {self.seed}: it must be 0 to {MAX_SEED}")

    @classmethod
    def parse(cls, text: str) -> "Impairment":
        """Parse a text such as `loss=1%,delay=5ms`. Raises ImpairmentError."""
        values: dict[str, float] = {}
        for part in text.split(","):
            name, is_set, value = part.partition("=")
            if not is_set or name not in EFFECTS:
                raise ImpairmentError(
                    f"impairment {text!r}: {part!r} is not NAME=VALUE with a name of {', '.join(EFFECTS)}; for example"
                    " loss=1%,delay=5ms,jitter=1ms"
                )
            if name in values:
                raise ImpairmentError(f"impairment {text!r}: {name} is given twice")
            values[name] = _parsed(name, value)
        return cls(**values)  # type: ignore[arg-type]  # the seed is an int

    def __str__(self) -> str:
        shown = []
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value:
                shown.append(
                    f"{name}={_time(value) if name in _TIMES else value if name == 'seed' else _share(value)}"
                )
        return ",".join(shown) or "loss=0%"

    def native(self, *, number: int, port: int, direction: Direction, thread: int) -> tuple[float, ...]:
        """What PacketLoop.impair() takes. Each switch (its number), port, direction and thread draws differently."""
        drawn = hashlib.blake2b(f"{self.seed} {number} {port} {direction} {thread}".encode(), digest_size=8)
        times = (round(seconds * 1e6) for seconds in (self.delay, self.jitter))
        probabilities = (self.loss, self.duplicate, self.reorder, self.corrupt)
        return (*probabilities, *times, int.from_bytes(drawn.digest(), "big"))


def parse_or_off(text: str) -> Impairment | None:
    """Parse `off`, which is None, or an impairment. Raises ImpairmentError."""
    return None if text == "off" else Impairment.parse(text)


@dataclass(frozen=True)
class PortImpairment:
    """An impairment of one port in one direction."""

    port: int
    direction: Direction
    impairment: Impairment

    @classmethod
    def parse(cls, text: str) -> "PortImpairment":
        """Parse `PORT:DIRECTION:SPEC`, such as `1:in:loss=1%`. Raises ImpairmentError."""
        port, _, rest = text.partition(":")
        direction, _, spec = rest.partition(":")
        if not (port.isascii() and port.isdigit()) or direction not in ("in", "out") or not spec:
            raise ImpairmentError(
                f"impairment {text!r}: expected PORT:in:SPEC or PORT:out:SPEC, as in 1:in:loss=1%"
            )
        return cls(int(port), "in" if direction == "in" else "out", Impairment.parse(spec))


def _parsed(name: str, text: str) -> float:
    """The value of an effect. Raises ImpairmentError."""
    try:
        if name == "seed":
            return int(text)
        if name in _TIMES:
            unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
            value = round(float(text.removesuffix(unit)) * _UNITS[unit] * 1e6) / 1e6
        else:
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if math.isfinite(value):
            return value
    except (ValueError, KeyError):
        pass
    wanted = {"seed": "a whole number"} | dict.fromkeys(_TIMES, "a time such as 5ms, 200us or 0.1s")
    raise ImpairmentError(
        f"{name}={text}: expected {wanted.get(name, 'a percentage like 1%, or a probability like 0.01')}"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.12g}ms"


def _share(probability: float) -> str:
    return f"{probability * 100:.12g}%"
