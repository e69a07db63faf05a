# SPDX-License-Identifier: Apache-2.0
"""P4Info: the same as p4c's, ids included."""

import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2 as pb

from inagg_switch import CompileError, Switch
from inagg_switch.compiler import generate
from inagg_switch.compiler.p4info.ids import one_at_a_time
from inagg_switch.compiler.parse.preprocess import preprocess, preprocess_text
from inagg_switch.program.values import field_widths
from tests import INAGG_P4
from tests.bmv2_commands import bmv2_command
from tests.switch import PROGRAMS
from tests.switch.snippets import v1program

HERE = Path(__file__).parent
P4_FILES = [*sorted(PROGRAMS.glob("*.p4")), *sorted(PROGRAMS.with_name("p4runtime").glob("*.p4"))]


def in_order(info: pb.P4Info) -> pb.P4Info:
    """The P4Info with its resources sorted by id: their order has no meaning."""
    ordered = pb.P4Info()
    ordered.CopyFrom(info)
    for name in (
        "tables",
        "actions",
        "counters",
        "direct_counters",
        "registers",
        "controller_packet_metadata",
        "digests",
        "action_profiles",
    ):
        resources = sorted(getattr(info, name), key=lambda r: r.preamble.id)
        ordered.ClearField(name)
        getattr(ordered, name).extend(resources)
    return ordered


def p4info_of(path: Path) -> pb.P4Info:
    return generate(preprocess(path).text)[1]


def p4info_of_text(text: str) -> pb.P4Info:
    return generate(preprocess_text(text).text)[1]


TYPEDEFS = """
    cells_t(4) unused; cells_t(4) unread; cells_t(4) read; cells_t(4) written; counts_t(4, CounterType.bytes) counted;
    counts_t(4, CounterType.bytes) uncounted; register<bit<8>>(4) direct;
"""


def test_arrays_declared_through_a_typedef_are_listed_if_they_are_used() -> None:
    # p4c's golden file of issue2735-bmv2.p4 lists no register that only an unused variable reads.
    code = "bit<8> x; unread.read(x, 0); read.read(meta.x, 0); written.write(0, 1); counted.count(0);"
    types = "typedef register<bit<8>> cells_t; typedef counter counts_t;"
    info = p4info_of_text(v1program(code, locals=TYPEDEFS, top=types))
    assert sorted(r.preamble.name for r in info.registers) == ["I.direct", "I.read", "I.written"]
    assert [c.preamble.name for c in info.counters] == ["I.counted"]


def test_the_checked_in_p4info_of_inagg_is_up_to_date() -> None:
    # test_p4info_is_what_p4c_writes compares with p4c. To update the file, with either compiler:
    # p4c-bm2-ss --p4runtime-files tests/switch/compiler/inagg.p4info.txtpb p4/inagg.p4
    # inagg-switch compile p4/inagg.p4 -o FOLDER
    reference = text_format.Parse((HERE / "inagg.p4info.txtpb").read_text(), pb.P4Info())
    assert in_order(p4info_of(INAGG_P4)) == in_order(reference)


def p4c_writes(program: Path, folder: Path) -> pb.P4Info:
    assert bmv2_command("p4c-bm2-ss")
    subprocess.run(
        ["p4c-bm2-ss", "-o", str(folder / "x.json"), "--p4runtime-files", str(folder / "x.txtpb"), str(program)],
        check=True, capture_output=True,
    )  # fmt: skip
    return text_format.Parse((folder / "x.txtpb").read_text(), pb.P4Info())


@pytest.mark.bmv2
@pytest.mark.parametrize("program", [INAGG_P4, *P4_FILES], ids=lambda p: p.stem)
def test_p4info_is_what_p4c_writes(program: Path, tmp_path: Path) -> None:
    assert in_order(p4info_of(program)) == in_order(p4c_writes(program, tmp_path))


