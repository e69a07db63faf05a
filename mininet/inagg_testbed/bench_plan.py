"""What the launcher of the all-reduce benchmark tells its workers. No torch here: the launcher has no use for it."""

import json
from dataclasses import asdict, dataclass

MAX_LOSS = 0.5  # all traffic is hit: TCP, and so the rendezvous, gets through no more


@dataclass(frozen=True, kw_only=True)
class BackendSpec:
    """`gloo` or `inagg:BITS`."""

    name: str
    lane_bits: int | None

    @classmethod
    def parse(cls, text: str) -> "BackendSpec":
        """Raises ValueError."""
        name, _, bits = text.partition(":")
        if name == "gloo" and not bits:
            return cls(name=name, lane_bits=None)
        if name == "inagg" and bits in ("", "32", "16"):
            return cls(name=name, lane_bits=int(bits or 32))
        raise ValueError(f"backend {text!r} is none of gloo, inagg:32, inagg:16")

    def __str__(self) -> str:
        return self.name if self.lane_bits is None else f"{self.name}:{self.lane_bits}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all ranks do; `words` is WORDS of the switch's program."""

    backends: tuple[str, ...]
    elements: tuple[int, ...]
    iterations: int
    warmup: int
    seed: int
    words: int

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The inverse of to_json."""
        values = json.loads(text)
        return cls(**{**values, "backends": tuple(values["backends"]), "elements": tuple(values["elements"])})
