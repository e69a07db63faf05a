# SPDX-License-Identifier: Apache-2.0
"""One rank of `inagg bench allreduce`: runs all backends in turn, in rounds, in one process.

In rounds (gloo, inagg:32, inagg:16, gloo, ...) other load on the machine affects all backends alike. One iteration is:
new inputs, a barrier over gloo, start the clock, all_reduce, stop the clock, a barrier, the check. Ranks beyond a
case's workers sleep in a barrier. All lane widths of a way of summing share one inagg group, so that each rank has one
heartbeat for it; between collectives the group is idle.
"""

import argparse
import hashlib
import os
import time
from collections import Counter
from collections.abc import Sequence, Set
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import inagg
from inagg.membership.control import ControlClient
from inagg_baselines.catalog import BASELINES
from inagg_baselines.collectives import make
from inagg_testbed.bench.allreduce_check import Expectation, Float32, fill, one_period, window
from inagg_testbed.bench.busiest_link import HostLinks, busiest
from inagg_testbed.bench.cpu import cpu_seconds
from inagg_testbed.bench.element_types import ELEMENT_TYPES
from inagg_testbed.bench.plan import SUMMING, BackendSpec, Plan
from inagg_testbed.bench.theory import racks_of
from inagg_testbed.events import EventLog, sent_segments

CARRIED = ("packets_sent", "packets_received", "messages_sent", "messages_received")
TRANSPORT_FIGURES = ("window", "least_rtt_s", "srtt_s", "rto_s")


class Groups:
    """The process groups of the first `workers` ranks: gloo, and what else the backends of its cases need."""

    def __init__(self, workers: int, racks: Sequence[Sequence[int]], backends: Set[str]) -> None:
        ranks = list(range(workers))
        self.gloo: Any = dist.new_group(ranks, backend="gloo")
        specs = [BackendSpec.parse(backend) for backend in sorted(backends)]
        # All ranks make the groups in the same order.
        self._baselines = {
            spec.name: make(BASELINES[spec.name], self.gloo, racks_of(workers, racks))
            for spec in specs
            if spec.lane_bits is None
        }
        summing = {spec.name for spec in specs if spec.lane_bits is not None}
        self.inagg: dict[str, Any] = {
            name: dist.new_group(ranks, backend="inagg", pg_options=inagg.Options(**SUMMING[name].options))
            for name in sorted(summing)
        }
        self.member = dist.get_rank() < workers

    def close(self) -> None:
        """Leave the jobs."""
        for group in self.inagg.values() if self.member else ():
            dist.destroy_process_group(group)

    def of(self, spec: BackendSpec) -> Any:
        """The inagg group of a backend, with the backend's lane width set for all float types."""
        # The constructor validates the value; model_copy does not.
        group = self.inagg[spec.name]
        settings = group.options.model_dump() | dict.fromkeys(("lane_bits", "half_lane_bits"), spec.lane_bits)
        group.options = type(group.options)(**settings)
        return group

    def all_reduce(self, spec: BackendSpec, tensors: Sequence[torch.Tensor]) -> None:
        """Sum each tensor with a backend."""
        if (baseline := self._baselines.get(spec.name)) is not None:
            for tensor in tensors:
                baseline(tensor)
            return
        group = self.of(spec)
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)

    def sent(self, spec: BackendSpec) -> tuple[int, int]:
        """Packets that a backend has sent so far: (all, retransmitted ones); TCP segments for gloo."""
        if spec.lane_bits is None:
            return sent_segments()
        stats = inagg.stats(self.inagg[spec.name])
        return stats["packets_sent"], stats["retransmits"]

    def carried(self, spec: BackendSpec) -> Counter[str]:
        """Packets and messages that inagg's transport has sent and received so far; empty for gloo."""
        if spec.lane_bits is None:
            return Counter()
        stats = inagg.stats(self.inagg[spec.name])
        return Counter({name: stats[name] for name in CARRIED})

    def chunks(self, spec: BackendSpec) -> dict[str, int]:
        """Chunks that the server in this process has completed, by where they were summed; empty without one."""
        group = self.inagg.get(spec.name)
        return (None if group is None else inagg.stats(group)["server_chunks"]) or {}

    def transport(self, spec: BackendSpec) -> dict[str, float] | None:
        """Current figures of inagg's transport; None for gloo."""
        if spec.lane_bits is None:
            return None
        stats = inagg.stats(self.inagg[spec.name])
        return {name: stats[name] for name in TRANSPORT_FIGURES if name in stats}


class LossControl:
    """Sets the injected loss between iterations, on rank 0 only. ports: switch and number of a port at each link.
    token_file: has the operator's token."""

    def __init__(self, ports: Sequence[tuple[str, int]], token_file: str | None) -> None:
        self._ports = ports
        self._token_file = token_file
        self._now = 0.0

    def set(self, probability: float) -> None:
        """Set the loss of aggregation packets on every link, in each direction."""
        if probability == self._now or dist.get_rank() != 0:
            return
        token = Path(self._token_file).read_text().strip() if self._token_file is not None else None
        with ControlClient(os.environ["INAGG_CONTROLLER"], token=token) as client:
            for switch, port in self._ports:
                for direction in ("ingress", "egress"):
                    client.set_loss(port, direction, probability, "aggregation", switch=switch)
        self._now = probability


