# SPDX-License-Identifier: Apache-2.0
"""Ranks in network namespaces receive results at their job's group address, or the job changes to unicast."""

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inagg.membership.multicast import open_socket
from inagg_contract.constants import INAGG_PORT
from inagg_contract.documents import Endpoint, JobStatus
from inagg_testbed.errors import NetworkError
from inagg_testbed.network.control import call_in_network_namespace
from inagg_testbed.network.fabric import host_name
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import host_address, run_in_namespace
from inagg_testbed.network.workers import Event, WorkerGroup, worker_environment
from tests.waiting import BUSY_S, wait_until

pytestmark = pytest.mark.netns

WORKER = Path(__file__).with_name("multicast_worker.py")
STRANGER = 3  # a host without a rank
MISSED = 8  # results that arrive only when they are sent again, after which a rank asks for unicast
CHANGE_S = 10.0 + BUSY_S  # within which the job changes then; it takes three seconds on a quiet machine


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory, forked_processes: None) -> Iterator[Testbed]:
    with open_testbed(
        hosts=3, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("multicast")
    ) as made:
        yield made


@dataclass
class Ranks:
    """Ranks of one job that sum until `stop`. hosts: the host of each rank. events: what each has reported."""

    testbed: Testbed
    group: WorkerGroup
    stop_file: Path
    events: list[list[Event]] = field(default_factory=list)

    def read(self) -> None:
        for worker in self.group.workers:
            self.events[worker.rank] += worker.events.read()
            if worker.process.poll() is not None:
                worker.process.check()
        for service in self.testbed.services:
            service.check()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            self.read()
            return condition()

        wait_until(met, what, 60.0)

    def wait_joined(self) -> None:
        self.until(lambda: all(self.events), "all ranks have joined")

    def sum_on(self) -> None:
        """Wait until each rank has done some more sums."""
        before = [own[-1].get("number", 0) for own in self.events]

        def done() -> bool:
            return all(
                own[-1].get("number", 0) > old + 20 for own, old in zip(self.events, before, strict=True)
            )

        self.until(done, f"all ranks have done 20 sums more than {before}")

    def stop(self) -> list[Event]:
        """Let all ranks end; each has found all its sums right. Returns their figures at the end."""
        self.stop_file.touch()
        self.group.follow(
            lambda rank, event: self.events[rank].append(event), timeout_s=60, watch=self.testbed.services
        )
        ended = [own[-1] for own in self.events]
        assert [event["event"] for event in ended] == ["ended"] * len(ended)
        return ended

    def job(self) -> JobStatus:
        assert self.testbed.controller is not None
        return self.testbed.controller.job(next(own[0]["job"] for own in self.events if own))

    def log(self, rank: int) -> str:
        return self.group.workers[rank].process.log_path.read_text()


Launch = Callable[..., Ranks]


@pytest.fixture
def launch(testbed: Testbed, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launch]:
    """launch([1, 1, 2]): ranks 0 and 1 on host 1, rank 2 on host 2. packet_threads: of the last rank; the others have
    one. Ranks that are left at the end are ended."""
    groups = []

    def start(hosts: Sequence[int] = (1, 2), packet_threads: int = 1) -> Ranks:
        group = WorkerGroup(workers=[])
        port = 29500 + len(testbed.groups)
        testbed.groups.append(group)
        groups.append(group)
        for rank, host in enumerate(hosts):
            environment = {
                **worker_environment(
                    rank=rank,
                    world=len(hosts),
                    interface=testbed.network.gloo_interface(host),
                    master_address=host_address(hosts[0]),
                    master_port=port,
                    run=testbed.run.id,
                ),
                **testbed.node_environments()[host_name(host)],
                "INAGG_PACKET_THREADS": str(packet_threads if rank == len(hosts) - 1 else 1),
            }
            command = [sys.executable, str(WORKER), "{events}", str(tmp_path / "stop")]
            name = f"{request.node.name}-{rank}"
            group.workers.append(testbed._start_worker(command, name, rank, host, environment))
        return Ranks(testbed, group, tmp_path / "stop", [[] for _ in hosts])

    yield start
    for group in groups:
        group.stop()


@contextmanager
def dropped_multicast(testbed: Testbed, host: int) -> Iterator[None]:
    """In the block the host loses what comes for a group: its interface sends it to the loopback, which has joined
    none."""
    interface = testbed.network.gloo_interface(host)
    match = "protocol ip u32 match ip dst 224.0.0.0/4"
    commands = (
        f"tc qdisc add dev {interface} handle ffff: ingress",
        f"tc filter add dev {interface} parent ffff: {match} action mirred egress redirect dev lo",
    )
    pid = testbed.network.host(host).pid
    try:
        run_in_namespace(pid, commands[0])
    except NetworkError as error:
        pytest.skip(f"cannot drop multicast: {error}")
    try:
        try:
            run_in_namespace(pid, commands[1])
        except NetworkError as error:
            pytest.skip(f"cannot drop multicast: {error}")
        yield
    finally:
        run_in_namespace(pid, f"tc qdisc del dev {interface} handle ffff: ingress")


def counts(testbed: Testbed, name: str) -> dict[int, int]:
    """Packets of a counter, by port."""
    assert testbed.controller is not None
    return {port: count.packets for port, count in testbed.controller.counters()["s1"].get(name, {}).items()}


@pytest.mark.parametrize("packet_threads", [1, 2, 4])
def test_results_arrive_at_the_group_address(launch: Launch, packet_threads: int) -> None:
    ranks = launch([1, 2, 3], packet_threads)
    ranks.wait_joined()
    ranks.sum_on()
    results = ranks.job().results
    assert results == Endpoint(ip=f"239.192.0.{ranks.job().id}", udp_port=INAGG_PORT)
    for end in ranks.stop():
        assert end["multicast_received"] > end["number"]
        assert end["unicast_in_a_row"] < MISSED
        assert (end["discarded"], end["corrupt"]) == (0, 0)
    assert end["packet_threads"] == packet_threads
    assert ranks.job().results == results


