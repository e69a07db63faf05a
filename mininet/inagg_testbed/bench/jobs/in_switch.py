# SPDX-License-Identifier: Apache-2.0
"""Which share of a job's chunks a switch has summed as a whole.

With leased slots that is all of them, with servers alone or gloo none. Jobs on shared slots: what the switch counts at
the ports of the job's hosts, over the chunks of its all-reduces. What the switch has summed in part does not count.
"""

import math
from collections import Counter
from collections.abc import Mapping

from inagg_contract.constants import WORD_BYTES
from inagg_contract.documents import Counters, JobStatus

_LANE_BYTES = 4
_COMBINED = (
    "slot_combined"  # docs/counters.md; a chunk's last contribution, which comes from one of the job's hosts
)


def combined_at(counters: Counters) -> Mapping[int, int]:
    """Chunks that the only switch has summed as a whole in shared slots, by the port of the last contribution."""
    (switch,) = counters.values()
    return Counter({port: count.packets for port, count in switch.get(_COMBINED, {}).items()})


def share_in_switch(status: JobStatus | None, combined: int, sums: int, elements: int) -> float:
    """The share of a job's chunks. status: None for gloo. combined: its chunks by `combined_at`, in `sums` sums."""
    if status is None or status.aggregation == "server":
        return 0.0
    if status.aggregation == "leased":
        return 1.0
    return combined / (sums * math.ceil(elements * _LANE_BYTES / (status.words * WORD_BYTES)))
