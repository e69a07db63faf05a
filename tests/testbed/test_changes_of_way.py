# SPDX-License-Identifier: Apache-2.0
"""Training goes on when what sums for it dies, and ends with the same bits (docs/protocol.md, 6.4).

The switches are the model's, the links carry 100 Mbit/s, and the sums are under way when a part dies.
"""

import signal
import time
from dataclasses import replace

import pytest

from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.network.workers import WorkerGroup
from tests.testbed.conftest import OpenTestbed
from tests.testbed.programs import PROGRAM, SUMS, launch, restart
from tests.testbed.steps import STEPS, outcome_of
from tests.waiting import BUSY_S, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

LONG = pytest.mark.long
MOST_S = 10.0 + BUSY_S  # until all ranks name a dead one
ALL = "same,other,servers,inner,fail"

# The same, where the server in the process of rank 1 ends in step 15.
BROKEN_SERVER = STEPS.replace(
    "    works =",
    """    if step == 15 and dist.get_rank() == 1:
        from inagg.membership.own_server import _shared
        from tests.broken_sockets import break_socket
        (shared,) = _shared.values()
        break_socket(shared.server.local_address)
    works =""",
)


# The same, with what gloo does in each step: ordinary traffic between the hosts, over TCP.
WITH_GLOO = STEPS.replace(
    "    for tensor in tensors:",
    """    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, step)
    assert found == [step] * dist.get_world_size()
    for tensor in tensors:""",
)


