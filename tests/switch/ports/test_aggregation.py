# SPDX-License-Identifier: Apache-2.0
"""Workers in network namespaces sum through a running switch: plain UDP sockets, p4runtime-shell, p4/inagg.p4."""

import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import p4runtime_sh.shell as sh
import pytest

from inagg_contract.constants import RUN_CHUNKS
from tests import INAGG_P4
from tests.switch.network import MakeNetwork, Network
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

AGGREGATOR, AGGREGATOR_MAC, INAGG_PORT = "10.0.0.253", "02:49:41:00:00:01", 0x4941
DATA, RESULT = 0x42, 0x4A  # version 4, and kind
EXPONENT_CHECK = 341
JOB, EPOCH, SLOTS, LANES = 7, 99, 8, 256
# Version and kind, rank, job, exponent, its check field (no flags), epoch, chunk, checksum.
HEADER = struct.Struct("!BBHHHIII")
RESULT_BYTES = HEADER.size + 4 * LANES


def contribution(rank: int, chunk: int, lanes: list[int], epoch: int = EPOCH) -> bytes:
    exponent = 100 + rank
    check = exponent + EXPONENT_CHECK
    head = HEADER.pack(DATA, rank, JOB, exponent, check, epoch, chunk, sum(lanes) % 2**32)
    return head + struct.pack(f"!{LANES}I", *lanes)


class Worker:
    """A UDP socket in a host's namespace."""

    def __init__(self, net: Network, rank: int) -> None:
        self.rank = rank
        with net.inside(net.host(rank + 1)):
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.bind((net.ip(rank + 1), 0))
        self.socket.connect((AGGREGATOR, INAGG_PORT))
        self.socket.settimeout(10)

    @property
    def udp_port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def send(self, chunk: int, lanes: list[int], epoch: int = EPOCH) -> None:
        self.socket.send(contribution(self.rank, chunk, lanes, epoch))

    def receive(self) -> tuple[int, int, list[int]]:
        """Chunk, exponent and lanes of the next result."""
        data = self.socket.recv(2000)
        kind, _, job, exponent, check, epoch, chunk, checksum = HEADER.unpack_from(data)
        lanes = list(struct.unpack_from(f"!{LANES}I", data, HEADER.size))
        assert (kind, job, epoch, check) == (RESULT, JOB, EPOCH, exponent + EXPONENT_CHECK)
        assert checksum == sum(lanes) % 2**32
        return chunk, exponent, lanes


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> sh.FwdPipeConfig:
    folder = tmp_path_factory.mktemp("config")
    command = [sys.executable, "-m", "inagg_switch.cli", "compile", str(INAGG_P4), "-o", str(folder)]
    subprocess.run(command, check=True, timeout=120)
    return sh.FwdPipeConfig(str(folder / "p4info.txtpb"), str(folder / "inagg.p4"))


class Running:
    """A switch process with a controller's shell connected to it."""

    def __init__(
        self, net: Network, command: list[str], folder: Path, config: sh.FwdPipeConfig, threads: int
    ) -> None:
        self.net, self.config, self.threads = net, config, threads
        self._sockets: list[socket.socket] = []
        self.address = f"unix:{folder}/s.sock"
        self.process = net.start_and_wait(
            net.switch,
            *command,
            "run",
            *net.port_arguments,
            "--threads",
            str(threads),
            "--grpc",
            self.address,
        )
        sh.setup(device_id=1, grpc_addr=self.address, election_id=(0, 1), config=config, verbose=False)

    def workers(self, count: int, slots: int = SLOTS) -> list[Worker]:
        """The first hosts' workers, admitted as one job."""
        made = [Worker(self.net, rank) for rank in range(count)]
        self._sockets += [worker.socket for worker in made]
        self._add_job(made, slots)
        return made

    def stop(self) -> None:
        for udp in self._sockets:
            udp.close()
        sh.teardown()
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, err

    def flood(self) -> None:
        group = sh.MulticastGroupEntry(1)
        for port in range(1, self.net.hosts + 1):
            group.add(port, 0)
        group.insert()

    def _add_job(self, workers: list[Worker], slots: int) -> None:
        entry = sh.TableEntry(table("arp_responder"))(action=action("answer"))
        entry.match["ip"] = AGGREGATOR
        entry.action["mac"] = AGGREGATOR_MAC
        entry.insert()
        group = sh.MulticastGroupEntry(2)
        for worker in workers:
            group.add(worker.rank + 1, worker.rank + 1)
            self._receiver(worker)
            self._admission(worker, len(workers), slots)
        group.insert()

    def _receiver(self, worker: Worker) -> None:
        entry = sh.TableEntry(table("receiver"))(action=action("deliver"))
        entry.match.set(job=str(JOB), rank=str(worker.rank))
        number = worker.rank + 1
        entry.action.set(mac=self.net.mac(number), ip=self.net.ip(number), udp_port=str(worker.udp_port))
        entry.insert()

    def _admission(self, worker: Worker, workers: int, slots: int) -> None:
        entry = sh.TableEntry(table("admission"))(action=action("admit"))
        number = worker.rank + 1
        entry.match.set(port=str(number), source=self.net.ip(number), job=str(JOB), rank=str(worker.rank))
        entry.action.set(
            member=str(1 << worker.rank),
            all=str((1 << workers) - 1),
            slot_base="0",
            slot_mask=str(2 * slots - 1),
            epoch=str(EPOCH),
            result_group="2",
            parents="0",
            first_chunk="0",
            run_bits="0",
        )
        entry.insert()


