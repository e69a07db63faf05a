"""One rank of `inagg bench allreduce`: all backends in turn, in rounds, in one process.

Rounds (gloo, inagg:32, inagg:16, gloo, ...) rather than one backend after the other: what else the machine does
then hits all of them alike. One iteration: new inputs, a barrier over gloo, the clock, all_reduce, the clock,
the check.
"""

import argparse
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from inagg_testbed.allreduce_check import Expectation, contribution
from inagg_testbed.bench_plan import BackendSpec, Plan
from inagg_testbed.events import EventLog, retransmitted_segments


@dataclass
class Contestant:
    """A backend with its process group and its own count of packets sent again."""

    spec: BackendSpec
    group: Any
    retransmits: Callable[[], int]


def open_group(spec: BackendSpec) -> Contestant:
    """A process group over all ranks."""
    if spec.name == "gloo":
        return Contestant(spec, dist.new_group(backend="gloo"), retransmitted_segments)
    import inagg

    options = inagg.Options.from_environment().model_copy(update={"lane_bits": spec.lane_bits})
    group = dist.new_group(backend="inagg", pg_options=options)
    return Contestant(spec, group, lambda: int(inagg.stats(group)["retransmits"]))


def run(plan: Plan, log: EventLog) -> None:
    """Everything after init_process_group."""
    contestants = [open_group(BackendSpec.parse(text)) for text in plan.backends]
    rank, workers = dist.get_rank(), dist.get_world_size()
    for elements in plan.elements:
        length = elements + plan.warmup + plan.iterations
        inputs = torch.from_numpy(contribution(plan.seed, rank, length))
        expectation = Expectation(plan.seed, workers, length)
        for index in range(-plan.warmup, plan.iterations):
            start = index + plan.warmup
            for contestant in contestants:
                values = inputs[start : start + elements].clone()
                measured = measure(contestant, values, expectation, start, plan.words)
                if index >= 0:
                    log.write(
                        "iteration", backend=str(contestant.spec), elements=elements, index=index, **measured
                    )


def measure(
    contestant: Contestant, values: torch.Tensor, expectation: Expectation, start: int, words: int
) -> dict[str, Any]:
    """One all-reduce, timed and checked."""
    dist.barrier()
    sent_again = contestant.retransmits()
    began = time.perf_counter()
    dist.all_reduce(values, group=contestant.group)
    seconds = time.perf_counter() - began
    result = values.numpy()
    found = expectation.compare(result, start, lane_bits=contestant.spec.lane_bits, words=words)
    wrong = found.wrong_index
    return {
        "digest": hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest(),
        "seconds": seconds,
        "retransmits": contestant.retransmits() - sent_again,
        "max_abs_error": found.max_abs_error if np.isfinite(found.max_abs_error) else None,
        "bound": found.bound,
        "wrong_index": wrong,
        "wrong_value": None if wrong is None else repr(float(result[wrong])),
        "exact_value": None if wrong is None else float(expectation.total[start + wrong]),
    }


def main() -> None:
    """Entry point: python -m inagg_testbed.bench_worker PLAN EVENTS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Plan.from_json)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run(arguments.plan, EventLog(arguments.events))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
