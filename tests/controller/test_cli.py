# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-controller` as a process, with a P4Runtime server in memory."""

import signal
import socket
from collections import Counter
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from inagg_controller.cli import app
from inagg_controller.configuration import check_pool, parse_job_classes, parse_multicast, star
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.jobs.classes import JobClass
from inagg_controller.switch.entries import SHARING, Binding, binding_entries
from tests.controller.fake_server import FakeServer
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.controller.serving import worker
from tests.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_ready_when_jobs_can_be_created_and_ends_cleanly(
    launch: Launcher, fake_server: FakeServer, free_port: int, number: signal.Signals
) -> None:
    process = launch()
    assert read_line(process) == "ready"
    assert fake_server.servicer.pushes == 1
    answer = httpx.post(
        f"http://127.0.0.1:{free_port}/jobs", json={"workers": 2, "slots": 4}, trust_env=False
    )
    assert answer.status_code == 201
    process.send_signal(number)
    rest, log = process.communicate(timeout=10)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in log
    assert fake_server.servicer.primary is None


def test_a_waiting_client_does_not_hold_up_the_end(launch: Launcher, free_port: int) -> None:
    process = launch()
    read_line(process)
    url = f"http://127.0.0.1:{free_port}/jobs"
    secret = httpx.post(url, json={"workers": 2, "slots": 4}, trust_env=False).json()["secret"]
    with socket.create_connection(("127.0.0.1", free_port)) as client:
        request = f"GET /jobs/1?wait=running&timeout_s=60 HTTP/1.1\r\nAuthorization: Bearer {secret}\r\n"
        client.sendall(f"{request}Host: controller\r\n\r\n".encode())
        # Answered after the request above has arrived.
        httpx.get(url, trust_env=False)
        process.terminate()
        assert process.wait(10) == 0


