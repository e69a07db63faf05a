# SPDX-License-Identifier: Apache-2.0
"""P4Info: the same as p4c's, ids included."""

import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2 as pb
from switch_packets import INAGG_P4
from switch_programs import v1program

from inagg_switch import CompileError
from inagg_switch.compiler import generate
from inagg_switch.compiler.p4info_ids import one_at_a_time
from inagg_switch.compiler.preprocess import preprocess, preprocess_text

HERE = Path(__file__).parent
PROGRAMS = [*sorted((HERE / "programs").glob("*.p4")), *sorted(HERE.glob("p4runtime_*.p4"))]


def in_order(info: pb.P4Info) -> pb.P4Info:
    """The order of resources means nothing."""
    ordered = pb.P4Info()
    ordered.CopyFrom(info)
    for name in (
        "tables",
        "actions",
        "counters",
        "direct_counters",
        "registers",
        "controller_packet_metadata",
    ):
        resources = sorted(getattr(info, name), key=lambda r: r.preamble.id)
        ordered.ClearField(name)
        getattr(ordered, name).extend(resources)
    return ordered


def p4info_of(path: Path) -> pb.P4Info:
    return generate(preprocess(path).text)[1]


def p4info_of_text(text: str) -> pb.P4Info:
    return generate(preprocess_text(text).text)[1]


def test_inagg_p4info_is_what_p4c_wrote() -> None:
    # inagg.p4info.txtpb: p4c-bm2-ss 1.2.5.16 --p4runtime-files tests/switch/inagg.p4info.txtpb p4/inagg.p4
    reference = text_format.Parse((HERE / "inagg.p4info.txtpb").read_text(), pb.P4Info())
    assert in_order(p4info_of(INAGG_P4)) == in_order(reference)


@pytest.mark.bmv2
@pytest.mark.parametrize("program", [INAGG_P4, *PROGRAMS], ids=lambda p: p.stem)
def test_p4info_is_what_p4c_writes(program: Path, tmp_path: Path) -> None:
    assert shutil.which("p4c-bm2-ss")
    subprocess.run(
        ["p4c-bm2-ss", "-o", str(tmp_path / "x.json"), "--p4runtime-files", str(tmp_path / "x.txtpb"), str(program)],
        check=True, capture_output=True,
    )  # fmt: skip
    reference = text_format.Parse((tmp_path / "x.txtpb").read_text(), pb.P4Info())
    assert in_order(p4info_of(program)) == in_order(reference)


def test_the_hash_of_ids() -> None:
    # Bob Jenkins gives these for the one-at-a-time hash.
    assert one_at_a_time(b"a") == 0xCA2E9442
    assert one_at_a_time(b"The quick brown fox jumps over the lazy dog") == 0x519E91F5


def test_aliases_are_the_shortest_unique_endings() -> None:
    info = p4info_of_text(v1program(
        "one.apply(hdr); two.apply(hdr); c.count(1);",
        top="control K(inout headers_t hdr) { counter(3, CounterType.bytes) k; apply { k.count(0); } }",
        locals="K() one; K() two; counter(2, CounterType.packets) c;",
    ))  # fmt: skip
    assert {c.preamble.name: c.preamble.alias for c in info.counters} == {
        "I.one.k": "one.k", "I.two.k": "two.k", "I.c": "c"}  # fmt: skip
    assert {c.preamble.name: (c.spec.unit, c.size) for c in info.counters} == {
        "I.one.k": (pb.CounterSpec.BYTES, 3), "I.two.k": (pb.CounterSpec.BYTES, 3), "I.c": (pb.CounterSpec.PACKETS, 2)
    }  # fmt: skip


ANNOTATED = """
    @name(".global") @brief("hidden") @unknown(1, x) action other(@name("p") bit<8> q) { }
    @name("renamed") @id(5) table t {
        key = { hdr.h.a : exact @name("key_a"); }
        actions = { @tableonly NoAction; other; }
        default_action = other(7);
    }
"""


