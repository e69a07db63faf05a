# SPDX-License-Identifier: Apache-2.0
"""Every operator on bit<W> and int<W>, compared with Python's integers, and with BMv2 where it is installed.

The widths are around the sizes of machine words and far above.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.vectors.format import Packet, Vectors
from tests.switch import bmv2
from tests.switch.bmv2_vectors import run_bmv2

WIDTHS = (1, 2, 5, 8, 9, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128, 129, 200, 512, 2048)

Function = Callable[[int, int, int], int]


def signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def shift_distance(b: int) -> int:
    return b & 0xFF


# P4 text with the operands A and B and the width W, and its value in Python, which is taken modulo 2^W.
UNSIGNED: dict[str, Function] = {
    "A + B": lambda a, b, w: a + b,
    "A - B": lambda a, b, w: a - b,
    "A * B": lambda a, b, w: a * b,
    "A & B": lambda a, b, w: a & b,
    "A | B": lambda a, b, w: a | b,
    "A ^ B": lambda a, b, w: a ^ b,
    "~A": lambda a, b, w: ~a,
    "-A": lambda a, b, w: -a,
    "A |+| B": lambda a, b, w: min(a + b, (1 << w) - 1),
    "A |-| B": lambda a, b, w: max(a - b, 0),
    "A << 1": lambda a, b, w: a << 1,
    "A >> 1": lambda a, b, w: a >> 1,
    "A << n": lambda a, b, w: a << shift_distance(b),
    "A >> n": lambda a, b, w: a >> shift_distance(b),
    "(A < B ? one : 0)": lambda a, b, w: a < b,
    "(A <= B ? one : 0)": lambda a, b, w: a <= b,
    "(A > B ? one : 0)": lambda a, b, w: a > b,
    "(A >= B ? one : 0)": lambda a, b, w: a >= b,
    "(A == B ? one : 0)": lambda a, b, w: a == b,
    "(A != B ? one : 0)": lambda a, b, w: a != b,
    "(A != 0 && !(B == 0) || A == B ? A : B)": lambda a, b, w: a if (a and b) or a == b else b,
    "A + 1 - B * 3": lambda a, b, w: a + 1 - b * 3,
    "(bit<W>) (A ++ B)": lambda a, b, w: b,
    "(A ++ B)[2 * W - 1 : W]": lambda a, b, w: a,
    "(bit<W>) (8w0xA5 ++ A ++ B)[2 * W + 3 : W - 1]": lambda a, b, w: (0xA5 << 2 * w | a << w | b) >> (w - 1),
    "(bit<W>) A[W - 1 : W / 2]": lambda a, b, w: a >> (w // 2),
    "(bit<W>) (bit<13>) A": lambda a, b, w: a & 0x1FFF,
    "(bit<W>) (bit<77>) A": lambda a, b, w: a & (1 << 77) - 1,
    "with_slice": lambda a, b, w: (a & ~1) | b >> (w - 1),
}
SIGNED: dict[str, Function] = {
    "A + B": lambda a, b, w: a + b,
    "A * B": lambda a, b, w: a * b,
    "-A": lambda a, b, w: -a,
    "A |+| B": lambda a, b, w: clamp(a + b, -(1 << w - 1), (1 << w - 1) - 1),
    "A |-| B": lambda a, b, w: clamp(a - b, -(1 << w - 1), (1 << w - 1) - 1),
    "A >> 1": lambda a, b, w: a >> 1,
    "A >> n": lambda a, b, w: a >> shift_distance(b),
    "A << n": lambda a, b, w: a << shift_distance(b),
    "(A < B ? one : 0)": lambda a, b, w: a < b,
    "(A >= B ? one : 0)": lambda a, b, w: a >= b,
    "(int<W>) (int<99>) A": lambda a, b, w: signed(a & (1 << 99) - 1, 99),
    "(int<W>) (int<3>) A": lambda a, b, w: signed(a & 7, 3),
    "(int<W>) (bit<W>) A": lambda a, b, w: a,
}


def unsigned_value(function: Function, width: int, a: int, b: int) -> int:
    return int(function(a, b, width)) % (1 << width)


def signed_value(function: Function, width: int, a: int, b: int) -> int:
    return unsigned_value(function, width, signed(a, width), signed(b, width))


def operations(width: int) -> Iterator[tuple[str, Callable[[int, int], int]]]:
    """P4 statements that set `r`, and the value expected of each."""
    for text, function in UNSIGNED.items():
        if "++" in text and 2 * width + 8 > 2048:
            continue  # wider than p4c accepts
        if text == "with_slice":
            p4 = f"r = hdr.i{width}.a; r[0:0] = hdr.i{width}.b[{width - 1}:{width - 1}];"
        else:
            p4 = f"r = {text.replace('A', f'hdr.i{width}.a').replace('B', f'hdr.i{width}.b')};"
            p4 = p4.replace("8w0xhdr", "8w0xA5 /*").replace(f"i{width}.a5 ++", "*/ ++")
        p4 = p4.replace(".a5", ".a").replace("W", str(width))
        yield p4, partial(unsigned_value, function, width)
    if width < 2:
        return
    for text, function in SIGNED.items():
        p4 = text.replace("A", "x").replace("B", "y").replace("W", str(width)).replace("one", "1")
        p4 = f"r = (bit<{width}>) ({p4});".replace("? 1 : 0", f"? {width}s1 : 0")
        yield p4, partial(signed_value, function, width)


def p4_text() -> str:
    headers, parser, ingress, deparser = [], [], [], []
    states = " ".join(f"{i}: take{w};" for i, w in enumerate(WIDTHS))
    for width in WIDTHS:
        pad = -2 * width % 8 or 8
        headers.append(f"header in{width}_t {{ bit<{pad}> pad; bit<{width}> a; bit<{width}> b; }}")
        out_pad = -width % 8 or 8
        headers.append(f"header out{width}_t {{ bit<{out_pad}> pad; bit<{width}> r; }}")
        parser.append(f"state take{width} {{ packet.extract(hdr.i{width}); transition accept; }}")
        steps = " else ".join(
            f"if (hdr.op.code == {k}) {{ {p4} }}" for k, (p4, _) in enumerate(operations(width)))  # fmt: skip
        casts = (
            f"int<{width}> x = (int<{width}>) hdr.i{width}.a; int<{width}> y = (int<{width}>) hdr.i{width}.b;"
        )
        ingress.append(
            f"if (hdr.i{width}.isValid()) {{ bit<{width}> r = 0; const bit<{width}> one = 1; "
            f"bit<8> n = {f'hdr.i{width}.b[7:0]' if width >= 8 else f'(bit<8>) hdr.i{width}.b'}; "
            f"{casts if width > 1 else ''} {steps} hdr.o{width}.setValid(); hdr.o{width}.r = r; "
            f"hdr.i{width}.setInvalid(); }}"
        )
        deparser.append(f"packet.emit(hdr.o{width});")
    fields = " ".join(f"in{w}_t i{w}; out{w}_t o{w};" for w in WIDTHS)
    newline = "\n    "
    return f"""\
