# SPDX-License-Identifier: Apache-2.0
"""The bytes on the hosts' links."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]
WORKER = Path(__file__).with_name("traffic_worker.py")
NAMES = (
    *("server:async", "server:async=1", "server:async=2", "server:ssp=1"),
    *("server:leaves", "gossip", "gossip:random", "local:2"),
)


def test_the_busiest_link_carries_what_theory_says(tmp_path: Path) -> None:
    """Headers are less than a tenth: the links have offloads, or frames of 1500 bytes."""
    setting = ["--switch", "bridge", "--workers", "4", "--link", "unshaped", "--results", str(tmp_path)]
    done = CliRunner().invoke(app, ["run", *setting, str(WORKER), *NAMES])
    assert done.exit_code == 0, done.output
    found = json.loads(next(line for line in done.output.splitlines() if line.startswith("{")))
    assert list(found) == list(NAMES)
    assert all(1 <= ratio < 1.1 for ratio in found.values()), found
