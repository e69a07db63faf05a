# SPDX-License-Identifier: Apache-2.0
"""Sums in host memory: on the ranks' servers, and on servers with hosts of their own, behind bridges and a switch."""

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from inagg.membership.mtu_probe import blocks_of
from inagg_contract.documents import Chunks, JobStatus
from inagg_testbed.demo.run import INAGG_16, INAGG_32, TrainingSpec
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.lifecycle import manifests, tagged_processes
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.network.traffic import read
from inagg_testbed.operate.status import document, take_snapshot
from tests import ROOT
from tests.broken_sockets import COMPLAINT
from tests.testbed.commands import inagg
from tests.testbed.programs import PROGRAM, SUMS, launch, sum_rightly, weights
from tests.waiting import BUSY_S, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

WORKERS = 3
FAILS = {"INAGG_ON_PATH_LOSS": "fail"}  # by default the job goes on elsewhere
ON_SERVERS = {"INAGG_AGGREGATION": "server", "INAGG_SERVERS": "registered"}

# The controller notices that a server has ended, and tells the ranks.
MOST_S = 10.0 + BUSY_S


# Sums, until the server in rank 1's process fails.
WITH_A_SERVER_THAT_FAILS = f"""{PROGRAM}
from inagg.membership import own_server
from tests.broken_sockets import break_socket
dist.all_reduce(torch.ones(100_000))
print("in the middle", flush=True)
if dist.get_rank() == 1:
    (shared,) = own_server._shared.values()
    break_socket(shared.server.local_address)
while True:
    dist.all_reduce(torch.ones(100_000))
"""


def opened(
    folder: Path,
    switch: SwitchKind,
    *,
    servers: int = 0,
    environment: dict[str, str] | None = None,
    fabric: Fabric | None = None,
) -> AbstractContextManager[Testbed]:
    return open_testbed(
        fabric=fabric or Fabric.star(WORKERS),
        servers=servers,
        link=LinkSpec.parse("unshaped"),
        results_root=folder / "results",
        state_dir=folder / "state",
        switch=switch,
        environment=environment,
    )


def uplinks(testbed: Testbed) -> list[int]:
    """Bytes so far on each link between switches, up and down."""
    (ports,) = read(testbed.network)
    return [bytes_ for trunk in testbed.network.fabric.trunks for bytes_ in ports[trunk.upper]]


def last_job(testbed: Testbed) -> JobStatus:
    assert testbed.controller is not None
    return max(testbed.controller.jobs(), key=lambda each: each.id)


def chunks_of(job: JobStatus, elements: int) -> Chunks:
    """Those of one sum, and of the first one, of the path."""
    number = math.ceil(4 * elements / (256 * job.words)) + blocks_of(job)
    return Chunks(switches=0, both=0, servers=number)


@pytest.fixture(scope="module")
def through_the_switch(folder: Path) -> dict[TrainingSpec, str]:
    """Weights after training through the switch model."""
    with opened(folder, "model") as testbed:
        return {spec: weights(testbed, spec) for spec in (INAGG_32, INAGG_16)}


@pytest.fixture(scope="module")
def colocated(folder: Path) -> Iterator[Testbed]:
    """Three hosts on a bridge; every rank's process serves a share of the chunks."""
    with opened(folder, "bridge") as testbed:
        yield testbed


@pytest.mark.parametrize("spec", [INAGG_32, INAGG_16], ids=lambda spec: spec.name)
def test_the_ranks_servers_train_the_same_weights_as_the_switch(
    colocated: Testbed, through_the_switch: dict[TrainingSpec, str], spec: TrainingSpec
) -> None:
    assert weights(colocated, spec) == through_the_switch[spec]


@pytest.mark.parametrize("switch", ["bridge", "model"])
def test_a_link_between_racks_carries_each_chunk_once(tmp_path: Path, switch: SwitchKind) -> None:
    """Over bridges the ranks name their racks; the controller of a topology knows them."""
    elements = 2_000_000
    environment = {"INAGG_AGGREGATION": "server"}
    with opened(tmp_path, switch, environment=environment, fabric=Fabric.parse("tree:2x4")) as testbed:
        before = uplinks(testbed)
        sum_rightly(testbed, elements, watch=testbed.services)
        carried = [new - old for old, new in zip(before, uplinks(testbed), strict=True)]
        job = last_job(testbed)
        assert [member.rack for member in job.members] == ["leaf1"] * 4 + ["leaf2"] * 4
        assert job.chunks is not None
        assert job.chunks.servers >= math.ceil(4 * elements / (256 * job.words))
    # Without racks it would be 4 times as much.
    assert all(4 * elements < each < 1.3 * 4 * elements for each in carried), carried


@pytest.mark.parametrize(("switch", "found"), [("bridge", "server"), ("model", "leased")])
def test_auto_takes_the_switch_if_there_is_one(tmp_path: Path, switch: SwitchKind, found: str) -> None:
    with opened(tmp_path, switch, environment={"INAGG_AGGREGATION": "auto"}) as testbed:
        sum_rightly(testbed, watch=testbed.services)
        assert testbed.controller is not None
        assert {job.aggregation for job in testbed.controller.jobs()} == {found}


