# SPDX-License-Identifier: Apache-2.0
"""A small part of PyTorch's own distributed tests (`make torch-suite` runs all of them)."""

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("torch_suite.py")
PART = [
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_all_gather_into_cat_tensor_cuda",
    "test_all_reduce_coalesced_full_group_sum",
    "test_barrier_timeout_full_group",
    "test_isend",
    "test_reduce_sum_twice",
    "test_sparse_all_reduce_sum",
]


QUICK = [
    "test_DistributedDataParallelCPU",
    "test_all_reduce_coalesced_full_group_sum",
    "test_reduce_sum_twice",
]


@pytest.mark.netns
@pytest.mark.parametrize(
    ("aggregation", "names", "outcome"),
    [
        pytest.param("leased", PART, "7 passed, 1 skipped by torch", id="leased"),
        pytest.param("shared", QUICK, "3 passed, 0 skipped by torch", id="shared", marks=pytest.mark.long),
        pytest.param("server", QUICK, "3 passed, 0 skipped by torch", id="server", marks=pytest.mark.long),
    ],
)
def test_a_part_of_torchs_own_tests_passes(
    tmp_path: Path, aggregation: str, names: list[str], outcome: str
) -> None:
    command: list[str | Path] = [sys.executable, SUITE, "--only", ",".join(names), "--results", tmp_path]
    command += ["--aggregation", aggregation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].startswith(outcome)
