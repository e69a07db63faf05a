# SPDX-License-Identifier: Apache-2.0
"""What happens in a world: a job, its network, and the faults that hit it. All of it follows from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from inagg_contract.aggregation import LEASED, SERVER, Aggregation
from inagg_simulator.virtual_network import PERFECT, Impairment

FaultKind = Literal[
    "switch dies",
    "switch stops",
    "server ends",
    "rank stops",
    "link is cut",
    "controller dies",
    "rank is cut off",
    "suspicion",
]
# The longest ones, in seconds, so that no rank counts as lost, and a job has a way again in time.
_LONGEST: dict[FaultKind, float] = {
    "switch dies": 8.0,
    "switch stops": 5.0,
    "server ends": 0.0,
    "rank stops": 4.0,
    "link is cut": 4.0,
    "controller dies": 8.0,
    "rank is cut off": 4.0,
    "suspicion": 0.0,
}


@dataclass(frozen=True)
class Fault:
    """at, seconds: when it begins, and how long it lasts. rank: which it hits, if it hits one."""

    at: float
    kind: FaultKind
    rank: int
    seconds: float

    def __str__(self) -> str:
        hit = f" ({self.rank})" if self.kind.startswith(("rank", "server", "link", "susp")) else ""
        return f"at {self.at:.3f} s {self.kind}{hit}" + (f" for {self.seconds:.3f} s" if self.seconds else "")


@dataclass(frozen=True)
class Scenario:
    """kind: of the job's first way. p4: its switch runs the P4 program, not the reference. sizes: elements of the sums.
    lateness: seconds between two sums of a rank, at most. drift: of clocks, as a part."""

    seed: int
    workers: int
    slots: int
    kind: Aggregation
    p4: bool
    sizes: tuple[int, ...]
    lateness: float
    impairment: Impairment
    drift: float
    faults: tuple[Fault, ...]

    @classmethod
    def drawn(cls, seed: int) -> "Scenario":
        """The scenario of a seed."""
        draws = random.Random(seed)
        workers = draws.choice([1, 2, 2, 3, 4])
        lateness = draws.choice([0.01, 0.3, 3.0, 5.0])
        sizes = tuple(draws.choice([1, 65, 700, 2000]) for _ in range(draws.randint(3, 8)))

        def fault(kind: FaultKind) -> Fault:
            # About when a sum begins, so that it is often under way.
            at = max(0.0, draws.randrange(len(sizes)) * lateness / 2 + draws.uniform(-0.05, 0.15))
            return Fault(at, kind, draws.randrange(workers), draws.uniform(0, _LONGEST[kind]))

        kinds = draws.choices(get_args(FaultKind), k=draws.choice([1, 1, 2, 3, 4]))
        faults = sorted(map(fault, kinds), key=lambda each: each.at)
        return cls(
            seed=seed,
            workers=workers,
            slots=draws.choice([2, 4, 8]),
            kind=draws.choice([LEASED, LEASED, LEASED, SERVER]),
            p4=draws.random() < 0.1,
            sizes=sizes,
            lateness=lateness,
            impairment=Impairment(
                loss=draws.choice([0.0, 0.0, 0.05, 0.2]),
                duplication=draws.choice([0.0, 0.2]),
                jitter=draws.choice([0.0, 0.005]),
                straggling=draws.choice([0.0, 0.2]),
                straggle=draws.choice([0.1, 3.0]),
            ),
            drift=draws.choice([0.0, 1e-3]),
            faults=tuple(faults),
        )

    def simpler(self) -> Iterator["Scenario"]:
        """Scenarios that have less of something, the greatest steps first."""
        for index in range(len(self.faults)):
            yield replace(self, faults=self.faults[:index] + self.faults[index + 1 :])
        if self.impairment != PERFECT:
            yield replace(self, impairment=PERFECT)
            for name in ("loss", "duplication", "jitter", "straggling"):
                if getattr(self.impairment, name):
                    yield replace(self, impairment=replace(self.impairment, **{name: 0.0}))
        if len(self.sizes) > 1:
            yield replace(self, sizes=self.sizes[1:])
            yield replace(self, sizes=self.sizes[:-1])
        if max(self.sizes) > 1:
            yield replace(self, sizes=tuple(size // 4 + 1 for size in self.sizes))
        if self.workers > 1:
            fewer = self.workers - 1
            faults = tuple(replace(fault, rank=min(fault.rank, fewer - 1)) for fault in self.faults)
            yield replace(self, workers=fewer, faults=faults)
        if self.p4:
            yield replace(self, p4=False)
        if self.drift:
            yield replace(self, drift=0.0)
        for index, fault in enumerate(self.faults):
            if fault.seconds > 0.1:
                shorter = replace(fault, seconds=fault.seconds / 2)
                yield replace(self, faults=(*self.faults[:index], shorter, *self.faults[index + 1 :]))

    def __str__(self) -> str:
        how = self.impairment
        troubles = {
            name: getattr(how, name)
            for name in ("loss", "duplication", "jitter", "straggling")
            if getattr(how, name)
        }
        network = str(troubles) if troubles else "a perfect network"
        return "\n".join(
            [
                f"{self.workers} ranks, {self.slots} slots, {self.kind}{', P4' if self.p4 else ''}, "
                f"sums of {self.sizes}, lateness {self.lateness}, drift {self.drift}, {network}",
                *map(str, self.faults),
            ]
        )
