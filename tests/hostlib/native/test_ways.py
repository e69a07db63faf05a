# SPDX-License-Identifier: Apache-2.0
"""How a job's chunks are divided among roots and servers: the core and the contract agree (docs/protocol.md, 5.5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg._core import Engine, ServedJob
from inagg_contract.constants import WORD_BYTES
from inagg_contract.sizes import run_chunks, way_of
from inagg_simulator import reference
from inagg_simulator.virtual_network import EPOCH, JOB, make_shape

WORDS = 1


@given(
    slots=st.integers(0, 7).map(lambda power: 1 << power),
    share=st.floats(0, 1),
    relayed=st.booleans(),
    first=st.integers(0, 1 << 32),
)
def test_chunks_in_a_row_go_one_way_and_each_has_its_own_place(
    slots: int, share: float, relayed: bool, first: int
) -> None:
    servers = 1 + int(share * (min(slots, 64) - 1))
    first -= first % (2 * slots)
    shape = make_shape(1, slots=slots, words=WORDS, first_chunk=first % 2**32)
    made = [ServedJob(shape, servers=servers, index=index, relayed=relayed) for index in range(servers)]
    ways = [way_of(chunk, slots, servers) for chunk in range(2 * slots)]
    assert ways[slots:] == ways[:slots]
    counts = [ways[:slots].count(way) for way in range(servers)]
    if servers.bit_count() == 1:
        assert len(set(counts)) == 1
    else:
        run = run_chunks(slots, servers)
        assert max(counts) - min(counts) <= run <= max(1, max(counts) // 8)
    for offset, way in enumerate(ways):
        chunk = (first + offset) % 2**32
        header = reference.contribution(
            kind=reference.DATA, rank=0, job=JOB, epoch=EPOCH, chunk=chunk
        ).encode()
        words = bytes(WORD_BYTES * WORDS)
        packet = header + (1).to_bytes(8, "big") + words if relayed else header + words
        assert made[way].receive(packet, None if relayed else 0)
        for index, server in enumerate(made):
            if index != way:
                assert not server.receive(packet, None if relayed else 0)
    for offset, way in enumerate(ways):
        version = made[way].held((first + offset) % 2**32)
        assert version is not None
        assert version["chunk"] == (first + offset) % 2**32


@pytest.mark.parametrize(
    ("slots", "ways", "run"),
    [
        (1024, 2, 32),
        (128, 8, 16),
        (256, 4, 32),
        (8, 8, 1),
        (4, 2, 2),
        (2, 2, 1),
        (1, 1, 1),
        (1024, 3, 32),
        (128, 3, 4),
        (4, 3, 1),
    ],
)
def test_runs_are_as_long_as_the_protocol_says(slots: int, ways: int, run: int) -> None:
    assert run_chunks(slots, ways) == run


def test_a_number_of_ways_beyond_all_bounds_is_refused() -> None:
    for ways in (0, 129, 1 << 31):
        with pytest.raises(ValueError, match="roots or servers"):
            Engine(make_shape(1, slots=64, words=WORDS), rank=0, ways=ways, ways_apart=True)
