# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own fault-tolerance tests on backend "inagg", through a switch or servers. They need torch 2.14.

    python -m tests.hostlib.backend.torch_ft FOLDER                       # a checkout of PyTorch of torch's release
    python -m tests.hostlib.backend.torch_ft FOLDER --aggregation server  # another way to sum
    python -m tests.hostlib.backend.torch_ft FOLDER --backend gloo        # over gloo, for comparison

torch's wheel lacks these tests, so FOLDER has them: test/distributed/test_c10d_fault_tolerance.py of pytorch/pytorch.
Each rank is a process in a host (network namespace) of the testbed. The exit status is 0 if every test passes, but for
those that torch skips because they are NCCL's.
"""

import argparse
import importlib.util
import os
import sys
import unittest
from pathlib import Path
from typing import Any

import torch

from inagg.torch_versions import release
from inagg_testbed.network.control import enter_network_namespace
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.hostlib.backend.torch_suite import Outcomes

SINCE = (2, 14)
TESTS = Path("test/distributed/test_c10d_fault_tolerance.py")
RANKS = 3
# Torch skips it for every backend but NCCL's.
OF_NCCL = "test_reconfigure_after_timeout"


def missing(folder: str | None) -> str:
    """Why the tests cannot run; "" if they can. folder: of PyTorch's checkout."""
    if release(torch.__version__) < SINCE:
        return f"torch {torch.__version__} cannot reconfigure groups, which torch 2.14 and later can"
    if not folder or not (Path(folder) / TESTS).is_file():
        tag = f"v{torch.__version__.partition('+')[0]}"
        return (
            "PyTorch's fault-tolerance tests are not in its wheel, and TORCH_TESTS "
            f"{'is not set' if not folder else f'({folder}) has no {TESTS}'}: git clone --depth 1 --branch {tag} "
            "https://github.com/pytorch/pytorch FOLDER, and set TORCH_TESTS to FOLDER"
        )
    return ""


def load_tests_of_torch(
    folder: Path, backend: str, testbed: Testbed, aggregation: str
) -> type[unittest.TestCase]:
    """PyTorch's test class for CPUs, with its ranks in the hosts of the testbed. aggregation: of the ranks' options."""
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    import inagg.groups  # noqa: F401 - once, before the ranks are forked

    spec = importlib.util.spec_from_file_location(TESTS.stem, folder / TESTS)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[TESTS.stem] = module
    spec.loader.exec_module(module)
    environments = testbed.node_environments()
    pids = [testbed.network.host(rank + 1).pid for rank in range(RANKS)]
    of_torch: Any = module._make_fault_tolerance_test_class(backend, "cpu")

    class FaultTolerance(of_torch):  # type: ignore[misc]  # its class is made by a function
        def _spawn_processes(self) -> None:
            # Importing torch takes longer than most tests, so ranks are forked.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **settings: Any) -> None:
            enter_network_namespace(pids[rank])
            os.environ.update(environments[f"h{rank + 1}"] | {"INAGG_AGGREGATION": aggregation})
            super()._run(rank, *arguments, **settings)

    return FaultTolerance


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="a checkout of PyTorch, of the release of torch that is installed"
    )
    parser.add_argument("--backend", choices=["inagg", "gloo"], default="inagg")
    parser.add_argument("--aggregation", choices=["leased", "shared", "server"], default="leased")
    parser.add_argument("--results", type=Path, default=Path("results/torch-ft"))
    arguments = parser.parse_args()
    if why := missing(str(arguments.folder)):
        print(why, file=sys.stderr)
        return 2
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=arguments.results
    ) as testbed:
        suite = load_tests_of_torch(arguments.folder, arguments.backend, testbed, arguments.aggregation)
        outcomes = Outcomes(testbed.results / f"{arguments.backend}.jsonl")
        suite.setUpClass()
        for name in unittest.defaultTestLoader.getTestCaseNames(suite):
            suite(name).run(outcomes)
        suite.tearDownClass()
    expected = {name: "skip" if name == OF_NCCL else "pass" for name in outcomes.rows}
    problems = [
        (name, detail) for name, (outcome, detail) in outcomes.rows.items() if outcome != expected[name]
    ]
    for name, detail in problems:
        print(f"{name}: {detail}", file=sys.stderr)
    passed, skipped = (
        sum(outcome == kind for outcome, _ in outcomes.rows.values()) for kind in ("pass", "skip")
    )
    print(f"{passed} passed, {skipped} skipped by torch, {len(problems)} not as expected")
    return 1 if problems or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
