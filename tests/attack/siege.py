# SPDX-License-Identifier: Apache-2.0
"""A testbed whose ranks sum while it is attacked, and the rules by which all attacks are judged."""

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

STRANGER = 3  # the host without a rank
GROWTH_MB = 128.0  # a service that grows more has a leak, or a bound that does not hold


@contextlib.contextmanager
def besieged(
    outcome: Outcome, folder: Path, *, hosts: int = 3, link: str = "unshaped", victim: str = ""
) -> Iterator[Testbed]:
    """A testbed for one attack, with the rules that all attacks share: services other than `victim` live and do not
    grow, and nothing remains after the testbed."""
    run = None
    # Without warnings: the testbed cannot read the counters of a switch that was killed.
    logging.getLogger("inagg_testbed").setLevel(logging.ERROR)
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
    """Switch and controller must live, have logged no traceback and not have grown by more than GROWTH_MB."""
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
    outcome: Outcome,
    folder: Path,
    attack: Callable[[Testbed, Ranks], str],
    *,
    link: str = "unshaped",
    hosts: int = 3,
    ranks: int = 2,
) -> Outcome:
    """Ranks on the first hosts sum while `attack` runs on another host; `attack` returns the amount for the table.

    The ranks must go on during the attack and after it, and end without error (protocol.md, 6: what others send changes
    nothing).
    """
    with besieged(outcome, folder, hosts=hosts, link=link) as testbed:
        summing = Ranks(testbed, ranks)
        try:
            summing.wait_for("joined")
            summing.go_on()
            began = time.monotonic()
            outcome.amount = attack(testbed, summing)
            outcome.seconds = time.monotonic() - began
            summing.go_on()
            summing.finish()
            summing.wait_ended(timeout_s=30)
        except BrokenPromiseError as error:
            outcome.broken.append(str(error))
        judge_ranks(summing, outcome, may_fail=False)
        outcome.counters = refused(testbed)
        summing.stop()
    return outcome


def judge_ranks(ranks: Ranks, outcome: Outcome, *, may_fail: bool, besides: int | None = None) -> None:
    """No sum may be wrong, and no rank may crash, except `besides`, which was killed. may_fail: whether ranks may end
    with an error."""
    outcome.sums += ranks.total()
    outcome.statuses, outcome.errors = ranks.statuses(), ranks.errors()
    if ranks.total().wrong:
        outcome.broken.append("wrong sums (protocol.md, 4)")
    for rank, status in enumerate(outcome.statuses):
        if rank != besides and status != 0 and not (may_fail and status == 1):
            how = "did not end" if status is None else f"ended with {describe_exit(status)}"
            outcome.broken.append(f"rank {rank} {how}: {outcome.errors[rank]}")


def refused(testbed: Testbed) -> dict[str, int]:
    """The switch's counters: packets over all ports, by the counter's name."""
    assert testbed.controller is not None
    counters = testbed.controller.counters()["s1"]
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
    """The processes, namespaces, interfaces and the manifest that remain of a testbed that is down."""
    found = [f"process {entry.pid}" for entry in tagged_processes(run.id, besides=0)]
    there = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            there.add(str(entry.readlink()))
    found += [f"namespace {name}" for name in sorted(names & there)]
    found += [f"interface {path.name}" for path in Path("/sys/class/net").iterdir() if run.id in path.name]
    return found + (["its manifest"] if run.id in manifests() else [])
