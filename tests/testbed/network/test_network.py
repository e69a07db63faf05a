# SPDX-License-Identifier: Apache-2.0
"""The star of hosts: reachable, shaped, quiet, and gone afterwards. A Linux bridge stands in for the switch."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.errors import (
    ConfigurationError,
    MissingRequirementError,
    NetworkError,
    ProcessFailedError,
    WorkerFailedError,
)
from inagg_testbed.network.lifecycle import Manifest, manifests, sweep, tagged_processes
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.switches import Bmv2Switch, BridgeSwitch, ModelSwitch
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.network.workers import follow_together
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

OpenTestbed = Callable[..., AbstractContextManager[Testbed]]
HoldNamespaces = Callable[[Manifest], set[str]]


def in_host(testbed: Testbed, number: int, script: str) -> str:
    return run_in_namespace(testbed.network.host(number).pid, script)


def network_namespaces() -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(entry.readlink()))
        except OSError:
            continue
    return found


def namespaces_of(manifest: Manifest) -> set[str]:
    return {str(Path(f"/proc/{entry.pid}/ns/net").readlink()) for entry in manifest.namespaces.values()}


@pytest.fixture
def held_namespaces() -> Iterator[HoldNamespaces]:
    """A run's network namespaces, open during the test: a number that is free is given to the next namespace."""
    with ExitStack() as files:

        def hold(manifest: Manifest) -> set[str]:
            for entry in manifest.namespaces.values():
                files.enter_context(Path(f"/proc/{entry.pid}/ns/net").open("rb"))
            return namespaces_of(manifest)

        yield hold


def test_every_host_reaches_every_other_and_the_controllers_address(bridge: Testbed) -> None:
    for number in range(1, 5):
        targets = [f"10.0.0.{other}" for other in range(1, 5) if other != number] + ["10.0.0.254"]
        in_host(bridge, number, " && ".join(f"ping -c 1 -W 2 {target}" for target in targets))


def neighbours(testbed: Testbed, number: int) -> dict[str, str]:
    """The MAC addresses that a host need not ask for, by address."""
    found = json.loads(in_host(testbed, number, "ip -json neighbour show nud permanent"))
    return {entry["dst"]: entry["lladdr"] for entry in found}


def macs(testbed: Testbed, node: Any) -> dict[str, str]:
    """The MAC address of each interface of a node, by its IPv4 address."""
    return {
        address["local"]: interface["address"]
        for interface in json.loads(run_in_namespace(node.pid, "ip -json address show"))
        for address in interface["addr_info"]
        if address["local"] != "127.0.0.1"
    }


def test_hosts_know_the_mac_addresses_of_one_another(open_network: OpenTestbed) -> None:
    """The kernel learns no more than 1024 at a time, in all namespaces together."""
    with open_network(hosts=3, gloo_over="bridge") as testbed:
        own = [macs(testbed, testbed.network.host(number)) for number in (1, 2, 3)]
        control = macs(testbed, testbed.network.switch)
        assert sorted(own[0]) == ["10.0.0.1", "10.0.1.1"]
        assert sorted(control) == ["10.0.0.254"]
        everybody = own[0] | own[1] | own[2] | control | {"10.0.0.253": "02:49:41:00:00:01"}
        for number in (1, 2, 3):
            here = own[number - 1]
            assert neighbours(testbed, number) == {ip: everybody[ip] for ip in everybody if ip not in here}


def test_each_node_has_a_namespace_of_its_own(bridge: Testbed) -> None:
    assert len(namespaces_of(bridge.run.manifest)) == 5
    assert not namespaces_of(bridge.run.manifest) & {str(Path("/proc/self/ns/net").readlink())}


def test_every_address_has_a_name_in_every_node_and_the_machines_file_is_untouched(bridge: Testbed) -> None:
    machine = Path("/etc/hosts").read_text()
    # torch asks for the name of ::ffff:10.0.0.1, and warns in every run where there is none
    script = (
        "import socket; print([socket.getnameinfo((address, 1), socket.NI_NAMEREQD)[0] for address in"
        " ('10.0.0.4', '::ffff:10.0.0.4', '10.0.0.254')], socket.gethostbyname('h2'))"
    )
    for node in (*(bridge.network.host(number) for number in (1, 4)), bridge.network.switch):
        found = run_in_namespace(node.pid, f'{sys.executable} -c "{script}"')
        assert found == "['h4', 'h4-mapped', 's1'] 10.0.0.2\n"
    assert in_host(bridge, 1, "cat /etc/hosts").endswith(machine)
    assert Path("/etc/hosts").read_text() == machine
    assert "h4" not in machine