class CaseRunner:
    """Runs one case on existing groups. expectation: only on rank 0, which checks the sums."""

    def __init__(
        self, plan: Plan, number: int, groups: Groups, inputs: Float32, expectation: Expectation | None
    ) -> None:
        self.plan, self.number, self.case = plan, number, plan.cases[number]
        self._groups, self._inputs, self._expectation = groups, inputs, expectation
        dtype = getattr(torch, self.case.dtype)
        self._tensors = [torch.empty(self.case.elements, dtype=dtype) for _ in range(self.case.back_to_back)]
        self._pids = [os.getpid(), *(plan.cpu_pids if dist.get_rank() == 0 else ())]
        self._loss = LossControl(plan.ports, plan.token_file)
        self._links = HostLinks(plan.links if dist.get_rank() == 0 else ())

    def run(self, log: EventLog) -> None:
        """Run all rounds; write an event for each timed iteration."""
        case = self.case
        for index in range(-case.warmup, case.iterations):
            for backend, loss in case.contestants():
                self._loss.set(loss)
                measured = self._measure(
                    BackendSpec.parse(backend), (index + case.warmup) * case.back_to_back
                )
                if index >= 0:
                    log.write(
                        "iteration", case=self.number, backend=backend, loss=loss, index=index, **measured
                    )
        self._loss.set(0.0)

    def _measure(self, spec: BackendSpec, start: int) -> dict[str, Any]:
        """Time and check one iteration."""
        for number, tensor in enumerate(self._tensors):
            if tensor.dtype == torch.float32:
                fill(tensor.numpy(), self._inputs, start + number)
            else:
                tensor.copy_(torch.from_numpy(window(self._inputs, start + number, len(tensor))))
        gloo = self._groups.gloo
        crossed = self._links.read()
        chunks = self._groups.chunks(spec)
        carried = self._groups.carried(spec)
        before, cpu = self._groups.sent(spec), cpu_seconds(self._pids)
        dist.barrier(gloo)
        began = time.perf_counter()
        self._groups.all_reduce(spec, self._tensors)
        seconds = (time.perf_counter() - began) / len(self._tensors)
        dist.barrier(gloo)
        cpu = cpu_seconds(self._pids) - cpu
        packets, resent = self._groups.sent(spec)
        link_bytes = busiest(crossed, self._links.read()) / len(self._tensors)
        return {
            "seconds": seconds,
            "cpu_seconds": cpu / len(self._tensors),
            "packets": packets - before[0],
            "retransmits": resent - before[1],
            "chunks": {place: count - chunks[place] for place, count in self._groups.chunks(spec).items()},
            "carried": self._groups.carried(spec) - carried,
            "transport": self._groups.transport(spec),
            **({"link_bytes": link_bytes} if dist.get_rank() == 0 else {}),
            **self._check(spec, start),
        }

    def _check(self, spec: BackendSpec, start: int) -> dict[str, Any]:
        """The digest of the results, which must be the same on all ranks; on rank 0 also their errors."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in self._tensors:
            digest.update(tensor.view(torch.uint8).numpy().data)
        findings: dict[str, Any] = {"digest": digest.hexdigest()}
        if self._expectation is None:
            return findings
        findings |= {"max_abs_error": 0.0, "bound": 0.0, "wrong_index": None}
        for number, tensor in enumerate(self._tensors):
            result = tensor.float().numpy()
            found = self._expectation.compare(
                result, start + number, lane_bits=spec.lane_bits, words=self.plan.words
            )
            findings["bound"] = max(findings["bound"], found.bound)
            if found.wrong_index is None:
                findings["max_abs_error"] = max(findings["max_abs_error"], found.max_abs_error)
                continue
            return findings | {
                "max_abs_error": found.max_abs_error if np.isfinite(found.max_abs_error) else None,
                "wrong_index": found.wrong_index,
                "wrong_value": repr(float(result[found.wrong_index])),
                "exact_value": self._expectation.exact(start + number + found.wrong_index),
            }
        return findings


def run(plan: Plan, log: EventLog) -> None:
    """Run all cases. Consecutive cases with the same number of workers and the same type share their groups."""
    rank = dist.get_rank()
    numbered = enumerate(plan.cases)
    for (workers, dtype), cases in groupby(numbered, key=lambda pair: (pair[1].workers, pair[1].dtype)):
        kind = ELEMENT_TYPES[dtype]
        inputs = one_period(plan.seed, rank, kind)
        here = list(cases)
        groups = Groups(workers, plan.racks, {backend for _, case in here for backend in case.backends})
        if groups.member:
            expectation = Expectation(plan.seed, workers, kind) if rank == 0 else None
            for number, _ in here:
                CaseRunner(plan, number, groups, inputs, expectation).run(log)
        groups.close()
        dist.barrier()


def main() -> None:
    """Entry point: python -m inagg_testbed.bench.allreduce_worker PLAN EVENTS."""
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
