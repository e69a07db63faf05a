# SPDX-License-Identifier: Apache-2.0
"""Cells of counters and registers are decoded as protobuf decodes them."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from p4.v1 import p4data_pb2, p4runtime_pb2

from inagg_p4runtime.cells import (
    CounterCell,
    MalformedMessageError,
    RegisterCell,
    counter_cells,
    read_counters,
    read_registers,
    register_cells,
)

Strategy: TypeAlias = st.SearchStrategy[bytes]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LONGEST = 10  # bytes of a varint
LIMITS = (0, 127, 128, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 70) - 1)


def varint(number: int, least: int = 1) -> bytes:
    """The encoding of a number, with at least so many bytes."""
    sevens = [number >> shift & 0x7F for shift in range(0, 70, 7)]
    while len(sevens) > least and sevens[-1] == 0:
        sevens.pop()
    return bytes([*(seven | 0x80 for seven in sevens[:-1]), sevens[-1]])


def sized(number: int, contents: bytes) -> bytes:
    """A field of bytes, or of a message."""
    return varint(number << 3 | BYTES) + varint(len(contents)) + contents


# Numbers as protobuf takes them: encodings of any length, with bits above the lowest 64.
NUMBERS = st.one_of(
    st.builds(varint, st.sampled_from(LIMITS)),
    st.builds(varint, st.integers(0, (1 << 70) - 1), st.integers(1, LONGEST)),
)


def numbers(number: int) -> Strategy:
    """A field with a number."""
    return NUMBERS.map(lambda value: varint(number << 3 | VARINT) + value)


def parts(number: int, contents: Strategy) -> Strategy:
    """A field of bytes, or of a message."""
    return contents.map(lambda value: sized(number, value))


def fixed(number: int) -> Strategy:
    """A field with a wire type that no field of P4Runtime's cells has."""
    return st.one_of(
        st.binary(min_size=8, max_size=8).map(lambda value: varint(number << 3 | FIXED64) + value),
        st.binary(min_size=4, max_size=4).map(lambda value: varint(number << 3 | FIXED32) + value),
    )


def unknown(number: int) -> Strategy:
    """A field that P4Runtime does not have."""
    return st.one_of(numbers(number), parts(number, st.binary(max_size=200)), fixed(number))


def message(kind: Any, **fields: Callable[[int], Strategy]) -> Strategy:
    """Fields in any order and number, among unknown ones and ones of the wrong wire type."""
    known = {name: kind.DESCRIPTOR.fields_by_name[name].number for name in fields}
    skipped = st.one_of(
        st.sampled_from([*known.values()]).flatmap(fixed),
        st.sampled_from([200, (1 << 29) - 1]).flatmap(unknown),
    )
    wanted = [fields[name](number) for name, number in known.items()]
    return st.lists(st.one_of(*wanted, skipped), max_size=6).map(b"".join)


def of(contents: Strategy) -> Callable[[int], Strategy]:
    return lambda number: parts(number, contents)


INDEX = message(p4runtime_pb2.Index, index=numbers)
COUNTER_DATA = message(p4runtime_pb2.CounterData, packet_count=numbers, byte_count=numbers)
COUNTER = message(p4runtime_pb2.CounterEntry, counter_id=numbers, index=of(INDEX), data=of(COUNTER_DATA))
P4DATA = message(
    p4data_pb2.P4Data,
    bitstring=of(st.binary(max_size=300)),
    varbit=of(st.just(b"")),
    bool=numbers,
    enum=of(st.just(b"red")),
)
REGISTER = message(p4runtime_pb2.RegisterEntry, register_id=numbers, index=of(INDEX), data=of(P4DATA))
TABLE = p4runtime_pb2.TableEntry(table_id=7, priority=3).SerializeToString()
ENTITY = message(
    p4runtime_pb2.Entity,
    counter_entry=of(COUNTER),
    register_entry=of(REGISTER),
    table_entry=of(st.just(TABLE)),
    meter_entry=of(st.just(b"")),
)


