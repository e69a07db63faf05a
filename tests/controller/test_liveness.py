# SPDX-License-Identifier: Apache-2.0
"""How the controller sees that a rank lives or has died. Both are processes with TCP between them."""

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from inagg.membership.control import ControlClient
from tests import forks
from tests.controller.fake_server import FakeServer
from tests.controller.launching import Launcher, read_line
from tests.waiting import wait_until

# argv: URL, rank, the job's secret, the scheme by which it is seen to live. Joins job 1, says so, does what it is told
# to by lines of its standard input.
WORKER = """
import ctypes, os, socket, struct, sys, threading, time, httpx
from inagg.membership.control import ControlClient
from inagg.errors import JobRank
from inagg.membership.beating import BeatTimes
from inagg.membership.heartbeat import HeartbeatOwner, RankHeartbeat
from inagg.sums.journal import Journal

class Terminated(httpx.HTTPTransport):
    # Takes https: to the controller's http:, as a proxy that terminates TLS does.
    requests = 0

    def handle_request(self, request):
        Terminated.requests += 1
        request.url = request.url.copy_with(scheme="http")
        return super().handle_request(request)

class Rank(HeartbeatOwner):
    def failed(self, failure):
        print(failure.reason, flush=True)

    def pause(self):
        return presence.pause(policy.heartbeat_timeout_s / 2)

client, rank = ControlClient(sys.argv[1]), int(sys.argv[2])
attending = client
if sys.argv[4] == "https":
    attending = ControlClient(sys.argv[1].replace("http:", "https:"), transport=Terminated())
for one in (client, attending):
    one.learn_secret(1, sys.argv[3])
mac = f"02:00:00:00:00:0{rank + 1}"
policy = client.register(1, rank, ip=f"10.0.0.{rank + 1}", mac=mac, udp_port=4000, port=rank + 1).policy
presence = attending.attend(1, rank, policy.heartbeat_interval_s)
times = BeatTimes(policy.heartbeat_interval_s, policy.heartbeat_timeout_s)
RankHeartbeat(client, JobRank(1, "", rank), times, Rank(), Journal()).start()
while sys.argv[4] == "https" and presence._due is None:
    time.sleep(0.01)
first = getattr(presence, "_connection", None)
print("in", flush=True)
for order in sys.stdin:
    if order == "hold the GIL\\n":
        ctypes.PyDLL(None).sleep(3)
        print(f"held{presence.pause(1.5) and ', and knows'}", flush=True)
    elif order == "break\\n":  # a reset, as from a firewall
        broken = presence._connection
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.shutdown(socket.SHUT_RDWR)
        while presence._connection is broken:
            time.sleep(0.01)
        print("made again", flush=True)
    elif order == "connect again\\n":
        https = sys.argv[4] == "https"
        while Terminated.requests < 2 or presence._due is None if https else presence._connection is first:
            time.sleep(0.01)
        print("connected again", flush=True)
    elif order == "fork\\n":
        if os.fork() == 0:
            print(f"child {os.getpid()}", flush=True)
            sys.stdin.read()
            os._exit(0)
"""


