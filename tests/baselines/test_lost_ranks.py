# SPDX-License-Identifier: Apache-2.0
"""A rank that ends or stands still: the others raise an error, and do not hang."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.baselines.ranks import outputs, run, start

RANKS = 3
LOST = RANKS - 1


def errors(
    name: str, number: signal.Signals, timeout_s: float, folder: Path, **settings: object
) -> list[str]:
    """Of the ranks whose process has not got the signal."""
    settings |= {"architecture": name, "signal_number": number, "timeout_s": timeout_s}
    processes = start("lose", RANKS, folder, **settings)
    try:
        written = outputs(processes[:LOST], timeout_s=60)
        assert [process.returncode for process in processes[:LOST]] == [0] * LOST, written
    finally:
        processes[LOST].kill()
        processes[LOST].communicate()
    return [json.loads(output.splitlines()[-1]) for output, _ in written]


@pytest.mark.parametrize(
    "name", ["server:async", "server:async=1", "server:ssp=0", "gossip", "gossip:random"]
)
def test_the_error_names_a_rank_that_has_ended(name: str, tmp_path: Path) -> None:
    """Long before the time-out. A rank may learn it from another one, which has ended because of it."""
    for error in errors(name, signal.SIGKILL, timeout_s=600, folder=tmp_path):
        assert error.startswith("LostRankError: rank "), error
        assert "read its output, and start all ranks again" in error


@pytest.mark.parametrize("racks", [[[0, 1], [2]], [[0], [1, 2]], [[2, 0], [1]], [[0, 1, 2]]], ids=str)
def test_a_rank_of_a_rack_has_ended(racks: list[list[int]], tmp_path: Path) -> None:
    """A leaf, or a rank of a rack."""
    found = errors("server:leaves", signal.SIGKILL, timeout_s=600, folder=tmp_path, racks=racks)
    assert all(error.startswith(("LostRankError: ", "RuntimeError: ")) for error in found), found


@pytest.mark.parametrize("name", ["server:async", "server:ssp=0", "gossip", "local:1"])
def test_ranks_wait_for_a_stopped_one_until_the_time_out(name: str, tmp_path: Path) -> None:
    found = errors(name, signal.SIGSTOP, timeout_s=3, folder=tmp_path)
    assert all(error.startswith(("LostRankError: ", "RuntimeError: ")) for error in found), found


@pytest.mark.parametrize(
    ("elements", "dtype", "message"),
    [
        ([3, 4], "float64", "parameter 0 is torch.float64"),
        ([3, 4], "float32", r"different sizes: \[7, 4\] parameters, by rank"),
        ([0, 0], "float32", "there is no parameter to exchange"),
    ],
)
def test_parameters_that_cannot_be_exchanged(
    elements: list[int], dtype: str, message: str, tmp_path: Path
) -> None:
    for said in run("refuse", 2, tmp_path, elements=elements, dtype=dtype):
        assert re.search(message, said)
