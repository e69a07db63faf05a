# SPDX-License-Identifier: Apache-2.0
"""Vectors that begin with a job's first chunk, as whole frames: on the switch model, and on BMv2 where it is installed.

BMv2 starts with empty registers, so vectors that begin with a later chunk do not run there.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from inagg_simulator import p4_switch
from inagg_switch.vectors.format import Cell, Packet, Replicas, Vectors
from inagg_switch.vectors.run import failures
from tests.conformance.vector_files import RECEIVERS, load, switches_above
from tests.switch import bmv2
from tests.switch.bmv2_vectors import run_config

FROM_CHUNK_0 = pytest.mark.parametrize("name", ["exchange_pair.json", "slots.json", "slots_leaf.json"])


def frames(document: dict[str, Any], multicast: bool) -> Vectors:
    """The job's entries, each datagram as the frame of its sender, and the frames that it leads to."""
    assert document["first_chunk"] == 0
    entries = p4_switch.Entries(
        **{name: document[name] for name in ("job", "workers", "slots", "epoch")},
        multicast=multicast,
        above=switches_above(document),
    )
    steps = document.get("steps") or [step for one in document["collectives"] for step in one["steps"]]
    return Vectors(
        inserts=entries.inserts(),
        groups=[Replicas(number=entries.group, replicas=entries.replicas())],
        packets=[packet(entries, step) for step in steps],
        counters=[
            Cell(name="result_sent", index=rank + 1, values=sent(entries, steps, rank))
            for rank in range(entries.workers)
        ],
    )


def packet(entries: p4_switch.Entries, step: dict[str, Any]) -> Packet:
    rank, datagram = step["rank"], bytes.fromhex(step["datagram"])
    alone = not p4_switch.TO_ONE.isdisjoint(step.get("counters", ()))
    port, frame = entries.from_above(datagram) if rank is None else entries.from_member(rank, datagram)
    expected = [
        (to["rank"] + 1, entries.frame(to["rank"], bytes.fromhex(to["datagram"]), again=alone))
        for to in step["results"]
    ]
    expected += [
        (entries.above[to["parent"]].port, entries.frame_up(to["parent"], bytes.fromhex(to["datagram"])))
        for to in step.get("partials", ())
    ]
    return Packet(port=port, frame=frame, expected=expected)


def sent(entries: p4_switch.Entries, steps: list[dict[str, Any]], rank: int) -> tuple[int, int]:
    """Packets and bytes that leave to a worker, which is alone behind its port."""
    sizes = [
        len(frame) for step in steps for port, frame in packet(entries, step).expected if port == rank + 1
    ]
    return len(sizes), sum(sizes)


@RECEIVERS
@FROM_CHUNK_0
def test_on_the_model(name: str, multicast: bool) -> None:
    document = load(name)
    with p4_switch.load(document["words"]) as program:
        assert list(failures(program, frames(document, multicast))) == []


@pytest.mark.bmv2
@pytest.mark.skipif(not bmv2.available(), reason="p4c, simple_switch or libnanomsg is missing")
@RECEIVERS
@FROM_CHUNK_0
def test_on_bmv2(name: str, multicast: bool) -> None:
    document = load(name)
    vectors = frames(document, multicast)
    with p4_switch.load(document["words"]) as program:
        info = program.layout
    with tempfile.TemporaryDirectory(prefix="inagg-bmv2-") as folder:
        config = bmv2.compile_p4(p4_switch.P4, Path(folder), [f"-DWORDS={document['words']}"])
        # Each port of BMv2 has a thread, so the copies of one packet leave in any order.
        for wanted, out in zip(vectors.packets, run_config(config, info, vectors), strict=True):
            assert sorted(out) == sorted(wanted.expected)