def test_names_and_ids_by_annotation() -> None:
    info = p4info_of_text(v1program("t.apply();", locals=ANNOTATED))
    (table,) = info.tables
    assert (table.preamble.id, table.preamble.name) == (0x02000005, "I.renamed")
    assert table.match_fields[0].name == "key_a"
    other = next(a for a in info.actions if a.preamble.name == "global")
    assert [p.name for p in other.params] == ["p"]
    assert list(other.preamble.annotations) == ["@unknown(1 , x)"]
    assert [(r.scope, list(r.annotations)) for r in table.action_refs] == [
        (pb.ActionRef.TABLE_ONLY, ["@tableonly"]), (pb.ActionRef.TABLE_AND_DEFAULT, [])]  # fmt: skip
    assert table.initial_default_action.action_id == other.preamble.id
    assert table.initial_default_action.arguments[0].value == b"\x07"


def test_profiles_made_by_a_table_are_called_by_the_property() -> None:
    tables = "".join(
        f"table {name} {{ key = {{ meta.x: exact; }} actions = {{ NoAction; }} "
        f"{how} implementation = action_profile(4); }}"
        for name, how in (("t", '@name("ap")'), ("u", ""), ("v", ""))
    )
    info = p4info_of_text(v1program(locals=tables))
    names = {p.preamble.name: list(p.table_ids) for p in info.action_profiles}
    ids = {t.preamble.name: [t.preamble.id] for t in info.tables}
    assert names == {"ap": ids["I.t"], "implementation": ids["I.u"], "I.v.implementation": ids["I.v"]}


def test_the_package_says_what_it_is() -> None:
    properties = "@platform_property(multicast_group_table_size = 512)"
    annotations = f'@pkginfo(name = "p.p4", version = "1.2") {properties} @x(1)'
    info = p4info_of_text(v1program().replace("V1Switch(", f"{annotations} V1Switch(")).pkg_info
    assert (info.arch, info.name, info.version) == ("v1model", "p.p4", "1.2")
    assert info.platform_properties.multicast_group_table_size == 512
    assert list(info.annotations) == ["@x(1)"]
    with pytest.raises(CompileError, match="`colour` is not a part of @pkginfo"):
        p4info_of_text(v1program().replace("V1Switch(", '@pkginfo(colour = "red") V1Switch('))


def test_fields_and_parameters_may_say_their_ids() -> None:
    info = p4info_of_text(v1program("t.apply(); direct(3);", locals="""
        action direct(bit<8> x) { meta.x = x; }
        action a(@id(2) bit<8> x, bit<8> y, @id(7) bit<8> z) { }
        table t {
            key = { meta.x: exact @id(3); meta.y: exact; hdr.h.a: exact @id(1); hdr.h.b: exact; }
            actions = { a; }
            default_action = a(1, 2, 3);
        }"""))  # fmt: skip
    (table,) = info.tables
    assert [f.id for f in table.match_fields] == [3, 2, 1, 4]
    assert [a.param_id for a in table.initial_default_action.arguments] == [2, 3, 7]
    params = {a.preamble.name: [p.id for p in a.params] for a in info.actions}
    assert params == {"I.a": [2, 3, 7], "I.direct": []}


def test_equal_ids_are_refused() -> None:
    text = v1program("a.apply(); b.apply();", locals="""
        @id(1) table a { actions = { NoAction; } } @id(1) table b { actions = { NoAction; } }""")  # fmt: skip
    with pytest.raises(CompileError, match=r"@id of I\.b is taken"):
        p4info_of_text(text)


def test_a_table_without_default_action_gets_no_action_for_misses() -> None:
    info = p4info_of_text(v1program(
        "t.apply();", locals="action a() { } table t { key = { hdr.h.a : exact; } actions = { a; } }"))  # fmt: skip
    names = {a.preamble.id: a.preamble.name for a in info.actions}
    assert [(names[r.id], r.scope) for r in info.tables[0].action_refs] == [
        ("I.a", pb.ActionRef.TABLE_AND_DEFAULT), ("NoAction", pb.ActionRef.DEFAULT_ONLY)]  # fmt: skip


def test_a_direct_counter_without_table_is_not_listed() -> None:
    info = p4info_of_text(v1program(locals="direct_counter(CounterType.bytes) c;"))
    assert list(info.direct_counters) == []
