# SPDX-License-Identifier: Apache-2.0
"""One rank of `inagg bench device`: times all-reduces, products and steps; one event for each row of `bench.device`."""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import inagg.hooks
from inagg.groups import inagg_group
from inagg.options import LaneBits, Options, StagedOptions
from inagg_testbed.bench.device import LANE_BITS, OVERLAP, device_of
from inagg_testbed.events import EventLog

WARM_UP = 3
BATCH = 64


class Rank:
    """Measures on this rank.

    Args:
        mine: the device of this rank's tensors.
    """

    def __init__(self, mine: torch.device, iterations: int, log: EventLog) -> None:
        self.mine, self.iterations, self._log = mine, iterations, log

    def note(self, kind: str, what: dict[str, Any], call: Callable[[], object]) -> float:
        """Time `call`, after a few runs without a clock. Returns the mean in ms."""
        for _ in range(WARM_UP):
            self.ms(call)
        times = [self.ms(call) for _ in range(self.iterations)]
        self._log.write(kind, what=what, times_ms=times)
        return sum(times) / len(times)

    def ms(self, call: Callable[[], object]) -> float:
        """Milliseconds until the call and the device's work are done."""
        dist.barrier()
        start = time.perf_counter()
        call()
        self.finish()
        return (time.perf_counter() - start) * 1e3

    def finish(self) -> None:
        """Wait until the device has done its work."""
        if self.mine.type == "cuda":
            torch.cuda.synchronize(self.mine)


def make_groups(ways: list[str], staged: bool) -> dict[str, Any]:
    """The group of each way. staged: CPU tensors are treated as a GPU's."""
    groups: dict[str, Any] = {}
    for way in ways:
        if way == "gloo":
            groups[way] = dist.new_group(backend="gloo")
        elif way == "cpu":
            groups[way] = dist.group.WORLD
        else:
            options = StagedOptions if staged else Options
            groups[way] = dist.new_group(
                backend="inagg", pg_options=options.model_validate({"device_sums": way})
            )
    return groups


def all_reduce(group: Any, way: str, tensor: torch.Tensor, lane_bits: LaneBits | None) -> Any:
    """Begin the average of a tensor of ones, which stays so."""
    if way == "gloo":
        return dist.all_reduce(tensor, group=group, async_op=True)
    return inagg_group(group).sum_lanes(tensor, lane_bits=lane_bits or 32, average=True)


def sums(rank: Rank, groups: dict[str, Any], sizes: list[int]) -> None:
    for elements in sizes:
        for way, group in groups.items():
            tensor = torch.ones(elements, device="cpu" if way == "cpu" else rank.mine)
            for lane_bits in (None,) if way == "gloo" else LANE_BITS:
                what = {"elements": elements, "lane_bits": lane_bits, "way": way}
                if way == "gloo":
                    tensor.zero_()  # gloo has no average
                rank.note("sums", what, lambda: all_reduce(group, way, tensor, lane_bits).wait())  # noqa: B023
            if way != "gloo":
                assert bool((tensor == 1).all()), f"{way}: a wrong sum"


def overlap(rank: Rank, group: Any, elements: int) -> None:
    """Time a sum, products on this rank's device that take about as long, and both at once."""
    tensor = torch.ones(elements, device=rank.mine)
    matrix = torch.randn(1024, 1024, device=rank.mine)

    def products(count: int) -> None:
        for _ in range(count):
            matrix @ matrix

    def both(count: int) -> None:
        work = all_reduce(group, "auto", tensor, 32)
        products(count)
        work.wait()

    what = {"elements": elements, "lane_bits": 32}
    names = dict(zip(OVERLAP, ("all-reduce of the largest tensor", "products", "both at once"), strict=True))
    sum_ms = rank.note(
        "overlap", what | {"way": names["sum_ms"]}, lambda: all_reduce(group, "auto", tensor, 32).wait()
    )
    for _ in range(WARM_UP):  # the first product loads a library
        each_ms = rank.ms(lambda: products(10)) / 10
    count = torch.tensor(max(1, round(sum_ms / each_ms)))
    dist.broadcast(count, 0)
    rank.note("overlap", what | {"way": names["products_ms"]}, lambda: products(int(count)))
    rank.note("overlap", what | {"way": names["both_ms"]}, lambda: both(int(count)))


