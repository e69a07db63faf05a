# SPDX-License-Identifier: Apache-2.0
"""The rules of shared slots: every run of small jobs (shared_runs.py), and what each rule is for.

Rules that sums or progress rest on are broken one at a time, and the exploration finds each. The others only save
packets or time; tests say what.
"""

from collections.abc import Callable
from typing import Any

import pytest

from inagg_simulator.slot_rules.packets import Packet, Query, Sum
from inagg_simulator.slot_rules.shared import Slot
from inagg_simulator.slot_rules.shared import ask as switch_ask
from inagg_simulator.slot_rules.shared import contribute as switch_step
from inagg_simulator.slot_rules.versions import Leaves, Outcome, Version
from inagg_simulator.slot_rules.versions import ask as server_ask
from inagg_simulator.slot_rules.versions import contribute as server_step
from tests.conformance.shared_runs import Recovery, Rules, Setting, Tree, ViolationError

ONE: Tree = ((0, 1),)
OF_THREE: Tree = ((0, 1, 2),)
LEAVES: Tree = ((0, 1), (2,))
CHAIN: Tree = (((0, 1), 2),)

SETTINGS = {
    "2 workers, 4 chunks": Setting(ONE, chunks=4),
    "2 workers, 2 slots": Setting(ONE, chunks=4, slots=2),
    "3 workers, 3 chunks": Setting(OF_THREE, chunks=3),
    "4 workers": Setting(((0, 1, 2, 3),), chunks=2),
    "2 jobs": Setting(ONE, chunks=2, jobs=2),
    "2 jobs of 3 workers": Setting(OF_THREE, chunks=1, jobs=2),
    "2 leaves": Setting(LEAVES, chunks=3),
    "2 leaves of 2 workers": Setting(((0, 1), (2, 3)), chunks=2),
    # A rank at home is a worker at the server.
    "a switch, and a rank at home": Setting(((0, 1), 2), chunks=3),
    "a switch of 3 workers, and a rank at home": Setting(((0, 1, 2), 3), chunks=1),
    "a leaf below a switch, and a rank at home": Setting((((0, 1), 2), 3), chunks=1),
    "2 jobs, and a rank at home of each": Setting(((0, 1), 2), chunks=1, jobs=2),
    "a leaf below a switch": Setting(CHAIN, chunks=2),
    "across the wrap of chunk numbers": Setting(ONE, chunks=4, first_chunk=2**32 - 2),
    "a slot that another epoch left": Setting(
        ONE, chunks=3, leftover=Slot(1, 1, 0, 0b01, Sum(checksum=0xABC000))
    ),
    "a server that nothing precedes": Setting((0, 1), chunks=4),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_no_run_gives_a_wrong_sum_or_loses_a_result(setting: Setting) -> None:
    assert Recovery(setting).check(setting.reach()) > 10


def test_nor_where_packets_of_all_workers_cross() -> None:
    """`make explore` does so with more of them."""
    setting = Setting(ONE, chunks=1)
    assert Recovery(setting, interleaved=True).check(setting.reach()) > 1000


def violation(rules: Rules, tree: Tree = OF_THREE, *, chunks: int = 2, jobs: int = 1) -> str | None:
    """What the exploration finds of other rules."""
    setting = Setting(tree, chunks=chunks, jobs=jobs, rules=rules)
    try:
        Recovery(setting).check(setting.reach())
    except ViolationError as error:
        return str(error)
    return None


SwitchOutcome = tuple[Slot, Packet | None, str]


def switch_that(counter: str, does: Callable[[Slot, Packet, Slot], tuple[Slot, Packet | None]]) -> Rules:
    """Rules with another action in the row of a counter. does: of (slot, packet, slot after the right action)."""

    def step(slot: Slot, packet: Packet, everybody: int, *, expired: bool) -> SwitchOutcome:
        after, left, outcome = switch_step(slot, packet, everybody, expired=expired)
        return (*does(slot, packet, after), outcome) if outcome == counter else (after, left, outcome)

    return Rules(switch_step=step)


def server_that(counter: str, does: Callable[[Version, Packet], Version]) -> Rules:
    """The same for a server, which then sends nothing."""

    def step(
        held: Version, other: Version, packet: Packet, slots: int, everybody: int, **job: Any
    ) -> Outcome:
        outcome = server_step(held, other, packet, slots, everybody, **job)
        changed = counter in outcome.counters
        return Outcome(does(held, packet), (), Leaves.NOTHING) if changed else outcome

    return Rules(server_step=step)


def mixed(slot: Slot, packet: Packet) -> Slot:
    return slot._replace(members=slot.members | packet.members, sum=slot.sum.added(packet.sum))


def added(held: Version, packet: Packet) -> Version:
    return held._replace(members=held.members | packet.members, sum=held.sum.added(packet.sum))


# Sums.


@pytest.mark.parametrize("field", ["job", "epoch", "chunk"])
def test_sums_need_slots_that_compare(field: str) -> None:
    def step(slot: Slot, packet: Packet, everybody: int, *, expired: bool) -> SwitchOutcome:
        alike = slot._replace(**{field: getattr(packet, field)}) if slot.members else slot
        return switch_step(alike, packet, everybody, expired=expired)

    setting = Setting(
        ONE,
        chunks=2,
        jobs=2,
        leftover=Slot(1, 1, 0, 0b01, Sum(checksum=0xABC000)),
        rules=Rules(switch_step=step),
    )
    with pytest.raises(ViolationError, match="a sum of"):
        setting.reach()


WRONG_SUMS = {
    "a switch adds what overlaps": switch_that(
        "slot_flushed", lambda slot, packet, _: (mixed(slot, packet), None)
    ),
    "an evicted sum keeps the newcomer's header": switch_that(
        "slot_expired", lambda slot, packet, after: (after, packet._replace(sum=slot.sum))
    ),
    "a server adds what overlaps": server_that("overlapping", added),
    "a server adds what it has": server_that("duplicate_pending", added),
}


@pytest.mark.parametrize("rules", WRONG_SUMS.values(), ids=WRONG_SUMS)
def test_sums_need(rules: Rules) -> None:
    assert "a sum of" in (violation(rules) or "")


def test_results_need_two_versions() -> None:
    with pytest.raises(ViolationError, match="still needed"):
        Setting(ONE, chunks=3, versions=1).reach()


def overwrites(
    held: Version, other: Version, packet: Packet, slots: int, everybody: int, **job: Any
) -> Outcome:
    """Also a newer chunk."""
    older = held if packet.chunk == held.chunk else Version(epoch=1)
    return server_step(older, other, packet, slots, everybody, **job)


def test_results_need_a_server_that_drops_older_chunks() -> None:
    assert "still needed" in (violation(Rules(server_step=overwrites), ONE, chunks=4) or "")


# Progress.

STUCK_SWITCHES = {
    "what overlaps is dropped": switch_that("slot_flushed", lambda slot, packet, _: (slot, None)),
    "what overlaps is dropped, and the slot's sum": switch_that("slot_flushed", lambda *at: (at[2], None)),
    "what overlaps sends the slot's sum, which stays": switch_that(
        "slot_flushed", lambda slot, packet, _: (slot, Packet(*slot))
    ),
    "an evicted sum is forgotten": switch_that("slot_expired", lambda slot, packet, after: (after, None)),
    "what is complete stays": switch_that(
        "slot_combined", lambda slot, packet, _: (mixed(slot, packet), None)
    ),
    "what finds no slot is dropped": switch_that("slot_collided", lambda slot, packet, _: (slot, None)),
}
STUCK_SERVERS = {
    counter: server_that(counter, lambda held, _: held)
    for counter in ("started", "added", "completed", "result_resent")
}


@pytest.mark.parametrize("rules", STUCK_SWITCHES.values(), ids=STUCK_SWITCHES)
def test_progress_needs_that_not(rules: Rules) -> None:
    assert "never come" in (violation(rules) or "")


def test_progress_needs_a_switch_that_passes_on_what_is_complete_as_it_comes() -> None:
    def step(slot: Slot, packet: Packet, everybody: int, *, expired: bool) -> SwitchOutcome:
        outcome = switch_step(slot, packet, everybody, expired=expired)
        takes = packet.members == everybody and not slot.members and not slot.is_for(packet)
        return (Slot(*packet), None, "slot_taken") if takes else outcome

    assert "never come" in (violation(Rules(switch_step=step), LEAVES) or "")


@pytest.mark.parametrize("rules", STUCK_SERVERS.values(), ids=STUCK_SERVERS)
def test_progress_needs_a_server_that_does_not_skip(rules: Rules) -> None:
    assert "never come" in (violation(rules) or "")


def marks_whoever_asks(slot: Slot, query: Query, everybody: int) -> Query:
    """Also those whose contribution is not in the slot."""
    marked = slot.is_for(query) and slot.members
    return query._replace(waits_with=everybody) if marked else query


def marks_after_sending(slot: Slot, query: Query, everybody: int) -> Query:
    """Also where the slot's sum has left, and may be lost."""
    return query._replace(waits_with=everybody) if slot.is_for(query) else query


def marks_any_chunk(slot: Slot, query: Query, everybody: int) -> Query:
    """Also because of the asker's contribution to another chunk."""
    marked = slot.members & query.asker
    return query._replace(waits_with=everybody) if marked else switch_ask(slot, query, everybody)


def never_clears(slot: Slot, query: Query, everybody: int) -> Query:
    """Not even where one that the slot below waits for has come this way."""
    return switch_ask(slot, query, everybody) if slot.members & query.asker else query


@pytest.mark.parametrize("ask", [marks_whoever_asks, marks_after_sending, marks_any_chunk, never_clears])
def test_progress_needs_marks_that_are_right(ask: Callable[[Slot, Query, int], Query]) -> None:
    assert "never come" in (violation(Rules(switch_ask=ask), CHAIN) or "")


Ask = Callable[[Version, Query, int], Outcome]


def that_holds(when: Callable[[Version, Query], bool]) -> Ask:
    """A server that says "held" more often."""

    def ask(held: Version, query: Query, everybody: int) -> Outcome:
        outcome = server_ask(held, query, everybody)
        return outcome._replace(leaves=Leaves.SAY_HELD) if when(held, query) else outcome

    return ask


def is_for(held: Version, query: Query) -> bool:
    return (held.epoch, held.chunk) == (query.epoch, query.chunk)


WRONGLY_HELD = {
    "what is marked, though one that the slot waits for has come another way": that_holds(
        lambda held, query: query.waits_with != 0 and not held.final
    ),
    "all of the chunk, also whose contribution it has not": that_holds(
        lambda held, query: is_for(held, query) and not held.final
    ),
    "results": that_holds(lambda held, query: is_for(held, query) and held.final),
}


@pytest.mark.parametrize("ask", WRONGLY_HELD.values(), ids=WRONGLY_HELD)
def test_progress_needs_a_server_that_does_not_say_held(ask: Ask) -> None:
    assert "never come" in (violation(Rules(server_ask=ask)) or "")


def test_progress_of_two_jobs_needs_a_server_that_says_held_of_what_it_has() -> None:
    """Or workers send again what only fills slots, for ever."""

    def ask(held: Version, query: Query, everybody: int) -> Outcome:
        outcome = server_ask(held, query, everybody)
        return outcome._replace(leaves=Leaves.SAY_AGAIN) if outcome.leaves is Leaves.SAY_HELD else outcome

    assert "never come" in (violation(Rules(server_ask=ask), ONE, jobs=2) or "")


# What saves packets or time, and may be otherwise.


def sends_on_at_will(slot: Slot, packet: Packet, everybody: int, *, expired: bool) -> SwitchOutcome:
    """Instead of waiting; so also with a header flag that says so."""
    after, left, counter = switch_step(slot, packet, everybody, expired=expired)
    if expired and counter in ("slot_taken", "slot_added"):
        return after.emptied, Packet(*after), "sent_on"
    return after, left, counter


def forgets_what_has_left(slot: Slot, packet: Packet, everybody: int, *, expired: bool) -> SwitchOutcome:
    return switch_step(slot if slot.members else Slot(), packet, everybody, expired=expired)


def never_evicts(slot: Slot, packet: Packet, everybody: int, *, expired: bool) -> SwitchOutcome:
    return switch_step(slot, packet, everybody)


OTHERWISE = {
    "sends on at will": Rules(switch_step=sends_on_at_will),
    "forgets what has left": Rules(switch_step=forgets_what_has_left),
    "never evicts": Rules(switch_step=never_evicts),
    "sends on what overlaps": switch_that("slot_flushed", lambda slot, packet, _: (slot, packet)),
    "never marks a query": Rules(switch_ask=lambda slot, query, everybody: query),
}


@pytest.mark.parametrize(("tree", "jobs"), [(OF_THREE, 1), (ONE, 2), (CHAIN, 1)], ids=str)
@pytest.mark.parametrize("rules", OTHERWISE.values(), ids=OTHERWISE)
def test_all_results_come_also_if_a_switch(rules: Rules, tree: Tree, jobs: int) -> None:
    assert violation(rules, tree, jobs=jobs) is None


NOTHING = Version(epoch=1)
EVERYBODY = 0b111


def answer(held: Version, query: Query) -> Leaves:
    return server_ask(held, query, EVERYBODY).leaves


def test_workers_whose_contributions_wait_in_a_switch_for_a_late_one_send_nothing_again() -> None:
    slot = Slot(1, 2, 0, 0b011)
    assert answer(NOTHING, switch_ask(slot, Query(1, 2, 0, asker=0b001), EVERYBODY)) is Leaves.SAY_HELD
    assert answer(NOTHING, switch_ask(slot, Query(1, 2, 0, asker=0b100), EVERYBODY)) is Leaves.SAY_AGAIN


def test_a_slot_sends_on_when_a_worker_that_it_waits_for_has_come_another_way() -> None:
    slot = Slot(1, 2, 0, 0b011, Sum(checksum=30))
    held = Version(2, 0, 0b100, Sum(checksum=4))
    assert answer(held, switch_ask(slot, Query(1, 2, 0, asker=0b001), EVERYBODY)) is Leaves.SAY_AGAIN
    slot, left, counter = switch_step(slot, Packet(1, 2, 0, 0b001, Sum(checksum=10)), EVERYBODY)
    both = Packet(1, 2, 0, 0b011, Sum(checksum=30))
    assert (slot, left, counter) == (Slot(1, 2, 0), both, "slot_flushed")
    held, counters, _ = server_step(held, NOTHING, both, 1, EVERYBODY)
    assert (held.sum.checksum, counters) == (34, ("added", "completed"))


def test_a_contribution_whose_result_was_lost_passes_a_slot_that_its_sum_has_left() -> None:
    again = Packet(1, 2, 0, 0b001, Sum(checksum=10))
    assert switch_step(Slot(1, 2, 0), again, EVERYBODY) == (Slot(1, 2, 0), again, "passed")
