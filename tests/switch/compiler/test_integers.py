# SPDX-License-Identifier: Apache-2.0
"""Numbers without a width that are known only at run time, errors as keys of entries, hashes of one field.

p4c's BMv2 back end refuses these or compiles them wrongly.
"""

from collections.abc import Callable
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from tests.switch.snippets import v1program

HEADERS = """
header h_t { bit<8> a; int<8> b; bit<16> c; }
header o_t { bit<16> v; }
struct headers_t { h_t h; o_t[9] o; }
struct metadata_t { bit<8> x; bit<16> y; bool flag; }
"""

Function: TypeAlias = Callable[[int, int, int], int]

# The same in P4 and in Python.
VALUES: dict[str, Function] = {
    "(int) hdr.h.a * (int) hdr.h.b - 3": lambda a, b, c: a * b - 3,
    "((int) hdr.h.b - 200) >> 1": lambda a, b, c: (b - 200) >> 1,
    "-((int) hdr.h.b) * -(int) hdr.h.b * 5": lambda a, b, c: b * b * 5,
    "((int) hdr.h.a << 7) - (int) hdr.h.c": lambda a, b, c: (a << 7) - c,
    "((int) hdr.h.a - (int) hdr.h.c) & ((int) hdr.h.b | 12)": lambda a, b, c: (a - c) & (b | 12),
    "((int) hdr.h.b ^ -7) + (int) hdr.h.c": lambda a, b, c: (b ^ -7) + c,
}
TRUTHS: dict[str, Function] = {
    "(int) hdr.h.a - (int) hdr.h.c < (int) hdr.h.b": lambda a, b, c: a - c < b,
    "(int) hdr.h.a * (int) hdr.h.a == (int) hdr.h.c": lambda a, b, c: a * a == c,
    "-1 >= (int) hdr.h.b": lambda a, b, c: b <= -1,
}


def switch(apply: str, **parts: str) -> Switch:
    text = v1program(apply, headers=HEADERS, **parts)
    return Switch.from_source(preprocess_text(text, "p.p4").text)


def test_numbers_lose_nothing_before_they_get_a_width() -> None:
    lines = [f"hdr.o[{i}].setValid(); hdr.o[{i}].v = (bit<16>) ({e});" for i, e in enumerate(VALUES)]
    for i, e in enumerate(TRUTHS, len(VALUES)):
        lines.append(f"hdr.o[{i}].setValid(); hdr.o[{i}].v = ({e}) ? 16w1 : 16w0;")
    with switch("sm.egress_spec = 1;" + " ".join(lines)) as sw:

        @settings(max_examples=300)
        @given(st.integers(0, 255), st.integers(-128, 127), st.integers(0, 65535))
        def check(a: int, b: int, c: int) -> None:
            frame = bytes([a, b & 0xFF]) + c.to_bytes(2, "big")
            ((_, out),) = sw.process(1, frame)
            words = [int.from_bytes(out[i : i + 2], "big") for i in range(4, len(out), 2)]
            wanted = [f(a, b, c) & 0xFFFF for f in (*VALUES.values(), *TRUTHS.values())]
            assert words == wanted

        check()


def test_the_index_of_a_loop_as_a_number() -> None:
    """p4c turns this cast into 0 where it does not find the value."""
    apply = """sm.egress_spec = 1; hdr.o[0].setValid(); hdr.o[0].v = 0;
        for (bit<8> i = 0; i < 3; i = i + 1) { hdr.o[0].v = hdr.o[0].v + (bit<16>) ((int) i * 2 + 1); }
        for (bit<8> i in 0 .. 3) { hdr.o[(int) i + 1].setValid(); hdr.o[(int) i + 1].v = (bit<16>) i; }
        hdr.o[(int) hdr.h.b].v = 7;"""
    with switch(apply) as sw:
        ((_, out),) = sw.process(1, bytes.fromhex("00ff0000"))  # the last index is -1: no element has it
    assert out.hex() == "00ff000000090000000100020003"


def test_a_header_beyond_the_end_of_a_stack_is_not_extracted() -> None:
    parser = """bit<8> i = 7;
        state start { packet.extract(hdr.h); transition next; }
        state next { packet.extract(hdr.o[i]); i = (bit<8>) ((int) i + 1);
            transition select(hdr.h.a) { 1: accept; default: next; } }"""
    apply = "sm.egress_spec = 1; if (sm.parser_error == error.StackOutOfBounds) { hdr.h.a = 0xee; }"
    with switch(apply, parser=parser) as sw:
        assert [out.hex() for _, out in sw.process(1, bytes(4) + b"abcdef")] == ["ee000000" + b"abcdef".hex()]


def test_an_error_is_the_key_of_an_entry() -> None:
    table = """action set(bit<16> v) { hdr.o[0].v = v; }
        table t { key = { sm.parser_error: exact; } actions = { set; NoAction; }
                  const entries = { error.NoError: set(1); error.PacketTooShort: set(2); } }
        table u { key = { sm.parser_error: ternary; hdr.h.a: exact; } actions = { set; NoAction; }
                  const entries = { (error.NoMatch, 3): set(9); (_, 3): set(3); } }"""
    apply = "sm.egress_spec = 1; hdr.o[0].setValid(); t.apply(); u.apply();"
    with switch(apply, locals=table) as sw:
        assert [out.hex() for _, out in sw.process(1, bytes(4))] == ["000000000001"]
        assert [out.hex() for _, out in sw.process(1, b"\x03\0\0\0")] == ["030000000003"]
        assert [out.hex()[:4] for _, out in sw.process(1, bytes(1))] == ["0002"]


def test_the_hash_of_a_field_is_the_hash_of_a_list_with_that_field() -> None:
    apply = """sm.egress_spec = 1; hdr.o[0].setValid(); hdr.o[1].setValid();
        hash(hdr.o[0].v, HashAlgorithm.crc16, 16w0, hdr.h.c, 16w60000);
        hash(hdr.o[1].v, HashAlgorithm.crc16, 16w0, { hdr.h.c }, 16w60000);"""
    with switch(apply) as sw:
        ((_, out),) = sw.process(1, bytes.fromhex("00001234"))
    assert out[4:6] == out[6:8] != b"\0\0"


def test_a_function_is_compiled_for_each_number_and_text_that_it_is_called_with() -> None:
    top = """bit<16> f(string s, int n) { log_msg(s); return (bit<16>) n; }
        parser Sub(packet_in packet, inout headers_t hdr, int n) {
            state start { hdr.o[n].setValid(); hdr.o[n].v = (bit<16>) n; transition accept; } }"""
    parser = """Sub() sub;
        state start { packet.extract(hdr.h); sub.apply(packet, hdr, 2); transition accept; }"""
    apply = """sm.egress_spec = 1; hdr.o[0].setValid(); hdr.o[1].setValid();
        hdr.o[0].v = f("one", 1); hdr.o[1].v = f("two", 2) + f("one", 1);"""
    said: list[str] = []
    with switch(apply, top=top, parser=parser) as sw:
        sw.on_log(said.append)
        ((_, out),) = sw.process(1, bytes(4))
    assert out[4:].hex() == "000100030002"
    assert said == ["one", "two", "one"]