def test_interface_names_carry_the_run_and_fit(bridge: Testbed) -> None:
    names = list(bridge.network.ports("s1").values())
    assert all(bridge.run.id in name and len(name) <= 15 for name in names)
    assert (
        bridge.run.id not in subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    )


def features(testbed: Testbed) -> str:
    return in_host(testbed, 1, f"ethtool -k ia-{testbed.run.id}-h1")


OFFLOADS = (
    "rx-checksumming",
    "tx-checksumming",
    "tcp-segmentation-offload",
    "generic-receive-offload",
    "tx-udp-segmentation",
)


def test_ipv6_is_off(bridge: Testbed) -> None:
    assert json.loads(in_host(bridge, 1, "ip -json -6 addr show")) in ([], [{}])


def test_links_to_a_switch_that_takes_them_have_offloads(bridge: Testbed) -> None:
    shown = features(bridge)
    for feature in ("tx-checksumming", "tcp-segmentation-offload", "tx-udp-segmentation"):
        assert f"{feature}: on" in shown


def test_links_to_a_switch_that_does_not_have_none(
    open_bridge: OpenTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "inagg_testbed.network.testbed.switch_target", lambda *_, **_options: BridgeSwitch(offloads=False)
    )
    with open_bridge(hosts=1) as testbed:
        shown = features(testbed)
    for feature in OFFLOADS:
        assert f"{feature}: off" in shown


def test_bmv2_is_such_a_switch() -> None:
    assert not Bmv2Switch(Path("inagg.p4")).offloads
    assert ModelSwitch(Path("inagg.p4")).offloads


def test_the_kernel_of_the_switch_answers_no_arp_on_ports(bridge: Testbed) -> None:
    shown = run_in_namespace(bridge.network.switch.pid, "ip link show")
    for interface in bridge.network.ports("s1").values():
        line = next(line for line in shown.splitlines() if f" {interface}@" in line)
        assert "NOARP" in line


def test_a_shaped_link_has_its_rate_in_each_direction(open_bridge: OpenTestbed) -> None:
    script = (
        "import socket, sys, time\n"
        "peer = (sys.argv[2], 5000)\n"
        "if sys.argv[1] == 'send':\n"
        "    link = socket.socket()\n"
        "    deadline = time.monotonic() + 5\n"
        "    while link.connect_ex(peer):\n"
        "        assert time.monotonic() < deadline\n"
        "        link.close(); time.sleep(0.02); link = socket.socket()\n"
        "    link.sendall(bytes(2_000_000))\n"
        "else:\n"
        "    server = socket.create_server(peer)\n"
        "    link, _ = server.accept()\n"
        "    got = len(link.recv(1 << 16)); began = time.monotonic(); total = 0\n"
        "    while data := link.recv(1 << 16): total += len(data)\n"
        "    print(total * 8 / (time.monotonic() - began))\n"
    )
    with open_bridge(hosts=2, link="20mbit") as testbed:
        for receiver, sender in ((1, 2), (2, 1)):
            address = f"10.0.0.{receiver}"
            receiving = testbed.network.host(receiver).popen(
                [sys.executable, "-c", script, "receive", address]
            )
            sending = testbed.network.host(sender).popen([sys.executable, "-c", script, "send", address])
            output, _ = receiving.communicate(timeout=30)
            sending.communicate(timeout=30)
            assert 10e6 < float(output) < 22e6  # payload; rough, because the machine may be busy


def test_two_testbeds_stand_side_by_side(bridge: Testbed, open_bridge: OpenTestbed) -> None:
    with open_bridge(hosts=2) as other:
        assert other.run.id != bridge.run.id
        in_host(other, 1, "ping -c 1 -W 2 10.0.0.2")
        in_host(bridge, 1, "ping -c 1 -W 2 10.0.0.2")
        with pytest.raises(NetworkError, match=r"10\.0\.0\.4"):
            in_host(other, 1, "ping -c 1 -W 1 10.0.0.4")  # that is a host of the first
    in_host(bridge, 1, "ping -c 1 -W 2 10.0.0.2")