def test_epochs_of_a_restarted_controller_are_others_than_before(launch: Launcher, free_port: int) -> None:
    epochs = []
    for _ in range(2):
        process = launch()
        read_line(process)
        answer = httpx.post(
            f"http://127.0.0.1:{free_port}/jobs", json={"workers": 2, "slots": 4}, trust_env=False
        )
        epochs.append(answer.json()["epoch"])
        process.terminate()
        assert process.wait(10) == 0
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"switch": "nowhere"}, "--switch nowhere is not of the form"),
        ({"p4info": "/nonexistent"}, "cannot read /nonexistent: No such file or directory"),
        ({"p4info": __file__}, "is not P4Info in text format"),
        ({"device_config": "/nonexistent"}, "cannot read /nonexistent"),
        ({"ports": "1,two"}, "--ports: 'two' is not a number from 0 to 509"),
        ({"host": "10.0.0.1"}, "--host 10.0.0.1 is not of the form"),
        ({"listen": "[::1]:9560"}, "--listen [::1]:9560: the controller listens at an IPv4 address"),
        ({"host_address": "10.0.0.1"}, "--host-address 10.0.0.1 is not of the form"),
        ({"host_address": "10.0.0.1=::1"}, "--host-address: '::1' is not an IPv4 address"),
        (
            {"host_address": "host=10.0.0.1"},
            "--host-address: 'host' does not appear to be an IPv4 or IPv6 addr",
        ),
        ({"host_address": "224.0.0.1=10.0.0.1"}, "--host-address: 224.0.0.1 is not a host's address"),
        ({"host": "10.0.0.1=1,02-00"}, "--host: '02-00' is not a MAC address"),
        ({"host": ["10.0.0.1=1", "10.0.0.1=2"]}, "--host names 10.0.0.1 twice"),
        (
            {"host": ["10.0.0.1=1,02:00:00:00:00:01", "10.0.0.2=2,02:00:00:00:00:01"]},
            "--host names 02:00:00:00:00:01 at two ports",
        ),
        ({"host": "10.0.0.1=1,02:49:41:00:00:01"}, "--host names an address of the aggregator"),
        ({"host": "10.0.0.253=1"}, "--host names an address of the aggregator"),
        ({"host": "10.0.0.1=9"}, "--host names ports [9], which are not in --ports"),
        ({"aggregator_ip": "239.0.0.1"}, "--aggregator-ip: 239.0.0.1 is not a host's address"),
        ({"aggregator_mac": "zz"}, "--aggregator-mac: 'zz' is not a MAC address"),
        ({"multicast": "all"}, "--multicast: Expected 4 octets in 'all'"),
        ({"multicast": "10.0.0.0/8"}, "--multicast: 10.0.0.0/8 is not a network of multicast addresses"),
        ({"multicast": "224.0.0.0/3"}, "--multicast: 224.0.0.0/3 is not a network of multicast addresses"),
        ({"multicast": "239.192.0.1/14"}, "--multicast: 239.192.0.1/14 has host bits set"),
        ({"multicast": "239.192.0.0/17"}, "--multicast: 239.192.0.0/17 is too small"),
        ({"rto_min_s": "2"}, "--rto-min-s, --rto-initial-s and --rto-max-s must be in this order"),
        ({"give_up_s": "0"}, "--give-up-s must be positive"),
        ({"give_up_s": "nan"}, "--give-up-s must be positive"),
        ({"heartbeat_timeout_s": "0.6"}, "--heartbeat-timeout-s must be at least twice"),
        ({"log_level": "loud"}, "--log-level loud"),
        ({"max_slots": "1"}, "Invalid value for '--max-slots'"),
        ({"shared_slots": "-1"}, "Invalid value for '--shared-slots'"),
        (
            {"shared_slots": "24"},
            "--shared-slots is 24; it must be 0 or a power of two, at most 32 of the pr",
        ),
        ({"shared_slots": "64"}, "at most 32 of the program's 64 slot versions"),
        (
            {"pool": "32", "shared_slots": "8"},
            "--shared-slots is 8; --pool 32 leaves no slots that could be shared",
        ),
        ({"pool": "33"}, "--pool is 33; the program has 32 slots"),
        ({"pool": "1"}, "Invalid value for '--pool'"),
        ({"host_share": "0"}, "--host-share is 0; it must be above 0 and at most 1"),
        ({"job_share": "1.5"}, "--job-share is 1.5; it must be above 0 and at most 1"),
        ({"job_share": "nan"}, "--job-share is nan; it must be above 0 and at most 1"),
        (
            {"job_class": "batch,jobs"},
            "--job-class batch,jobs is not of the form NAME,jobs=4,slots=256, each",
        ),
        (
            {"job_class": "batch,jobs=1,jobs=2"},
            "is not of the form NAME,jobs=4,slots=256, each quota at most once",
        ),
        ({"job_class": "batch,name=other"}, "--job-class batch,name=other is not of the form"),
        (
            {"job_class": "batch,jbos=1"},
            "jbos is not a quota; these are jobs, slots, memory, priority, aggregation",
        ),
        (
            {"job_class": "batch,jobs=-1"},
            "--job-class batch,jobs=-1: jobs: Input should be greater than or equal",
        ),
        ({"job_class": "batch,slots=many"}, "slots: Input should be a valid integer"),
        ({"job_class": "batch,memory=1GB"}, "memory: must be a size such as 256MiB or 2GiB"),
        ({"job_class": "batch,priority=256"}, "priority: Input should be less than or equal to 255"),
        (
            {"job_class": "batch,aggregation=leased+auto"},
            "aggregation: Input should be 'leased', 'shared' or 'serv",
        ),
        ({"job_class": "batch,aggregation="}, "aggregation: Input should be 'leased', 'shared' or 'server'"),
        ({"job_class": ",jobs=1"}, "--job-class ,jobs=1: name: String should have at least 1 character"),
        ({"job_class": ["batch", "batch,jobs=1"]}, "--job-class names batch twice"),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(
    command_line: CommandLine, changes: dict[str, object], message: str
) -> None:
    result = CliRunner().invoke(app, command_line(**changes), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("slot_versions", "pool", "asked", "found"),
    [
        (16384, None, None, (16384, 2048)),
        (8191, None, None, (8191, 1024)),
        (64, None, None, (64, 16)),
        (3, None, None, (3, 0)),
        (64, None, 0, (64, 0)),
        (64, None, 32, (64, 32)),
        (16384, 64, None, (256, 128)),  # as many as can be leased
        (16384, 50, None, (164, 64)),
        (16384, 8000, None, (16256, 256)),  # what is left
        (64, 32, None, (64, 0)),
        (16384, 64, 32, (160, 32)),
    ],
)
def test_jobs_lease_a_part_of_the_slots_and_share_another(
    slot_versions: int, pool: int | None, asked: int | None, found: tuple[int, int]
) -> None:
    assert check_pool(slot_versions, pool, asked) == found


