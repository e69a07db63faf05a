# SPDX-License-Identifier: Apache-2.0
"""If a job cannot be set up on the switch, all ranks raise or all ranks sum with gloo, as `fallback` says."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from inagg.errors import ConfigurationError, JobError
from inagg.membership.assembly import Assembly
from inagg.membership.join import join
from inagg.options import Options
from inagg.process_group import ProcessGroup
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.free_ports import free_port
from tests.hostlib.membership.two_ranks import RANKS, run_ranks


def test_every_rank_raises_and_the_message_names_the_rank_with_the_problem() -> None:
    # Rank 1 needs nothing from the controller until rank 0 has created the job.
    (first, _), (second, _) = run_ranks({}, {"INAGG_ADDRESS": "127.0.0.1"}, INAGG_SETUP_TIMEOUT_S="1")
    assert first["error"] == "ControllerUnreachableError"
    assert "Is inagg-controller running there" in first["message"]
    assert second["error"] == "JobError"
    assert "rank 0 could not create the job: no answer from the controller" in second["message"]


def test_ranks_do_not_wait_for_one_that_cannot_read_its_certificate(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    wrong = {"INAGG_CONTROLLER": "https://127.0.0.1:9", "INAGG_CONTROLLER_CA": str(tmp_path / "ca.pem")}
    (first, _), (second, _) = run_ranks(wrong, {"INAGG_ADDRESS": "127.0.0.1"})
    assert (first["error"], second["error"]) == ("ConfigurationError", "JobError")
    assert "rank 0 could not create the job: controller_ca" in second["message"]


@pytest.mark.parametrize("name", ["lane_bits", "half_lane_bits"])
def test_lanes_that_are_too_narrow_for_the_ranks_are_told_when_the_group_is_made(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("inagg.membership.join._OUTCOMES_PATIENCE", timedelta(0))  # nobody else comes
    options = Options(controller="http://127.0.0.1:9", **{name: 8})
    with pytest.raises(ConfigurationError, match=f"^{name}: lanes of 8 bits are too narrow for 65 workers"):
        join(Assembly(HashStore(), 1, 65, timedelta(seconds=5)), options)


def test_gloo_sums_instead_if_the_user_allows_it_and_the_log_says_so() -> None:
    for result, log in run_ranks(INAGG_FALLBACK="inner"):
        assert result["sum"] == [RANKS] * 3
        assert result["stats"]["path"] == "inner"
        assert result["stats"]["inner_reductions"] == 1
        assert log.count("gloo does the sums of this group instead") == 1


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """The URL of a controller without a switch, which has no places for jobs of the class batch."""
    address = f"127.0.0.1:{free_port()}"
    options = {"no-switch": True, "listen": address, "token-file": tmp_path / "token"}
    launcher = Launcher(CommandLine({**options, "job-class": "batch,jobs=0"}))
    try:
        assert read_line(launcher()) == "ready"
        yield f"http://{address}"
    finally:
        launcher.close()


def test_a_job_that_a_quota_refuses_raises_on_all_ranks(controller: str) -> None:
    (first, _), (second, _) = run_ranks(**of_batch(controller))
    assert (first["error"], second["error"]) == ("ControllerRefusedError", "JobError")
    for result in (first, second):
        assert "the class batch is full: its quota is jobs=0; set another job_class" in result["message"]


def test_gloo_sums_for_a_job_that_a_quota_refuses(controller: str) -> None:
    for result, log in run_ranks(**of_batch(controller), INAGG_FALLBACK="inner"):
        assert (result["sum"], result["stats"]["path"]) == ([RANKS] * 3, "inner")
        assert "its quota is jobs=0" in log


def of_batch(controller: str) -> dict[str, str]:
    return {"INAGG_CONTROLLER": controller, "INAGG_AGGREGATION": "auto", "INAGG_JOB_CLASS": "batch"}


def test_no_rank_falls_back_if_another_does_not_allow_it() -> None:
    (first, _), (second, _) = run_ranks({}, {"INAGG_FALLBACK": "inner"}, INAGG_SETUP_TIMEOUT_S="1")
    assert first["error"] == "ControllerUnreachableError"
    assert second["error"] == "ConfigurationError"
    assert "it is inner at rank 1, server at rank 0" in second["message"]


def test_gloo_sums_if_the_job_fails_while_it_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_join(*arguments: Any) -> None:
        on_failure: Callable[[], None] = arguments[-1]
        on_failure()  # as the heartbeat thread calls it
        raise JobError("rank 1 could not join")

    monkeypatch.setattr("inagg.fallback.join", fail_to_join)
    store = HashStore()
    options = Options(controller="http://127.0.0.1:9", fallback="inner")

    def run(rank: int) -> list[float]:
        group = ProcessGroup(store, rank, RANKS, timedelta(seconds=20), options)
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        group.shutdown()
        return tensor.tolist()

    with ThreadPoolExecutor(RANKS) as ranks:
        assert list(ranks.map(run, range(RANKS))) == [[RANKS] * 3] * RANKS