def test_nothing_is_left_afterwards(
    open_bridge: OpenTestbed, folder: Path, held_namespaces: HoldNamespaces
) -> None:
    with open_bridge(hosts=3) as testbed:
        run, namespaces = testbed.run.id, held_namespaces(testbed.run.manifest)
        shells = list(testbed.run.manifest.namespaces.values())
        testbed.launch(["sleep", "1000"], name="sleepers")
        assert tagged_processes(run, besides=0)
        assert namespaces <= network_namespaces()
    assert tagged_processes(run, besides=0) == []
    assert not any(shell.alive() for shell in shells)
    assert not namespaces & network_namespaces()
    assert run not in manifests(folder / "state")


def test_nothing_is_left_after_an_error(open_bridge: OpenTestbed, folder: Path) -> None:
    seen: list[Testbed] = []

    def fail() -> None:
        with open_bridge(hosts=2) as testbed:
            seen.append(testbed)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tagged_processes(seen[0].run.id, besides=0) == []
    assert seen[0].run.id not in manifests(folder / "state")


LAUNCHER = """
import sys, time
from pathlib import Path
from inagg_testbed.network.lifecycle import signals_raise
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
folder = Path(sys.argv[1])
with signals_raise(), open_testbed(hosts=2, link=LinkSpec.parse("unshaped"), results_root=folder / "results",
                  state_dir=folder / "state", switch="bridge") as testbed:
    testbed.launch(["sh", "-c", "setsid sleep 1000 & wait"], name="sleepers")
    print(testbed.run.id, flush=True)
    time.sleep(1000)
"""


def start_launcher(folder: Path) -> tuple["subprocess.Popen[str]", str]:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    run = launcher.stdout.readline().strip()
    assert run
    return launcher, run


def test_a_killed_launcher_is_cleaned_up_at_the_next_start(
    folder: Path, held_namespaces: HoldNamespaces
) -> None:
    launcher, run = start_launcher(folder)
    manifest = manifests(folder / "state")[run]
    namespaces = held_namespaces(manifest)
    wait_until(lambda: len(tagged_processes(run, besides=launcher.pid)) >= 7, "two grandchildren are there")
    launcher.kill()
    launcher.communicate()
    assert sweep(folder / "state") == [run]
    assert tagged_processes(run, besides=0) == []
    assert not namespaces & network_namespaces()
    assert run not in manifests(folder / "state")


def test_a_terminated_launcher_cleans_up_itself(folder: Path, held_namespaces: HoldNamespaces) -> None:
    launcher, run = start_launcher(folder)
    namespaces = held_namespaces(manifests(folder / "state")[run])
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=20)
    assert tagged_processes(run, besides=0) == []
    assert not namespaces & network_namespaces()
    assert run not in manifests(folder / "state")


def test_a_failing_worker_is_explained_with_the_end_of_its_log(bridge: Testbed) -> None:
    script = "import os, sys; sys.exit('rank 2 had enough' if os.environ['RANK'] == '2' else 0)"
    group = bridge.launch([sys.executable, "-c", script], name="failing")
    with pytest.raises(WorkerFailedError, match="1 of 4 workers failed") as caught:
        group.follow(lambda _rank, _event: None, timeout_s=30)
    assert list(caught.value.failures) == [2]
    assert "rank 2 had enough" in str(caught.value)
    assert "failing-rank2.log" in str(caught.value)


