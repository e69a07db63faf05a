# SPDX-License-Identifier: Apache-2.0
"""The parts of `make nightly`: a promise each, and the commands that hold it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bmv2_commands import bmv2_command

_BMV2 = ("p4c-bm2-ss", "simple_switch_grpc")
_PYTEST = (".venv/bin/python", "-m", "pytest")


def _without_bmv2() -> str:
    missing = [name for name in _BMV2 if bmv2_command(name) is None]
    return f"{' and '.join(missing)} not on PATH" if missing else ""


def _without_torchs_tests() -> str:
    return "" if os.environ.get("TORCH_TESTS") else "TORCH_TESTS is not set to a checkout of PyTorch v2.14.1"


@dataclass(frozen=True, kw_only=True)
class Part:
    """promise: what it holds. command: from the repository's root. minutes: on two processors, about. missing: why it
    cannot run on this machine; "" if it can.
    """

    name: str
    promise: str
    command: Sequence[str]
    minutes: int
    missing: Callable[[], str] = lambda: ""


def _torch_suite(aggregation: str) -> Part:
    return Part(
        name=f"torch-suite-{aggregation}",
        promise=f"PyTorch's own distributed tests pass, aggregation = {aggregation}",
        command=("make", "torch-suite", f"AGGREGATION={aggregation}"),
        minutes=4,
    )


# sanitize is last: it builds into .venv, and the next `make setup` builds again.
PARTS = (
    Part(
        name="tidy",
        promise="clang-tidy finds nothing in the C++",
        command=("make", "tidy"),
        minutes=10,
    ),
    Part(
        name="docs",
        promise="the documentation's site builds, and every link in it leads somewhere",
        command=("make", "docs"),
        minutes=1,
    ),
    Part(
        name="test-long",
        promise="the cases that make test leaves out pass",
        command=("make", "test-long"),
        minutes=5,
    ),
    Part(
        name="bmv2",
        promise="BMv2 and the switch model do the same with the same program and packets",
        command=(*_PYTEST, "-q", "-n", "2", "-m", "bmv2", "tests"),
        minutes=20,
        missing=_without_bmv2,
    ),
    *map(_torch_suite, ("leased", "shared", "server")),
    Part(
        name="torch-ft",
        promise="PyTorch's own fault-tolerance tests pass with torch 2.14.1, in each way of summing",
        command=("make", "torch-ft"),
        minutes=10,
        missing=_without_torchs_tests,
    ),
    Part(
        name="torchft",
        promise="replicas that are killed while they train with torchft cost the others at most 5 s each",
        command=("make", "torchft"),
        minutes=6,
    ),
    Part(
        name="wheel-test",
        promise="the sdist and the wheel install with each extra, and work",
        command=("make", "wheel-test"),
        minutes=25,
    ),
    Part(
        name="attack",
        promise="no attack gives a wrong sum or a hang",
        command=("make", "attack"),
        minutes=35,
    ),
    Part(
        name="chaos",
        promise="each fault of each part in each phase of a job ends as docs/faults.md says, with the same sums",
        command=("make", "chaos"),
        minutes=45,
    ),
    Part(
        name="soak",
        promise="half an hour of training with a fault every ten seconds ends with the same weights, and nothing grows",
        command=("make", "soak"),
        minutes=45,
    ),
    Part(
        name="simulate",
        promise="no fault of 20,000 seeds costs a job in virtual time a sum, or its end",
        command=("make", "simulate", "SEEDS=20000"),
        minutes=20,
    ),
    Part(
        name="exit-hunt",
        promise="programs that end in any state of a group, in any way, end",
        command=("make", "exit-hunt"),
        minutes=60,
    ),
    Part(
        name="explore",
        promise="every run of the larger models of shared slots sums exactly",
        command=("make", "explore"),
        minutes=15,
    ),
    Part(
        name="sanitize",
        promise="the C++ core's tests pass under AddressSanitizer and UndefinedBehaviorSanitizer",
        command=("make", "sanitize"),
        minutes=8,
    ),
)
