# SPDX-License-Identifier: Apache-2.0
"""A testbed with bridges: its controller has no switch, and its workers ask for sums on servers. No network is made."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from inagg_contract.documents import Health, JobServer, JobStatus, Policy, ServerHealth
from inagg_testbed.cli.options import controller_settings
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network import servers, switches
from inagg_testbed.network.control import has_controller, switch_controller_of
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.lifecycle import READY, Manifest, ProcessId
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.servers import start_servers
from inagg_testbed.network.switches import Pipeline, start_controller
from inagg_testbed.network.testbed import Testbed, _options_of_the_user
from inagg_testbed.network.topology import Network
from inagg_testbed.operate.status import Snapshot, document, rendered, troubles

RESULTS = Path("/results")


def network(fabric: Fabric | None = None, mtu: int = 1500, *, management: bool = False) -> Network:
    """What the tests read of a network."""
    made = SimpleNamespace(
        fabric=fabric or Fabric.star(2),
        host=lambda number: None,
        spec=LinkSpec.parse("100mbit", mtu=mtu),
        management=management,
        gloo_interface=lambda number: f"h{number}-eth",
        run=None,
        switch=None,
    )
    return cast("Network", made)


def made_testbed(switch: SwitchKind, own_options: Mapping[str, Any] | None = None, **options: Any) -> Testbed:
    return Testbed(cast("Any", None), network(), RESULTS, switch, None, own_options or {}, **options)


def environment(made: Testbed) -> dict[str, str]:
    return made.node_environments()["h1"]


def test_over_a_bridge_workers_ask_for_sums_on_servers() -> None:
    assert environment(made_testbed("bridge"))["INAGG_AGGREGATION"] == "server"
    assert (
        environment(made_testbed("bridge"))["INAGG_CONTROLLER"]
        == environment(made_testbed("model"))["INAGG_CONTROLLER"]
    )


def test_with_a_switch_the_aggregation_is_the_default() -> None:
    assert "INAGG_AGGREGATION" not in environment(made_testbed("model"))


def test_an_aggregation_that_the_user_chooses_stays() -> None:
    assert "INAGG_AGGREGATION" not in environment(made_testbed("bridge", {"aggregation": "leased"}))
    by_option = made_testbed("bridge", environment={"INAGG_AGGREGATION": "leased"})
    assert environment(by_option)["INAGG_AGGREGATION"] == "leased"


def test_the_users_file_says_how_many_slots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INAGG_CONFIG", raising=False)
    assert _options_of_the_user() == {}
    (tmp_path / "inagg.toml").write_text("slots = 8\nlane_bits = 16\n")
    assert _options_of_the_user() == {"slots": 8}
    assert environment(made_testbed("bridge", {"slots": 8}))["INAGG_SLOTS"] == "8"


def test_ranks_have_one_packet_thread_where_processors_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = "INAGG_PACKET_THREADS"
    made = made_testbed("model")
    for processors, scarce in ((6, False), (5, True)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, count=processors: set(range(count)))
        assert (environment(made).get(variable) == "1") == scarce
        assert variable not in environment(made_testbed("model", {"packet_threads": 2}))


def test_a_bridge_cannot_inject_loss() -> None:
    with pytest.raises(ConfigurationError, match="a bridge cannot inject loss"):
        made_testbed("bridge").inject_loss(0.1)


def test_a_bridge_has_no_counters_to_save(tmp_path: Path) -> None:
    made = made_testbed("bridge")
    made.results, made.controller = tmp_path, cast("Any", object())
    made.save_counters()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been started."""
    commands: list[list[str]] = []

    def start(_run: object, _node: object, _name: str, command: list[str], **_options: object) -> Any:
        commands.append(command)
        return SimpleNamespace(wait_for_line=lambda _line, timeout_s: None)

    for module in (switches, servers):
        monkeypatch.setattr(module, "NodeProcess", start)
        monkeypatch.setattr(module, "command_path", lambda name: name)
    return commands


@pytest.mark.parametrize(("mtu", "words"), [(9000, "32"), (1500, "4"), (576, "4")])
def test_the_controller_of_bridges_has_no_switch(started: list[list[str]], mtu: int, words: str) -> None:
    start_controller(network(mtu=mtu), None, RESULTS, Path("t.toml"), listen_port=9560)
    own = ["inagg-controller", "--no-switch", "--words", words]
    assert started == [[*own, "--listen", "10.0.0.254:9560", "--token-file", "/results/controller.token"]]


def test_the_controller_of_switches_knows_the_topology_and_the_program(started: list[list[str]]) -> None:
    pipeline = Pipeline(Path("p4info.txtpb"), Path("inagg.p4"))
    start_controller(network(), pipeline, RESULTS, Path("t.toml"), listen_port=9560)
    (command,) = started
    assert command[1:7] == ["--topology", "t.toml", "--p4info", "p4info.txtpb", "--device-config", "inagg.p4"]
    assert "--no-switch" not in command
    assert "--pool" not in command