#include <core.p4>
#include <v1model.p4>
header op_t {{ bit<8> width; bit<8> code; }}
{newline.join(headers)}
struct headers_t {{ op_t op; {fields} }}
struct metadata_t {{ }}
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
    state start {{ packet.extract(hdr.op); transition select(hdr.op.width) {{ {states} }} }}
    {newline.join(parser)}
}}
control V(inout headers_t hdr, inout metadata_t meta) {{ apply {{ }} }}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
    apply {{
    sm.egress_spec = 1;
    {newline.join(ingress)}
    }}
}}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{ apply {{ }} }}
control C(inout headers_t hdr, inout metadata_t meta) {{ apply {{ }} }}
control D(packet_out packet, in headers_t hdr) {{ apply {{ {" ".join(deparser)} }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


@pytest.fixture(scope="module")
def operators_p4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The path is part of the cache key. With a fixed path the next run finds the program in the cache.
    path = Path(tmp_path_factory.getbasetemp().parent) / "inagg-switch-operators.p4"
    path.write_text(p4_text())
    return path


def operands(width: int, count: int, seed: int) -> list[tuple[int, int]]:
    """Pairs of operands, many at the limits of carries, signs and shifts."""
    generator = random.Random(seed * 10000 + width)
    top = (1 << width) - 1
    special = sorted(
        {0, 1, top, top >> 1, (top >> 1) + 1, top - 1, width & top, (width - 1) & top, 0x5555 & top}
    )
    pairs = [(a, b) for a in special for b in special]
    while len(pairs) < count:
        pairs.append(
            (generator.getrandbits(width), generator.getrandbits(width) >> generator.choice((0, width // 2)))
        )
    generator.shuffle(pairs)
    return pairs[:count]


def frame(width: int, code: int, a: int, b: int) -> bytes:
    pad = -2 * width % 8 or 8
    body = (a << width | b).to_bytes((pad + 2 * width) // 8, "big")
    return bytes((WIDTHS.index(width), code)) + body


def expected(width: int, code: int, value: int) -> bytes:
    pad = -width % 8 or 8
    return value.to_bytes((pad + width) // 8, "big")


def test_every_operator_against_python(operators_p4: Path) -> None:
    wrong = []
    with Switch.from_p4(operators_p4) as program:
        for width in WIDTHS:
            for code, (p4, function) in enumerate(operations(width)):
                for a, b in operands(width, 100, 1):
                    out = program.process(1, frame(width, code, a, b))
                    if out != [(1, expected(width, code, function(a, b)))]:
                        wrong.append((p4, hex(a), hex(b), out[0][1].hex(), hex(function(a, b))))
    assert not wrong, f"{len(wrong)} wrong, the first: {wrong[0]}"


@pytest.mark.bmv2
@pytest.mark.skipif(not bmv2.available(), reason="p4c, simple_switch or libnanomsg is missing")
def test_every_operator_on_bmv2(operators_p4: Path) -> None:
    vectors = Vectors()
    for width in WIDTHS:
        for code, (_, function) in enumerate(operations(width)):
            for a, b in operands(width, 8, 2):
                wanted = [(1, expected(width, code, function(a, b)))]
                vectors.packets.append(Packet(1, frame(width, code, a, b), wanted))
    assert run_bmv2(operators_p4, vectors) == [p.expected for p in vectors.packets]