@pytest.mark.parametrize(
    ("options", "free"), [({}, 48), ({"shared_slots": 0}, 64), ({"shared_slots": 32}, 32)]
)
def test_shared_slots_cannot_be_leased(
    launch: Launcher, free_port: int, options: dict[str, object], free: int
) -> None:
    process = launch(**options)
    assert read_line(process) == "ready"
    with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", trust_env=False) as client:
        assert client.get("/health").json()["free_slot_versions"] == free
        asked = {"workers": 1, "slots": 4, "aggregation": "shared"}
        assert client.post("/jobs", json=asked).status_code == (201 if free < 64 else 501)


@pytest.mark.parametrize(("options", "expiry_us"), [({}, 20_000), ({"shared_expiry_ms": 0.5}, 500)])
def test_what_is_in_a_shared_slot_expires(
    launch: Launcher, free_port: int, fake_server: FakeServer, options: dict[str, object], expiry_us: int
) -> None:
    assert read_line(launch(**options)) == "ready"
    asked = {"workers": 1, "slots": 4, "aggregation": "shared"}
    with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", trust_env=False) as client:
        job = client.post("/jobs", json=asked).json()
        registered = client.post(
            f"/jobs/{job['id']}/workers",
            json=worker(0, server_udp_port=5000),
            headers={"Authorization": f"Bearer {job['secret']}"},
        )
        assert registered.status_code == 200, registered.text
    wait_until(lambda: bool(fake_server.servicer.table(SHARING)), "the job's entry")
    ((_, share),) = fake_server.servicer.table(SHARING).values()
    assert share["expiry_us"] == expiry_us


@pytest.mark.parametrize(("options", "slot_versions"), [({}, 48), ({"pool": 32}, 64), ({"pool": 5}, 10)])
def test_jobs_may_lease_the_slots_of_the_pool(
    launch: Launcher, free_port: int, options: dict[str, object], slot_versions: int
) -> None:
    process = launch(**options)
    assert read_line(process) == "ready"
    health = httpx.get(f"http://127.0.0.1:{free_port}/health", trust_env=False).json()
    assert health["free_slot_versions"] == slot_versions


@pytest.mark.parametrize(
    ("options", "granted"), [({}, 16), ({"job_share": 1}, 16), ({"host_share": 1, "job_share": 1}, 32)]
)
def test_one_job_may_have_all_slots_if_the_shares_say_so(
    launch: Launcher, free_port: int, options: dict[str, object], granted: int
) -> None:
    process = launch(pool=32, **options)
    assert read_line(process) == "ready"
    asked = {"workers": 1, "slots": 64}
    job = httpx.post(f"http://127.0.0.1:{free_port}/jobs", json=asked, trust_env=False).json()
    assert job["slots"] == granted


def test_job_classes_have_their_quotas() -> None:
    texts = [
        "batch,jobs=4,slots=256,memory=1GiB,priority=3,aggregation=leased+shared",
        "free",
        "closed,jobs=0",
    ]
    assert parse_job_classes(texts) == (
        JobClass(
            name="batch", jobs=4, slots=256, memory=1 << 30, priority=3, aggregation=("leased", "shared")
        ),
        JobClass(name="free"),
        JobClass(name="closed", jobs=0),
    )