class Rank:
    def __init__(self, url: str, rank: int, secret: str, way: str) -> None:
        command = (sys.executable, "-c", WORKER, url, str(rank), secret, way)
        self.process = forks.start_piped(*command, modules=forks.OF_RANKS)

    def hears(self) -> str:
        return read_line(self.process)

    def told(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")

    def close(self) -> None:
        self.process.kill()
        print(self.process.communicate()[1])


RunJob = Callable[..., tuple[ControlClient, list[Rank]]]


@pytest.fixture
def run_job(launch: Launcher, free_port: int) -> Iterator[RunJob]:
    """run_job(heartbeat timeout and interval in seconds, scheme): a controller runs job 1, with two ranks -> (client,
    ranks)."""
    ranks: list[Rank] = []
    client = ControlClient(f"http://127.0.0.1:{free_port}")

    def start(
        timeout_s: float, interval_s: float = 0.2, way: str = "http"
    ) -> tuple[ControlClient, list[Rank]]:
        controller = launch(heartbeat_interval_s=interval_s, heartbeat_timeout_s=timeout_s)
        assert read_line(controller) == "ready"
        client.create_job(2, 4)
        ranks.extend(Rank(client.base_url, rank, client.secret(1), way) for rank in range(2))
        assert [rank.hears() for rank in ranks] == ["in", "in"]
        client.wait_running(1, timeout_s=10)
        return client, ranks

    yield start
    for rank in ranks:
        rank.close()
    client.close()


def lost(client: ControlClient) -> dict[int, str]:
    wait_until(lambda: client.status(1).state == "failed", "the job has failed")
    return {one.rank: one.reason for one in client.status(1).lost}


def test_a_rank_that_holds_the_gil_is_not_taken_for_a_dead_one(run_job: RunJob) -> None:
    client, ranks = run_job(timeout_s=1.5)
    ranks[1].told("hold the GIL")
    assert ranks[1].hears() == "held"
    assert client.status(1).state == "running"


def test_a_killed_rank_is_noticed_and_told_at_once_even_if_its_children_live_on(run_job: RunJob) -> None:
    client, ranks = run_job(timeout_s=600)
    ranks[1].told("fork")
    assert ranks[1].hears().startswith("child")
    ranks[1].process.kill()
    killed = time.monotonic()
    assert ranks[0].hears() == "rank 1 (10.0.0.2): its process has ended without leaving the job"
    assert time.monotonic() - killed < 5
    assert lost(client) == {1: "its process has ended without leaving the job"}


def test_a_killed_rank_is_noticed_behind_https_too(run_job: RunJob) -> None:
    client, ranks = run_job(timeout_s=600, way="https")
    time.sleep(0.5)  # more than a heartbeat interval
    assert client.status(1).state == "running"
    ranks[1].process.kill()
    assert lost(client) == {1: "its process has ended without leaving the job"}


def test_a_connection_that_the_network_breaks_is_made_again(run_job: RunJob) -> None:
    client, ranks = run_job(timeout_s=600, interval_s=2)
    for _ in range(3):
        ranks[1].told("break")
        assert ranks[1].hears() == "made again"
    time.sleep(2.5)  # longer than a process may be absent
    assert client.status(1).state == "running"
    ranks[1].process.kill()
    assert lost(client) == {1: "its process has ended without leaving the job"}


def test_a_rank_that_says_nothing_is_lost_after_the_timeout(run_job: RunJob) -> None:
    client, ranks = run_job(timeout_s=1)
    ranks[1].process.send_signal(19)  # SIGSTOP: its connections stay
    assert lost(client)[1].startswith("no heartbeat for 1 s: its process is stopped")


@pytest.mark.parametrize(
    ("way", "pause"),
    [("http", "was stopped or suspended"), ("https", "was stopped or suspended, or held the GIL,")],
)
def test_a_rank_that_goes_on_learns_that_its_process_was_stopped(
    run_job: RunJob, way: str, pause: str
) -> None:
    client, ranks = run_job(timeout_s=1, way=way)
    ranks[1].process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    assert lost(client)[1].startswith("no heartbeat for ")
    wait_until(lambda: time.monotonic() > stopped + 3, "the pause is longer than a beat may be late")
    ranks[1].process.send_signal(signal.SIGCONT)
    heard = ranks[1].hears()
    told = re.fullmatch(rf"this rank was given up: its process {pause} for about (\d+) s", heard)
    assert told, heard
    assert abs(int(told[1]) - (time.monotonic() - stopped)) < 2


def test_a_rank_that_holds_the_gil_behind_https_is_not_taken_for_a_stopped_one(run_job: RunJob) -> None:
    client, ranks = run_job(timeout_s=1, way="https")
    ranks[1].told("hold the GIL")
    assert ranks[1].hears() == "held, and knows"
    assert client.status(1).state == "running"


@pytest.mark.parametrize("way", ["http", "https"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_notice_nothing_when_the_controller_starts_again(
    run_job: RunJob, launch: Launcher, fake_server: FakeServer, way: str, ending: signal.Signals
) -> None:
    client, ranks = run_job(timeout_s=600, way=way)
    switch = fake_server.servicer
    entries, groups = dict(switch.entries), dict(switch.groups)
    before = client.status(1)
    launch.processes[0].send_signal(ending)
    launch.processes[0].wait()
    assert read_line(launch(heartbeat_interval_s=0.2, heartbeat_timeout_s=600)) == "ready"
    assert client.status(1) == before
    assert (switch.pushes, switch.entries, switch.groups) == (1, entries, groups)
    ranks[1].told("connect again")
    assert ranks[1].hears() == "connected again"
    with ControlClient(client.base_url) as later:  # its request is read after that of the presence
        later.health()
    ranks[1].process.kill()
    assert lost(client) == {1: "its process has ended without leaving the job"}
    assert ranks[0].hears().startswith("rank 1")
    wait_until(lambda: len(switch.entries) < len(entries), "its entries are gone")


def test_ranks_of_a_controller_that_was_restarted_are_told_that_their_job_is_gone(
    run_job: RunJob, launch: Launcher
) -> None:
    _, ranks = run_job(timeout_s=600)
    launch.processes[0].kill()
    launch.processes[0].wait()
    assert read_line(launch(state="none")) == "ready"
    for rank in ranks:
        assert rank.hears().startswith("there is no job 1: it never existed")


def test_ranks_of_a_controller_that_was_restarted_take_no_other_job_for_theirs(
    run_job: RunJob, launch: Launcher, free_port: int
) -> None:
    _, ranks = run_job(timeout_s=600)
    for rank in ranks:
        rank.process.send_signal(19)  # SIGSTOP
    launch.processes[0].kill()
    launch.processes[0].wait()
    assert read_line(launch(state="none")) == "ready"
    with ControlClient(f"http://127.0.0.1:{free_port}") as client:
        assert client.create_job(2, 4).id == 1
    for rank in ranks:
        rank.process.send_signal(18)  # SIGCONT
        assert rank.hears().startswith("this is not the secret of job 1")


def test_the_controller_ends_at_once_while_ranks_are_connected(run_job: RunJob, launch: Launcher) -> None:
    run_job(timeout_s=600)
    launch.processes[0].terminate()
    _, log = launch.processes[0].communicate(timeout=10)
    assert launch.processes[0].returncode == 0
    assert "ERROR" not in log
