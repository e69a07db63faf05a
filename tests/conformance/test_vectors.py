# SPDX-License-Identifier: Apache-2.0
"""The C++ core, the P4 program and scapy produce the byte vectors (`vectors/`)."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from inagg import _core
from inagg_simulator import p4_switch, reference
from inagg_simulator.reference_switch import Up
from inagg_simulator.servers import Servers, make_servers
from inagg_switch import Switch
from inagg_wire.layers import KINDS, Inagg
from tests.conformance import make_vectors
from tests.conformance.vector_files import RECEIVERS, VECTORS, load, switches_above

WRAPS = "a word wraps and carries nowhere"
EXCHANGES = ["exchange_pair.json", "exchange_queued.json", "exchange_specials.json", "exchange_wide.json"]


def array(bits: list[str]) -> NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex("".join(bits)), ">f4").astype(np.float32)


def bits(values: NDArray[np.float32]) -> list[str]:
    return [
        "7fc00000" if math.isnan(x) else int(u).to_bytes(4, "big").hex()
        for x, u in zip(values, values.view(np.uint32), strict=True)
    ]


BLOCKS = load("blocks.json")["blocks"]


@pytest.mark.parametrize("name", make_vectors.FILES)
def test_the_files_are_what_the_reference_says(name: str) -> None:
    assert (VECTORS / name).read_text() == make_vectors.text(make_vectors.FILES[name])


@pytest.mark.parametrize("vector", BLOCKS, ids=lambda vector: vector["name"])
def test_the_core_packs_blocks(vector: dict[str, Any]) -> None:
    lanes = {"lane_bits": vector["lane_bits"], "workers": vector["workers"]}
    block = array(vector["block"])
    found = _core.block_exponent(block, **lanes)
    assert (found.code, found.special, found.wide) == (
        vector["exponent"],
        vector["special"],
        vector["wide"],
    )
    packed = _core.quantise(block, exponent=vector["exponent"], words=1, **lanes)
    assert (packed[0].hex(), packed[1]) == (vector["words"], vector["checksum"])
    classes = _core.class_lanes(block, words=len(vector["class_words"]) // 512, **lanes)
    assert (classes[0].hex(), classes[1]) == (vector["class_words"], vector["class_checksum"])
    apart, finite = array(vector["outliers"]), _core.CONSTANTS["GREATEST_FINITE"]
    assert _core.exponent_within(apart, finite, **lanes) == vector["outlier_exponent"]
    words, _ = _core.quantise(apart, limit=finite, exponent=vector["outlier_exponent"], words=1, **lanes)
    assert words.hex() == vector["outlier_words"]


@pytest.mark.parametrize("result", ["sum", "average"])
@pytest.mark.parametrize("vector", BLOCKS, ids=lambda vector: vector["name"])
def test_the_core_unpacks_sums(vector: dict[str, Any], result: str) -> None:
    lanes = {"lane_bits": vector["lane_bits"], "workers": vector["workers"]}
    block, checksum = _core.dequantise(
        bytes.fromhex(vector["summed_words"]),
        elements=len(vector["block"]),
        exponent=vector["exponent"],
        average=result == "average",
        **lanes,
    )
    assert checksum == vector["checksum"] * vector["workers"] % 2**32
    _core.add_outliers(
        block,
        bytes.fromhex(vector["summed_words"]),
        exponent=vector["exponent"],
        outlier_words=bytes.fromhex(vector["summed_outlier_words"]),
        outlier_exponent=vector["outlier_exponent"],
        average=result == "average",
        **lanes,
    )
    checksum = _core.apply_classes(block, bytes.fromhex(vector["summed_class_words"]), **lanes)
    assert checksum == vector["class_checksum"] * vector["workers"]
    assert bits(block) == vector[result]


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_core_sends_these_packets_for_these_results(name: str) -> None:
    vectors = load(name)
    shape = {name: vectors[name] for name in ("workers", "epoch", "slots", "words", "first_chunk")}
    job = _core.JobShape(number=vectors["job"], **shape)
    engines = [_core.Engine(job, rank=rank) for rank in range(vectors["workers"])]
    outputs = [[array(own) for own in collective["inputs"]] for collective in vectors["collectives"]]

    def submit(index: int) -> None:
        collective = vectors["collectives"][index]
        for engine, output in zip(engines, outputs[index], strict=True):
            engine.submit(output, lane_bits=collective["lane_bits"], average=collective["average"])

    if vectors["queued"]:
        for index in range(len(outputs)):
            submit(index)
    sent: list[list[bytes]] = [[] for _ in engines]
    for index, collective in enumerate(vectors["collectives"]):
        if not vectors["queued"]:
            submit(index)
        for step in collective["steps"]:
            for own, engine in zip(sent, engines, strict=True):
                own += engine.to_send(0.0)
            assert sent[step["rank"]].pop(0).hex() == step["datagram"]
            for result in step["results"]:
                engines[result["rank"]].receive(bytes.fromhex(result["datagram"]), 0.0)
        for engine, output in zip(engines, outputs[index], strict=True):
            assert index + 1 in engine.completed()
            assert bits(output) == collective["output"]


def on_the_program(
    program: Switch, vectors: dict[str, Any], base: int, multicast: bool
) -> p4_switch.P4Switch:
    """The job of the vectors."""
    entries = p4_switch.Entries(
        job=vectors["job"],
        workers=vectors["workers"],
        slots=vectors["slots"],
        epoch=vectors["epoch"],
        base=base,
        first_chunk=vectors["first_chunk"],
        multicast=multicast,
        above=switches_above(vectors),
    )
    return p4_switch.P4Switch(program, entries)


def written(sent: Sequence[tuple[int | Up, bytes]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Results and partial sums, as the vectors have them."""
    return (
        [{"rank": to, "datagram": left.hex()} for to, left in sent if not isinstance(to, Up)],
        [{"parent": to.parent, "datagram": left.hex()} for to, left in sent if isinstance(to, Up)],
    )