def test_the_controller_has_further_options(started: list[list[str]]) -> None:
    options = controller_settings(["mark_queue=32", "job_class=batch,jobs=1", "max_slots="])
    start_controller(network(), None, RESULTS, Path("t.toml"), listen_port=9560, options=options)
    (command,) = started
    assert command[4:10] == ["--mark-queue", "32", "--job-class", "batch,jobs=1", "--max-slots", ""]


@pytest.mark.parametrize("setting", ["mark_queue", "=32", "--mark-queue=32", "mark queue=32", "Mark=1"])
def test_an_option_of_the_controller_has_a_name_and_a_value(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--set-controller '.*': want NAME=VALUE"):
        controller_settings([setting])


def test_the_controller_of_switches_leases_no_more_than_the_pool_but_all_of_it_to_one_job(
    started: list[list[str]],
) -> None:
    pipeline = Pipeline(Path("p4info.txtpb"), Path("inagg.p4"))
    start_controller(network(), pipeline, RESULTS, Path("t.toml"), listen_port=9560, pool=64)
    (command,) = started
    assert [command[command.index(option) + 1] for option in ("--pool", "--host-share", "--job-share")] == [
        "64",
        "1",
        "1",
    ]


def test_a_server_has_its_hosts_name_and_address(started: list[list[str]]) -> None:
    processes = start_servers(network(Fabric.star(2).with_servers(2)), RESULTS)
    assert len(processes) == 2
    own = ["inagg-server", "--controller", "http://10.0.0.254:9560", "--name", "h4", "--listen", "10.0.0.4"]
    assert started[1] == [*own, "--token-file", "/results/controller.token"]


def test_in_a_management_network_the_controller_knows_the_hosts_by_both_addresses(
    started: list[list[str]],
) -> None:
    start_controller(network(management=True), None, RESULTS, Path("t.toml"), listen_port=9560)
    (command,) = started
    assert command[command.index("--listen") + 1] == "0.0.0.0:9560"
    assert command[-4:] == ["--host-address", "10.0.1.1=10.0.0.1", "--host-address", "10.0.1.2=10.0.0.2"]


def test_servers_get_inaggs_environment_but_no_rank() -> None:
    made = made_testbed("bridge")
    made.network.fabric = Fabric.star(2).with_servers(1)
    assert list(made.node_environments()) == ["h1", "h2", "h3"]


def manifest(**settings: Any) -> Manifest:
    fabric = {"topology": "star", "hosts": 2, "servers": 1, "rank_order": "contiguous"}
    known = {**fabric, "stage": READY, "switch": "bridge", "controlled": True, "link": "unshaped", **settings}
    return Manifest("k3x9fa", ProcessId(1, 1), namespaces={"s1": ProcessId(1, 1)}, settings=known)


def test_counters_and_loss_need_a_switch() -> None:
    assert has_controller(manifest())
    with pytest.raises(ConfigurationError, match="run k3x9fa has bridges for switches"):
        switch_controller_of(manifest())
    assert not has_controller(manifest(switch="model", controlled=False))


SERVER = ServerHealth(
    name="h3", ip="10.0.0.3", udp_port=18754, memory=256 << 20, free_memory=255 << 20, jobs=1
)
HEALTH = Health(
    switch="none",
    switch_error=None,
    words=4,
    slot_versions=0,
    free_slot_versions=0,
    jobs=1,
    switches=(),
    links=(),
    servers=(SERVER,),
)


def job(**fields: Any) -> JobStatus:
    policy = Policy(
        rto_initial_s=0.1,
        rto_min_s=0.001,
        rto_max_s=1.0,
        give_up_s=120.0,
        heartbeat_interval_s=0.5,
        heartbeat_timeout_s=30.0,
    )
    whole = JobStatus.model_construct(
        id=1,
        name="",
        state="running",
        slots=64,
        workers=2,
        registered=(0, 1),
        left=(),
        lost=(),
        reason=None,
        policy=policy,
        aggregation="server",
    )
    return whole.model_copy(update=fields)


def shown(*found_servers: JobServer) -> str:
    snapshot = Snapshot(0.0, {}, HEALTH.model_dump(), [job(servers=found_servers)])
    found = document(manifest(), snapshot, Snapshot(1.0, {}, snapshot.controller, snapshot.jobs))
    assert troubles(found) == []
    console = Console(width=100)
    with console.capture() as capture:
        console.print(rendered(found, ended=False))
    return capture.get()


def test_status_shows_servers_and_the_jobs_on_them() -> None:
    text = shown(JobServer(name="h3", ip="10.0.0.3", udp_port=18754))
    assert "2 hosts and 1 for servers, switch bridge" in text
    assert "controller: without a switch: servers do the sums" in text
    assert "job 1: running; 2 ranks, 64 slots on servers h3" in text
    assert "server  address" in text
    (line,) = (line for line in text.splitlines() if "18754" in line)
    assert line.split() == ["h3", "10.0.0.3:18754", "1", "1.0", "256.0", "0"]


def test_status_says_whose_servers_they_are() -> None:
    own = JobServer(name="rank 0", ip="10.0.0.1", udp_port=4000, rank=0)
    assert "64 slots on the ranks' servers" in shown(own)
