# SPDX-License-Identifier: Apache-2.0
"""The cases of chaos: a fault hits a part while a job is in a phase; and what must come of each (docs/faults.md)."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from inagg_testbed.network.fabric import Fabric

Fault = Literal["kill", "stop", "restart", "link"]
Victim = Literal["worker", "switch", "leaf", "spine", "controller", "server"]
When = Literal["join", "exponents", "data", "last block", "between steps", "leave"]
Kind = Literal["leased", "shared", "server"]
End = Literal["goes on", "fails", "either"]

FAULTS: Mapping[Fault, str] = {
    "kill": "kill -9",
    "stop": "SIGSTOP for 5 s",
    "restart": "kill -9 and start at once",
    "link": "its links cut for 2 s",
}
# For how long the ranks wait for a sum, at most: as long as the fault lasts and some seconds; after a kill also until
# that is noticed, and `same` has been tried.
_WAITS_S: Mapping[Fault, float] = {"kill": 12.0, "stop": 9.0, "restart": 8.0, "link": 7.0}
RANKS = 4
STOP_S, CUT_S = 5.0, 2.0


@dataclass(frozen=True)
class Case:
    """One fault. The worker is the last rank; the leaf is its leaf; the server is one of two, on hosts of their own.
    The spine is not the one before the controller, or, if `managed`, the one that ordinary traffic crosses. managed:
    there is a management network beside the switches."""

    fault: Fault
    victim: Victim
    when: When
    kind: Kind
    managed: bool = False

    def __str__(self) -> str:
        return f"{self.fault} {self.title}, {self.when}, {self.kind}"

    @property
    def title(self) -> str:
        """The victim, in the table."""
        return f"{self.victim}, with a management network" if self.managed else self.victim

    @property
    def fabric(self) -> Fabric:
        """The network that has the victim."""
        if self.victim in ("leaf", "spine"):
            return Fabric.parse("leaf-spine:2x2x2", hosts=RANKS)
        return Fabric.star(RANKS)

    @property
    def servers(self) -> int:
        """Hosts for servers."""
        return 2 if self.victim == "server" else 0

    @property
    def part(self) -> str:
        """The victim's name in the testbed."""
        spine = "spine1" if self.managed else "spine2"
        names = {"worker": f"rank{RANKS - 1}", "leaf": "leaf2", "spine": spine, "server": f"h{RANKS + 2}"}
        return names.get(self.victim, self.victim)

    @property
    def environment(self) -> dict[str, str]:
        """Options of the job."""
        servers = {"INAGG_SERVERS": "registered"} if self.victim == "server" else {}
        return {"INAGG_AGGREGATION": self.kind, **servers}


def cases() -> Iterator[Case]:
    """All cases. A rank is not started again. Only jobs with servers lose one, and they do not use the second spine."""
    for kind, victim, fault, when in itertools.product(*map(get_args, (Kind, Victim, Fault, When))):
        without = {"server": "leased", "spine": "shared server"}.get(victim, "")
        if (victim, fault) != ("worker", "restart") and kind not in without.split():
            yield Case(fault, victim, when, kind)
        if fault == "kill" and victim in ("switch", "leaf", "spine"):
            yield Case(fault, victim, when, kind, managed=True)


def promise(case: Case) -> tuple[End, float]:
    """What the other ranks do, and for how many seconds of the fault they wait for a sum, or live on.

    While a group is made, silence of a few seconds ends it (docs/protocol.md, 6.3).
    """
    brief = (
        case.fault == "link" or case.victim == "controller" or (case.victim, case.fault) == ("worker", "stop")
    )
    if case.when == "join" and case.managed:  # the ranks wait for the switch, or need none
        return "either", 65.0
    if (case.when, case.victim, case.fault) == (
        "join",
        "controller",
        "kill",
    ):  # they wait for it to come back
        return "fails", 75.0
    if case.when == "join":
        return ("fails", 12.0) if case.fault == "kill" else ("goes on" if brief else "either", 20.0)
    if case.fault == "kill" and case.when != "leave":
        if case.victim == "worker":
            return "fails", 10.0
        if case.victim in ("switch", "leaf") and not case.managed:
            return "fails", 40.0
    return "goes on", _WAITS_S[case.fault]