def steps(rank: Rank, groups: dict[str, Any]) -> None:
    """Steps of DDP, with torchvision's ResNet-18 if it is there, else with as many parameters in linear layers."""
    vision = find_spec("torchvision") is not None
    name, shape = ("ResNet-18", (3, 32, 32)) if vision else ("linear layers of 11.7M parameters", (3072,))

    def make() -> nn.Module:
        torch.manual_seed(0)
        if vision:
            model: nn.Module = import_module("torchvision.models").resnet18(num_classes=10)
            return model.to(rank.mine)
        layers = [nn.Linear(3072, 2560), nn.ReLU(), nn.Linear(2560, 1408), nn.ReLU(), nn.Linear(1408, 160)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(160, 10)).to(rank.mine)

    batch = torch.randn(BATCH, *shape, device=rank.mine)
    labels = torch.randint(0, 10, (BATCH,), device=rank.mine)
    for way, lane_bits in (("gloo", 32), ("auto", 32), ("auto", 8)):
        model = DistributedDataParallel(make(), process_group=groups[way])
        if lane_bits == 8:
            state = inagg.hooks.NarrowLanes(model, groups[way], lane_bits=8)
            model.register_comm_hook(state, inagg.hooks.narrow_lanes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(batch), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        what = f"a step of {name}, {'gloo' if way == 'gloo' else f'inagg:{lane_bits}'}"
        rank.note("steps", {"way": what, "lane_bits": lane_bits}, step)


def trace(rank: Rank, group: Any, elements: int, path: Path) -> None:
    """Trace a sum of each lane width, on the first rank: a file for chrome://tracing and Perfetto."""
    tensor = torch.ones(elements, device=rank.mine)
    activities = [ProfilerActivity.CPU]
    if rank.mine.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # The sums' threads are not this one.
    traced = profile(activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True))
    first = dist.get_rank() == 0
    dist.barrier()
    if first:
        traced.start()
    for lane_bits in LANE_BITS:
        all_reduce(group, "auto", tensor, lane_bits).wait()
        rank.finish()
        dist.barrier()
    if first:
        traced.stop()
        traced.export_chrome_trace(str(path))
        name_threads(path)


def name_threads(path: Path) -> None:
    """Give the threads in a trace the names that they have in Python."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    written = json.loads(path.read_text())
    for event in written["traceEvents"]:
        if event.get("name") == "thread_name" and event.get("tid") in names:
            event["args"]["name"] = names[event["tid"]]
    path.write_text(json.dumps(written))


def main() -> None:
    """Entry point: python -m inagg_testbed.bench.device_worker, with the arguments below."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("gpu_ranks", type=int)
    parser.add_argument("elements")
    parser.add_argument("ways")
    parser.add_argument("iterations", type=int)
    parser.add_argument("steps")
    parser.add_argument("trace")
    parser.add_argument("events", type=Path)
    given = parser.parse_args()
    device = device_of(given.device)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    dist.init_process_group("inagg")
    on_device = dist.get_rank() < given.gpu_ranks
    mine = device if on_device else torch.device("cpu")
    rank = Rank(mine, given.iterations, EventLog(given.events))
    groups = make_groups(given.ways.split(","), staged=on_device and given.device == "cpu")
    sizes = [int(size) for size in given.elements.split(",")]
    sums(rank, groups, sizes)
    overlap(rank, groups["auto"], max(sizes))
    if given.steps == "steps":
        steps(rank, groups)
    if given.trace != "-":
        trace(rank, groups["auto"], max(sizes), Path(given.trace))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
