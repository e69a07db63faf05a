# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own distributed tests, which ship in its wheel, on backend "inagg" through a switch or servers.

    python -m tests.hostlib.backend.torch_suite                 # all of them, against torch_suite.toml
    python -m tests.hostlib.backend.torch_suite --only test_barrier  # some
    python -m tests.hostlib.backend.torch_suite --aggregation server  # or shared: other ways to sum
    python -m tests.hostlib.backend.torch_suite --backend gloo  # over gloo, for comparison

Each rank is a process in a host (network namespace) of the testbed. The tests choose by the backend's name what to run.
While they are defined the name is "gloo", so that the list of tests is gloo's; afterwards it is "inagg". The ranks are
forked from this process, because importing torch takes longer than most tests.

torch_suite.toml lists every test that does not run or pass, with the reason. The exit status is 0 if the outcomes are
those of the list.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
import unittest
from pathlib import Path
from typing import Any

from inagg_testbed.network.control import enter_network_namespace
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed

EXPECTATIONS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
RANKS = 4
MANY_RANKS = 8
# Ranks end without leaving their groups. A job then keeps its slots until its heartbeats are missed, for a few tests.
SLOTS = "64"


def load_tests_of_torch(backend: str, testbed: Testbed, aggregation: str) -> type[unittest.TestCase]:
    """PyTorch's test class, with its ranks in the hosts of the testbed. aggregation: of the ranks' options."""
    folder = tempfile.tempdir = tempfile.mkdtemp(prefix="torch-suite-", dir=testbed.results)
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(RANKS),
        TEMP_DIR=folder,
        INIT_METHOD=f"file://{folder}/rendezvous",  # torch skips tests that make a second world without a file
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
    )
    import torch
    import torch.testing._internal.distributed.distributed_test as distributed_test

    import inagg.groups  # noqa: F401 - once, before the ranks are forked

    distributed_test.BACKEND = os.environ["BACKEND"] = backend
    environments = testbed.node_environments()
    pids = [testbed.network.host(rank + 1).pid for rank in range(MANY_RANKS)]

    class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            many = self._testMethodName in EXPECTATIONS["many_ranks"]["tests"]
            os.environ["WORLD_SIZE"] = str(MANY_RANKS if many else RANKS)
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **settings: Any) -> None:
            enter_network_namespace(pids[rank])
            settings_of_inagg = {"INAGG_SLOTS": SLOTS, "INAGG_AGGREGATION": aggregation}
            os.environ.update(environments[f"h{rank + 1}"] | settings_of_inagg)
            super()._run(rank, *arguments, **settings)

        def run_test(self, test_name: str, *arguments: Any) -> None:
            if test_name in EXPECTATIONS["told_gloo"]["tests"]:  # from here on, because the group exists
                distributed_test.BACKEND = os.environ["BACKEND"] = "gloo"
            super().run_test(test_name, *arguments)

    return TorchSuite


class Outcomes(unittest.TestResult):
    """The outcome of each test, printed and logged when it ends."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.rows: dict[str, tuple[str, str]] = {}  # outcome, detail
        self._log = log
        self._start = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self._start = time.monotonic()

    def _note(self, test: unittest.TestCase, outcome: str, detail: str = "") -> None:
        name, seconds = test._testMethodName, round(time.monotonic() - self._start, 1)
        self.rows[name] = outcome, detail.strip()
        print(f"{outcome} {name}: {seconds} s", flush=True)
        with self._log.open("a") as log:
            row = {"test": name, "outcome": outcome, "seconds": seconds, "detail": detail}
            log.write(json.dumps(row) + "\n")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._note(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "skip", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802  # err: sys.exc_info()
        self._note(test, "fail", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]  # private

    addFailure = addError  # noqa: N815


def surprises(rows: dict[str, tuple[str, str]]) -> list[str]:
    """The tests whose outcome is not that of torch_suite.toml, with details."""
    skipped = {name: group["reason"] for group in EXPECTATIONS["skipped_by_torch"] for name in group["tests"]}
    found = []
    for name, (outcome, detail) in rows.items():
        expected = "skip" if name in skipped else "pass"
        if outcome != expected or (outcome == "skip" and detail != skipped[name]):
            found.append(f"{name}: {outcome}, not {expected}\n{detail}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=["inagg", "gloo"], default="inagg")
    parser.add_argument("--aggregation", choices=["leased", "shared", "server"], default="leased")
    parser.add_argument("--only", help="names of tests, with commas between")
    parser.add_argument("--results", type=Path, default=Path("results/torch-suite"))
    arguments = parser.parse_args()
    with open_testbed(
        hosts=MANY_RANKS, link=LinkSpec.parse("unshaped"), results_root=arguments.results
    ) as testbed:
        suite = load_tests_of_torch(arguments.backend, testbed, arguments.aggregation)
        names = set(unittest.defaultTestLoader.getTestCaseNames(suite))
        excluded = set(EXPECTATIONS["excluded"]) if arguments.backend == "inagg" else set()
        unknown = (excluded | set(arguments.only.split(",") if arguments.only else ())) - names
        if unknown:
            print("no such test:", *sorted(unknown), file=sys.stderr)
            return 2
        if arguments.only:
            names &= set(arguments.only.split(","))
        outcomes = Outcomes(testbed.results / f"{arguments.backend}.jsonl")
        suite.setUpClass()
        for name in sorted(names - excluded):
            suite(name).run(outcomes)
        suite.tearDownClass()
        problems = surprises(outcomes.rows)
    for problem in problems:
        print(problem, file=sys.stderr)
    counts = [
        sum(outcome == kind for outcome, _ in outcomes.rows.values()) for kind in ("pass", "skip", "fail")
    ]
    print(
        "{} passed, {} skipped by torch, {} failed, {} excluded; {} not as expected".format(
            *counts, len(names & excluded), len(problems)
        )
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
