# SPDX-License-Identifier: Apache-2.0
"""Values and names of registers, as clients see them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_p4runtime.registers import Register, find

NAMED = [Register(name, 1, 4, 8, False) for name in ("seen", "I.seen", "I.a.count", "I.b.count")]


@given(bits=st.integers(1, 200), signed=st.booleans(), data=st.data())
def test_values_survive_the_way_to_the_switch_and_back(bits: int, signed: bool, data: st.DataObject) -> None:
    register = Register("r", 1, 1, bits, signed)
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    value = data.draw(st.integers(lowest, highest))
    encoded = register.encode(value)
    assert len(encoded) == (bits + 7) // 8
    assert register.decode(encoded) == value
    for wrong in (lowest - 1, highest + 1):
        with pytest.raises(ValueError, match="is not a value of register r"):
            register.encode(wrong)


@pytest.mark.parametrize(
    ("name", "found"),
    [("seen", "seen"), ("I.seen", "I.seen"), ("a.count", "I.a.count"), ("I.b.count", "I.b.count")],
)
def test_a_register_is_found_by_the_end_of_its_name(name: str, found: str) -> None:
    assert find(NAMED, name).name == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("count", "count is ambiguous: I.a.count, I.b.count"),
        ("een", "the program has no register een; there are: seen, I.seen, I.a.count, I.b.count"),
    ],
)
def test_another_name_is_explained(name: str, message: str) -> None:
    with pytest.raises(KeyError) as raised:
        find(NAMED, name)
    assert raised.value.args == (message,)


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=f"register seen has the indices 0 to 3, not {index}"):
        NAMED[0].entry(index)