def test_the_hash_of_ids() -> None:
    # Examples of Bob Jenkins for the one-at-a-time hash.
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
    @name(".global") @brief("does nothing") @unknown(1, x)
    action other(@name("p") @description("of no use") bit<8> q) { }
    @name("renamed") @id(5) table t {
        key = { hdr.h.a : exact @name("key_a") @hidden @foo[1]; }
        actions = { @tableonly NoAction; other; }
        default_action = other(7);
    }
"""


def test_names_and_ids_by_annotation() -> None:
    info = p4info_of_text(v1program("t.apply();", locals=ANNOTATED))
    (table,) = info.tables
    assert (table.preamble.id, table.preamble.name) == (0x02000005, "I.renamed")
    (key,) = table.match_fields
    assert (key.name, list(key.annotations)) == ("key_a", ["@hidden"])
    assert key.structured_annotations[0].expression_list.expressions[0].int64_value == 1
    other = next(a for a in info.actions if a.preamble.name == "global")
    assert other.preamble.doc.brief == "does nothing"
    assert [(p.name, p.doc.description) for p in other.params] == [("p", "of no use")]
    assert list(other.preamble.annotations) == ["@unknown(1 , x)"]
    assert [(r.scope, list(r.annotations)) for r in table.action_refs] == [
        (pb.ActionRef.TABLE_ONLY, ["@tableonly"]), (pb.ActionRef.TABLE_AND_DEFAULT, [])]  # fmt: skip
    assert table.initial_default_action.action_id == other.preamble.id
    assert table.initial_default_action.arguments[0].value == b"\x07"


def test_a_profile_that_a_table_constructs_has_the_name_of_the_property() -> None:
    tables = "".join(
        f"table {name} {{ key = {{ meta.x: exact; }} actions = {{ NoAction; }} "
        f"{how} implementation = action_profile(4); }}"
        for name, how in (("t", '@name("ap")'), ("u", ""), ("v", ""))
    )
    info = p4info_of_text(v1program("t.apply(); u.apply(); v.apply();", locals=tables))
    names = {p.preamble.name: list(p.table_ids) for p in info.action_profiles}
    ids = {t.preamble.name: [t.preamble.id] for t in info.tables}
    assert names == {"ap": ids["I.t"], "implementation": ids["I.u"], "I.v.implementation": ids["I.v"]}


def test_the_tables_of_a_profile_are_in_the_order_of_their_names() -> None:
    users = "".join(
        f"table {name} {{ key = {{ meta.x: exact; }} actions = {{ NoAction; }} implementation = shared; }}"
        for name in "zaq"
    )
    info = p4info_of_text(
        v1program("a.apply(); q.apply(); z.apply();", locals=f"action_profile(4) shared; {users}")
    )
    ids = {t.preamble.alias: t.preamble.id for t in info.tables}
    assert list(info.action_profiles[0].table_ids) == [ids["a"], ids["q"], ids["z"]]


def test_pkginfo_has_the_annotations_of_the_package() -> None:
    properties = "@platform_property(multicast_group_table_size = 512)"
    annotations = f'@pkginfo(name = "p.p4", version = "1.2") {properties} @x(1)'
    info = p4info_of_text(v1program().replace("V1Switch(", f"{annotations} V1Switch(")).pkg_info
    assert (info.arch, info.name, info.version) == ("v1model", "p.p4", "1.2")
    assert info.platform_properties.multicast_group_table_size == 512
    assert list(info.annotations) == ["@x(1)"]
    with pytest.raises(CompileError, match="`colour` is not a part of @pkginfo"):
        p4info_of_text(v1program().replace("V1Switch(", '@pkginfo(colour = "red") V1Switch('))


def test_fields_and_parameters_may_have_ids_by_annotation() -> None:
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


TYPES = v1program(
    "t.apply(); r.read(meta.w, 0); digest<learn_t>(1, { meta.p, meta.k, meta.l, meta.e, meta.w });",
    headers="""
        @p4runtime_translation("u/port", bit<32>) @other(1) type bit<9> port_t;
        @p4runtime_translation("u/name", string) type bit<10> name_t;
        @p4runtime_translation("u/old", 12) type bit<9> old_t;
        type bit<16> plain_t;
        type plain_t again_t;
        type port_t inner_t;
        enum bit<12> kind_t { none = 0, all = 0xfff }
        enum level_t { low, high }
        error { Odd }
        struct learn_t { port_t p; kind_t k; level_t l; error e; again_t w; }
        struct pair_t { bit<9> i; bit<7> pad; }
        @controller_header("packet_out") header out_t { port_t p; bit<7> pad; @shown pair_t pair; kind_t k; bit<4> q; }
        header h_t { bit<8> a; }
        struct headers_t { h_t h; }
        struct metadata_t {
            port_t p; name_t n; kind_t k; level_t l; error e; again_t w; inner_t i; old_t o; bool b;
        }
    """,
    locals="""
        register<again_t>(4) r;
        action a(port_t p, name_t n, kind_t k, level_t l, plain_t w) { meta.n = n; meta.l = l; }
        action b(port_t p, old_t o) { meta.p = p; }
        table t {
            key = {
                meta.p: exact; meta.n: optional; meta.k: ternary; meta.w: lpm; meta.i: range; meta.o: exact;
                meta.e: exact; meta.b: exact;
            }
            actions = { a; b; NoAction; }
            default_action = b((port_t) 9w3, (old_t) 9w5);
        }
    """,
)


# Keys without a @name, a table of the default size, and no named types.
KEYS = v1program(
    "t.apply();",
    headers="""
        header h_t { @name("first") bit<8> a; bit<8> b; }
        struct headers_t { h_t h; h_t[3] s; }
        struct metadata_t { @name("renamed") bit<8> x; @name(".free") bit<8> y; bit<2> i; }
    """,
    locals="""
        action a() { }
        table t {
            key = {
                hdr.h.isValid(): exact; hdr.h.a: exact; hdr.s[1].b: exact; hdr.s[meta.i].b: exact;
                meta.x[3:0]: exact; meta.y: exact; hdr.h.b & 8w0x0F: exact;
            }
            actions = { a; }
            size = 0;
        }
    """,
)
EXTERN = v1program(
    locals="""
    @max_group_size(3) @selector_size_semantics("sum_of_members") @max_member_weight(9)
    action_selector(HashAlgorithm.crc16, 16, 8) s;
    @selector_size_semantics("SUM_OF_WEIGHTS") action_selector(HashAlgorithm.crc16, 16, 8) w;
    @max_group_size(3) action_profile(4) p;