def test_a_job_on_the_ranks_servers_names_their_addresses(colocated: Testbed) -> None:
    sum_rightly(colocated, watch=colocated.services)
    assert colocated.controller is not None
    job = max(colocated.controller.jobs(), key=lambda each: each.id)
    assert (job.aggregation, job.state, job.displaced) == ("server", "finished", None)
    assert job.chunks == chunks_of(job, 100_000)
    assert [(server.rank, server.ip) for server in job.servers] == [
        (rank, f"10.0.0.{rank + 1}") for rank in range(WORKERS)
    ]


@pytest.mark.parametrize(("switch", "servers"), [("bridge", 1), ("bridge", 2), ("model", 1)])
def test_servers_with_hosts_of_their_own_train_the_same_weights_as_the_switch(
    tmp_path: Path, through_the_switch: dict[TrainingSpec, str], switch: SwitchKind, servers: int
) -> None:
    with opened(tmp_path, switch, servers=servers, environment=ON_SERVERS) as testbed:
        assert weights(testbed, INAGG_32) == through_the_switch[INAGG_32]
        assert testbed.controller is not None
        (job,) = testbed.controller.jobs()
        sum_rightly(testbed, watch=testbed.services)
        # A server reports what it has summed when it has forgotten the job.
        wait_until(lambda: last_job(testbed).chunks == chunks_of(last_job(testbed), 100_000), "the chunks")
        names = [f"h{WORKERS + number}" for number in range(1, servers + 1)]
        assert sorted(server.name for server in job.servers) == names
        shown = document(
            testbed.run.manifest, take_snapshot(testbed.run.manifest), take_snapshot(testbed.run.manifest)
        )
        assert sorted(server["name"] for server in shown["controller"]["servers"]) == names
        assert (shown["hosts"], shown["servers"]) == (WORKERS, servers)


def test_a_killed_server_ends_the_job_with_its_name(tmp_path: Path) -> None:
    with opened(tmp_path, "bridge", servers=1, environment=ON_SERVERS) as testbed:
        group = launch(testbed, SUMS, FAILS)
        (server,) = (process for process in testbed.services if process.name == "server h4")
        server.signal(signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(WorkerFailedError) as caught:
            group.follow(lambda _rank, _event: None, timeout_s=60)
        assert time.monotonic() - began < MOST_S
        assert set(caught.value.failures) == set(range(WORKERS))
        assert all("h4" in failure for failure in caught.value.failures.values()), caught.value
    assert tagged_processes(testbed.run.id, besides=0) == []
    assert manifests(tmp_path / "state") == {}


def test_a_rank_whose_server_fails_ends_the_job_with_the_reason(colocated: Testbed) -> None:
    group = launch(colocated, WITH_A_SERVER_THAT_FAILS, FAILS | {"PYTHONPATH": str(ROOT)}, name="failing")
    began = time.monotonic()
    with pytest.raises(WorkerFailedError) as caught:
        group.follow(lambda _rank, _event: None, timeout_s=60)
    assert time.monotonic() - began < MOST_S
    failures = caught.value.failures
    assert set(failures) == set(range(WORKERS))
    assert f"the server in its process has ended: {COMPLAINT}" in failures[1]
    for rank in (0, 2):
        assert "rank 1 " in failures[rank]
        assert f"the server in its process has ended: {COMPLAINT}" in failures[rank]


def test_a_server_ends_cleanly_with_its_testbed(tmp_path: Path) -> None:
    with opened(tmp_path, "bridge", servers=1) as testbed:
        (server,) = (process for process in testbed.services if process.name == "server h4")
        run_in_namespace(testbed.network.host(1).pid, "ping -c 1 -W 2 h4")
    assert server.poll() == 0, server.log_tail()


@pytest.mark.parametrize("switch", ["bridge", "model"])
def test_the_benchmark_measures_bytes_beside_theory(tmp_path: Path, switch: SwitchKind) -> None:
    figures, elements = tmp_path / "rows.json", 400_000
    backends = ["gloo", "inagg-server:32", "inagg-server:16", "inagg-server-1:32"]
    backends += [] if switch == "bridge" else ["inagg:32"]
    options = ["--workers", str(WORKERS), "--elements", str(elements), "--link", "1gbit", "--iters", "3"]
    arguments = ["bench", "allreduce", "--switch", switch, *options, "--json", str(figures)]
    arguments += [text for backend in backends for text in ("--backend", backend)]
    done = inagg(*arguments, "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())["rows"]
    assert all(row["checked"] for row in rows)
    assert [row["steps"] for row in rows] == [4, 2, 2, 2, *([] if switch == "bridge" else [1])]
    size, ring = 4 * elements, 4 / 3  # 2(N-1)/N
    shares = [ring, ring, ring / 2, 3, *([] if switch == "bridge" else [1])]
    assert [row["theory_bytes"] for row in rows] == pytest.approx([share * size for share in shares])
    in_switch = [None, 0, 0, 0, *([] if switch == "bridge" else [1])]
    assert [row["in_switch"] for row in rows] == in_switch
    for row in rows:
        # Headers take 6% at most. The rest is for what a busy machine makes the ranks send again.
        assert 0.99 < row["link_bytes"] / row["theory_bytes"] < 1.3, row
