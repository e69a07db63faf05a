# SPDX-License-Identifier: Apache-2.0
"""Joining a job checks that packets of full size pass. A rank that receives nothing says what may be wrong."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from inagg.errors import InaggError, NetworkTimeoutError
from inagg.membership.joined import Joined
from inagg.membership.session import Session
from inagg.options import Options
from inagg_contract.documents import JobStatus, PacketCount, Waits
from inagg_simulator.virtual_network import make_aggregator
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import port_interface, run_in_namespace
from tests.conformance.loopback_switch import SLOTS, WORDS, LoopbackSwitch, make_transport
from tests.hostlib.membership.one_rank import HealthyController, status_of

OPTIONS = Options(controller="http://127.0.0.1:9")
SMALL_ONES_PASS = "while packets of 48 bytes pass between all ranks and the switch"
MTU_IS_TOO_SMALL = "of {} has an MTU below 1072 bytes"
WORKER = Path(__file__).with_name("fallback_worker.py")
# Joining and gloo are tried for eight seconds, in parallel. The rest is for a busy machine: 11 s alone, 18 s beside
# other tests on two processors.
ENOUGH_S = 25.0


class CountingController(HealthyController):
    """A controller's client that counts the packets and bytes that the switch has received from each rank."""

    received: Mapping[int, tuple[int, int]] | None = None

    def status(self, job: int) -> JobStatus:
        counters: dict[int, PacketCount] | None = None
        if self.received is not None:
            counters = {
                rank: PacketCount(packets=packets, bytes=size)
                for rank, (packets, size) in self.received.items()
            }
        return status_of(2).model_copy(update={"counters": counters})


@contextmanager
def sessions(workers: int, *, give_up_s: float = 120.0, **settings: Any) -> Iterator[list[Session]]:
    with ExitStack() as stack:
        aggregator = make_aggregator(workers, slots=SLOTS, words=WORDS)
        switch = stack.enter_context(LoopbackSwitch(aggregator, **settings))
        status = status_of(workers)
        policy = status.policy.model_copy(update={"give_up_s": give_up_s})
        status = status.model_copy(update={"policy": policy})
        ranks = []
        for rank in range(workers):
            transport = make_transport(switch.address, rank, workers, give_up_s=give_up_s, rto_initial_s=0.02)
            ranks.append(Session(Joined(CountingController("http://127.0.0.1:9"), status, rank, transport)))
            stack.callback(ranks[-1].close)
        yield ranks


def try_path(ranks: list[Session], timeout_s: float) -> list[InaggError | None]:
    """All ranks try the path at once; returns each rank's error, or None."""
    found: list[InaggError | None] = [None] * len(ranks)

    def run(rank: int) -> None:
        try:
            ranks[rank].try_path(timeout_s)
        except InaggError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_a_path_that_loses_some_packets_is_accepted(loss: float) -> None:
    with sessions(3, loss=loss) as ranks:
        assert try_path(ranks, 60.0) == [None] * 3
        tensors = [torch.ones(1000) for _ in ranks]
        sums = [
            rank.sums.submit(tensor, options=OPTIONS, call="")
            for rank, tensor in zip(ranks, tensors, strict=True)
        ]
        assert all(one.wait(20.0) and one.error is None for one in sums)
        assert all(tensor.tolist() == [3.0] * 1000 for tensor in tensors)


@pytest.mark.parametrize(
    ("counters", "whose"),
    [
        (None, ["any rank"] * 2),
        ({0: (14, 62 + 13 * 1086), 1: (1, 62)}, ["rank 1"] * 2),
        ({0: (1, 62), 1: (2, 124)}, ["ranks 0, 1"] * 2),
        # The switch received all packets, so the results are too large.
        ({0: (3, 2234), 1: (3, 2234)}, ["rank 0", "rank 1"]),
    ],
)
def test_if_only_small_packets_pass_the_error_names_the_mtu_and_the_size_that_passed(
    monkeypatch: pytest.MonkeyPatch, counters: Mapping[int, tuple[int, int]] | None, whose: list[str]
) -> None:
    monkeypatch.setattr(CountingController, "received", counters)
    monkeypatch.setattr("inagg.membership.mtu_probe._FULL_SIZE_S", 0.3)
    with sessions(2, longest=1043) as ranks:
        for error, ranks_named in zip(try_path(ranks, 60.0), whose, strict=True):
            assert isinstance(error, NetworkTimeoutError)
            assert (error.packet_bytes, error.passed_bytes) == (1072, 48)
            assert "no answer to an IP packet of 1072 bytes" in str(error)
            assert SMALL_ONES_PASS in str(error)
            assert MTU_IS_TOO_SMALL.format(ranks_named) in str(error)