"""
)


def written(text: str, folder: Path) -> Path:
    (folder / "program.p4").write_text(text)
    return folder / "program.p4"


def test_a_key_without_a_name_is_named_by_its_expression() -> None:
    (table,) = p4info_of_text(KEYS).tables
    assert [f.name for f in table.match_fields] == [
        "hdr.h.$valid$", "hdr.h.first", "hdr.s[1].b", "hdr.s[meta.i].b", "meta.renamed[3:0]", "free", "hdr.h.b & 0xf",
    ]  # fmt: skip
    assert table.size == 1024


@pytest.mark.parametrize(
    ("key", "name", "bits"),
    [
        ("hdr.h.a[3:0]", "hdr.h.first[3:0]", 4),
        ("hdr.h.b[TOP:TOP - 3]", "hdr.h.b[7:4]", 4),
        ("hdr.s[1].b[7:4]", "hdr.s[1].b[7:4]", 4),
        ("hdr.h.b[7:2][3:1]", "hdr.h.b[7:2][3:1]", 3),
        ("(hdr.h.b << 0)[3:0]", "hdr.h.b[3:0]", 4),
        ("((bit<16>) hdr.h.b)[9:6]", "hdr.h.b[9:6]", 4),
        ("hdr.h.b[3:0] & 3", "hdr.h.b[3:0] & 3", 4),
        ("TWENTY[3:2]", "0x1", 2),
        ("0x1f[3:0]", "0xf", 4),
    ],
)
def test_a_key_that_is_a_slice_is_named_by_its_field_and_bits(key: str, name: str, bits: int) -> None:
    program = v1program(
        "t.apply();",
        headers="""
            const int TOP = 7;
            const bit<8> TWENTY = 0x14;
            header h_t { @name("first") bit<8> a; bit<8> b; }
            struct headers_t { h_t h; h_t[3] s; }
            struct metadata_t { }
        """,
        locals=f"table t {{ key = {{ {key}: exact; }} actions = {{ NoAction; }} }}",
    )
    (field,) = p4info_of_text(program).tables[0].match_fields
    assert (field.name, field.bitwidth) == (name, bits)


def test_annotations_limit_the_groups_of_a_selector() -> None:
    profiles = {p.preamble.alias: p for p in p4info_of_text(EXTERN).action_profiles}
    assert (profiles["s"].max_group_size, profiles["s"].sum_of_members.max_member_weight) == (3, 9)
    assert profiles["w"].HasField("sum_of_weights")
    assert profiles["p"].max_group_size == 0
    for limit in ("entries", "-1", "0x80000000", '"3"', "3, 3", ""):
        with pytest.raises(CompileError, match="@max_group_size needs a number below 2\\^31"):
            p4info_of_text(EXTERN.replace("@max_group_size(3)", f"@max_group_size({limit})", 1))
    with pytest.raises(CompileError, match="must be sum_of_weights or sum_of_members"):
        p4info_of_text(EXTERN.replace("SUM_OF_WEIGHTS", "other"))


def test_types_are_shown_by_name() -> None:
    info = p4info_of_text(TYPES)
    fields = [(f.bitwidth, f.type_name.name) for f in info.tables[0].match_fields]
    assert fields == [(32, "port_t"), (0, "name_t"), (12, ""), (16, "again_t"), (9, "inner_t"), (12, "old_t"), (0, ""),
                      (1, "")]  # fmt: skip
    action = next(a for a in info.actions if a.preamble.name == "I.a")
    assert [(p.bitwidth, p.type_name.name) for p in action.params] == [
        (32, "port_t"), (0, "name_t"), (12, ""), (0, "level_t"), (16, "plain_t")]  # fmt: skip
    assert [(m.id, m.name, m.bitwidth) for m in info.controller_packet_metadata[0].metadata] == [
        (1, "p", 32), (2, "pad", 7), (3, "pair.i", 9), (4, "pair.pad", 7), (5, "k", 12), (6, "q", 4)]  # fmt: skip
    assert info.registers[0].type_spec.new_type.name == "again_t"
    types = info.type_info
    assert set(types.new_types) == {"port_t", "name_t", "old_t", "plain_t", "again_t", "inner_t"}
    port = types.new_types["port_t"]
    assert (port.translated_type.uri, port.translated_type.sdn_bitwidth) == ("u/port", 32)
    assert list(port.annotations) == ["@other(1)"]
    assert types.new_types["name_t"].translated_type.HasField("sdn_string")
    assert types.new_types["inner_t"].original_type.bitstring.bit.bitwidth == 9
    values = {m.name: m.value for m in types.serializable_enums["kind_t"].members}
    assert values == {"none": b"\0\0", "all": b"\x0f\xff"}
    assert [m.name for m in types.enums["level_t"].members] == ["low", "high"]
    assert types.error.members[-1] == "Odd"
    specs = [m.type_spec.WhichOneof("type_spec") for m in types.structs["learn_t"].members]
    assert specs == ["new_type", "serializable_enum", "enum", "error", "new_type"]


@pytest.mark.bmv2
def test_the_layout_has_the_widths_of_the_program() -> None:
    layout = generate(preprocess_text(TYPES).text)[2]
    assert [f.bitwidth for f in layout.tables[0].match_fields] == [9, 10, 12, 16, 9, 9, 32, 1]
    assert [p.bitwidth for a in layout.actions for p in a.params if a.preamble.name == "I.a"] == [
        9,
        10,
        12,
        32,
        16,
    ]
    assert layout.registers[0].type_spec.bitstring.bit.bitwidth == 16
    assert [w for _, w in field_widths(layout, layout.digests[0].type_spec)] == [9, 12, 32, 32, 16]


@pytest.mark.parametrize(
    ("annotation", "base", "message"),
    [
        ('("u", int<8>)', "bit<8>", 'needs \\("uri", bit<W>\\) or'),
        ('("u")', "bit<8>", 'needs \\("uri", bit<W>\\) or'),
        ('("u", bit<8>)', "bool", "needs a type of bits, not of bool"),
    ],
)
def test_a_wrong_translation_is_refused(annotation: str, base: str, message: str) -> None:
    text = v1program("t.apply();", top=f"@p4runtime_translation{annotation} type {base} n_t;",
                     locals="action a(n_t n) { } table t { actions = { a; } }")  # fmt: skip
    with pytest.raises(CompileError, match=message):
        p4info_of_text(text)


def test_equal_ids_are_refused() -> None:
    text = v1program("a.apply(); b.apply();", locals="""
        @id(1) table a { actions = { NoAction; } } @id(1) table b { actions = { NoAction; } }""")  # fmt: skip
    with pytest.raises(CompileError, match=r"@id of I\.b is already used"):
        p4info_of_text(text)


def test_a_table_without_default_action_gets_no_action_for_misses() -> None:
    info = p4info_of_text(v1program(
        "t.apply();", locals="action a() { } table t { key = { hdr.h.a : exact; } actions = { a; } }"))  # fmt: skip
    names = {a.preamble.id: a.preamble.name for a in info.actions}
    assert [(names[r.id], r.scope) for r in info.tables[0].action_refs] == [
        ("I.a", pb.ActionRef.TABLE_AND_DEFAULT), ("NoAction", pb.ActionRef.DEFAULT_ONLY)]  # fmt: skip


NOT_RUN = v1program(
    """
        used.apply(); hid.apply(); three.apply(hdr.h); four.apply(hdr.h);
        if (false && used.apply().hit) { in_false.apply(); }
        if (meta.flag) { return; } else { exit; }
        after_return.apply();
    """,
    top="""
        control K(inout h_t h)(bit<8> k) {
            action ka() { } counter(2, CounterType.bytes) kc;
            table kt { key = { h.a: exact; } actions = { ka; } }
            apply { if (k == 3) { kt.apply(); } }
        }""",
    locals="""
        action inlined() { } action a(bit<8> x) { inlined(); } action called() { } action idle() { }
        @hidden action ha() { }
        direct_counter(CounterType.bytes) no_table; direct_counter(CounterType.bytes) dc;
        counter(4, CounterType.packets) never; action_profile(4) ap;
        table used { key = { hdr.h.a: exact; } actions = { a; ha; } }
        table never_applied { key = { hdr.h.a: exact; } actions = { idle; } counters = dc; implementation = ap; }
        table in_false { key = { hdr.h.a: exact; } actions = { a; } }
        table after_return { key = { hdr.h.a: exact; } actions = { a; } }
        @hidden table hid { actions = { NoAction; } }
        K(3) three; K(4) four; K(3) unused;""",
    egress="exit; called();",
    egress_locals="action called() { }",
)


def test_actions_come_in_p4cs_order() -> None:
    info = p4info_of_text(v1program(
        "K.apply(hdr.h); two.apply(); one.apply();",
        top="action global() { } "
            "control K(inout h_t h) { action a() { } table t { actions = { a; global; } } apply { t.apply(); } }"
            "control L() { action a() { } table t { actions = { a; } } apply { t.apply(); } }",
        locals="action first() { } L() one; action last() { } table two { actions = { last; first; } }",
    ))  # fmt: skip
    names = [a.preamble.name for a in info.actions]
    assert names == ["NoAction", "global", "I.first", "I.one.a", "I.last", "I.K.a"]


def test_objects_that_p4c_drops_are_not_listed() -> None:
    info = p4info_of_text(NOT_RUN)
    assert [t.preamble.name for t in info.tables] == ["I.used", "I.three.kt"]
    assert {a.preamble.name for a in info.actions} == {"NoAction", "I.a", "I.three.ka", "E.called"}
    assert {c.preamble.name for c in info.counters} == {"I.never", "I.three.kc", "I.four.kc"}
    assert not info.direct_counters
    assert [list(p.table_ids) for p in info.action_profiles] == [[]]
    with Switch.from_source(preprocess_text(NOT_RUN).text) as switch:  # in process all objects are there
        switch.insert("after_return", {"hdr.h.a": 1}, "I.a", {"x": 1})


STRUCTURED = v1program(
    "t.apply(); c.apply(hdr);",
    parser="""
        @vs[1] value_set<set_t>(4) v;
        state start { transition select(hdr.h.a, hdr.h.a) { v: accept; default: accept; } }""",
    top="""
        const int K = 5;
        struct set_t { @match(ternary) @foo[K] @brief("f") bit<8> f; @id(7) @bar bit<8> g; }
        @controller_header("packet_in") @foo[K + 1] header in_t { @bar[a = K] bit<8> x; bit<8> y; }
        @ctl[1] control S(inout headers_t h) {
            @rr[1] @brief("r") register<bit<8>>(4) r;
            @ac[3] @description("b") action a(@p[4] @brief("p") @description("of a") bit<4> y) { r.write(0, 1); }
            @brief("s") table s {
                key = { h.h.a: exact @k[z = K] @brief("k"); }
                actions = { @bar[K] @tableonly a; NoAction; }
            }
            apply { s.apply(); }
        }""",
    locals="""
        @list[1, K * 2, -1, (1 << 3), !true, "a" ++ "b"] @pairs[type = K, b = K > 3 ? 1:2, c = K == 5, d = "d"] @none[]
        table t { actions = { NoAction; } }
        S() c;""",
)


def test_structured_annotations_have_values() -> None:
    (table,) = (t for t in p4info_of_text(STRUCTURED).tables if t.preamble.alias == "t")
    listed, pairs, none = table.preamble.structured_annotations
    values = [getattr(e, str(e.WhichOneof("value"))) for e in listed.expression_list.expressions]
    assert values == [1, 10, -1, 8, False, "ab"]
    assert [p.key for p in pairs.kv_pair_list.kv_pairs] == ["type", "b", "c", "d"]
    assert none.WhichOneof("body") is None
    (value_set,) = p4info_of_text(STRUCTURED).value_sets
    assert [(m.id, list(m.annotations), m.doc.brief) for m in value_set.match] == [
        (1, [], "f"), (7, ["@bar"], "")]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("[8w1]", "the values of @x.* must be constants of type int, bool or string"),
        ("[hdr.h.a]", "the values of @x.* must be constants of type int, bool or string"),
        ("[a = 1, 2]", "expected KEY = VALUE, as before"),
        ("[a = 1, a = 2]", "key `a` is given twice"),
        ("[1 2]", "expected `,` or `]`"),
        ("[1 << 64]", "needs more than 64 bits"),
        ("[] @brief(1)", "@brief needs a string"),
    ],
)
def test_wrong_annotations_are_refused(annotation: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        p4info_of_text(
            v1program("t.apply();", locals=f"@x{annotation} table t {{ actions = {{ NoAction; }} }}")
        )


@pytest.mark.bmv2
@pytest.mark.parametrize(
    "text",
    [TYPES, KEYS, EXTERN, NOT_RUN, STRUCTURED],
    ids=["types", "keys", "extern", "not_run", "structured"],
)
def test_declarations_are_listed_as_p4c_lists_them(text: str, tmp_path: Path) -> None:
    program = written(text, tmp_path)
    assert in_order(p4info_of(program)) == in_order(p4c_writes(program, tmp_path))
