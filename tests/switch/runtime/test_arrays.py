# SPDX-License-Identifier: Apache-2.0
"""Arrays of base types and structs (P4_16 1.2.5).

p4c's BMv2 back end compiles some of them as local variables. It fails on array fields and on indices that are not
constant.
"""

import pytest

from inagg_switch import CompileError, Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from tests.switch.snippets import compile_to_cpp, v1program

HEADERS = """
struct pair_t { bit<4> a; bit<4> b; }
header h_t { bit<8> i; bit<8>[3] v; pair_t[2] p; bit<4>[2][2] m; }
struct headers_t { h_t h; }
struct metadata_t { bit<8>[4] a; pair_t[2] p; bit<80>[2] wide; bool[2] t; }
"""


def out(apply: str, frame: str, **parts: str) -> str:
    text = v1program("sm.egress_spec = 1;" + apply, headers=HEADERS, **parts)
    with Switch.from_source(preprocess_text(text, "p.p4").text) as sw:
        ((_, sent),) = sw.process(1, bytes.fromhex(frame))
    return sent.hex()


def test_a_header_has_arrays() -> None:
    apply = """hdr.h.v[1] = hdr.h.v[0] + hdr.h.v[2]; hdr.h.p[1] = hdr.h.p[0]; hdr.h.p[0].b = 15;
        hdr.h.m[1][0] = hdr.h.m[0][1]; hdr.h.v[2][3:0] = 9;"""
    assert out(apply, "00 102030 12 34 56 78 ff".replace(" ", "")) == "001040391f125668ff"


@pytest.mark.parametrize(("index", "wanted"), [("00", "11"), ("02", "33"), ("03", "00"), ("ff", "00")])
def test_an_index_may_come_from_a_packet(index: str, wanted: str) -> None:
    """Beyond the end, a read gives 0 and a write does nothing."""
    frame = index + "112233" + "00000000"
    apply = "bit<8>[3] a = hdr.h.v; a[hdr.h.i] = a[hdr.h.i] + 1; hdr.h.v = a;"
    changed = {"00": "122233", "02": "112234"}.get(index, "112233")
    assert out(apply, frame) == index + changed + "00000000"
    assert out("hdr.h.v[0] = hdr.h.v[hdr.h.i];", frame)[2:4] == wanted


def test_variables_metadata_and_parameters_have_arrays() -> None:
    top = """const bit<8>[4] K = { 1, 2, 3, 4 };
        void fill(inout bit<8>[4] a, in bit<8> by) { for (bit<8> i in 0 .. 3) { a[i] = a[i] + by; } }
        bit<8> sum(in bit<8>[4] a) { bit<8> s = 0; for (bit<8> x in a) { s = s + x; } return s; }"""
    apply = """fill(meta.a, 5); meta.a[3] = K[2] + K[hdr.h.i]; hdr.h.v[0] = sum(meta.a); hdr.h.v[1] = 0;
        bit<8>[4] b = meta.a; if (b == meta.a) { hdr.h.v[1] = 1; } b[0] = 9;
        if (b != meta.a) { hdr.h.v[1] = hdr.h.v[1] + 2; }
        meta.wide[1] = 80w0xff << 72; meta.t[0] = meta.wide[1][79:72] == 0xff; meta.t[1] = !meta.t[0];
        hdr.h.v[2] = meta.t[0] && !meta.t[1] ? 8w7 : 8w8; hdr.h.p = { { 1, 2 }, { 3, 4 } };"""
    assert out(apply, "01" + "00" * 7, top=top) == "0114030712340000"


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        ("bit<8>[3] a; a[3] = 1;", "index 3 is outside bit<8>[3]"),
        ("bit<8>[0] a;", "size 0 of an array is not between 1 and 4096"),
        ("bit<8>[3] a; a.push_front(1);", "`a` (bit<8>[3]) has no method `push_front`"),
        ("bit<8>[3] a; hdr.h.i = (bit<8>) a.size;", "`a` (bit<8>[3]) has no member `size`"),
        ("bit<8>[3] a = { 1, 2 };", "bit<8>[3] has 3 parts, the list 2"),
        ("string[3] a;", "neither a stack nor an array can hold a value of type string"),
        ("headers_t[3] a;", "neither a stack nor an array can hold a value of type headers_t"),
        (
            "digest<metadata_t>(1, meta);",
            "digest needs a struct or a list: digest<struct_t>(receiver, {...})",
        ),
    ],
)
def test_wrong_uses_of_arrays_are_refused(apply: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_to_cpp(v1program(apply, headers=HEADERS))
    assert caught.value.message == message
