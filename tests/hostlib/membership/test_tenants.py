# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tenant: rank 0 shows the token from its options, or from a file. Real ranks and a real controller."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inagg_controller.jobs.tenants import digest_of
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.free_ports import free_port
from tests.hostlib.membership.two_ranks import RANKS, run_ranks

TOKEN = "0123456789-token-of-the-tenant-vision"
TENANTS = f"""
[[tenant]]
name = "vision"
token_sha256 = "{digest_of(TOKEN)}"
classes = ["batch", "small"]
creations_per_min = 60
"""
OPERATORS_TOKEN = "the-operators-token-of-these-tests"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A controller without a switch that has one tenant. Yields the environment of ranks that use it."""
    address = f"127.0.0.1:{free_port()}"
    files = {"tenants": TENANTS, "token-file": OPERATORS_TOKEN}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    options = {"no-switch": True, "listen": address, "job-class": ["batch", "small"]}
    launcher = Launcher(CommandLine(options | {name: tmp_path / name for name in files}))
    try:
        assert read_line(launcher()) == "ready"
        yield {"INAGG_CONTROLLER": f"http://{address}", "INAGG_AGGREGATION": "server"}
    finally:
        launcher.close()


def jobs(controller: dict[str, str]) -> list[tuple[str, str, str]]:
    """State, tenant and class of each job."""
    headers = {"Authorization": f"Bearer {OPERATORS_TOKEN}"}
    answer = httpx.get(f"{controller['INAGG_CONTROLLER']}/jobs", headers=headers, trust_env=False)
    return [(job["state"], job["tenant"], job["job_class"]) for job in answer.json()["jobs"]]


@pytest.mark.parametrize("place", ["variable", "file", "inagg.toml"])
def test_ranks_sum_with_the_token_of_rank_0_and_nothing_shows_it(
    controller: dict[str, str], tmp_path: Path, place: str
) -> None:
    path = tmp_path / "vision.token"
    path.write_text(f"{TOKEN}\n")
    config = tmp_path / "inagg.toml"
    config.write_text(f'controller_token = "{TOKEN}"\n')
    own = {
        "variable": {"INAGG_CONTROLLER_TOKEN": TOKEN},
        "file": {"INAGG_CONTROLLER_TOKEN_FILE": str(path)},
        "inagg.toml": {"INAGG_CONFIG": str(config)},
    }
    for result, log in run_ranks(own[place], {}, **controller):
        assert result["sum"] == [RANKS] * 3, log
        assert result["stats"]["path"] == "server"
        assert TOKEN not in json.dumps(result) + log
    assert jobs(controller) == [("finished", "vision", "batch")]


@pytest.mark.parametrize(
    ("own", "error", "message"),
    [
        ({}, "ControllerForbiddenError", "POST /jobs needs the token of a tenant (controller_token, INAGG_CONT"),
        (
            {"INAGG_CONTROLLER_TOKEN": "another-tenants-token"},
            "ControllerForbiddenError",
            "see controller_token (INAGG_CONTROLLER_TOKEN, INAGG_CONTROLLER_TOKEN_FILE)",
        ),
        (
            {"INAGG_CONTROLLER_TOKEN": TOKEN, "INAGG_JOB_CLASS": "default"},
            "ControllerForbiddenError",
            "job_class is default; the classes of the tenant vision are batch, small",
        ),
        (
            {"INAGG_CONTROLLER_TOKEN_FILE": "/nonexistent"},
            "ConfigurationError",
            "controller_token_file /nonexistent: No such file or directory; it must have the token",
        ),
    ],
)  # fmt: skip
def test_ranks_without_the_right_raise_and_the_message_names_the_option(
    controller: dict[str, str], own: dict[str, str], error: str, message: str
) -> None:
    (first, log), (second, other_log) = run_ranks(own, {}, **controller)
    assert (first["error"], second["error"]) == (error, "JobError")
    for result in (first, second):
        assert message in result["message"]
    shown = json.dumps([first, second]) + log + other_log
    assert TOKEN not in shown
    assert "another-tenants-token" not in shown
    assert jobs(controller) == []


def test_a_rank_may_name_another_class_that_its_tenant_has(controller: dict[str, str]) -> None:
    own = {"INAGG_CONTROLLER_TOKEN": TOKEN, "INAGG_JOB_CLASS": "small"}
    for result, log in run_ranks(own, {}, **controller):
        assert result["sum"] == [RANKS] * 3, log
    assert jobs(controller) == [("finished", "vision", "small")]
