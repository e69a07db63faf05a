# SPDX-License-Identifier: Apache-2.0
"""What a rank writes for a trace, and how it compares its clock with rank 0's."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from inagg import tracing
from inagg.base_errors import ConfigurationError
from inagg.tracing import Clock, compare_clocks


def test_clocks_of_machines_are_compared_to_within_half_a_round_trip() -> None:
    store, ahead_s = HashStore(), {0: 0.0, 1: 100.0, 2: -7.5}

    def compare(rank: int) -> Clock:
        clock = lambda: time.monotonic() + ahead_s[rank]  # noqa: E731
        return compare_clocks(store, rank, 3, f"machine {rank}", clock)

    with ThreadPoolExecutor(3) as pool:
        clocks = list(pool.map(compare, range(3)))
    assert clocks[0] == Clock(0.0, 0.0)
    for rank in (1, 2):
        error_s = clocks[rank].error_s
        assert error_s is not None
        assert 0 < error_s < 1
        assert clocks[rank].offset_s == pytest.approx(-ahead_s[rank], abs=error_s)


def test_a_rank_that_is_not_traced_is_an_error_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_PATIENCE", timedelta(milliseconds=50))
    with pytest.raises(ConfigurationError, match="INAGG_TRACE must be set for all ranks"):
        compare_clocks(HashStore(), 1, 2, "one")


def test_ranks_of_one_machine_have_one_clock() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: compare_clocks(store, rank, 2, "one"), range(2))) == [Clock()] * 2


# A group of one rank needs no controller.
PROGRAM = """
import sys
import torch
import torch.distributed as dist

rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
groups = [dist.new_group([each], backend="inagg") for each in range(size)]
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.5)
for _ in range(rank + 1):
    weight.sum().backward()
    dist.all_reduce(weight.grad, group=groups[rank])
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_rank_is_that_of_the_world_in_groups_of_some_ranks(tmp_path: Path) -> None:
    folder, size = tmp_path / "trace", 2
    folder.mkdir()
    (folder / "rank1.json").write_text("of an earlier training")
    environment = {**os.environ, "INAGG_TRACE": str(folder)}
    began_s = time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(size), str(tmp_path / "store")], env=environment
        )
        for rank in range(size)
    ]
    assert [rank.wait(60) for rank in ranks] == [0] * size
    assert {path.name for path in folder.iterdir()} == {"rank0.json", "rank1.json"}
    for number, process in enumerate(ranks):
        written = json.loads((folder / f"rank{number}.json").read_text())
        assert (written["rank"], written["pid"], len(written["steps"])) == (number, process.pid, number + 1)
        assert began_s < written["began_s"] < written["ended_s"] < time.monotonic()
        assert written["clock"]["error_s"] is None
        assert written["clock"]["offset_s"] == pytest.approx(time.time() - time.monotonic(), abs=1)


def test_a_file_of_an_earlier_training_is_removed_when_a_rank_begins(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("of an earlier training")
    killed = """
import os, signal
import torch.distributed as dist
dist.init_process_group("inagg", store=dist.HashStore(), rank=0, world_size=1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "INAGG_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", killed], env=environment, check=False, timeout=60)
    assert not list(tmp_path.iterdir())
