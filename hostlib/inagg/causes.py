# SPDX-License-Identifier: Apache-2.0
"""What can limit a training, the thresholds from which on a cause counts, and what to change. Without torch.

`inagg.explanation` finds the causes in the figures of one rank's group, `inagg_testbed.compare` in those of a whole
training, of which it knows more: what the program computes, the links of all hosts, the switch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Below this share of the time a cause is not worth a line.
WORTH_SAYING = 0.05
# From this gain on a change pays.
PAYS = 1.1
# From this share of packets that are sent again on, loss counts.
LOSSY = 0.002
# From this share of the packets sent again on, drops in the queues of links are their reason.
OVERFLOWS = 0.5
# A machine whose processors are idle for a smaller share of the time is busy.
BUSY = 0.1


@dataclass(frozen=True)
class Cause:
    """meaning: of the time that it takes. remedy: sentences."""

    meaning: str
    remedy: str


# What a rank's group can tell, in its own figures.
OF_GROUP: Mapping[str, Cause] = {
    "program": Cause(
        "no collective was in progress",
        "Sums do not limit this program. Profile computation and data loading, with torch.profiler.",
    ),
    "gloo": Cause(
        "collectives that gloo does",
        "Only sums go through the switch (docs/backend.md has the table); the figure calls lists the others.",
    ),
    "ranks": Cause(
        "waiting for other ranks to begin a sum",
        "Find out why the last rank is late: it has more data, or a slower or busier machine.",
    ),
    "loss": Cause(
        "retransmissions, and silence before them",
        "Find where packets are dropped: counters of the switch or the servers, ip -s link, queues of the ports. "
        "Use fewer slots if a queue overflows.",
    ),
    "processors": Cause(
        "the packet thread ran, or waited for a processor",
        "Compute with fewer threads. Give the packet thread its own processor (option cpus), or use jumbo frames.",
    ),
    "link": Cause("the link of this host carried results at its rate", "Use a faster link."),
    "switch": Cause(
        "results came more slowly than the link could carry them",
        "Look at the load of the switch or the servers, their other links, and workers that send or receive slowly.",
    ),
    "slots": Cause(
        "the window was at its limit while the path was not full",
        "Ask for more slots; if fewer were granted, other jobs have them.",
    ),
    "receive buffer": Cause(
        "the window was at the limit that the kernel's receive buffer sets",
        "Raise net.core.rmem_max to receive_buffer_wanted_bytes or more.",
    ),
    "latency": Cause(
        "round trips: everything that could be sent was in flight",
        "Sum fewer and larger tensors (DDP's bucket_cap_mb), or several at once (async_op=True).",
    ),
    "device": Cause(
        "waiting for the GPU to scan and pack",
        "The GPU is busy with other kernels, or the bus with other copies; a profiler trace shows which.",
    ),
}

# What only the measurement of a whole training can tell.
OF_TRAINING: Mapping[str, Cause] = {
    "computation": Cause(
        "the program's thread ran",
        "A faster network cannot help. A faster processor, a smaller model or a smaller batch does.",
    ),
    "data loading": Cause(
        "the program slept in data loaders",
        "Use more loader processes, or bring the data closer to the ranks.",
    ),
    "queue": Cause(
        "retransmissions, because a queue of a link overflowed",
        "Lengthen the queue of the port that drops packets, or send less at once: fewer slots.",
    ),
    "other": Cause(
        "the program slept for an unknown reason",
        "Look for files, locks and other programs: the network does not explain this time.",
    ),
}

CAUSES: Mapping[str, Cause] = {**OF_GROUP, **OF_TRAINING}


def gain(share: float) -> float:
    """Amdahl's law: how much faster a program is without a share of its time, at most 100 times."""
    return 1 / max(1 - share, 0.01)


def promise(at_most: float) -> str:
    """A sentence on the gain of sums that cost nothing, which no network exceeds."""
    said = f"with sums that cost nothing the program is at most {at_most:.2f}x as fast"
    return f"in-network aggregation will not help: {said}" if at_most < PAYS else said