def name_of(kind: sh.P4Type, short: str) -> str:
    """The full name of an object, by its last part."""
    names: list[str] = [name for name, _ in sh.context.get_objs(kind) if name.endswith("." + short)]
    return names[0]


def table(short: str) -> str:
    return name_of(sh.P4Type.table, short)


def action(short: str) -> str:
    return name_of(sh.P4Type.action, short)


def counter(short: str) -> dict[int, int]:
    """Packets by port, for ports with packets."""
    cells = sh.CounterEntry(name_of(sh.P4Type.counter, short)).read()
    return {one.index: one.packet_count for one in cells if one.packet_count}


@pytest.fixture(params=[1, 2, 4], ids=lambda n: f"{n}threads")
def running(
    network: MakeNetwork,
    switch_command: list[str],
    tmp_path: Path,
    config: sh.FwdPipeConfig,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[int], Running]]:
    """Starts a switch between the given number of hosts."""
    started: list[Running] = []

    def start(hosts: int) -> Running:
        started.append(Running(network(hosts), switch_command, tmp_path, config, request.param))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.parametrize("count", [2, 4])
def test_results_are_the_sums_at_every_worker(running: Callable[[int], Running], count: int) -> None:
    switch = running(count)
    workers = switch.workers(count)
    draw = random.Random(1)
    for chunk in range(5 * SLOTS):
        parts = [[draw.randrange(2**30) for _ in range(LANES)] for _ in workers]
        for worker in draw.sample(workers, count):
            worker.send(chunk, parts[worker.rank])
        expected = [sum(lane) for lane in zip(*parts, strict=True)]
        for worker in workers:
            assert worker.receive() == (chunk, 100 + count - 1, expected)
    chunks = 5 * SLOTS
    assert sum(counter("completed").values()) == chunks
    assert sum(counter("started").values()) == chunks
    assert counter("result_sent") == {rank + 1: chunks for rank in range(count)}


@pytest.mark.parametrize("offloads", [True, False])
def test_a_burst_of_contributions_comes_back_as_a_burst_of_results(
    running: Callable[[int], Running], offloads: bool
) -> None:
    """One system call sends 60 contributions (UDP_SEGMENT); one takes their results (UDP_GRO). Without offloads the
    packets of a run belong to one thread of the switch, and are in order."""
    switch = running(2)
    workers = switch.workers(2, slots=64)
    burst = 60
    for worker in workers:
        switch.net.set_offloads(worker.rank + 1, offloads)
        worker.socket.setsockopt(socket.SOL_UDP, 103, len(contribution(0, 0, [0] * LANES)))  # UDP_SEGMENT
        worker.socket.setsockopt(socket.SOL_UDP, 104, 1)  # UDP_GRO
    parts = [[[rank + 1 + chunk] * LANES for chunk in range(burst)] for rank in range(2)]
    for worker in workers:
        lanes = parts[worker.rank]
        worker.socket.send(b"".join(contribution(worker.rank, chunk, lanes[chunk]) for chunk in range(burst)))
    for worker in workers:
        results: list[bytes] = []
        while len(results) < burst:
            data = worker.socket.recv(70000)
            if offloads:
                assert len(data) == burst * RESULT_BYTES
            results += [data[i : i + RESULT_BYTES] for i in range(0, len(data), RESULT_BYTES)]
        chunks = [HEADER.unpack_from(result)[6] for result in results]
        assert sorted(chunks) == list(range(burst))
        together = burst if offloads or switch.threads == 1 else RUN_CHUNKS
        for first in range(0, burst, together):
            run = [chunk for chunk in chunks if first <= chunk < first + together]
            assert run == sorted(run)
        for chunk, result in zip(chunks, results, strict=True):
            assert struct.unpack_from(f"!{LANES}I", result, HEADER.size) == (2 * chunk + 3,) * LANES


