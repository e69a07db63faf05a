# SPDX-License-Identifier: Apache-2.0
"""A testbed whose ranks sum while it is attacked, and what every attack is judged by."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from inagg_testbed.network.lifecycle import Run, manifests, tagged_processes
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.processes import NodeProcess, describe_exit
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.attack.outcome import Outcome
from tests.attack.ranks import BrokenPromiseError, Ranks

STRANGER = 3  # the host that no rank is on
GROWTH_MB = 128.0  # more is a leak, or a bound that does not hold


@contextlib.contextmanager
def besieged(
    outcome: Outcome, folder: Path, *, hosts: int = 3, link: str = "unshaped", victim: str = ""
) -> Iterator[Testbed]:
    """A testbed for one attack, and the part of the verdict that is the same for all: services that live and do not
    grow, but for the victim, and nothing that remains."""
    run = None
    logging.getLogger("inagg_testbed").setLevel(
        logging.ERROR
    )  # there are no counters of a switch that was killed
    try:
        with open_testbed(hosts=hosts, link=LinkSpec.parse(link), results_root=folder) as testbed:
            run, outcome.logs = testbed.run, str(testbed.results)
            names = namespaces(run)
            before = {process.name: resident_mb(process.identity.pid) for process in testbed.services}
            yield testbed
            judge_services([each for each in testbed.services if each.name != victim], outcome, before)
    finally:
        if run is not None:
            outcome.left = remains(run, names)
            if outcome.left:
                outcome.broken.append("something was left behind (operating.md)")


def judge_services(services: Sequence[NodeProcess], outcome: Outcome, before: dict[str, float]) -> None:
    """Switch and controller live, have logged no traceback, and have not grown."""
    for process in services:
        status = process.poll()
        if status is not None:
            outcome.broken.append(f"{process.name} ended with {describe_exit(status)}")
            continue
        now = resident_mb(process.identity.pid)
        outcome.memory[process.name] = before[process.name], now
        if now - before[process.name] > GROWTH_MB:
            outcome.broken.append(f"{process.name} grew to {now:.0f} MB")
        if "Traceback" in process.log_path.read_text(errors="replace"):
            outcome.broken.append(f"{process.name} logged a traceback")


def attack_sums(
    outcome: Outcome, folder: Path, attack: Callable[[Testbed, Ranks], str], *, link: str = "unshaped"
) -> Outcome:
    """Two ranks sum while `attack` does what it does from a third host; it returns how much that was. They have to go
    on meanwhile and afterwards, and end well (protocol.md, 6: what others send changes nothing)."""
    with besieged(outcome, folder, link=link) as testbed:
        ranks = Ranks(testbed, 2)
        try:
            ranks.wait_for("joined")
            ranks.go_on()
            began = time.monotonic()
            outcome.amount = attack(testbed, ranks)
            outcome.seconds = time.monotonic() - began
            ranks.go_on()
            ranks.finish()
            ranks.wait_ended(timeout_s=30)
        except BrokenPromiseError as error:
            outcome.broken.append(str(error))
        judge_ranks(ranks, outcome, may_fail=False)
        outcome.counters = refused(testbed)
        ranks.stop()
    return outcome


def judge_ranks(ranks: Ranks, outcome: Outcome, *, may_fail: bool, besides: int | None = None) -> None:
    """No sum is wrong and no rank crashes, but for one that was killed."""
    outcome.sums += ranks.total()
    outcome.statuses, outcome.errors = ranks.statuses(), ranks.errors()
    if ranks.total().wrong:
        outcome.broken.append("wrong sums (protocol.md, 4)")
    for rank, status in enumerate(outcome.statuses):
        if rank != besides and status != 0 and not (may_fail and status == 1):
            how = "did not end" if status is None else f"ended with {describe_exit(status)}"
            outcome.broken.append(f"rank {rank} {how}: {outcome.errors[rank]}")


def refused(testbed: Testbed) -> dict[str, int]:
    """What the switch has counted, by counter, over all ports."""
    assert testbed.controller is not None
    counters = testbed.controller.counters()
    return {name: sum(count.packets for count in ports.values()) for name, ports in counters.items()}


def resident_mb(pid: int) -> float:
    """Resident memory of a process (proc(5), VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def namespaces(run: Run) -> set[str]:
    """The network namespaces of a testbed. Its interfaces are in them and go with them."""
    return {str(Path(f"/proc/{one.pid}/ns/net").readlink()) for one in run.manifest.namespaces.values()}


def remains(run: Run, names: set[str]) -> list[str]:
    """What is still there of a testbed that is down."""
    found = [f"process {entry.pid}" for entry in tagged_processes(run.id, besides=0)]
    there = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            there.add(str(entry.readlink()))
    found += [f"namespace {name}" for name in sorted(names & there)]
    found += [f"interface {path.name}" for path in Path("/sys/class/net").iterdir() if run.id in path.name]
    return found + (["its manifest"] if run.id in manifests() else [])
