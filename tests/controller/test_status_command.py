# SPDX-License-Identifier: Apache-2.0
"""`inagg status` of a controller that belongs to no testbed. It needs no root."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg.membership.control import ControlClient
from inagg_testbed.cli import operating
from inagg_testbed.cli.main import app
from inagg_testbed.network.lifecycle import Run, find_run, manifests
from tests.controller.launching import Launcher, read_line


def status(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "inagg_testbed", "status", "--interval", "0.1", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def test_it_shows_jobs_ranks_and_switches(launch: Launcher, free_port: int, token_file: Path) -> None:
    controller = launch()
    assert read_line(controller) == "ready"
    url = f"http://127.0.0.1:{free_port}"
    with ControlClient(url) as client:
        job = client.create_job(2, 4, name="train.py")
        client.register(job.id, 0, ip="10.0.0.1", mac="02:00:00:00:00:01", udp_port=4000, host="h1")
        done = status("--controller", f"{url}/", "--token-file", str(token_file))
        found = json.loads(status("--json", "--token-file", str(token_file), "--controller", url).stdout)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][:3] == ["controller", f"{url}/:", "connected,"]
    assert ["s1", "10.0.0.253", "connected"] in [row[:3] for row in rows]
    assert "job 1 (train.py): joining; 2 ranks" in done.stdout
    assert ["0", "h1", "10.0.0.1", "joined"] in [row[:4] for row in rows]
    assert ["1", "-", "-", "awaited"] in [row[:4] for row in rows]
    assert (found["url"], found["controller"]["switch"]) == (url, "connected")
    assert [rank["state"] for rank in found["jobs"][0]["ranks"]] == ["joined", "awaited"]
    controller.kill()
    controller.wait()
    gone = status("--controller", url, "--token-file", str(token_file))
    assert gone.returncode == 1
    assert "the controller does not answer" in gone.stdout


def test_it_says_what_is_wrong_with_the_url_and_the_token(tmp_path: Path) -> None:
    no_url = status("--controller", "10.0.0.254:9560")
    assert no_url.returncode == 1
    assert "--controller 10.0.0.254:9560: must be a URL such as http://" in no_url.stderr
    no_token = status("--controller", "http://127.0.0.1:9", "--token-file", str(tmp_path / "no.token"))
    assert no_token.returncode == 1
    assert "the operator's token of the controller cannot be read" in no_token.stdout


def test_a_run_that_is_named_is_a_testbeds() -> None:
    done = status("--run", "nosuch", INAGG_CONTROLLER="http://127.0.0.1:9")
    assert done.returncode == 1
    assert re.search("no run nosuch|nosuch is not one of them|inagg status needs root", done.stderr)


@pytest.mark.parametrize(
    ("up", "arguments", "of_controller"),
    [
        ([], (), True),
        (["another installation"], (), True),
        (["this installation"], (), False),
        (["this installation"], ("--controller", "http://127.0.0.1:9"), True),
        ([], ("--run", "nosuch"), False),
    ],
)
def test_a_testbed_that_is_up_comes_before_the_variable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    up: list[str],
    arguments: tuple[str, ...],
    of_controller: bool,
) -> None:
    state = tmp_path / "state"
    for installation in up:
        run = Run(state)
        if installation != "this installation":
            run.manifest.settings["installation"] = installation
        run.save()
    monkeypatch.setattr(operating, "manifests", partial(manifests, state))
    monkeypatch.setattr(operating, "find_run", partial(find_run, state_dir=state))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    done = CliRunner().invoke(
        app,
        ["status", "--interval", "0.1", "--token-file", str(tmp_path / "no.token"), *arguments],
        env={"INAGG_CONTROLLER": "http://127.0.0.1:9", "COLUMNS": "100"},
    )
    assert done.exit_code == 1
    assert ("controller http://127.0.0.1:9" in done.output) == of_controller, done.output
    assert ("is starting" in done.output or "no run nosuch" in done.output) == (not of_controller)