@pytest.mark.parametrize("packet_threads", [1, 2])
def test_ranks_of_one_host_share_the_copies_to_its_port(
    testbed: Testbed, launch: Launch, packet_threads: int
) -> None:
    to_one = ("result_resent", "query_held", "query_again")
    names = ("completed", "result_sent", *to_one)
    before = {name: counts(testbed, name) for name in names}
    ranks = launch([2, 1, 1], packet_threads)
    ranks.wait_joined()
    ranks.sum_on()
    for end in ranks.stop():
        assert end["multicast_received"] > end["number"]
        assert end["unicast_in_a_row"] < MISSED
    made = {
        name: {port: count - before[name].get(port, 0) for port, count in counts(testbed, name).items()}
        for name in names
    }
    for port in (1, 2):
        copies = made["result_sent"][port] - sum(made[name].get(port, 0) for name in to_one)
        assert copies == sum(made["completed"].values())
    assert ranks.job().results is not None


@pytest.mark.parametrize("packet_threads", [1, 2])
def test_a_job_with_a_host_that_drops_multicast_changes_to_unicast_as_it_is_joined(
    testbed: Testbed, launch: Launch, packet_threads: int
) -> None:
    with dropped_multicast(testbed, 2):
        ranks = launch(packet_threads=packet_threads)
        ranks.until(lambda: bool(ranks.events[1]), "rank 1 has joined")
        assert ranks.job().results is None
        ranks.wait_joined()
        ranks.sum_on()
        first, second = ranks.stop()
    assert first["multicast_received"] > 0
    assert second["multicast_received"] == 0
    assert all(end["unicast_in_a_row"] > end["number"] for end in (first, second))
    assert f"multicast to 239.192.0.{ranks.job().id} does not arrive" in ranks.log(1)
    assert "does not arrive" not in ranks.log(0)


def test_a_job_changes_to_unicast_if_multicast_stops_during_training(
    testbed: Testbed, launch: Launch
) -> None:
    ranks = launch()
    ranks.wait_joined()
    ranks.sum_on()
    assert ranks.job().results is not None
    with dropped_multicast(testbed, 2):
        began = time.monotonic()
        ranks.until(lambda: ranks.job().results is None, "the job has changed to unicast")
        assert time.monotonic() - began < CHANGE_S
        ranks.sum_on()
        ends = ranks.stop()
    assert ranks.job().state == "finished"
    assert all(end["multicast_received"] > 0 and end["unicast_in_a_row"] > 20 for end in ends)
    assert f"multicast to 239.192.0.{ranks.job().id} does not arrive" in ranks.log(1)


def test_a_job_with_a_host_that_may_join_no_group_is_unicast_from_the_beginning(
    testbed: Testbed, launch: Launch
) -> None:
    pid = testbed.network.host(2).pid
    knob = "/proc/sys/net/ipv4/igmp_max_memberships"
    allowed = run_in_namespace(pid, f"cat {knob}").strip()
    run_in_namespace(pid, f"echo 0 > {knob}")
    try:
        ranks = launch()
        ranks.wait_joined()
        assert ranks.job().results is None
        ranks.sum_on()
        ends = ranks.stop()
    finally:
        run_in_namespace(pid, f"echo {allowed} > {knob}")
    assert [end["multicast_received"] for end in ends] == [0, 0]
    assert "cannot receive multicast at 239.192.0." in ranks.log(1)
    assert "(No buffer space available)" in ranks.log(1)


def socket_at_port(testbed: Testbed, host: int) -> socket.socket:
    """Sends from the aggregator's port, at the host's own address."""

    def make() -> socket.socket:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((host_address(host), INAGG_PORT))
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host_address(host)))
        return udp

    return call_in_network_namespace(testbed.network.host(host).pid, make)


def deliver(testbed: Testbed, attacker: socket.socket, results: Endpoint, payload: bytes) -> None:
    """Send to the group address until another socket on host 1 has got it, one that is open to the attacker."""

    def make() -> socket.socket:
        udp = open_socket(results, host_address(1), attacker.getsockname())
        udp.settimeout(0.2)
        return udp

    def sent() -> bool:
        attacker.sendto(payload, (results.ip, results.udp_port))
        try:
            return udp.recv(65536) == payload
        except TimeoutError:
            return False

    with call_in_network_namespace(testbed.network.host(1).pid, make) as udp:
        wait_until(sent, f"{len(payload)} bytes from {attacker.getsockname()} reach host 1")


def test_results_that_others_send_to_the_group_address_reach_no_rank(
    testbed: Testbed, launch: Launch
) -> None:
    ranks = launch()
    ranks.wait_joined()
    results = ranks.job().results
    assert results is not None
    forged = bytes(1044)
    with socket_at_port(testbed, STRANGER) as stranger, socket_at_port(testbed, 1) as neighbour:
        before = counts(testbed, "malformed").get(STRANGER, 0)
        stranger.sendto(forged, (results.ip, results.udp_port))
        wait_until(
            lambda: counts(testbed, "malformed").get(STRANGER, 0) == before + 1,
            "the switch takes the datagram for a contribution",
        )
        # The switch forwards fragments, and a process of the host needs no switch: the ranks' sockets refuse.
        deliver(testbed, stranger, results, forged * 2)
        deliver(testbed, neighbour, results, forged)
        ranks.sum_on()
    for end in ranks.stop():
        assert (end["discarded"], end["corrupt"]) == (0, 0)
    assert ranks.job().results is not None