def test_a_controller_has_the_classes_of_its_options(launch: Launcher, free_port: int) -> None:
    assert read_line(launch(job_class=["batch,slots=4", "default,jobs=0"])) == "ready"
    with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", trust_env=False) as client:
        asked = {"workers": 1, "slots": 16}
        job = client.post("/jobs", json=asked | {"job_class": "batch"}).json()
        assert (job["job_class"], job["slots"]) == ("batch", 4)
        refused = client.post("/jobs", json=asked)
        assert (refused.status_code, refused.json()["detail"]) == (
            501,
            "the class default is full: its quota is jobs=0; set another job_class",
        )


@pytest.fixture
def without_switch(free_port: int, token_file: Path) -> CommandLine:
    """Good options of a controller without a switch."""
    return CommandLine({"no-switch": True, "listen": f"127.0.0.1:{free_port}", "token-file": token_file})


@pytest.mark.parametrize(("options", "words"), [({}, 4), ({"words": 5}, 5), ({"words": 32}, 32)])
def test_without_a_switch_it_needs_no_program_and_serves_jobs_on_servers(
    without_switch: CommandLine, free_port: int, options: dict[str, object], words: int
) -> None:
    launcher = Launcher(without_switch)
    try:
        process = launcher(**options)
        assert read_line(process) == "ready"
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", trust_env=False) as client:
            health = client.get("/health").json()
            assert (health["switch"], health["words"], health["switches"]) == ("none", words, [])
            refused = client.post("/jobs", json={"workers": 1, "slots": 4})
            assert (refused.status_code, refused.json()["detail"]) == (
                501,
                "this controller has no switch; aggregation = server needs none",
            )
            job = client.post("/jobs", json={"workers": 1, "slots": 4096, "aggregation": "server"}).json()
            assert (job["state"], job["slots"], job["words"]) == ("joining", 1024, words)
            client.headers["Authorization"] = f"Bearer {job['secret']}"
            worker = {"rank": 0, "ip": "127.0.0.1", "udp_port": 4000, "server_udp_port": 4001}
            client.post("/jobs/1/workers", json=worker)
            assert client.post("/jobs/1/workers/0/serving").json()["state"] == "running"
        process.terminate()
        _, log = process.communicate(timeout=10)
        assert process.returncode == 0
        assert "Traceback" not in log
    finally:
        launcher.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"p4info": "/p4info", "device_config": "/config", "ports": "1,2", "aggregator_ip": "10.0.0.253"},
            "leave out --p4info, --device-config, --ports, --aggregator-ip",
        ),
        ({"topology": "fabric.toml"}, "--no-switch means that there is no switch: leave out --topology"),
        ({"mark_queue": 16}, "--no-switch means that there is no switch: leave out --mark-queue"),
        ({"shared_slots": 16}, "--no-switch means that there is no switch: leave out --shared-slots"),
        ({"host": "10.0.0.1=1"}, "leave out --host"),
        ({"pool": 8}, "leave out --pool"),
        ({"job_share": 1}, "leave out --job-share"),
        ({"proxy": "*"}, "--proxy: '*' does not appear to be an IPv4 or IPv6 network"),
        ({"words": 7}, "--words is 7; it must be one of 4, 5, 32"),
        ({"give_up_s": 0}, "--give-up-s must be positive"),
    ],
)
def test_what_does_not_go_with_no_switch_is_named(
    without_switch: CommandLine, changes: dict[str, object], message: str
) -> None:
    result = CliRunner().invoke(app, without_switch(**changes))
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_switch_has_its_words_from_its_program(command_line: CommandLine) -> None:
    result = CliRunner().invoke(app, command_line(words=4))
    assert result.exit_code == 2
    assert result.stderr == (
        "inagg-controller: --words needs --no-switch: with a switch, its program has the words\n"
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"switch": "127.0.0.1:9559"}, "--switch"),  # the default
        ({"device_id": 1}, "--device-id"),
        ({"aggregator_mac": "02:49:41:00:00:01"}, "--aggregator-mac"),
        (
            {"ports": "1,2", "host": "10.0.0.1=1", "aggregator_ip": "10.0.0.253"},
            "--ports, --host, --aggregator-ip",
        ),
    ],
)
def test_options_of_one_switch_are_refused_beside_a_topology_file(
    command_line: CommandLine, given: dict[str, object], named: str
) -> None:
    nothing: dict[str, object] = {name: [] for name in ("switch", "ports", "host", "aggregator_ip")}
    words = command_line(**{**nothing, "topology": "fabric.toml", **given})
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.stderr == (
        f"inagg-controller: --topology describes the switches and hosts: leave out {named}\n"
    )


