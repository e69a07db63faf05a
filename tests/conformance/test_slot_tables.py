# SPDX-License-Identifier: Apache-2.0
"""The tables of the slot rules: one rule for each combination of facts, and the page has them."""

from enum import Enum, auto
from typing import NamedTuple

import pytest

from inagg_simulator.slot_rules.page import with_tables
from inagg_simulator.slot_rules.table import Table, case, rule
from tests import ROOT


class Light(Enum):
    RED = auto()
    GREEN = auto()


class Action(NamedTuple):
    text: str


STOP = rule(case("red", [Light.RED]), does=Action("stop"), counts="stopped waiting")
GO = rule(case("green", [Light.GREEN]), does=Action("go"), counts="gone")
ALWAYS = rule(case("any", Light), does=Action("look"), counts="looked")


def test_the_page_has_the_tables() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    assert page == with_tables(page), "python -m inagg_simulator.slot_rules.page docs/protocol.md"


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for the table 'slot contributions'"):
        with_tables("")


def test_a_table_finds_the_rule_and_writes_all() -> None:
    table = Table(("the light is", "action"), (Light,), [STOP, GO])
    assert table[(Light.GREEN,)] is GO
    assert table.markdown().splitlines() == [
        "| the light is | action | counter |",
        "|---|---|---|",
        "| red | stop | `stopped`, `waiting` |",
        "| green | go | `gone` |",
    ]


def test_a_table_with_two_rules_for_the_same_facts_is_refused() -> None:
    with pytest.raises(ValueError, match="has two rules"):
        Table(("the light is", "action"), (Light,), [STOP, ALWAYS])


def test_a_table_without_a_rule_for_some_facts_is_refused() -> None:
    with pytest.raises(ValueError, match="no rule for"):
        Table(("the light is", "action"), (Light,), [STOP])