@RECEIVERS
@pytest.mark.parametrize("name", EXCHANGES)
def test_the_p4_program_gives_these_results(name: str, multicast: bool) -> None:
    vectors = load(name)
    with p4_switch.load(vectors["words"]) as program:
        switch = on_the_program(program, vectors, 64, multicast)
        for collective in vectors["collectives"]:
            for step in collective["steps"]:
                results = switch.process(step["rank"], bytes.fromhex(step["datagram"]))
                assert [{"rank": rank, "datagram": result.hex()} for rank, result in results] == step[
                    "results"
                ]


@pytest.mark.parametrize("name", ["slots.json", "slots_leaf.json", "slots_wrap.json"])
@pytest.mark.parametrize("base", [0, 64])
@RECEIVERS
def test_the_p4_program_decides_by_the_table(multicast: bool, base: int, name: str) -> None:
    vectors = load(name)
    with p4_switch.load(vectors["words"]) as program:
        switch = on_the_program(program, vectors, base, multicast)
        for step in vectors["steps"]:
            before = switch.counters.copy()
            datagram = bytes.fromhex(step["datagram"])
            sent = (
                switch.result(datagram) if step["rank"] is None else switch.contribute(step["rank"], datagram)
            )
            assert written(sent) == (step["results"], step.get("partials", [])), step["meaning"]
            assert switch.counters - before == Counter(step["counters"]), step["meaning"]


def on_a_server(vectors: dict[str, Any]) -> Servers:
    """The job of the vectors."""
    (served,) = make_servers(
        1,
        job=vectors["job"],
        epoch=vectors["epoch"],
        slots=vectors["slots"],
        words=vectors["words"],
        workers=vectors["workers"],
        first_chunk=vectors["first_chunk"],
    )
    return Servers([served], vectors["slots"], vectors["workers"])


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_server_gives_these_results(name: str) -> None:
    vectors = load(name)
    server = on_a_server(vectors)
    for collective in vectors["collectives"]:
        for step in collective["steps"]:
            results = server.process(step["rank"], bytes.fromhex(step["datagram"]))
            assert written(results)[0] == step["results"]


@pytest.mark.parametrize("name", ["slots.json", "slots_wrap.json"])
def test_a_server_decides_by_the_table(name: str) -> None:
    vectors = load(name)
    server = on_a_server(vectors)
    for step in vectors["steps"]:
        before = server.counters
        sent, expected = server.process(step["rank"], bytes.fromhex(step["datagram"])), step["results"]
        if step["meaning"] == WRAPS:
            # A server adds 64 bits at a time, so here it carries elsewhere; a lane that carries is an error anyway.
            sent = [(to, left[: reference.HEADER.size]) for to, left in sent]
            expected = [
                result | {"datagram": result["datagram"][: 2 * reference.HEADER.size]} for result in expected
            ]
        assert written(sent)[0] == expected, step["meaning"]
        assert server.counters - before == Counter(step["counters"]), step["meaning"]


def every_datagram() -> list[str]:
    steps = [
        step for name in EXCHANGES for collective in load(name)["collectives"] for step in collective["steps"]
    ]
    return [step["datagram"] for step in steps] + [
        result["datagram"] for step in steps for result in step["results"]
    ]


def test_the_core_and_the_scapy_layer_read_headers_alike() -> None:
    for datagram in map(bytes.fromhex, every_datagram()):
        core, scapy, plain = _core.Header.decode(datagram), Inagg(datagram), reference.decode(datagram)
        for field in reference.Header._fields[1:]:
            assert int(getattr(core, field)) == int(getattr(scapy, field)) == getattr(plain, field)
        assert core.encode() == datagram[:20]
        assert bytes(scapy) == datagram


def test_scapy_builds_and_dissects_whole_frames() -> None:
    step = load("exchange_pair.json")["collectives"][0]["steps"][-1]
    datagram = bytes.fromhex(step["datagram"])
    frame = p4_switch.contribution_headers(step["rank"], len(datagram)) + datagram
    packet = Ether(frame)
    assert packet[UDP].dport == _core.CONSTANTS["INAGG_PORT"]
    assert KINDS[packet[Inagg].kind] == "DATA"
    assert len(packet[Raw].load) == 4 * _core.CONSTANTS["WORD_BYTES"]
    built = (
        Inagg(
            kind=2,
            job=3,
            rank=1,
            flags=2,
            flags_check=2,
            epoch=0x01020304,
            chunk=3,
            checksum=packet[Inagg].checksum,
        )
        / packet[Raw].load
    )
    assert bytes(built) == datagram
