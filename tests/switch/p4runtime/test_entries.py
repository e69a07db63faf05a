# SPDX-License-Identifier: Apache-2.0
"""Matches, actions and values between P4Runtime messages and the program's form; malformed ones are refused."""

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.entries import (
    Key,
    parse_action,
    parse_key,
    parse_params,
    write_action,
    write_key,
)
from inagg_switch.p4runtime.entities.names import Names
from inagg_switch.p4runtime.entities.values import canonical, parse_value
from inagg_switch.p4runtime.errors import Code, RequestError

ORDERED, EXACT, KEYLESS = 0x02000001, 0x02000002, 0x02000003
SET, ENTRY_ONLY, DEFAULT_ONLY, FOREIGN = 0x01000001, 0x01000002, 0x01000003, 0x01000004

P4INFO = """
tables {
  preamble { id: 0x02000001 name: "In.ordered" }
  match_fields { id: 1 name: "t" bitwidth: 16 match_type: TERNARY }
  match_fields { id: 2 name: "l" bitwidth: 12 match_type: LPM }
  match_fields { id: 3 name: "r" bitwidth: 9 match_type: RANGE }
  match_fields { id: 4 name: "o" bitwidth: 8 match_type: OPTIONAL }
  action_refs { id: 0x01000001 }
  action_refs { id: 0x01000002 scope: TABLE_ONLY }
  action_refs { id: 0x01000003 scope: DEFAULT_ONLY }
}
tables {
  preamble { id: 0x02000002 name: "In.exact" }
  match_fields { id: 7 name: "e" bitwidth: 9 match_type: EXACT }
}
tables { preamble { id: 0x02000003 name: "In.keyless" } }
actions {
  preamble { id: 0x01000001 name: "In.set" }
  params { id: 1 name: "a" bitwidth: 9 }
  params { id: 2 name: "b" bitwidth: 48 }
}
actions { preamble { id: 0x01000002 name: "In.entry_only" } }
actions { preamble { id: 0x01000003 name: "In.default_only" } }
actions { preamble { id: 0x01000004 name: "In.foreign" } }
"""

INFO = text_format.Parse(P4INFO, p4info_pb2.P4Info())
NAMES = Names(INFO, INFO)


def entry(text: str) -> p4runtime_pb2.TableEntry:
    return text_format.Parse(text, p4runtime_pb2.TableEntry())


def key_of(table: int, text: str) -> Key:
    return parse_key(NAMES.table(table), entry(text))


def refused(table: int, text: str) -> str:
    with pytest.raises(RequestError) as caught:
        key_of(table, text)
    assert caught.value.code == Code.INVALID_ARGUMENT
    return caught.value.message


LAYOUT = text_format.Parse("""
tables {
  preamble { id: 0x02000001 name: "In.t" }
  match_fields { id: 1 name: "wide" bitwidth: 9 match_type: EXACT }
  match_fields { id: 2 name: "text" bitwidth: 9 match_type: OPTIONAL }
  match_fields { id: 3 name: "error" bitwidth: 32 match_type: TERNARY }
}
actions { preamble { id: 0x01000001 name: "In.a" } params { id: 1 name: "wide" bitwidth: 9 } }
""", p4info_pb2.P4Info())  # fmt: skip


def translated() -> Names:
    """LAYOUT with what a controller sees: `wide` has 32 bits, `text` is a string, `error` has no width."""
    shown = p4info_pb2.P4Info()
    shown.CopyFrom(LAYOUT)
    wide, text, error = shown.tables[0].match_fields
    wide.bitwidth, text.bitwidth, error.bitwidth = 32, 0, 0
    shown.actions[0].params[0].bitwidth = 32
    wide.type_name.name = shown.actions[0].params[0].type_name.name = "wide_t"
    text.type_name.name = "text_t"
    return Names(shown, LAYOUT)


def test_a_translated_key_gets_the_width_of_the_program() -> None:
    table = translated().table(0x02000001)
    wide = r'priority: 1 match { field_id: 1 exact { value: "\x00\x00\x01\x02" } }'
    error = r'match { field_id: 3 ternary { value: "\x04" mask: "\xff" } }'
    assert parse_key(table, entry(wide + error)).match == (
        (b"\x01\x02", None, 0), (None, None, 0), (b"\0\0\0\x04", b"\0\0\0\xff", 0))  # fmt: skip
    with pytest.raises(RequestError, match="does not fit into 9 bits"):
        parse_key(table, entry(r'priority: 1 match { field_id: 1 exact { value: "\x02\x00" } }'))
    with pytest.raises(RequestError, match="translated to a string"):
        parse_key(table, entry(wide + r'match { field_id: 2 optional { value: "\x01" } }'))