def test_a_repeated_contribution_is_added_once_and_a_lost_result_is_sent_again(
    running: Callable[[int], Running],
) -> None:
    switch = running(2)
    first, second = switch.workers(2)
    ones, twos = [1] * LANES, [2] * LANES
    first.send(0, ones)
    first.send(0, ones)
    # Several threads do not keep packets of different ports in order.
    wait_until(lambda: counter("duplicate_pending") == {1: 1}, "the repeated contribution is counted")
    second.send(0, twos)
    for worker in (first, second):
        assert worker.receive() == (0, 101, [3] * LANES)
    second.send(0, twos)
    assert second.receive() == (0, 101, [3] * LANES)
    assert counter("duplicate_pending") == {1: 1}
    assert counter("result_resent") == {2: 1}


def test_contributions_that_are_not_admitted_are_counted(running: Callable[[int], Running]) -> None:
    switch = running(2)
    first, second = switch.workers(2)
    first.send(0, [1] * LANES, epoch=EPOCH + 1)
    second.rank = 5
    second.send(0, [1] * LANES)
    second.socket.send(b"short")
    wait_until(lambda: counter("wrong_epoch") == {1: 1}, "wrong_epoch")
    wait_until(lambda: counter("not_admitted") == {2: 1}, "not_admitted")
    wait_until(lambda: counter("malformed") == {2: 1}, "malformed")


def test_hosts_ping_and_talk_tcp_through_the_p4_program(running: Callable[[int], Running]) -> None:
    switch = running(3)
    switch.flood()
    net = switch.net
    for number in (2, 3):
        net.run(net.host(1), f"ping -c 3 -i 0.05 -W 2 {net.ip(number)}")
    with net.inside(net.host(2)):
        listener = socket.create_server((net.ip(2), 5000))
    with listener, net.inside(net.host(1)), socket.create_connection((net.ip(2), 5000), timeout=10) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"x" * 50_000)
            received = b""
            while len(received) < 50_000:
                received += server.recv(65536)
    assert received == b"x" * 50_000


def test_a_pipeline_config_is_replaced_while_traffic_runs(running: Callable[[int], Running]) -> None:
    switch = running(2)
    net = switch.net
    switch.flood()
    with net.packet_socket(1) as sender, net.packet_socket(2) as receiver:
        sent = 0
        for _ in range(5):
            for _ in range(200):
                sender.send(b"\xff" * 6 + b"\x02\0\0\0\0\x01\x88\xb5" + struct.pack("!I", sent))
                sent += 1
            sh.client.set_fwd_pipe_config(switch.config.p4info, switch.config.bin)
            switch.flood()
        sender.send(b"\xff" * 6 + b"\x02\0\0\0\0\x01\x88\xb5" + struct.pack("!I", sent))
        numbers: list[int] = []
        while not numbers or numbers[-1] != sent:
            data = receiver.recv(2000)
            if data[12:14] == b"\x88\xb5":
                numbers.append(struct.unpack_from("!I", data, 14)[0])
    # Frames between a swap and the new flood group are lost. No frame is repeated or reordered.
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 1
    workers = switch.workers(2)
    for worker in workers:
        worker.send(0, [1] * LANES)
    for worker in workers:
        assert worker.receive() == (0, 101, [2] * LANES)