# Exact sums until each rank has changed its way twice, and some more.
UNTIL_BACK = f"""{PROGRAM}
import inagg, itertools, json
rank, size = dist.get_rank(), dist.get_world_size()
draws = [torch.Generator().manual_seed(each) for each in range(size)]
left = 20
for step in itertools.count():
    given = [torch.randint(-1000, 1000, (20_001,), generator=each) for each in draws]
    total = given[rank].clone()
    dist.all_reduce(total)
    assert torch.equal(total, sum(given)), step
    changes = torch.tensor([len(inagg.stats()["changes"])])
    dist.all_reduce(changes)
    if step == 10:
        print("in the middle", flush=True)
    if changes.item() == size:
        print("elsewhere", flush=True)
    left -= changes.item() >= 2 * size
    if not left:
        break
print("stats", json.dumps(inagg.stats()["changes"]), flush=True)
print("digest none", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=LONG), 0.02])
def test_training_goes_on_at_a_switch_that_is_killed_and_restarted(
    open_network: OpenTestbed, undisturbed: str, loss: float
) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        if loss:
            testbed.inject_loss(loss, "aggregation")
        group = launch(testbed, STEPS, {"INAGG_PACKET_THREADS": "2"})
        for _ in range(2):
            restart(testbed, "s1")
            time.sleep(1)  # some steps
        outcome = outcome_of(group)
    assert outcome.digest == undisturbed
    # On a busy machine the switch may come back too late: then servers sum.
    assert outcome.to[:1] in (["s1"], ["4 servers"])
    assert {len(lines) for lines in outcome.warnings} == {len(outcome.to)}
    assert "switch s1 was lost" in outcome.warnings[0][0]


@pytest.mark.parametrize(
    ("part", "tries", "to"),
    [
        pytest.param("spine2", "same,other,servers", "spine1, leaf1, leaf2", id="spine"),
        pytest.param("spine2", "servers", "4 servers", id="servers", marks=LONG),
        pytest.param("leaf2:102", "other,servers", "spine1, leaf1, leaf2", id="uplink"),
    ],
)
def test_training_goes_on_without_a_spine_or_an_uplink(
    open_network: OpenTestbed, undisturbed: str, part: str, tries: str, to: str
) -> None:
    fabric = Fabric.parse("leaf-spine:2x2x2", hosts=4)
    # Ordinary traffic is on the first spine.
    fabric = replace(fabric, switches=("leaf1", "leaf2", "spine1", "spine2"))
    with open_network(fabric=fabric, link="100mbit") as testbed:
        group = launch(testbed, STEPS, {"INAGG_ON_PATH_LOSS": tries})
        name, _, port = part.partition(":")
        if port:
            testbed.set_link(SwitchPort(name, int(port)), "down")
        else:
            testbed.kill(name)
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to[0]) == (undisturbed, to)
    # A slow run lasts until the job goes back, to the spine that is left.
    assert outcome.to[1:] in ([], ["spine1, leaf1, leaf2"])


@pytest.mark.parametrize("part", ["spine1", "leaf2:101"])
def test_ordinary_traffic_goes_around_the_first_spine_and_training_with_it(
    open_network: OpenTestbed, undisturbed: str, part: str
) -> None:
    """The ranks reach the controller by another network, as they could not otherwise."""
    fabric = Fabric.parse("leaf-spine:2x2x2", hosts=4)
    with open_network(fabric=fabric, link="100mbit", management=True) as testbed:
        group = launch(testbed, WITH_GLOO, {"INAGG_ON_PATH_LOSS": "same,other"})
        name, _, port = part.partition(":")
        if port:
            testbed.set_link(SwitchPort(name, int(port)), "down")
        else:
            testbed.kill(name)
        outcome = outcome_of(group)
        assert (
            "ordinary traffic uses the link leaf2:102 - spine2:2 from now on"
            in (testbed.results / "controller.log").read_text()
        )
    assert (outcome.digest, outcome.to[0]) == (undisturbed, "spine2, leaf1, leaf2")


@pytest.mark.parametrize(
    ("topology", "part"), [("star", "switch"), pytest.param("leaf-spine:2x2x2", "leaf2", marks=LONG)]
)
def test_training_ends_on_servers_beside_a_switch_that_is_gone_for_good(
    open_network: OpenTestbed, undisturbed: str, topology: str, part: str
) -> None:
    with open_network(fabric=Fabric.parse(topology, hosts=4), link="100mbit", management=True) as testbed:
        group = launch(testbed, STEPS)
        testbed.kill(part)
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, ["4 servers"])
    assert {len(lines) for lines in outcome.warnings} == {1}


def test_training_ends_over_gloo_where_nothing_else_is_left(
    open_network: OpenTestbed, undisturbed: str
) -> None:
    with open_network(hosts=4, link="100mbit", management=True) as testbed:
        group = launch(testbed, STEPS, {"INAGG_ON_PATH_LOSS": "inner,fail", "INAGG_PACKET_THREADS": "2"})
        testbed.kill("switch")
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, ["the inner group"])
    assert {len(lines) for lines in outcome.warnings} == {1}


@LONG
def test_sums_go_on_over_gloo_where_no_udp_passes_between_hosts(open_network: OpenTestbed) -> None:
    """Servers are tried beside the switch and at the registered addresses, and are silent."""
    with open_network(hosts=4, link="100mbit", management=True) as testbed:
        group = launch(testbed, UNTIL_BACK)
        for host in range(1, 5):
            refuse_udp(testbed, host)
        testbed.kill("switch")
        outcome = outcome_of(group)
    assert (outcome.to[0], outcome.to[-1]) == ("4 servers", "the inner group")


def refuse_udp(testbed: Testbed, host: int) -> None:
    """Drop what comes to a host by UDP at its management interface."""
    device = testbed.network.gloo_interface(host)
    refused = f"iif {device} ipproto udp blackhole"
    run_in_namespace(
        testbed.network.pid_of(f"h{host}"),
        f"ip rule add pref 100 lookup local; ip rule add pref 10 {refused}; ip rule del pref 0",
    )


@LONG
@pytest.mark.parametrize(
    ("topology", "part", "tries", "to"),
    [
        ("star", "s1", ALL, ["4 servers", "s1"]),
        ("star", "s1", "inner", ["the inner group", "s1"]),
        ("leaf-spine:2x2x2", "spine2", ALL, ["spine1, leaf1, leaf2", "spine2, spine1, leaf1, leaf2"]),
    ],
)
def test_training_goes_back_to_a_switch_that_is_there_again(
    open_network: OpenTestbed, topology: str, part: str, tries: str, to: list[str]
) -> None:
    """With two packet threads in the switches, and one elsewhere."""
    with open_network(fabric=Fabric.parse(topology, hosts=4), link="100mbit", management=True) as testbed:
        settings = {"INAGG_PACKET_THREADS": "2", "INAGG_ON_PATH_LOSS": tries}
        group = launch(testbed, UNTIL_BACK, settings)
        testbed.kill("switch" if part == "s1" else part)
        printed = group.workers[0].process
        printed.wait_for_line("elsewhere", timeout_s=60)
        restart(testbed, part)
        outcome = outcome_of(group)
    assert [set(one.split(", ")) for one in outcome.to] == [set(one.split(", ")) for one in to]
    assert {len(lines) for lines in outcome.warnings} == {2}
    assert "the first way is there again" in outcome.warnings[0][1]


def test_a_rank_that_dies_while_ranks_sum_themselves_is_named(open_network: OpenTestbed) -> None:
    with open_network(hosts=3, link="100mbit", management=True) as testbed:
        group = launch(testbed, SUMS, {"INAGG_ON_PATH_LOSS": "inner"})
        testbed.kill("switch")
        wait_until(lambda: all("Sums go on" in one for one in logs_of(group)), "all have gone on", 60)
        group.workers[1].process.signal(signal.SIGKILL)
        others = [group.workers[rank].process for rank in (0, 2)]
        wait_until(lambda: all(one.reported_error() for one in others), "all have errors", MOST_S)
        errors = [one.reported_error() or "" for one in others]
    assert all("PeerLostError" in error and "rank 1 (h2" in error for error in errors), errors


def logs_of(group: WorkerGroup) -> list[str]:
    return [worker.process.log_path.read_text() for worker in group.workers]


def test_training_goes_on_when_the_server_in_a_process_ends(
    open_network: OpenTestbed, undisturbed: str
) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, BROKEN_SERVER, {"INAGG_AGGREGATION": "server"})
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, ["4 servers"])
    assert "rank 1 (h2, 10.0.0.2): the server in its process has ended" in outcome.warnings[0][0]


@pytest.mark.parametrize("kind", ["shared", pytest.param("server", marks=LONG)])
def test_training_goes_on_without_one_of_two_servers(
    open_network: OpenTestbed, undisturbed: str, kind: str
) -> None:
    with open_network(hosts=4, link="100mbit", servers=2) as testbed:
        settings = {"INAGG_AGGREGATION": kind, "INAGG_SERVERS": "registered"}
        group = launch(testbed, STEPS, settings)
        testbed.kill("h6")
        outcome = outcome_of(group)
    assert outcome.digest == undisturbed
    assert len(outcome.to) == 1