def test_the_program_gets_the_low_bits_of_a_translated_parameter() -> None:
    param = p4runtime_pb2.Action.Param(param_id=1, value=b"\xff\xff\xfd")
    assert parse_params(translated().action(0x01000001), [param]) == b"\x01\xfd"
    param.value = b"\x01" + bytes(4)
    with pytest.raises(RequestError, match="does not fit into 32 bits"):
        parse_params(translated().action(0x01000001), [param])


FULL_MATCH = r"""
match { field_id: 1 ternary { value: "\x01" mask: "\x0f" } }
match { field_id: 2 lpm { value: "\x0a\x00" prefix_len: 4 } }
match { field_id: 3 range { low: "\x01" high: "\x01\x00" } }
match { field_id: 4 optional { value: "\x05" } }
priority: 7
"""


def test_each_kind_of_match_gets_its_full_width() -> None:
    assert key_of(ORDERED, FULL_MATCH) == Key(
        (
            (b"\x00\x01", b"\x00\x0f", 0),
            (b"\x0a\x00", None, 4),
            (b"\x00\x01", b"\x01\x00", 0),
            (b"\x05", None, 0),
        ),
        7,
    )


def test_fields_that_are_left_out_match_anything() -> None:
    assert key_of(ORDERED, "priority: 1") == Key(((None, None, 0),) * 4, 1)


def test_fields_may_come_in_any_order() -> None:
    swapped = r"""
    match { field_id: 4 optional { value: "\x05" } }
    match { field_id: 1 ternary { value: "\x01" mask: "\x01" } }
    priority: 1"""
    assert key_of(ORDERED, swapped).match[0] == (b"\x00\x01", b"\x00\x01", 0)


@pytest.mark.parametrize("text", [FULL_MATCH, "priority: 3"])
def test_a_key_is_read_back_as_it_was_written(text: str) -> None:
    out = p4runtime_pb2.TableEntry()
    write_key(out, NAMES.table(ORDERED), key_of(ORDERED, text))
    expected = entry(text)
    expected.table_id = ORDERED
    assert out == expected


@pytest.mark.parametrize(
    ("table", "text", "reason"),
    [
        (EXACT, "", "the exact field e is missing"),
        (EXACT, r'match { field_id: 7 exact { value: "\x02\x00" } }', "does not fit into 9 bits"),
        (EXACT, r'match { field_id: 7 exact { value: "" } }', "the value is empty"),
        (EXACT, r'match { field_id: 8 exact { value: "\x01" } }', "no match field with the id 8"),
        (EXACT, r'match { field_id: 7 optional { value: "\x01" } }', "the match is optional"),
        (EXACT, "match { field_id: 7 }", "the match is missing"),
        (EXACT, r'match { field_id: 7 exact { value: "\x01" } } priority: 1', "have no priority"),
        (
            EXACT,
            r'match { field_id: 7 exact { value: "\x01" } } match { field_id: 7 exact { value: "\x02" } }',
            "given twice",
        ),
        (ORDERED, "", "a priority above 0"),
        (ORDERED, "priority: -1", "a priority above 0"),
        (
            ORDERED,
            r'match { field_id: 1 ternary { value: "\x01" mask: "\x00" } } priority: 1',
            "leave a field out",
        ),
        (
            ORDERED,
            r'match { field_id: 1 ternary { value: "\x03" mask: "\x01" } } priority: 1',
            "outside the mask",
        ),
        (ORDERED, r'match { field_id: 1 ternary { value: "\x01" } } priority: 1', "mask: the value is empty"),
        (
            ORDERED,
            r'match { field_id: 2 lpm { value: "\x00" prefix_len: 0 } } priority: 1',
            "prefix length 0",
        ),
        (
            ORDERED,
            r'match { field_id: 2 lpm { value: "\x00" prefix_len: 13 } } priority: 1',
            "prefix length 13",
        ),
        (
            ORDERED,
            r'match { field_id: 2 lpm { value: "\x01" prefix_len: 11 } } priority: 1',
            "after the prefix",
        ),
        (
            ORDERED,
            r'match { field_id: 3 range { low: "\x02" high: "\x01" } } priority: 1',
            "low is above high",
        ),
        (
            ORDERED,
            r'match { field_id: 3 range { low: "\x00" high: "\x01\xff" } } priority: 1',
            "leave a field out",
        ),
        (KEYLESS, "priority: 1", "have no priority"),
        (KEYLESS, r'match { field_id: 1 exact { value: "\x01" } }', "no match field with the id 1"),
    ],
)
def test_a_malformed_match_is_refused_with_its_reason(table: int, text: str, reason: str) -> None:
    assert reason in refused(table, text)