def test_if_no_packet_passes_the_error_comes_before_the_give_up_time() -> None:
    with sessions(2, longest=0) as ranks:
        for error in try_path(ranks, 0.3):
            assert isinstance(error, NetworkTimeoutError)
            assert error.passed_bytes is None
            assert "no packet from the switch for 0.3 s" in str(error)


def test_the_sum_that_tries_the_path_is_not_counted_as_a_sum_that_a_rank_waited_for() -> None:
    with sessions(1) as (alone,):
        alone.try_path(60.0)
        assert alone._condition.waited() == Waits(sums=0, waited_s=0.0)
        assert alone.sums.submit(torch.ones(10), options=OPTIONS, call="").wait(20.0)
        assert alone._condition.waited().sums == 1


def test_a_sum_that_is_given_up_names_the_mtu_among_the_causes() -> None:
    with sessions(1, give_up_s=0.3, longest=1043) as (alone,):
        reduction = alone.sums.submit(torch.ones(10), options=OPTIONS, call="")
        assert reduction.wait(20.0)
        assert isinstance(reduction.error, NetworkTimeoutError)
        assert "chunk 1: no packet from the switch for 0.3 s" in str(reduction.error)
        assert MTU_IS_TOO_SMALL.format("any rank") in str(reduction.error)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, forked_processes: None) -> Iterator[Testbed]:
    """A testbed in which the switch's port to the second host cannot carry packets of full size."""
    folder = tmp_path_factory.mktemp("narrow")
    with open_testbed(hosts=6, link=LinkSpec.parse("unshaped"), results_root=folder) as testbed:
        port = port_interface(testbed.network.run.id, 2)
        run_in_namespace(testbed.network.switch.pid, f"ip link set dev {port} mtu 1060")
        yield testbed


def outcomes(testbed: Testbed, name: str, **environment: str) -> list[dict[str, Any]]:
    """Each rank tries to make a group and to sum; returns what each printed at the end."""
    group = testbed.launch([sys.executable, str(WORKER)], name=name, environment=environment)
    group.follow(lambda *_: None, timeout_s=100, watch=testbed.services)
    logs = [worker.process.log_path.read_text() for worker in group.workers]
    return [json.loads(log.splitlines()[-1]) for log in logs]


@pytest.mark.netns
def test_making_a_group_detects_a_port_of_the_switch_with_a_small_mtu(narrow: Testbed) -> None:
    found = outcomes(narrow, "error")
    assert "NetworkTimeoutError" in [outcome["error"] for outcome in found]
    assert all(SMALL_ONES_PASS in outcome["message"] for outcome in found)
    assert any(MTU_IS_TOO_SMALL.format("rank 1 (h2, 10.0.0.2)") in outcome["message"] for outcome in found)


@pytest.mark.netns
def test_if_gloo_does_not_get_through_either_all_ranks_raise(
    narrow: Testbed,
) -> None:
    found = outcomes(narrow, "inner", INAGG_FALLBACK="inner")
    all_there = max(outcome["begun"] for outcome in found)
    for outcome in found:
        assert outcome["ended"] - all_there < ENOUGH_S
        assert outcome["error"] == "JobError"
        assert "gloo did not carry 16384 bytes from each rank to each other" in outcome["message"]
        assert SMALL_ONES_PASS in outcome["message"]


@pytest.fixture
def narrow_for_datagrams(narrow: Testbed) -> Iterator[Testbed]:
    """TCP's segments are smaller than the port's MTU, so gloo gets through; the job's packets are too large."""
    hosts = range(1, narrow.network.size + 1)
    change = "ip route change $(ip route show scope link | sed 's/ advmss [0-9]*//')"
    for number in hosts:
        run_in_namespace(narrow.network.host(number).pid, f"{change} advmss 900")
    yield narrow
    for number in hosts:
        run_in_namespace(narrow.network.host(number).pid, change)


@pytest.mark.netns
def test_gloo_sums_if_only_the_job_s_packets_are_too_large(narrow_for_datagrams: Testbed) -> None:
    for outcome in outcomes(narrow_for_datagrams, "gloo-sums", INAGG_FALLBACK="inner"):
        assert outcome["sum"] == [6.0] * 3
        assert outcome["stats"]["path"] == "inner"
        assert SMALL_ONES_PASS in outcome["stats"]["reason"]
