# SPDX-License-Identifier: Apache-2.0
"""Collectives and training with CUDA tensors (cuda_worker.py). Two ranks share one GPU."""

import sys
from typing import Any

import pytest
import torch

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
from tests.hostlib.device import cuda_worker

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.netns,
]

Outcome = dict[str, list[str | None]]


@pytest.fixture(
    scope="module", params=[("auto", "auto"), ("host", "triton"), ("torch", "host")], ids="-".join
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Case of the worker -> what went wrong, for each rank."""
    found: Outcome = {name: ["did not run"] * 2 for name in cuda_worker.CASES}
    with open_testbed(
        hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("cuda")
    ) as testbed:
        group = testbed.launch(
            [sys.executable, "-m", cuda_worker.__name__, "{events}", "cuda", *request.param], name="cuda"
        )

        def note(rank: int, row: dict[str, Any]) -> None:
            found[row["case"]][rank] = row["problem"]

        group.follow(note, timeout_s=240, watch=testbed.services)
    return found


@pytest.mark.parametrize("case", cuda_worker.CASES)
def test_case(outcome: Outcome, case: str) -> None:
    problems = {rank: problem for rank, problem in enumerate(outcome[case]) if problem}
    assert not problems, "\n".join(f"rank {rank}: {problem}" for rank, problem in problems.items())
