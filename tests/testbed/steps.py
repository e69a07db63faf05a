# SPDX-License-Identifier: Apache-2.0
"""A program that sums while parts die, and what must have come out."""

import re
from dataclasses import dataclass

from inagg_testbed.network.workers import WorkerGroup
from tests.testbed.programs import PROGRAM
from tests.waiting import wait_until

# Sums of several sizes, of which some wait while one is under way, in two groups, each of which is a job. What came out
# goes into a digest.
STEPS = f"""{PROGRAM}
import hashlib, inagg, json, sys
other = dist.new_group()
draws, digest = torch.Generator().manual_seed(dist.get_rank()), hashlib.sha256()
for step in range(100):
    tensors = [torch.randn(size, generator=draws) for size in (200_000, 1, 70_001)]
    if step == 10:
        print("in the middle", flush=True)
    groups = None, None, other
    works = [dist.all_reduce(one, group=group, async_op=True) for one, group in zip(tensors, groups)]
    for work in works:
        work.wait()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
print("stats", json.dumps(inagg.stats()["changes"]), flush=True)
print("digest", digest.hexdigest(), flush=True)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Outcome:
    """Of a run. digest: of the sums at all ranks. to: where they went on, by change. warnings: of each rank, about
    the first job."""

    digest: str
    to: list[str]
    warnings: list[list[str]]


def outcome_of(group: WorkerGroup) -> Outcome:
    """Wait until a run has ended well. All ranks have the same sums, and have been on the same ways."""
    wait_until(lambda: all(worker.process.poll() is not None for worker in group.workers), "all end", 120)
    logs = [worker.process.log_path.read_text() for worker in group.workers]
    assert [worker.process.poll() for worker in group.workers] == [0] * len(logs), "\n".join(logs)
    (digest,) = {found for log in logs for found in re.findall("^digest (.*)$", log, re.MULTILINE)}
    (to,) = {tuple(re.findall('"to": "([^"]*)"', log)) for log in logs}
    warnings = [re.findall("^job 1, .*Sums go on.*$", log, re.MULTILINE) for log in logs]
    return Outcome(digest, [*to], warnings)