def test_hosts_with_a_mac_address_are_bound_to_their_port() -> None:
    hosts = ["10.0.0.1=1,02:00:00:00:00:01", "10.0.0.2=2", "10.0.0.3=1,02:00:00:00:00:01"]
    topology = star("unix:/s1", 1, "1,2", hosts, "10.0.0.253", "02:49:41:00:00:01")
    known = {ip: (host.place.switch, host.place.port) for ip, host in topology.host_at.items()}
    assert known == {0x0A000001: ("s1", 1), 0x0A000002: ("s1", 2), 0x0A000003: ("s1", 1)}
    bindings = OrdinaryTree.shortest(topology).bindings("s1")
    assert bindings == (
        Binding(ip=0x0A000001, mac=0x020000000001, port=1),
        Binding(ip=0x0A000003, mac=0x020000000001, port=1),
    )
    tables = Counter(entry.table.rpartition(".")[2] for entry in binding_entries(bindings))
    assert tables == {"source_ip": 2, "source_mac": 1, "station": 1, "bound_port": 1}


@pytest.mark.parametrize(
    ("multicast", "first"),
    [("239.192.0.0/14", 0xEFC00000), ("239.255.0.0/16", 0xEFFF0000), ("none", None)],
)
def test_the_addresses_of_results_are_counted_from_the_first_of_a_network(
    multicast: str, first: int | None
) -> None:
    assert parse_multicast(multicast) == first


@pytest.mark.parametrize(
    ("options", "results"),
    [
        ({}, {"ip": "239.192.0.1", "udp_port": 18753}),
        ({"multicast": "239.255.0.0/16"}, {"ip": "239.255.0.1", "udp_port": 18753}),
        ({"multicast": "none"}, None),
    ],
)
def test_jobs_say_where_their_results_go(
    launch: Launcher, free_port: int, options: dict[str, object], results: object
) -> None:
    assert read_line(launch(**options)) == "ready"
    url = f"http://127.0.0.1:{free_port}/jobs"
    job = httpx.post(url, json={"workers": 2, "slots": 4}, trust_env=False).json()
    assert job["results"] == results


def test_a_switch_that_is_not_there_is_one_clear_line_and_status_2(launch: Launcher) -> None:
    out, log = (process := launch(switch="127.0.0.1:1")).communicate(timeout=20)
    assert process.returncode == 2
    assert log.splitlines()[-1] == "inagg-controller: no switch at 127.0.0.1:1: Connection refused"
    assert "Traceback" not in log
    assert out == ""


def test_an_address_in_use_is_named(launch: Launcher, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        _, log = launch().communicate(timeout=20)
    assert f"cannot listen on 127.0.0.1:{free_port}: Address already in use" in log


def test_p4info_of_another_program_is_refused_by_name(command_line: CommandLine, tmp_path: Path) -> None:
    other = tmp_path / "other.txtpb"
    other.write_text("")
    result = CliRunner().invoke(app, command_line(p4info=other))
    assert result.exit_code == 2
    assert "is not the P4Info of inagg.p4: it has no table InaggEgress.delivery.receiver" in result.stderr


def test_it_can_be_stopped_while_it_waits_for_the_switch(launch: Launcher, fake_server: FakeServer) -> None:
    fake_server.stop()
    process = launch(switch_timeout_s=60)
    assert process.stderr is not None
    assert "waiting for switch s1: no switch at" in process.stderr.readline()
    process.terminate()
    assert process.wait(15) == 0
