# SPDX-License-Identifier: Apache-2.0
"""The P4 program and the C++ server do what the rules of slots say: in every state of small jobs, with every packet.

`make explore` compares larger jobs.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import pytest

from inagg_simulator import p4_switch
from inagg_simulator.shared_fabric import SharedJob
from inagg_simulator.slot_rules.page import TABLES
from inagg_simulator.slot_rules.shared import Slot
from inagg_simulator.slot_rules.table import Rule, Table
from inagg_simulator.slot_rules.versions import Version
from inagg_switch.switch import Switch
from tests.conformance.states.exploration import After, DifferenceError, compare, steps
from tests.conformance.states.shared import (
    COLOCATED_JOBS,
    JOBS,
    LEFTOVER,
    SLOT_VERSIONS,
    SharedSlot,
    SharedSlotInP4,
    make_fabric,
)
from tests.conformance.states.versions import (
    Arrival,
    BehindShared,
    Leased,
    LeasedInP4,
    LeasedInServer,
    RelayedServer,
    State,
)

# Of an earlier job: a chunk that is newer than this job's, and the one after which this job's chunk 1 may start.
NEWER = Version(1, 2**31 - 5, 0b11, LEFTOVER.sum, final=True)
FIRST = NEWER._replace(chunk=0)
ROOTS = {
    "2 workers": Leased(workers=2, chunks=3),
    "3 workers": Leased(workers=3, chunks=2),
    "across the wrap of chunk numbers": Leased(workers=2, chunks=3, first_chunk=2**32 - 2),
    "far chunks": Leased(workers=1, chunks=2, far=(2**31 - 1, 2**31 + 1)),
}
LEAVES = {
    "a leaf": Leased(workers=2, chunks=2, above=(5,)),
    "a leaf below two roots, in runs of two": Leased(workers=1, chunks=3, slots=4, above=(5, 6)),
}
OTHER_SWITCHES = {
    "another job's newer chunk": Leased(workers=2, chunks=2, leftover=NEWER),
    "another job's chunk 0": Leased(workers=2, chunks=2, leftover=FIRST),
    "a leaf below two roots": Leased(workers=1, chunks=3, slots=2, above=(5, 6), leftover=NEWER),
}
BEHIND_SHARED = BehindShared(chunks=3)
AT_HOME = BehindShared(chunks=3, home=1)

Named = tuple[str, Rule[Any]]  # a table and one of its rules


@pytest.fixture
def programs() -> Iterator[list[Switch]]:
    made = [p4_switch.load(1, SLOT_VERSIONS) for _ in range(2)]
    yield made
    for program in made:
        program.close()


@pytest.mark.parametrize(
    "model", (ROOTS | LEAVES | OTHER_SWITCHES).values(), ids=ROOTS | LEAVES | OTHER_SWITCHES
)
def test_leased_slots_of_the_p4_program(programs: list[Switch], model: Leased) -> None:
    assert compare(model, LeasedInP4(programs[0], model)) > 100


@pytest.mark.parametrize("model", (ROOTS | LEAVES).values(), ids=ROOTS | LEAVES)
def test_slots_of_a_server(model: Leased) -> None:
    assert compare(model, LeasedInServer(model)) > 100


@pytest.mark.parametrize("model", [BEHIND_SHARED, AT_HOME], ids=["registered", "colocated"])
def test_slots_of_a_server_behind_shared_slots(model: BehindShared) -> None:
    assert compare(model, RelayedServer(model)) > 1000


@pytest.mark.parametrize("start", [Slot(), LEFTOVER], ids=["empty", "another job's"])
@pytest.mark.parametrize("switch", [0, 1], ids=["a root", "a leaf"])
@pytest.mark.parametrize("jobs", [JOBS, COLOCATED_JOBS], ids=["registered servers", "colocated servers"])
def test_shared_slots_of_the_p4_program(
    programs: list[Switch], jobs: Sequence[SharedJob], switch: int, start: Slot
) -> None:
    model = SharedSlot(make_fabric(programs, jobs), f"s{switch}", chunks=2, start=start)
    assert compare(model, SharedSlotInP4(programs[switch], model)) > 100


def needed(models: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> set[Named]:
    """The rules that all runs of the models apply together."""
    used: set[Named] = set()
    find = Table.__getitem__
    name_of = {id(table): name for name, table in TABLES.items()}

    def record(table: Table[Any], facts: tuple[Enum, ...]) -> Rule[Any]:
        used.add((name_of[id(table)], find(table, facts)))
        return find(table, facts)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "__getitem__", record)
        for model in models:
            for _ in steps(model):
                pass
    return used


def rules_of(kind: str) -> set[Named]:
    """kind: "slot" or "shared"."""
    return {(name, rule) for name, table in TABLES.items() if name.startswith(kind) for rule in table.rules}


def is_of_shared_slots(named: Named) -> bool:
    """Whether a rule of leased slots is about packets that come from shared slots."""
    return any("(5.7)" in case.text for case in named[1].cases)


def test_the_leased_models_need_every_rule_of_leased_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    used = needed([*(ROOTS | LEAVES | OTHER_SWITCHES).values()], monkeypatch)
    assert {named for named in rules_of("slot") - used if not is_of_shared_slots(named)} == set()


def test_the_servers_models_need_every_rule_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    used = needed([*(ROOTS | LEAVES).values(), BEHIND_SHARED], monkeypatch)
    assert rules_of("slot") - used == set()


def test_a_roots_model_needs_every_rule_of_shared_slots(
    programs: list[Switch], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = needed([SharedSlot(make_fabric(programs), "s0", chunks=2)], monkeypatch)
    assert rules_of("shared") - used == set()


class KeepsWords(Leased):
    """Rules by which a packet without words starts a sum with those of the chunk before it."""

    def step(self, state: State, packet: Arrival) -> After[State]:
        after = super().step(state, packet)
        kept = [
            new._replace(sum=new.sum._replace(words=old.sum.words)) if new.sum.words == (0,) else new
            for new, old in zip(after.state, state, strict=True)
        ]
        return after._replace(state=tuple(kept))


def test_other_rules_differ_from_the_p4_program_and_the_server(programs: list[Switch]) -> None:
    model = KeepsWords(workers=2, chunks=3)
    with pytest.raises(DifferenceError, match="should lead to"):
        compare(model, LeasedInP4(programs[0], model))
    with pytest.raises(DifferenceError, match="should lead to"):
        compare(model, LeasedInServer(model))
