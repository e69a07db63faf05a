# SPDX-License-Identifier: Apache-2.0
"""Calls the switch's P4Runtime server next to the controller: garbage, many streams, endless reads."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.testbed import Testbed
from tests.attack.outcome import Outcome
from tests.attack.ranks import BrokenPromiseError, Ranks, wait_until
from tests.attack.siege import attack_sums

AMOUNTS = {
    "garbage": (5000, 300),
    "streams": (60, 60),
    "idle": (200, 50),
    "reads": (3, 1),
    "cancelled": (100, 10),
}


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Each attack runs in a process in the switch's namespace, where the server listens."""
    for name, (most, few) in AMOUNTS.items():

        def attack(testbed: Testbed, _ranks: Ranks, name: str = name, n: int = most if full else few) -> str:
            log = testbed.results / f"p4runtime-{name}.log"
            command = [sys.executable, "-m", "tests.attack.p4runtime_calls", name, str(n)]
            process = NodeProcess(
                testbed.run, testbed.network.switch, f"p4runtime {name}", command, log_path=log
            )
            try:
                wait_until(lambda: process.poll() is not None, f"the end of {name}", 600)
            finally:
                process.stop()
            if process.poll() != 0:
                raise BrokenPromiseError(f"{name} failed: {process.log_tail()}")
            amounts = json.loads(log.read_text().splitlines()[-1])
            return ", ".join(f"{count:,} {what}" for what, count in amounts.items())

        yield attack_sums(Outcome(f"p4runtime: {name}"), folder, attack)