def alone(kind: str, entry: bytes) -> bytes:
    """A response with one entry."""
    entity = sized(p4runtime_pb2.Entity.DESCRIPTOR.fields_by_name[kind].number, entry)
    return sized(p4runtime_pb2.ReadResponse.ENTITIES_FIELD_NUMBER, entity)


# Repeated fields are rare in a response of many entities, so parts of responses are tested on their own, too.
RESPONSE = st.one_of(
    message(p4runtime_pb2.ReadResponse, entities=of(ENTITY)),
    COUNTER.map(lambda entry: alone("counter_entry", entry)),
    REGISTER.map(lambda entry: alone("register_entry", entry)),
    P4DATA.map(
        lambda data: alone("register_entry", sized(p4runtime_pb2.RegisterEntry.DATA_FIELD_NUMBER, data))
    ),
)


def by_protobuf(response: bytes) -> tuple[list[CounterCell], list[RegisterCell]]:
    entities = p4runtime_pb2.ReadResponse.FromString(response).entities
    counters = [one.counter_entry for one in entities if one.HasField("counter_entry")]
    registers = [one.register_entry for one in entities if one.HasField("register_entry")]
    return (
        [
            CounterCell(one.counter_id, one.index.index, one.data.packet_count, one.data.byte_count)
            for one in counters
        ],
        [RegisterCell(one.register_id, one.index.index, one.data.bitstring) for one in registers],
    )


def decoded(response: bytes) -> tuple[list[CounterCell], list[RegisterCell]]:
    return counter_cells(response), register_cells(response)


@given(RESPONSE)
def test_any_response_has_the_cells_that_protobuf_finds(response: bytes) -> None:
    assert decoded(response) == by_protobuf(response)


@given(
    st.lists(
        st.tuples(
            st.integers(0, (1 << 32) - 1),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.binary(max_size=300),
        )
    )
)
def test_what_a_switch_encodes_is_found(cells: list[tuple[int, int, int, int, bytes]]) -> None:
    response = p4runtime_pb2.ReadResponse()
    for number, index, packets, byte_count, value in cells:
        counter = response.entities.add().counter_entry
        counter.counter_id, counter.index.index = number, index
        counter.data.packet_count, counter.data.byte_count = packets, byte_count
        register = response.entities.add().register_entry
        register.register_id, register.index.index, register.data.bitstring = number, index, value
    assert decoded(response.SerializeToString()) == (
        [CounterCell(number, index, packets, byte_count) for number, index, packets, byte_count, _ in cells],
        [RegisterCell(number, index, value) for number, index, _, _, value in cells],
    )


@given(RESPONSE)
def test_a_response_that_is_cut_off_anywhere_is_refused_where_protobuf_refuses_it(response: bytes) -> None:
    for end in range(len(response)):
        cut = response[:end]
        try:
            expected = by_protobuf(cut)  # cut off between two entities
        except DecodeError:
            for decode in (counter_cells, register_cells):
                with pytest.raises(MalformedMessageError):
                    decode(cut)
        else:
            assert decoded(cut) == expected


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(response: bytes) -> None:
    for decode in (counter_cells, register_cells):
        with contextlib.suppress(MalformedMessageError):
            decode(response)


def in_counter(*contents: bytes) -> bytes:
    """A response with one counter entry."""
    return alone("counter_entry", b"".join(contents))


INDEX_7 = sized(p4runtime_pb2.CounterEntry.INDEX_FIELD_NUMBER, b"\x08\x07")
DATA = p4runtime_pb2.CounterEntry.DATA_FIELD_NUMBER


