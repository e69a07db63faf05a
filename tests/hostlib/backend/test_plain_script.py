# SPDX-License-Identifier: Apache-2.0
"""A script as in the README runs on the testbed without a change, under each launcher."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed

SCRIPT = Path(__file__).with_name("plain_ddp.py")
TORCHRUN = (
    f"exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank $RANK"
    f" --master-addr 10.0.0.1 --master-port 29400 {SCRIPT}"
)
# is_host: the hosts' names do not resolve to their addresses (docs/deployment.md).
RESTARTING_TORCHRUN = (
    f"exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 1"
    " --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29420 --rdzv-id restarts"
    " --rdzv-conf is_host=$((1 - RANK)) --local-addr 10.0.0.$((RANK + 1))"
)

WAITS_FOR_ONE_THAT_FAILS = """
import os, torch, torch.distributed as dist
LAST, HOW = "1", "raises"
dist.init_process_group("inagg")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != LAST:
    if HOW == "killed":
        os.kill(os.getpid(), 9)
    raise ValueError("no such thing\\nas this")
dist.all_reduce(torch.ones(3))
"""

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("plain")
    ) as opened:
        yield opened


def run(testbed: Testbed, name: str, command: list[str]) -> None:
    environment = {"GLOO_SOCKET_IFNAME": "", "TMPDIR": str(testbed.results)}  # where torchrun leaves its logs
    group = testbed.launch(command, name=name, environment=environment)
    group.follow(lambda _rank, _event: None, timeout_s=60, watch=testbed.services)


def test_a_plain_script_needs_no_interface_names_and_no_destroy(testbed: Testbed) -> None:
    run(testbed, "plain", [sys.executable, str(SCRIPT)])


def test_torchrun_starts_it(testbed: Testbed) -> None:
    run(testbed, "torchrun", ["sh", "-c", TORCHRUN])


def test_an_exception_in_one_rank_is_what_the_other_is_told(testbed: Testbed) -> None:
    group = testbed.launch([sys.executable, "-c", WAITS_FOR_ONE_THAT_FAILS], name="raises")
    with pytest.raises(WorkerFailedError) as caught:
        group.follow(lambda _rank, _event: None, timeout_s=60, watch=testbed.services)
    assert "lost rank 1" in caught.value.failures[0]
    assert ": its program ended with ValueError: no such thing;" in caught.value.failures[0]
    assert "ValueError: no such thing" in caught.value.failures[1]


@pytest.mark.parametrize("how", [pytest.param("raises", marks=pytest.mark.long), "killed"])
def test_torchrun_starts_all_ranks_again_when_one_has_failed(
    testbed: Testbed, tmp_path: Path, how: str
) -> None:
    script = tmp_path / "fails_once.py"
    script.write_text(WAITS_FOR_ONE_THAT_FAILS.replace('"raises"', repr(how)))
    run(testbed, f"restarts-{how}", ["sh", "-c", f"{RESTARTING_TORCHRUN} {script}"])
