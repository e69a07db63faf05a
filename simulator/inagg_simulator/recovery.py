# SPDX-License-Identifier: Apache-2.0
"""What losses cost with many workers, in virtual time.

python -m inagg_simulator.recovery --tree 64 --tree 2x4 --loss 0.2

All links, those between switches too, have 100 Mbit/s each way, with 1 ms each way and queues of 256 packets. The
workers sum a tensor of 2,000 blocks with 256 slots. On each link each packet is lost with the given probability, each
way.
"""

import math
import random
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from inagg_simulator.fabric import Place, TreeFabric, nested, places
from inagg_simulator.reference_switch import Aggregator
from inagg_simulator.virtual_network import Impairment, Network, all_reduce, make_aggregator, make_workers

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


def aggregator(place: Place) -> Aggregator:
    return make_aggregator(len(place.members), slots=SLOTS, words=WORDS, above=place.above)


def measure(tree: str, loss: float, blocks: int = 2000, seed: int = 1) -> Cost:
    """Do one sum, and check it. tree: 8, workers on one switch; 2x4, racks and workers; and so on.

    AssertionError if the sum is wrong.
    """
    sizes = [int(size) for size in tree.split("x")]
    workers = math.prod(sizes)
    fabric = TreeFabric(places(nested(*sizes)), aggregator)
    engines = make_workers(workers, slots=SLOTS, words=WORDS, members=fabric.members)
    network = Network(engines, fabric, replace(LINK, loss=loss), random.Random(seed))
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
    tree: Annotated[list[str], typer.Option(default_factory=lambda: ["8", "16", "64", "2x4", "2x2x2"])],
    loss: Annotated[list[float], typer.Option(default_factory=lambda: [0.05, 0.2])],
    blocks: int = 2000,
    seed: int = 1,
) -> None:
    """Print the time as a multiple of the lossless time, and what each worker sends for a chunk."""
    table = Table("tree", "loss each way", "time", "contributions", "queries", "bytes")
    for shape in tree:
        lossless = measure(shape, 0.0, blocks, seed)
        for probability in loss:
            cost = measure(shape, probability, blocks, seed)
            table.add_row(
                shape,
                f"{probability:.0%}",
                f"{cost.seconds / lossless.seconds:.2f}x",
                f"{cost.contributions:.2f}",
                f"{cost.queries:.2f}",
                f"{cost.sent_bytes / lossless.sent_bytes:.2f}x",
            )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
