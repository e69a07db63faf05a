# SPDX-License-Identifier: Apache-2.0
"""What losses cost with many workers, in virtual time: python -m tests.bench.recovery --workers 64 --loss 0.2

All workers are on one switch, by links of 100 Mbit/s each way, with 1 ms each way and queues of 256 packets. They sum a
tensor of 2,000 blocks with 256 slots. Each packet is lost with the given probability, in each direction.
"""

from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tests.conformance.virtual_network import Impairment, all_reduce, make_network

WORDS = 4
SLOTS = 256
PACKET_BYTES = 20 + 256 * WORDS
LINK = Impairment(delay=0.001, rate=100e6 / 8, queue=256 * PACKET_BYTES)


class Cost(NamedTuple):
    """A whole sum. By chunk and worker: contributions, queries, and bytes of UDP payload sent."""

    seconds: float
    contributions: float
    queries: float
    sent_bytes: float


def measure(workers: int, loss: float, blocks: int = 2000, seed: int = 1) -> Cost:
    """Do one sum, and check it. AssertionError if it is wrong."""
    network = make_network(workers, slots=SLOTS, words=WORDS, impairment=replace(LINK, loss=loss), seed=seed)
    inputs = np.ones((workers, blocks * 64 * WORDS), np.float32)
    for output in all_reduce(network, inputs, within=600.0):
        assert np.all(output == workers)
    stats = [engine.stats for engine in network.engines]
    sent = workers * stats[0]["chunks_completed"]
    packets, queries = (sum(one[name] for one in stats) for name in ("packets_sent", "queries"))
    return Cost(
        seconds=network.now,
        contributions=(packets - queries) / sent,
        queries=queries / sent,
        sent_bytes=sum(one["bytes_sent"] for one in stats) / sent,
    )


def main(
    workers: Annotated[list[int], typer.Option(default_factory=lambda: [8, 16, 64])],
    loss: Annotated[list[float], typer.Option(default_factory=lambda: [0.05, 0.2])],
    blocks: int = 2000,
    seed: int = 1,
) -> None:
    """Print the time as a multiple of the lossless time, and what each worker sends for a chunk."""
    table = Table("workers", "loss each way", "time", "contributions", "queries", "bytes")
    for number in workers:
        lossless = measure(number, 0.0, blocks, seed)
        for probability in loss:
            cost = measure(number, probability, blocks, seed)
            table.add_row(
                str(number),
                f"{probability:.0%}",
                f"{cost.seconds / lossless.seconds:.2f}x",
                f"{cost.contributions:.2f}",
                f"{cost.queries:.2f}",
                f"{cost.sent_bytes / lossless.sent_bytes:.2f}x",
            )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
