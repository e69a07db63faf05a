# SPDX-License-Identifier: Apache-2.0
"""The controller's command with a running switch, and workers' sockets in network namespaces.

Every test runs with the switch model, and with BMv2 where it is installed.
"""

import contextlib
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from inagg.errors import ControllerRefusedError, JobRank
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import Failure
from inagg.membership.multicast import open_socket
from inagg_contract.constants import EXPONENT_CHECK
from inagg_contract.documents import Endpoint, JobStatus, PacketCount
from inagg_controller.certificates import issue
from tests import INAGG_P4
from tests.controller.heartbeats import Rank, make_heartbeat
from tests.switch.network import MakeNetwork, Network
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

GRPC = "127.0.0.1:9559"
HTTP = "127.0.0.1:9560"
AGGREGATOR = ("10.0.0.253", 18753)
AGGREGATOR_MAC = bytes.fromhex("024941000001")
HEADER = struct.Struct(">BBHHHIII")  # docs/protocol.md, 2.1
EXPONENT, RESULT = 0x41, 0x49  # version 4, and kind
ONE_PACKET = PacketCount(packets=1, bytes=62)
# The entries of the switch before any job, by table: the aggregator's entries, and the bindings of two hosts.
GROUND = {
    "arp_responder": 1,
    "ping_responder": 1,
    "source_mac": 3,
    "source_ip": 3,
    "bound_port": 2,
    "station": 2,
}

Address: TypeAlias = tuple[str, int]  # IP, UDP port
Files: TypeAlias = tuple[Path, Path]  # a program's P4Info and device config


