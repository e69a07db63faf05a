# SPDX-License-Identifier: Apache-2.0
"""Writes a load for `inagg-switch bench` and p4/inagg.p4, as packet vectors: what the workers of a job send.

    python -m tests.bench.switch_load 4 >p4/bench/four_workers.vectors
    python -m tests.bench.switch_load 16 --words 8 >sixteen.vectors
    inagg-switch bench -D WORDS=8 p4/inagg.p4 --load sixteen.vectors

Each worker sends a run of DATA contributions, as in a datagram of 64 KiB (UDP_SEGMENT). The last worker's complete the
chunks. Results go to the job's multicast address.
"""

import argparse
from collections.abc import Iterator

from inagg_switch import Switch
from inagg_switch.vectors.format import Bench, Insert, Packet, Replicas, Vectors
from inagg_switch.vectors.run import lines_of, set_up
from tests import INAGG_P4
from tests.switch.inagg.packets import ALL_RANKS, HEADER_BYTES, INAGG_PORT, WORD_BYTES, Job

WORDS = 4  # of the program as it is
RUN = 62  # chunks of 1 KiB in 64 KiB
_CHUNK_OFFSET = HEADER_BYTES - 8
_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# What the {workers} workers of a job send to p4/inagg.p4: runs of {run} DATA contributions.
# Every lane of rank r is r + 1.
#
#   inagg-switch bench{define} p4/inagg.p4 --load FILE     packets a second
#   inagg-switch test{define} p4/inagg.p4 FILE             the sums of the first chunk
#
# Written by: python -m tests.bench.switch_load {workers}{words}
"""


def load(workers: int, words: int = WORDS) -> Iterator[str]:
    """The lines of the file. A packet of each worker contributes to chunk 0; the last one leads to the sums."""
    job = Job(workers, number=1, slots=1024, multicast=True)
    ports = range(1, workers + 1)
    address = {"mac": job.group_mac, "ip": job.group_ip, "udp_port": INAGG_PORT}
    vectors = Vectors(
        inserts=[Insert("receiver", {"job": job.number, "rank": ALL_RANKS}, "deliver", address)],
        groups=[Replicas(job.group, [(port, ALL_RANKS + 1) for port in ports])],
        bench=Bench(_CHUNK_OFFSET, RUN),
    )
    for rank in range(workers):
        vectors.inserts.append(Insert("admission", {**job.key(rank)}, "admit", job.admission(rank)))
        lanes = (rank + 1).to_bytes(4, "big") * (WORD_BYTES // 4)
        frame = job.data(
            rank, 0, [int.from_bytes(lanes, "big")] * words, checksum=words * (rank + 1) * len(lanes) // 4
        )
        vectors.packets.append(Packet(job.port(rank), frame))
    with Switch.from_p4(INAGG_P4, {"WORDS": str(words)}) as program:
        set_up(program, vectors)
        for packet in vectors.packets:
            packet.expected = program.process(packet.port, packet.frame)
        default = words == WORDS
        yield from _HEADER.format(
            workers=workers,
            run=RUN,
            define="" if default else f" -D WORDS={words}",
            words="" if default else f" --words {words}",
        ).splitlines()
        yield ""
        yield from lines_of(vectors, program.p4info)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.switch_load")
    parser.add_argument("workers", type=int, choices=range(1, 65), metavar="WORKERS", help="1 to 64")
    parser.add_argument("--words", type=int, default=WORDS, help="of the program")
    arguments = parser.parse_args()
    print(*load(arguments.workers, arguments.words), sep="\n")


if __name__ == "__main__":
    main()
