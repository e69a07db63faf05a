# SPDX-License-Identifier: Apache-2.0
"""The model runs generated programs as the evaluator and BMv2 do (a short run of `tests.fuzz.run`)."""

import pytest

from tests.fuzz.generate.generator import Generator
from tests.fuzz.programs.expressions import (
    Arithmetic,
    Cast,
    Compare,
    Concat,
    Const,
    Expression,
    Logic,
    Ref,
    Shift,
    Slice,
    Type,
    Unary,
    Valid,
)
from tests.fuzz.programs.externs import digest_of
from tests.fuzz.programs.headers import UNIONS, Header, SetValid, Varbit
from tests.fuzz.programs.parsers import PACKET, ExtractVarbit, Packet, ParserError
from tests.fuzz.programs.program import GeneratedProgram
from tests.fuzz.programs.statements import Assign, Block, Call, Parameter, Routine
from tests.fuzz.run import check_seed, minimise
from tests.switch import bmv2

B8, S8, B4 = Type(8), Type(8, True), Type(4)
PACKETS = 100


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_model_does_what_the_evaluator_says(seed: int) -> None:
    program, _, difference = check_seed(seed, PACKETS, on_bmv2=False)
    assert difference is None, f"{difference}\n{program.p4()}"


@pytest.mark.bmv2
@pytest.mark.skipif(not bmv2.available(), reason="p4c, simple_switch or libnanomsg is missing")
@pytest.mark.parametrize("seed", range(1, 7))
def test_the_model_does_what_bmv2_does(seed: int) -> None:
    program, _, difference = check_seed(seed, PACKETS, on_bmv2=True)
    assert difference is None, f"{difference}\n{program.p4()}"


def test_the_same_seed_gives_the_same_program_and_packets() -> None:
    one, two = Generator(3), Generator(3)
    first, second = one.program(), two.program()
    assert first.p4() == second.p4()
    assert one.packets(first, 5) == two.packets(second, 5)


# --- the evaluator, by hand

CASES: list[tuple[Expression, object]] = [
    (Arithmetic(B8, "+", Const(B8, 200), Const(B8, 100)), 44),
    (Arithmetic(B8, "|+|", Const(B8, 200), Const(B8, 100)), 255),
    (Arithmetic(B8, "|-|", Const(B8, 100), Const(B8, 200)), 0),
    (Arithmetic(S8, "+", Const(S8, 100), Const(S8, 100)), -56),
    (Arithmetic(S8, "|+|", Const(S8, 100), Const(S8, 100)), 127),
    (Arithmetic(S8, "|-|", Const(S8, -100), Const(S8, 100)), -128),
    (Unary(B8, "-", Const(B8, 1)), 255),
    (Unary(S8, "~", Const(S8, 0)), -1),
    (Shift(S8, ">>", Const(S8, -128), Const(B8, 200)), -1),
    (Shift(B8, ">>", Const(B8, 128), Const(B8, 7)), 1),
    (Shift(S8, "<<", Const(S8, 1), Const(B8, 7)), -128),
    (Slice(Const(S8, -2), 3, 0), 14),
    (Concat(Const(B4, 0xA), Const(B8, 0x0B)), 0xA0B),
    (Cast(Type(16, True), Const(S8, -1)), -1),
    (Cast(Type(16), Cast(B8, Const(S8, -1))), 0xFF),
    (Cast(Type(4, True), Const(S8, 0x78)), -8),
    (Compare("<", Const(S8, -1), Const(S8, 0)), True),
    (Logic("&&", Valid("h"), Compare("==", Ref(B8, "h.not_there"), Const(B8, 0))), False),
]


@pytest.mark.parametrize(
    ("expression", "value"), CASES, ids=lambda c: c.p4() if isinstance(c, Expression) else ""
)
def test_expressions_have_their_values(expression: Expression, value: object) -> None:
    assert expression.value({"h.$valid": False}) == value


def test_arguments_are_copied_in_and_out() -> None:
    p, q = Ref(B8, "p"), Ref(B8, "q")
    swap = Routine(
        "swap",
        [Parameter("p", B8, "inout"), Parameter("q", B8, "inout")],
        Block([Assign(p, Arithmetic(B8, "+", q, Const(B8, 1))), Assign(Ref(B8, "x"), Const(B8, 99))]),
    )
    env = {"x": 1}
    Call(swap, [Ref(B8, "x"), Ref(B8, "x")]).run(env)
    assert env["x"] == 1  # q, which nobody changed, is copied out last


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        ("crc32", 0xCBF43926),
        ("crc16", 0xBB3D),
        ("identity", 0x3132333435363738),
        ("xor16", 0x3908),
        ("csum16", 0xF62A),
    ],
)
def test_hashes_have_their_values(algorithm: str, value: int) -> None:
    """The values of the CRCs are their published check values, for these nine bytes."""
    assert digest_of(algorithm, "".join(f"{byte:08b}" for byte in b"123456789")) == value


def test_a_member_of_a_union_that_becomes_valid_invalidates_the_others() -> None:
    env = {UNIONS: {"u.a": ["u.b"], "u.b": ["u.a"]}, "u.a.$valid": True, "u.b.$valid": False}
    SetValid("u.b", True, []).run(env)
    assert (env["u.a.$valid"], env["u.b.$valid"]) == (False, True)
    SetValid("u.a", False, []).run(env)
    assert env["u.b.$valid"]


@pytest.mark.parametrize(
    ("size", "error"),
    [(16, None), (12, "ParserInvalidArgument"), (40, "HeaderTooShort"), (48, "PacketTooShort")],
)
def test_a_varbit_field_has_the_size_that_is_asked_for(size: int, error: str | None) -> None:
    header = Header("v_t", [("a", B8), ("data", Varbit(32)), ("b", B8)])
    env = {PACKET: Packet(b"\x01\x02\x03\x04\x05\x06\x07"), UNIONS: {}, "v.$valid": False}
    extracting = ExtractVarbit(header, "v", Const(Type(32), size))
    if error is not None:
        with pytest.raises(ParserError, match=error):
            extracting.run(env)
        return
    extracting.run(env)
    assert (env["v.a"], env["v.data"], env["v.b"]) == (1, f"{0x0203:016b}", 4)
    assert header.bits(env, "v") == f"{0x01020304:032b}"


# --- the minimiser


def test_the_minimiser_removes_what_does_not_matter() -> None:
    program = Generator(2).program()
    before = program.p4()
    assert before.count("|-|") > 1

    def differs(p: GeneratedProgram) -> bool:
        return "|-|" in p.p4()

    small = minimise(program, differs, tries=300).p4()
    assert "|-|" in small
    assert len(small) < len(before) / 2
