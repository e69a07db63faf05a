# SPDX-License-Identifier: Apache-2.0
"""Trainings that are made to have a limit: the diagnosis names it, for gloo's ring and for inagg."""

from pathlib import Path

import pytest

from inagg_testbed.compare.diagnosis import Diagnosis, diagnose
from inagg_testbed.compare.plan import Compare
from inagg_testbed.compare.run import Folder, run_compare
from inagg_testbed.compare.ways import Way
from inagg_testbed.network.links import QUEUE_BYTES
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import host_interface, port_interface, run_in_namespace
from tests.testbed.conftest import OpenTestbed

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

WAYS = (Way.parse("ring"), Way.parse("inagg:32"))
# A model of width * width parameters, whose computation takes almost no time of its own. A step computes for as long as
# `computing` says, in seconds of the processor; rank 1 also for `late`, or waits for `loading` in its data loader. With
# `crowded` all ranks share one processor.
PROGRAM = """
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--width", type=int, default=8)
for name in ("--computing", "--late", "--loading"):
    parser.add_argument(name, type=float, default=0.0)
parser.add_argument("--crowded", action="store_true")
options = parser.parse_args()
if options.crowded:
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

dist.init_process_group("gloo")
last = dist.get_rank() == 1


class Samples(Dataset):
    def __len__(self):
        return options.steps

    def __getitem__(self, number):
        if last:
            time.sleep(options.loading)
        return torch.ones(options.width)


def compute(seconds):
    weights = torch.ones(64, 64)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        weights @ weights


model = DDP(nn.Linear(options.width, options.width, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for inputs in DataLoader(Samples()):
    compute(options.computing + options.late * last)
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


def diagnoses(testbed: Testbed, folder: Path, *arguments: str) -> list[Diagnosis]:
    """Train under each architecture, and say what limits it."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    rate = testbed.network.spec.rate_bps
    compare = Compare(
        model=None,
        program=(str(program), *arguments),
        ways=WAYS,
        fabric=testbed.network.fabric,
        topology="star",
        link_name="unshaped" if rate is None else f"{rate // 10**6}mbit",
    )
    results = Folder(folder / "results", compare)
    run_compare(compare, results, testbed, lambda *_progress: None)
    return [diagnose(run, rate) for run in results.write_all(compare).runs]


def first_two(diagnosis: Diagnosis) -> list[str]:
    """The largest causes: on a busy machine, waiting for its processors may come first."""
    return [cause.name for cause in diagnosis.causes[:2]]


def test_the_link(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(hosts=2, link="25mbit") as testbed:
        for found in diagnoses(testbed, tmp_path, "--width", "500", "--steps", "8"):
            assert found.causes[0].name == "link", str(found)


def test_the_processors(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(hosts=4) as testbed:
        for found in diagnoses(testbed, tmp_path, "--computing", "0.03", "--crowded"):
            assert found.causes[0].name == "processors", str(found)


def test_computation(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(hosts=2) as testbed:
        for found in diagnoses(testbed, tmp_path, "--computing", "0.1"):
            assert "computation" in first_two(found), str(found)


def test_the_computation_of_one_rank(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(hosts=3) as testbed:
        for found in diagnoses(testbed, tmp_path, "--late", "0.1"):
            assert found.causes[0].name == "ranks", str(found)
            assert found.causes[0].detail == " (rank 1: computation)"


def test_the_data_loading_of_one_rank(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(hosts=3) as testbed:
        for found in diagnoses(testbed, tmp_path, "--loading", "0.1"):
            assert found.causes[0].name == "ranks", str(found)
            assert found.causes[0].detail == " (rank 1: data loading)"


def test_latency(open_network: OpenTestbed, tmp_path: Path) -> None:
    impaired = SwitchOptions(impair=("delay=10ms",))
    with open_network(hosts=3, link="100mbit", switch_options=impaired) as testbed:
        for found in diagnoses(testbed, tmp_path):
            assert found.causes[0].name == "latency", str(found)


def test_loss(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(
        hosts=2, link="1gbit", switch_options=SwitchOptions(impair=("loss=5%,delay=5ms",))
    ) as testbed:
        for found in diagnoses(testbed, tmp_path, "--width", "300", "--steps", "8"):
            assert "loss" in first_two(found), str(found)


_BURST_BYTES = 8000


def shape(testbed: Testbed, number: int, rate_bps: int, queue_bytes: int = QUEUE_BYTES) -> None:
    """Change the token buckets at both ends of a host's link."""
    network, run = testbed.network, testbed.run.id
    ends = [("s1", port_interface(run, number)), (f"h{number}", host_interface(run, number))]
    for node, interface in ends:
        bucket = f"rate {rate_bps}bit burst {_BURST_BYTES} limit {queue_bytes}"
        run_in_namespace(network.pid_of(node), f"tc qdisc replace dev {interface} root tbf {bucket}")


def test_a_short_queue(open_network: OpenTestbed, tmp_path: Path) -> None:
    """It holds less than what is under way."""
    delayed = SwitchOptions(impair=("delay=10ms",))
    with open_network(hosts=2, link="100mbit", switch_options=delayed) as testbed:
        shape(testbed, 2, 100_000_000, queue_bytes=12_000)
        for found in diagnoses(testbed, tmp_path, "--width", "500", "--steps", "6"):
            assert "queue" in first_two(found), str(found)


def test_the_switch(open_network: OpenTestbed, tmp_path: Path) -> None:
    """It prints the path of each packet."""
    with open_network(hosts=2, switch_options=SwitchOptions(trace=True)) as testbed:
        for found in diagnoses(testbed, tmp_path, "--width", "100", "--steps", "6"):
            assert found.causes[0].name == "switch", str(found)


def test_the_link_of_another_host(open_network: OpenTestbed, tmp_path: Path) -> None:
    with open_network(hosts=3, link="100mbit") as testbed:
        shape(testbed, 2, 10_000_000)
        for found in diagnoses(testbed, tmp_path, "--width", "250"):
            assert found.causes[0].name == "link", str(found)
            assert "h2" in found.causes[0].detail