@pytest.fixture(scope="session")
def compiled_by_model(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("model")
    command = [sys.executable, "-m", "inagg_switch.cli", "compile", str(INAGG_P4), "-o", str(folder)]
    subprocess.run(command, check=True, timeout=300)
    return folder / "p4info.txtpb", folder / "inagg.p4"


@pytest.fixture(scope="session")
def compiled_by_p4c(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("p4c")
    p4info, config = folder / "p4info.txtpb", folder / "inagg.json"
    options = ["--std", "p4-16", "--p4runtime-files", str(p4info), "-o", str(config)]
    command = ["p4c-bm2-ss", *options, str(INAGG_P4)]
    subprocess.run(command, check=True, timeout=300)
    return p4info, config


class Testbed:
    """A switch, a controller and the hosts' sockets, in one network."""

    __test__ = False

    def __init__(
        self,
        network: Network,
        switch_command: list[str],
        files: Files,
        token_file: Path,
        controller_options: Sequence[str] = (),
    ) -> None:
        self.network = network
        self.token_file = token_file
        self.switch_command = switch_command
        self.files = files
        self.controller_options = controller_options

    def start_switch(self) -> None:
        self.switch = self.network.start(self.network.switch, *self.switch_command)

    def start_controller(self, multicast: str = "none") -> None:
        p4info, config = self.files
        ports = range(1, self.network.hosts + 1)
        options = {
            "switch": GRPC,
            "p4info": p4info,
            "device-config": config,
            "listen": HTTP,
            "ports": ",".join(map(str, ports)),
            "aggregator-ip": AGGREGATOR[0],
            "multicast": multicast,
            "switch-timeout-s": 60,
            "token-file": self.token_file,
            "heartbeat-interval-s": 0.2,
            "heartbeat-timeout-s": 2,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        for port in ports:
            words += ["--host", f"{self.network.ip(port)}={port},{self.network.mac(port)}"]
            words += [
                "--host-address",
                f"127.0.0.1={self.network.ip(port)}",
            ]  # the tests register for the hosts
        command = [sys.executable, "-m", "inagg_controller", *words, *self.controller_options]
        self.controller = self.network.start_and_wait(self.network.switch, *command)

    def client(self) -> ControlClient:
        return ControlClient(f"http://{HTTP}", timeout_s=5.0, token=self.token_file.read_text().strip())

    def entries(self) -> dict[str, int]:
        """The number of entries of each table that has any, read with P4Runtime."""
        with grpc.insecure_channel(GRPC) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            config = stub.GetForwardingPipelineConfig(
                p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=1), timeout=10
            ).config
            found: dict[str, int] = {}
            for table in config.p4info.tables:
                request = p4runtime_pb2.ReadRequest(device_id=1)
                request.entities.add().table_entry.table_id = table.preamble.id
                count = sum(len(answer.entities) for answer in stub.Read(request, timeout=10))
                if count:
                    found[table.preamble.name.rpartition(".")[2]] = count
            return found

    def replicas(self, group: int) -> list[tuple[int, int]]:
        """(port, replication id) of each copy of a multicast group, read with P4Runtime."""
        request = p4runtime_pb2.ReadRequest(device_id=1)
        asked = request.entities.add().packet_replication_engine_entry.multicast_group_entry
        asked.multicast_group_id = group
        with grpc.insecure_channel(GRPC) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            (answer,) = [entity for one in stub.Read(request, timeout=10) for entity in one.entities]
        entry = answer.packet_replication_engine_entry.multicast_group_entry
        return sorted((replica.egress_port, replica.instance) for replica in entry.replicas)

    @contextlib.contextmanager
    def worker_socket(self, host: int) -> Iterator[socket.socket]:
        with self.network.inside(self.network.host(host)):
            endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with endpoint:
            endpoint.bind((self.network.ip(host), 0))
            endpoint.settimeout(10)
            yield endpoint

    @contextlib.contextmanager
    def results_socket(self, host: int, results: Endpoint) -> Iterator[socket.socket]:
        with self.network.inside(self.network.host(host)):
            endpoint = open_socket(results, self.network.ip(host), AGGREGATOR)
        with endpoint:
            endpoint.settimeout(10)
            yield endpoint

    def register_all(
        self, client: ControlClient, job: JobStatus, workers: Sequence[socket.socket | Address]
    ) -> JobStatus:
        """Registers a worker for each rank, and waits until the job runs."""
        for rank, worker in enumerate(workers):
            ip, udp_port = worker.getsockname() if isinstance(worker, socket.socket) else worker
            host = int(ip.rpartition(".")[2])
            client.register(job.id, rank, ip=ip, mac=self.network.mac(host), udp_port=udp_port)
        return client.wait_running(job.id, timeout_s=10)


@pytest.fixture(params=["model", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def testbed(
    request: pytest.FixtureRequest, network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> Iterator[Testbed]:
    """A testbed of 2 hosts, with switch and controller running; this thread is in the switch's namespace."""
    made, command, files = parts(request, network, switch_command)
    with running(Testbed(made, command, files, tmp_path / "controller.token")) as testbed:
        yield testbed


@pytest.fixture(params=["model", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def secured(
    request: pytest.FixtureRequest, network: MakeNetwork, switch_command: list[str], tmp_path: Path
) -> Iterator[Testbed]:
    """The same, with certificates for P4Runtime on both sides."""
    issue(tmp_path, switches={"s1": ["127.0.0.1"]}, days=1, now=datetime.now(UTC))
    names = ("ca.pem", "switch-s1.pem", "switch-s1.key", "controller.pem", "controller.key")
    ca, certificate, key, own, own_key = (str(tmp_path / name) for name in names)
    made, command, files = parts(request, network, switch_command)
    if request.param == "model":
        command += ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", ca]
    else:
        command += ["--grpc-server-ssl", "--grpc-server-with-client-auth", "--grpc-server-cacert", ca]
        command += ["--grpc-server-cert", certificate, "--grpc-server-key", key]
    options = ["--p4runtime-ca", ca, "--p4runtime-cert", own, "--p4runtime-key", own_key]
    with running(Testbed(made, command, files, tmp_path / "controller.token", options)) as testbed:
        yield testbed


def parts(
    request: pytest.FixtureRequest, network: MakeNetwork, switch_command: list[str]
) -> tuple[Network, list[str], Files]:
    """A network of 2 hosts, the command of the fixture's switch, and the program's files for it."""
    if request.param == "model":
        made = network(2)
        command = [*switch_command, "run", *made.port_arguments, "--grpc", GRPC]
        return made, command, request.getfixturevalue("compiled_by_model")
    files = request.getfixturevalue("compiled_by_p4c")
    made = network(2)
    ports = [f"{port}@{made.port_interface(port)}" for port in (1, 2)]
    interfaces = [word for port in ports for word in ("-i", port)]
    command = ["simple_switch_grpc", "--no-p4", "--device-id", "1", *interfaces, "--"]
    return made, [*command, "--grpc-server-addr", GRPC], files


@contextlib.contextmanager
def running(testbed: Testbed) -> Iterator[Testbed]:
    """Starts switch and controller; this thread is in the switch's namespace."""
    testbed.start_switch()
    with testbed.network.inside(testbed.network.switch):
        testbed.start_controller()
        yield testbed


def exponent_packet(job: JobStatus, rank: int, chunk: int, exponent: int) -> bytes:
    check = exponent + EXPONENT_CHECK
    return HEADER.pack(EXPONENT, rank, job.id, exponent, check, job.epoch, field_of(job, chunk), 10 + rank)


def field_of(job: JobStatus, chunk: int) -> int:
    """The chunk field of a chunk, counted from the job's first one."""
    return (job.first_chunk + chunk) % 2**32


def test_results_go_to_the_addresses_that_the_workers_registered(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        sockets = [first, second]
        job = testbed.register_all(client, client.create_job(2, 4), sockets)
        for rank, endpoint in enumerate(sockets):
            endpoint.sendto(exponent_packet(job, rank, 0, 100 + rank), AGGREGATOR)
        for endpoint in sockets:
            result, sender = endpoint.recvfrom(2048)
            assert sender == AGGREGATOR
            # 1: the rank whose contribution was the last.
            assert HEADER.unpack(result) == (
                RESULT,
                1,
                job.id,
                101,
                101 + EXPONENT_CHECK,
                job.epoch,
                field_of(job, 0),
                21,
            )
        assert client.status(job.id).counters == {0: ONE_PACKET, 1: ONE_PACKET}
        assert {
            name: ports for name, ports in client.counters()["s1"].items() if ports and name != "not_ethernet"
        } == {
            "started": {1: ONE_PACKET},
            "added": {2: ONE_PACKET},
            "completed": {2: ONE_PACKET},
            "result_sent": {1: ONE_PACKET, 2: ONE_PACKET},
        }


def test_a_job_runs_on_a_switch_that_admits_only_clients_with_a_certificate(secured: Testbed) -> None:
    with secured.client() as client, secured.worker_socket(1) as first, secured.worker_socket(2) as second:
        sockets = [first, second]
        job = secured.register_all(client, client.create_job(2, 4), sockets)
        for rank, endpoint in enumerate(sockets):
            endpoint.sendto(exponent_packet(job, rank, 0, 100 + rank), AGGREGATOR)
        for endpoint in sockets:
            assert HEADER.unpack(endpoint.recv(2048))[3] == 101
    with grpc.insecure_channel(GRPC) as channel, pytest.raises(grpc.RpcError) as refused:
        p4runtime_pb2_grpc.P4RuntimeStub(channel).Capabilities(
            p4runtime_pb2.CapabilitiesRequest(), timeout=10
        )
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_results_go_to_the_group_address_until_the_job_changes_to_unicast(testbed: Testbed) -> None:
    testbed.controller.kill()
    testbed.controller.wait()
    testbed.start_controller("239.192.0.0/14")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(testbed.client())
        own = [stack.enter_context(testbed.worker_socket(host)) for host in (1, 2)]
        created = client.create_job(2, 4)
        assert created.results is not None
        grouped = [stack.enter_context(testbed.results_socket(host, created.results)) for host in (1, 2)]
        job = testbed.register_all(client, created, own)
        assert testbed.entries()["receiver"] == 3

        def contribute(rank: int, chunk: int) -> None:
            own[rank].sendto(exponent_packet(job, rank, chunk, 7), AGGREGATOR)

        def chunk_at(endpoint: socket.socket) -> int:
            return (int(HEADER.unpack(endpoint.recv(2048))[6]) - job.first_chunk) % 2**32

        contribute(0, 0)
        contribute(1, 0)
        assert [chunk_at(endpoint) for endpoint in grouped] == [0, 0]
        contribute(1, 0)  # the result has been lost
        assert chunk_at(own[1]) == 0
        assert client.unicast(job.id).results is None
        wait_until(lambda: testbed.replicas(2) == [(1, 1), (2, 2)], "the copies are changed")
        contribute(0, 1)
        contribute(1, 1)
        assert [chunk_at(endpoint) for endpoint in own] == [1, 1]


def test_every_entry_of_a_job_is_in_the_switch_while_it_runs_and_gone_when_all_have_left(
    testbed: Testbed,
) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        assert testbed.entries() == GROUND
        job = testbed.register_all(
            client, client.create_job(4, 64), [first, second, *other_ports(first, second)]
        )
        assert testbed.entries() == GROUND | {"admission": 4, "receiver": 4}
        for rank in range(4):
            client.leave(job.id, rank)
        assert client.status(job.id).state == "finished"
        wait_until(lambda: testbed.entries() == GROUND, "the job's entries are gone")
        assert client.health().free_slot_versions == client.health().slot_versions


def ethernet_frame(destination: bytes, source: bytes, ether_type: int, payload: bytes) -> bytes:
    return b"".join(
        (destination, source, struct.pack("!H", ether_type), payload, bytes(max(0, 46 - len(payload))))
    )


def arp_reply(sender_mac: bytes, sender_ip: str, target_mac: bytes, target_ip: str) -> bytes:
    return b"".join(
        (
            struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2),
            sender_mac,
            socket.inet_aton(sender_ip),
            target_mac,
            socket.inet_aton(target_ip),
        )
    )


def packed_mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


@pytest.mark.parametrize("size", [0, 56, 1472])
def test_the_aggregator_answers_ping(testbed: Testbed, size: int) -> None:
    output = testbed.network.run(
        testbed.network.host(1), f"ping -n -c 3 -i 0.05 -W 2 -M do -s {size} {AGGREGATOR[0]}"
    )
    assert "3 received" in output
    assert "wrong data" not in output


def test_a_host_that_claims_the_addresses_of_others_disturbs_nobody(testbed: Testbed) -> None:
    """Host 2 claims the addresses of the aggregator and of host 1, in ARP replies and as the source of frames."""
    network = testbed.network
    own, victim = packed_mac(network.mac(2)), packed_mac(network.mac(1))
    everybody = b"\xff" * 6
    claims = [
        ethernet_frame(everybody, own, 0x0806, arp_reply(own, AGGREGATOR[0], everybody, network.ip(1))),
        ethernet_frame(victim, own, 0x0806, arp_reply(own, AGGREGATOR[0], victim, network.ip(1))),
        ethernet_frame(everybody, own, 0x0806, arp_reply(own, network.ip(1), everybody, AGGREGATOR[0])),
        ethernet_frame(everybody, victim, 0x0806, arp_reply(victim, network.ip(1), everybody, AGGREGATOR[0])),
        ethernet_frame(everybody, AGGREGATOR_MAC, 0x88B5, b""),
        ethernet_frame(everybody, victim, 0x88B5, b""),
    ]
    attacker = network.packet_socket(2)
    with attacker, testbed.client() as client:
        network.run(network.host(1), f"ping -c 1 -W 2 {AGGREGATOR[0]}")
        for _ in range(4):  # BMv2's ports lose frames if more than 32 come at once
            for claim in claims:
                attacker.send(claim)
        neighbours = network.run(network.host(1), "ip neigh show dev eth0")
        assert "02:49:41:00:00:01" in neighbours
        assert network.mac(2) not in neighbours
        network.run(network.host(1), f"ping -c 1 -W 2 {AGGREGATOR[0]}")
        network.run(network.host(2), f"ping -c 1 -W 2 {network.ip(1)}")
        counters = client.counters()["s1"]
        assert counters["aggregator_forged"][2].packets == 12
        assert counters["source_refused"][2].packets == 12
        alarm = {2: {"aggregator_forged": 12, "source_refused": 12}}
        wait_until(
            lambda: {port.port: port.packets for port in client.health().switches[0].refusals} == alarm,
            "the alarm",
        )


def test_results_that_another_host_forges_reach_no_worker(testbed: Testbed) -> None:
    network = testbed.network
    with (
        testbed.client() as client,
        testbed.worker_socket(1) as first,
        testbed.worker_socket(2) as second,
        network.packet_socket(2) as attacker,
    ):
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        datagram = HEADER.pack(RESULT, 1, job.id, 300, 300 + EXPONENT_CHECK, job.epoch, field_of(job, 0), 21)
        udp_port = first.getsockname()[1]
        udp = struct.pack("!HHHH", AGGREGATOR[1], udp_port, 8 + len(datagram), 0) + datagram
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0)
        ip += socket.inet_aton(AGGREGATOR[0]) + socket.inet_aton(network.ip(1))
        total = sum(struct.unpack("!10H", ip))
        ip = ip[:10] + struct.pack("!H", ~(total % 0xFFFF) & 0xFFFF) + ip[12:]
        for source in (packed_mac(network.mac(2)), AGGREGATOR_MAC):
            attacker.send(ethernet_frame(packed_mac(network.mac(1)), source, 0x0800, ip + udp))
        # These follow the forged result. The first result that the worker gets is the sum.
        for rank, endpoint in enumerate((first, second)):
            endpoint.sendto(exponent_packet(job, rank, 0, 100 + rank), AGGREGATOR)
        result, _ = first.recvfrom(2048)
        assert HEADER.unpack(result)[3] == 101
        assert client.counters()["s1"]["aggregator_forged"][2].packets == 2


def other_ports(*sockets: socket.socket) -> list[Address]:
    """Addresses of further workers on the same hosts."""
    return [(endpoint.getsockname()[0], 1000 + number) for number, endpoint in enumerate(sockets)]


def test_a_contribution_to_an_ended_job_is_refused_by_the_switch(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        client.end_job(job.id)
        wait_until(lambda: "admission" not in testbed.entries(), "the job's entries are gone")
        first.sendto(exponent_packet(job, 0, 0, 1), AGGREGATOR)
        wait_until(
            lambda: client.counters()["s1"]["not_admitted"] == {1: ONE_PACKET}, "the packet is counted"
        )


def test_a_new_job_in_the_same_slots_starts_with_fresh_state(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        old = testbed.register_all(client, client.create_job(2, 4), [first, second])
        first.sendto(exponent_packet(old, 0, 0, 500), AGGREGATOR)
        client.end_job(old.id)
        new = testbed.register_all(client, client.create_job(2, 4), [first, second])
        assert new.epoch != old.epoch
        for rank, endpoint in enumerate([first, second]):
            endpoint.sendto(exponent_packet(new, rank, 0, 7), AGGREGATOR)
        result = HEADER.unpack(second.recv(2048))
        assert (result[3], result[7]) == (7, 21)


def test_injected_loss_drops_and_counts_packets_until_it_is_cleared(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        client.set_loss(1, "ingress", 1.0, "aggregation")
        first.sendto(exponent_packet(job, 0, 0, 7), AGGREGATOR)
        wait_until(
            lambda: client.counters()["s1"]["ingress_loss_injected"] == {1: ONE_PACKET},
            "the packet is dropped",
        )
        client.clear_loss()
        for rank, endpoint in enumerate([first, second]):
            endpoint.sendto(exponent_packet(job, rank, 0, 7), AGGREGATOR)
        assert HEADER.unpack(first.recv(2048))[3] == 7


def test_a_rank_without_heartbeats_is_lost_and_the_other_rank_is_informed(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        failures: list[tuple[str, tuple[int, ...]]] = []
        failed = threading.Event()

        def on_failure(failure: Failure) -> None:
            failures.append((failure.reason, failure.lost_ranks))
            failed.set()

        policy = job.policy
        beats = [
            make_heartbeat(
                client,
                Rank(on_failure),
                policy.heartbeat_interval_s,
                policy.heartbeat_timeout_s,
                JobRank(job.id, job.name, rank),
            )
            for rank in range(2)
        ]
        for beat in beats:
            beat.start()
        assert not failed.wait(1.5 * policy.heartbeat_timeout_s)
        beats[1].stop()
        assert failed.wait(10)
        reason = (
            "rank 1 (10.0.0.2): no heartbeat for 2 s: its process is stopped, or its host is down or cut off"
        )
        assert failures == [(reason, (1,))]
        wait_until(lambda: testbed.entries() == GROUND, "the job's entries are gone")
        beats[0].stop()


def test_a_switch_that_is_killed_fails_its_jobs_and_serves_again_once_restarted(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        client.set_loss(2, "egress", 0.0)
        client.set_loss(2, "egress", 1.0, "other")
        testbed.switch.kill()
        testbed.switch.wait()
        wait_until(lambda: client.health().switch == "lost", "the controller notices")
        status = client.status(job.id)
        assert (status.state, status.lost) == ("failed", ())
        assert status.reason is not None
        assert status.reason.startswith("switch s1 was lost")
        testbed.start_switch()
        wait_until(lambda: client.health().switch == "connected", "the controller is back", 60)
        assert testbed.entries() == GROUND | {"egress_loss": 1}
        client.clear_loss()
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        for rank, endpoint in enumerate([first, second]):
            endpoint.sendto(exponent_packet(job, rank, 0, 7), AGGREGATOR)
        assert HEADER.unpack(first.recv(2048))[3] == 7


def test_a_controller_that_is_killed_can_be_started_again_on_the_same_switch(testbed: Testbed) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        old = testbed.register_all(client, client.create_job(2, 4), [first, second])
        testbed.controller.kill()
        testbed.controller.wait()
        entries = testbed.entries()
        assert entries != GROUND
        testbed.start_controller()
        assert testbed.entries() == entries
        assert client.status(old.id).state == "running"
        client.end_job(old.id)
        wait_until(lambda: testbed.entries() == GROUND, "the job's entries are gone")
        new = testbed.register_all(client, client.create_job(2, 4), [first, second])
        assert new.epoch != old.epoch


@contextlib.contextmanager
def another_controller(
    election_id: int,
) -> Iterator[tuple[p4runtime_pb2_grpc.P4RuntimeStub, p4runtime_pb2.Uint128]]:
    """In the block, another controller is the switch's primary: its P4Runtime stub and its election id."""
    requests: queue.SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = queue.SimpleQueue()
    with grpc.insecure_channel(GRPC) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        answers = stub.StreamChannel(iter(requests.get, None))
        message = p4runtime_pb2.StreamMessageRequest()
        message.arbitration.device_id = 1
        message.arbitration.election_id.high = election_id
        requests.put(message)
        assert next(answers).arbitration.status.code == 0
        try:
            yield stub, message.arbitration.election_id
        finally:
            requests.put(None)
            answers.cancel()


def test_a_job_fails_when_another_controller_takes_the_switch_and_the_switch_is_taken_back_afterwards(
    testbed: Testbed,
) -> None:
    with testbed.client() as client, testbed.worker_socket(1) as first, testbed.worker_socket(2) as second:
        job = testbed.register_all(client, client.create_job(2, 4), [first, second])
        with another_controller(1 << 40) as (stub, election_id):
            request = p4runtime_pb2.WriteRequest(device_id=1, election_id=election_id)
            update = request.updates.add(type=p4runtime_pb2.Update.DELETE)
            update.entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 2
            stub.Write(request, timeout=10)
            taken = time.monotonic()
            wait_until(lambda: client.heartbeat(job.id, 0).state == "failed", "the job fails")
            assert time.monotonic() - taken < 3
            reason = client.heartbeat(job.id, 0).reason
            assert reason is not None
            assert reason.startswith("another controller has taken switch s1 over")
            health = client.health()
            assert health.switch == "lost"
            assert health.switch_error is not None
            assert "another controller is in charge of the switch" in health.switch_error
            assert f"election id ({1 << 40}, 0)" in health.switch_error
            with pytest.raises(ControllerRefusedError, match="switch s1 is not connected"):
                client.create_job(2, 4)
            before = testbed.entries()
            time.sleep(2.5)  # longer than between two attempts to reconnect
            assert testbed.entries() == before  # the controller changes no entry
            assert client.health().switch == "lost"
        wait_until(lambda: client.health().switch == "connected", "the switch is taken back")
        assert testbed.entries() == GROUND
        testbed.register_all(client, client.create_job(2, 4), [first, second])