def test_the_worker_that_failed_first_is_named_first(bridge: Testbed, tmp_path: Path) -> None:
    """The others fail because of it, a second later."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '2': open('failed', 'w').close(); sys.exit('the cause')\n"
        "while not os.path.exists('failed'): time.sleep(0.01)\n"
        "time.sleep(1); sys.exit('a consequence')\n"
    )
    group = bridge.launch(["sh", "-c", f"cd {tmp_path} && exec {sys.executable} {program}"], name="causes")
    with pytest.raises(
        WorkerFailedError, match=r"4 of 4 workers failed:\n  rank 2 .*\n.*the cause"
    ) as caught:
        group.follow(lambda _rank, _event: None, timeout_s=30)
    assert list(caught.value.failures) == [2, 0, 1, 3]


def test_workers_that_never_notice_are_ended(bridge: Testbed) -> None:
    script = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '0' else time.sleep(1000)"
    group = bridge.launch([sys.executable, "-c", script], name="unaware")
    group.failure_grace_s = 0.2
    with pytest.raises(WorkerFailedError, match="rank 1 did not notice the failure and was ended"):
        group.follow(lambda _rank, _event: None, timeout_s=30)
    assert all(worker.process.poll() is not None for worker in group.workers)


def test_workers_that_take_too_long_are_ended(bridge: Testbed) -> None:
    group = bridge.launch(["sleep", "1000"], name="slow", workers=2)
    with pytest.raises(WorkerFailedError, match=r"ranks 0, 1 had not ended after 0\.3 s"):
        group.follow(lambda _rank, _event: None, timeout_s=0.3)
    assert all(worker.process.poll() is not None for worker in group.workers)


def test_events_of_all_workers_arrive(bridge: Testbed) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from inagg_testbed.events import EventLog\n"
        "log = EventLog(pathlib.Path(sys.argv[1]))\n"
        "for number in range(3): log.write('count', number=number, address=os.environ['MASTER_ADDR'])\n"
    )
    group = bridge.launch([sys.executable, "-c", script, "{events}"], name="events")
    seen: dict[int, list[int]] = {}
    group.follow(lambda rank, event: seen.setdefault(rank, []).append(event["number"]), timeout_s=30)
    assert seen == {rank: [0, 1, 2] for rank in range(4)}


REPORT = (
    "import os, pathlib, sys\n"
    "from inagg_testbed.events import EventLog\n"
    "names = ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'GLOO_SOCKET_IFNAME')\n"
    "EventLog(pathlib.Path(sys.argv[1])).write('has', **{name: os.environ[name] for name in names})\n"
)


def test_groups_run_on_chosen_hosts_at_the_same_time(bridge: Testbed) -> None:
    command = [sys.executable, "-c", REPORT, "{events}"]
    groups = [bridge.launch(command, name=f"at-{hosts[0]}", hosts=hosts) for hosts in ([3, 4], [2])]
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    follow_together(
        groups,
        lambda index, rank, event: found.update({(index, rank): tuple(event.values())[1:]}),
        timeout_s=30,
    )
    own = f"ia-{bridge.run.id}"
    assert found == {
        (0, 0): ("0", "2", "10.0.0.3", f"{own}-h3"),
        (0, 1): ("1", "2", "10.0.0.3", f"{own}-h4"),
        (1, 0): ("0", "1", "10.0.0.2", f"{own}-h2"),
    }


def test_a_group_that_fails_ends_those_that_are_followed_with_it(bridge: Testbed) -> None:
    groups = [
        bridge.launch(command, name=name, hosts=hosts)
        for command, name, hosts in ((["sleep", "1000"], "steady", [1, 2]), (["false"], "false", [3]))
    ]
    with pytest.raises(WorkerFailedError, match="1 of 1 workers failed"):
        follow_together(groups, lambda *_: None, timeout_s=30)
    assert all(worker.process.poll() is not None for group in groups for worker in group.workers)


@pytest.mark.parametrize("hosts", [[], [4, 5], [0], [1, 1]])
def test_ranks_on_hosts_that_cannot_be_are_refused(bridge: Testbed, hosts: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="want different ones of 1 to 4"):
        bridge.launch(["true"], name="nowhere", hosts=hosts)


def test_a_service_that_dies_before_it_is_ready_is_explained(bridge: Testbed, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo cannot find the thing; exit 7"]
    process = NodeProcess(
        bridge.run, bridge.network.switch, "thing", command, log_path=tmp_path / "thing.log"
    )
    with pytest.raises(ProcessFailedError, match="exit status 7 before it was ready") as caught:
        process.wait_for_line("ready", timeout_s=10)
    assert "cannot find the thing" in str(caught.value)
    process.stop()


def test_more_workers_than_hosts_are_refused(bridge: Testbed) -> None:
    with pytest.raises(ConfigurationError, match="5 workers on 4 hosts"):
        bridge.launch(["true"], name="many", workers=5)


@pytest.mark.parametrize("hosts", [0, 65])
def test_a_star_has_1_to_64_hosts(open_bridge: OpenTestbed, hosts: int, folder: Path) -> None:
    before = set(manifests(folder / "state"))
    with pytest.raises(ConfigurationError, match="1 to 64"), open_bridge(hosts=hosts):
        pass
    assert set(manifests(folder / "state")) == before


def test_a_switch_that_is_not_installed_is_named(
    open_bridge: OpenTestbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirementError, match="mnexec: apt-get install mininet"), open_bridge():
        pass