def test_a_value_may_have_leading_zeros_of_any_length() -> None:
    text = r'match { field_id: 7 exact { value: "\x00\x00\x00\x01\x02" } }'
    assert key_of(EXACT, text).match == ((b"\x01\x02", None, 0),)


def action(text: str, *, is_default: bool = False) -> tuple[int, bytes]:
    message = text_format.Parse(text, p4runtime_pb2.TableAction())
    return parse_action(NAMES, NAMES.table(ORDERED), message, is_default=is_default)


def test_parameters_are_put_end_to_end_in_the_programs_order() -> None:
    text = r'action { action_id: 0x01000001 params { param_id: 2 value: "\x02" } params { param_id: 1 value: "\x01" } }'
    assert action(text) == (SET, b"\x00\x01" + b"\x00\x00\x00\x00\x00\x02")
    out = p4runtime_pb2.TableEntry()
    write_action(out, NAMES, *action(text))
    assert [(p.param_id, p.value) for p in out.action.action.params] == [(1, b"\x01"), (2, b"\x02")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "an entry needs an action"),
        ("action_profile_member_id: 1", "not action_profile_member_id"),
        ("action { action_id: 99 }", "no action with the id"),
        ("action { action_id: 0x01000004 }", "no action with the id"),
        (r'action { action_id: 0x01000001 params { param_id: 1 value: "\x01" } }', "parameter b is missing"),
        (
            r'action { action_id: 0x01000001 params { param_id: 3 value: "\x01" } }',
            "no parameter with the id 3",
        ),
        (r'action { action_id: 0x01000001 params { param_id: 1 value: "\x02\x00" } }', "fit into 9 bits"),
        ("action { action_id: 0x01000001 params { param_id: 1 } }", "the value is empty"),
        (
            r'action { action_id: 0x01000001 params { param_id: 1 value: "\1" } params { param_id: 1 value: "\1" } }',
            "given twice",
        ),
    ],
)
def test_a_malformed_action_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        action(text)
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_the_scope_of_an_action_is_enforced() -> None:
    assert action("action { action_id: 0x01000002 }") == (ENTRY_ONLY, b"")
    assert action("action { action_id: 0x01000003 }", is_default=True) == (DEFAULT_ONLY, b"")
    for text, is_default in (
        ("action { action_id: 0x01000002 }", True),
        ("action { action_id: 0x01000003 }", False),
    ):
        with pytest.raises(RequestError) as caught:
            action(text, is_default=is_default)
        assert caught.value.code == Code.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("number", "expected"), [(b"\x00\x00", b"\x00"), (b"\x00\x63", b"\x63"), (b"\x30\x64", b"\x30\x64")]
)
def test_binary_strings_are_sent_in_their_shortest_form(number: bytes, expected: bytes) -> None:
    assert canonical(number) == expected


# The specification's tables of valid and invalid encodings, unsigned rows.
@pytest.mark.parametrize(
    ("width", "value", "number"),
    [
        (8, b"\x63", 99),
        (16, b"\x00\x63", 99),
        (16, b"\x63", 99),
        (16, b"\x30\x64", 12388),
        (16, b"\x00\x30\x64", 12388),
        (12, b"\x00\x63", 99),
        (12, b"\x63", 99),
        (12, b"\x00\x00\x63", 99),
    ],
)
def test_valid_binary_strings(width: int, value: bytes, number: int) -> None:
    assert parse_value(value, width, "field") == number


@pytest.mark.parametrize(
    ("width", "value"),
    [
        (8, b"\x01\x63"),
        (8, b""),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
    ],
)
def test_invalid_binary_strings(width: int, value: bytes) -> None:
    with pytest.raises(RequestError):
        parse_value(value, width, "field")
