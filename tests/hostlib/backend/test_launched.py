# SPDX-License-Identifier: Apache-2.0
"""The testbed gives its processes the environment that torchrun gives, so frameworks find rank and store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed

LAUNCHED = Path(__file__).with_name("launched")
RANKS = 2
# OWN: values that differ from run to run. AGENTS: only torchrun's agent, which restarts workers, sets them.
OWN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"}
AGENTS = {
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCHELASTIC_USE_AGENT_STORE",
}


def environments(folder: Path) -> list[dict[str, str]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def under_torchrun(script: str, folder: Path, port: int) -> None:
    """Run the script under torchrun, one rank a node."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(RANKS), "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    agents = [
        subprocess.Popen([*command, "--node-rank", str(node), script, str(folder)], env=dict(os.environ))
        for node in range(RANKS)
    ]
    assert [agent.wait(120) for agent in agents] == [0] * RANKS


@pytest.mark.netns
def test_a_rank_has_what_torchrun_gives(tmp_path: Path) -> None:
    ours, torchruns = tmp_path / "testbed", tmp_path / "torchrun"
    ours.mkdir()
    torchruns.mkdir()
    script = str(LAUNCHED / "print_environment.py")
    under_torchrun(script, torchruns, port=29470)
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path, switch="bridge"
    ) as testbed:
        testbed.launch([sys.executable, script, str(ours)], name="environment").follow(
            lambda _rank, _event: None, timeout_s=60
        )
    for wanted, given in zip(environments(torchruns), environments(ours), strict=True):
        added = wanted.keys() - os.environ.keys() - AGENTS
        assert {"RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID"} <= added
        assert added <= given.keys()
        assert {name: given[name] for name in added - OWN} == {name: wanted[name] for name in added - OWN}
        assert given["NODE_RANK"] == given["GROUP_RANK"]


@pytest.mark.long
@pytest.mark.netns
def test_lightning_trains_under_inagg_run(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="the extra 'frameworks'")
    command = [sys.executable, "-m", "inagg_testbed", "run", "--workers", str(RANKS), "--link", "unshaped"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path), str(LAUNCHED / "lightning_fit.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rank 0 of {RANKS} on inagg, weights the same: True\n" in done.stdout
