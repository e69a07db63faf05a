# SPDX-License-Identifier: Apache-2.0
"""What happens in a world: jobs, their network, and the faults that hit them. All of it follows from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from inagg_contract.aggregation import LEASED, SERVER, SHARED, Aggregation
from inagg_simulator.virtual_network import PERFECT, Impairment

FaultKind = Literal[
    "switch dies",
    "switch stops",
    "cable is cut",
    "server ends",
    "registered server dies",
    "rank stops",
    "link is cut",
    "controller dies",
    "rank is cut off",
    "suspicion",
    "bit flips",
]
# The longest ones, in seconds, so that no rank counts as lost, and a job has a way again in time.
_LONGEST: dict[FaultKind, float] = {
    "switch dies": 8.0,
    "switch stops": 5.0,
    "cable is cut": 12.0,
    "server ends": 0.0,
    "registered server dies": 8.0,
    "rank stops": 4.0,
    "link is cut": 4.0,
    "controller dies": 8.0,
    "rank is cut off": 4.0,
    "suspicion": 0.0,
    "bit flips": 0.0,
}
# How often each is drawn, where there is something that it can hit.
_WEIGHTS: dict[FaultKind, float] = dict.fromkeys(get_args(FaultKind), 1.0) | {
    "switch dies": 2.0,
    "cable is cut": 1.5,
    "registered server dies": 2.0,
    "bit flips": 0.3,
}


@dataclass(frozen=True)
class Fault:
    """at, seconds: when it begins, and how long it lasts. which: of the things that it can hit, counted from 0 and
    beginning again; a rank counts in all jobs."""

    at: float
    kind: FaultKind
    which: int
    seconds: float

    def __str__(self) -> str:
        hit = "" if self.kind == "controller dies" else f" ({self.which})"
        return f"at {self.at:.3f} s {self.kind}{hit}" + (f" for {self.seconds:.3f} s" if self.seconds else "")


@dataclass(frozen=True)
class Scenario:
    """workers: of each job. kind: of the jobs' first ways; colocated: their servers, if they have any, are in their
    ranks' processes. leaves: one is a star. spines: above several leaves. servers: registered ones. sizes: elements of
    the sums. lateness: seconds between two sums of a rank, at most. drift: of clocks, as a part."""

    seed: int
    workers: tuple[int, ...]
    slots: int
    kind: Aggregation
    colocated: bool
    leaves: int
    spines: int
    servers: int
    sizes: tuple[int, ...]
    lateness: float
    impairment: Impairment
    drift: float
    faults: tuple[Fault, ...]

    @classmethod
    def drawn(cls, seed: int) -> "Scenario":
        """The scenario of a seed."""
        draws = random.Random(seed)
        kinds: list[Aggregation] = [LEASED, SHARED, SERVER]
        kind = draws.choices(kinds, [6, 2, 2])[0]
        leaves = draws.choices([1, 2, 3, 4], [12, 6, 2, 1])[0] if kind != SERVER else 1
        workers = draws.choice([1, 2, 2, 3, 4]) if leaves == 1 else draws.choice([2, 3, 4, 5])
        colocated = kind == LEASED or draws.random() < 0.5
        second = kind != SERVER and draws.random() < (0.5 if kind == SHARED else 0.1)
        lateness = draws.choice([0.01, 0.3, 3.0, 5.0])
        hops = leaves > 1 or kind == SHARED
        sizes = tuple(
            draws.choice([1, 65, 700, 1400 if hops else 2000])
            for _ in range(draws.randint(3, 6 if hops else 8))
        )
        made = cls(
            seed=seed,
            workers=(workers, draws.choice([1, 2])) if second else (workers,),
            slots=draws.choice([2, 4, 8]),
            kind=kind,
            colocated=colocated,
            leaves=leaves,
            spines=draws.choice([1, 2, 2]),
            servers=0 if colocated else draws.choice([1, 2, 3]),
            sizes=sizes,
            lateness=lateness,
            impairment=Impairment(
                loss=draws.choice([0.0, 0.0, 0.05, 0.1 if hops else 0.2]),
                duplication=draws.choice([0.0, 0.2]),
                jitter=draws.choice([0.0, 0.005]),
                straggling=draws.choice([0.0, 0.2]),
                straggle=draws.choice([0.1, 3.0]),
            ),
            drift=draws.choice([0.0, 1e-3]),
            faults=(),
        )
        possible = [each for each in get_args(FaultKind) if made._can_be_hit_by(each)]
        weights = [_WEIGHTS[each] for each in possible]
        drawn = draws.choices(possible, weights, k=draws.choice([1, 1, 2, 3, 4]))
        # About when a sum begins, so that it is often under way.
        faults = [
            Fault(
                at=max(0.0, draws.randrange(len(sizes)) * lateness / 2 + draws.uniform(-0.05, 0.15)),
                kind=each,
                which=draws.randrange(24),
                seconds=draws.uniform(0, _LONGEST[each]),
            )
            for each in drawn
        ]
        return replace(made, faults=tuple(sorted(faults, key=lambda each: each.at)))

    def _can_be_hit_by(self, kind: FaultKind) -> bool:
        if kind == "cable is cut":
            return self.leaves > 1
        return kind != "registered server dies" or self.servers > 0

    def simpler(self) -> Iterator["Scenario"]:
        """Scenarios that have less of something, the greatest steps first."""
        for index in range(len(self.faults)):
            yield replace(self, faults=self.faults[:index] + self.faults[index + 1 :])
        if len(self.workers) > 1:
            yield replace(self, workers=self.workers[:-1])
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
        yield from self._smaller()
        if self.drift:
            yield replace(self, drift=0.0)
        for index, fault in enumerate(self.faults):
            if fault.which:
                one = replace(fault, which=0)
                yield replace(self, faults=(*self.faults[:index], one, *self.faults[index + 1 :]))
            if fault.seconds > 0.1:
                shorter = replace(fault, seconds=fault.seconds / 2)
                yield replace(self, faults=(*self.faults[:index], shorter, *self.faults[index + 1 :]))

    def _smaller(self) -> Iterator["Scenario"]:
        """Scenarios with a smaller network."""
        if self.leaves > 1:
            if not any(fault.kind == "cable is cut" for fault in self.faults):
                yield replace(self, leaves=1)
            if self.leaves > 2:
                yield replace(self, leaves=self.leaves - 1)
            if self.spines > 1:
                yield replace(self, spines=1)
        if self.servers > 1:
            yield replace(self, servers=self.servers - 1)
        for index, workers in enumerate(self.workers):
            if workers > 1:
                yield replace(self, workers=(*self.workers[:index], workers - 1, *self.workers[index + 1 :]))

    def __str__(self) -> str:
        how = self.impairment
        troubles = {
            name: getattr(how, name)
            for name in ("loss", "duplication", "jitter", "straggling")
            if getattr(how, name)
        }
        network = str(troubles) if troubles else "a perfect network"
        where = "a star" if self.leaves == 1 else f"{self.leaves} leaves below {self.spines} spines"
        what = self.kind if self.colocated else f"{self.kind} with {self.servers} registered servers"
        ranks = " and ".join(map(str, self.workers))
        return "\n".join(
            [
                f"{ranks} ranks on {where}, {self.slots} slots, {what}, sums of {self.sizes}, "
                f"lateness {self.lateness}, drift {self.drift}, {network}",
                *map(str, self.faults),
            ]
        )