@pytest.mark.parametrize("number", LIMITS)
def test_a_number_is_cut_to_the_bits_of_its_field(number: int) -> None:
    encoded = varint(number)
    index, data = sized(2, b"\x08" + encoded), sized(DATA, b"\x08" + encoded + b"\x10" + encoded)
    response = in_counter(b"\x08" + encoded, index, data)
    signed = (number + (1 << 63)) % (1 << 64) - (1 << 63)
    assert counter_cells(response) == [CounterCell(number % (1 << 32), signed, signed, signed)]
    assert decoded(response) == by_protobuf(response)


def test_messages_of_the_same_field_are_merged() -> None:
    entry = p4runtime_pb2.Entity.COUNTER_ENTRY_FIELD_NUMBER
    first, second = b"\x08\x05" + INDEX_7 + sized(DATA, b"\x08\x09"), sized(DATA, b"\x10\x02")
    merged = [CounterCell(5, 7, packets=2, bytes=9)]
    for response in (in_counter(first, second), sized(1, sized(entry, first) + sized(entry, second))):
        assert by_protobuf(response)[0] == merged
        assert counter_cells(response) == merged


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (in_counter(b"\x08"), "a message ends within a number"),
        (in_counter(b"\x12\x05\x08\x01"), "a field ends after its message"),
        (in_counter(b"\x0d\x01\x02\x03"), "a field ends after its message"),
        (in_counter(INDEX_7, sized(DATA, b"\x08\xff")), "a message ends within a number"),
        (in_counter(sized(2, b"\x08" + b"\xff" * 10 + b"\x01")), "a number has more than 10 bytes"),
        (in_counter(b"\x02\x00"), "a field has the number 0"),
        (in_counter(b"\x0b\x0c"), "a field has the wire type 3"),
        (in_counter(b"\x0e"), "a field has the wire type 6"),
    ],
)
def test_a_malformed_cell_is_explained(response: bytes, why: str) -> None:
    with pytest.raises(MalformedMessageError, match=f"^not a ReadResponse: {why}$"):
        counter_cells(response)


class RawReads(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers each Read with bytes. requests: those that came."""

    def __init__(self, responses: list[bytes]) -> None:
        self.requests: list[p4runtime_pb2.ReadRequest] = []
        self._responses = responses

    def service(self, details: Any) -> Any:
        assert details.method == "/p4.v1.P4Runtime/Read"
        return grpc.unary_stream_rpc_method_handler(
            self._read, request_deserializer=p4runtime_pb2.ReadRequest.FromString
        )

    def _read(self, request: p4runtime_pb2.ReadRequest, context: Any) -> Iterator[bytes]:
        self.requests.append(request)
        yield from self._responses


Serve: TypeAlias = Callable[[list[bytes]], tuple[RawReads, grpc.Channel]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"unix:{tmp_path}/p4runtime"

    def start(responses: list[bytes]) -> tuple[RawReads, grpc.Channel]:
        reads = RawReads(responses)
        server.add_generic_rpc_handlers([reads])
        server.add_insecure_port(address)
        server.start()
        return reads, channel

    with grpc.insecure_channel(address) as channel:
        yield start
    server.stop(None).wait()


def test_the_cells_of_several_responses_come_in_order(serve: Serve) -> None:
    reads, channel = serve([in_counter(INDEX_7) * 2, b"", in_counter(b"\x08\x05")])
    entries = [p4runtime_pb2.CounterEntry(counter_id=number) for number in (5, 6)]
    assert list(read_counters(channel, 3, entries, timeout=10)) == [
        CounterCell(0, 7, 0, 0),
        CounterCell(0, 7, 0, 0),
        CounterCell(5, 0, 0, 0),
    ]
    entities = [p4runtime_pb2.Entity(counter_entry=entry) for entry in entries]
    assert reads.requests == [p4runtime_pb2.ReadRequest(device_id=3, entities=entities)]


def test_a_malformed_response_ends_the_read(serve: Serve) -> None:
    _, channel = serve([b"\x0a\x05"])
    with pytest.raises(grpc.RpcError) as caught:
        list(read_registers(channel, 1, [p4runtime_pb2.RegisterEntry()], timeout=10))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
