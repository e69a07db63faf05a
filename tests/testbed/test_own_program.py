# SPDX-License-Identifier: Apache-2.0
"""A user's P4 program between hosts: the commands of docs/switch.md, word for word."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switches import P4RUNTIME_ADDRESS, command_path
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.network.topology import run_in_namespace

pytestmark = pytest.mark.netns

MANUAL = Path(__file__).parents[2] / "docs" / "switch.md"


def test_the_manuals_program_forwards_once_its_entries_are_there(tmp_path: Path) -> None:
    section = MANUAL.read_text().partition("### On a testbed")[2].partition("\n## ")[0]
    program = tmp_path / "l2.p4"
    program.write_text(section.partition("```p4\n")[2].partition("```")[0])
    typed = "\n".join(re.findall(r"^P4Runtime sh >>> (.*)$", section, re.MULTILINE)) + "\n"
    assert "entry.insert()" in typed
    with open_testbed(
        hosts=2,
        link=LinkSpec.parse("unshaped", mtu=600),  # too small for inagg's own program
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        program=program,
        controlled=False,
    ) as testbed:
        assert [process.name for process in testbed.services] == ["switch"]
        assert "INAGG_CONTROLLER" not in testbed.node_environments()["h1"]

        def reached() -> bool:
            done = subprocess.run(
                ["mnexec", "-a", str(testbed.network.host(1).pid), "ping", "-c", "1", "-w", "3", "h2"],
                capture_output=True,
                check=False,
            )
            return done.returncode == 0

        assert not reached()
        switch = command_path("inagg-switch")
        shell = f"{switch} shell --grpc-addr {P4RUNTIME_ADDRESS} --device-id 1 --election-id 0,1"
        said = run_in_namespace(
            testbed.network.switch.pid,
            f"cd {tmp_path}; printf %s {shlex.quote(typed)} | HOME={tmp_path} {shell}",
        )
        assert "Error" not in said
        assert reached()


def test_a_program_that_is_not_inaggs_needs_no_controller(tmp_path: Path) -> None:
    program = tmp_path / "l2.p4"
    program.write_text(
        MANUAL.read_text().partition("### On a testbed")[2].partition("```p4\n")[2].partition("```")[0]
    )
    command = [sys.executable, "-m", "inagg_testbed", "up", "--workers", "1", "--p4", str(program)]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "r")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "A program that is not inagg's runs with --no-controller." in done.stderr


def test_a_bridge_runs_no_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inagg_testbed", "up", "--switch", "bridge", "--no-controller"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "r")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        "inagg: --no-controller needs a switch that runs P4 programs; a bridge does not\n",
    )
    assert not (tmp_path / "r").exists()
