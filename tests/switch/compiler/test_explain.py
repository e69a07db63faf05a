# SPDX-License-Identifier: Apache-2.0
"""`inagg-switch explain` lists the parts of a program."""

import json
import subprocess
from pathlib import Path

import pytest

from inagg_switch import CompileError
from inagg_switch.explain.stages import Digest, Explanation, Header, Memory, explain
from tests.switch import PROGRAMS
from tests.switch.p4runtime.client import SMALL_P4
from tests.switch.p4runtime.objects import OBJECTS_P4
from tests.switch.snippets import v1program


def explained(tmp_path: Path, *arguments: str, **parts: str) -> Explanation:
    (tmp_path / "p.p4").write_text(v1program(*arguments, **parts))
    return explain(tmp_path / "p.p4")


def test_tables_memory_and_headers_of_a_program() -> None:
    explanation = explain(SMALL_P4)
    assert [(p.stage, p.name) for p in explanation.pipeline[:3]] == [
        ("parser", "SmallParser"),
        ("verify", "SmallVerify"),
        ("ingress", "SmallIngress"),
    ]
    ordered = next(t for t in explanation.tables if t.name == "SmallIngress.ordered")
    assert ordered.keys == (
        ("src", "lpm", 48), ("type", "ternary", 16), ("port", "range", 9), ("dst", "optional", 48),
    )  # fmt: skip
    assert (ordered.size, ordered.key_bits, ordered.const_entries) == (64, 121, 0)
    assert ordered.entry_bytes == (2 * 121 + 12 + 7) // 8
    assert ordered.default_action == "SmallIngress.skip"
    assert explanation.memory == (
        Memory("SmallIngress.seen", "counter", 16, 128, 256),
        Memory("SmallIngress.ordered_hits", "direct counter", 64, 128, 1024),
        Memory("SmallIngress.cells", "register", 8, 12, 16),
    )
    assert explanation.state_bytes == 1296
    assert explanation.headers == (Header("ethernet", "ethernet_t", 112, 1),)


def test_meters_are_memory_too() -> None:
    explanation = explain(OBJECTS_P4)
    assert explanation.memory == (
        Memory("ObjectIngress.port_rate", "meter", 4, 576, 288),
        Memory("ObjectIngress.flow_rate", "direct meter", 16, 576, 1152),
    )


def test_digests_are_listed_with_their_fields() -> None:
    explanation = explain(PROGRAMS / "selectors.p4")
    assert explanation.digests == (
        Digest("learned_t", (("flow", 16), ("port", 9), ("odd", 1)), 5),
        Digest("digest_0", (("0", 16), ("1", 8)), 3),
        Digest("digest_1", (("", 16),), 2),
    )


TABLES = """
    action set_a(bit<8> v) { hdr.h.a = v; }
    action set_b(bit<8> v) { hdr.h.b = v; }
    table first { key = { hdr.h.c : exact; } actions = { set_a; NoAction; } }
    table second { key = { hdr.h.a : exact; } actions = { set_b; NoAction; } }
    table apart { key = { hdr.h.d : exact; } actions = { NoAction; } }
"""


def stages(explanation: Explanation) -> dict[str, int]:
    return {table.name.removeprefix("I."): table.stage for table in explanation.tables}


def test_a_table_comes_after_one_that_writes_its_key(tmp_path: Path) -> None:
    explanation = explained(tmp_path, "first.apply(); second.apply(); apart.apply();", locals=TABLES)
    assert stages(explanation) == {"first": 1, "second": 2, "apart": 1}


def test_a_table_comes_after_one_whose_result_decides_on_it(tmp_path: Path) -> None:
    explanation = explained(tmp_path, "if (first.apply().hit) { apart.apply(); }", locals=TABLES)
    assert stages(explanation) == {"first": 1, "apart": 2}


def test_a_write_reaches_a_key_through_an_assignment(tmp_path: Path) -> None:
    explanation = explained(
        tmp_path, "first.apply(); hdr.h.d = (bit<32>) hdr.h.a; apart.apply();", locals=TABLES
    )
    assert stages(explanation) == {"first": 1, "apart": 2}


def test_an_error_has_its_place(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="nothere") as caught:
        explained(tmp_path, "hdr.nothere.a = 1;")
    assert caught.value.source_line is not None


def test_the_command_prints_tables_or_json(switch_command: list[str]) -> None:
    text = subprocess.run(
        [*switch_command, "explain", str(SMALL_P4)], capture_output=True, text=True, check=True
    )
    for word in ("Pipeline", "Tables", "Memory", "Headers", "ethernet_t", "state: 1,296 bytes"):
        assert word in text.stdout
    assert "Digests" not in text.stdout  # the program sends no digests
    done = subprocess.run(
        [*switch_command, "explain", "--json", str(SMALL_P4)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["state_bytes"] == 1296
