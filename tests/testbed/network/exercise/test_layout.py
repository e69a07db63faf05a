# SPDX-License-Identifier: Apache-2.0
"""topology.json and runtime JSON: what they describe, and errors that name file and fault."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.exercise.layout import Exercise, read_exercise
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.links import LinkSpec
from tests.testbed.network.exercise.folders import route, runtime, runtimes, topology, write_exercise

LINK = LinkSpec(rate_bps=None, offloads=False)


def read(path: Path, program: Path | None = None) -> Exercise:
    return read_exercise(path, program=program, link=LINK)


def test_the_fabric_is_the_files(tmp_path: Path) -> None:
    made = read(write_exercise(tmp_path, topology(latency="20ms")))
    fabric = made.fabric
    assert fabric.switches == ("s1", "s2")
    assert [(host.name, host.address, host.mac, host.interface) for host in fabric.stations] == [
        ("h1", "10.0.1.1/24", "08:00:00:00:01:11", "eth0"),
        ("h2", "10.0.2.2/24", "08:00:00:00:02:22", "eth0"),
    ]
    assert fabric.ports("s1") == [1, 2]  # no port for a controller
    assert fabric.neighbours == {
        SwitchPort("s1", 1): "h1",
        SwitchPort("s2", 1): "h2",
        SwitchPort("s1", 2): "s2:2",
        SwitchPort("s2", 2): "s1:2",
    }
    assert fabric.find_port("s1-p2") == fabric.find_port("s1:2") == SwitchPort("s1", 2)
    assert fabric.find_port("s1-p3") is None
    slow = made.specs[SwitchPort("s2", 2)]
    assert (slow.delay_s, slow.rate_bps, slow.offloads) == (0.02, 10_000_000, False)
    assert made.specs[SwitchPort("s1", 1)] == LINK
    assert [switch.program for switch in made.switches] == [tmp_path / "routes.p4"] * 2
    assert made.commands["h1"] == topology()["hosts"]["h1"]["commands"]


@pytest.mark.parametrize(
    ("latency", "seconds"), [("0", 0), (5, 5e-3), ("5ms", 5e-3), (0.5, 5e-4), ("200us", 2e-4), ("70", 7e-5)]
)
def test_latencies_are_those_of_run_exercise(tmp_path: Path, latency: Any, seconds: float) -> None:
    described = topology()
    described["links"][2] = ["s2-p2", "s1-p2", latency, 0.5]
    spec = read(write_exercise(tmp_path, described)).specs[SwitchPort("s2", 2)]
    assert spec.delay_s == pytest.approx(seconds)
    assert spec.rate_bps == 500_000


def test_an_address_without_a_prefix_has_mininets(tmp_path: Path) -> None:
    described = topology()
    described["hosts"]["h1"]["ip"] = "10.0.1.1"
    assert read(write_exercise(tmp_path, described)).fabric.stations[0].address == "10.0.1.1/8"


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    described = copy.deepcopy(topology())
    change(described)
    return described


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["links"].append(["h9", "s1-p3"]), "links.3: 'h9' is neither a host (h1, h2) nor a port"),
        (
            lambda t: t["links"].append(["s1-p3", "s9-p1"]),
            "links.3: s9-p1: there is no switch s9; there are s1, s2",
        ),
        (lambda t: t["links"].append(["s1-p2", "s2-p7"]), "links.3: port s1-p2 has a link already"),
        (lambda t: t["links"].append(["h1", "s2-p7"]), "links.3: host h1 has a link already"),
        (lambda t: t["links"].append(["h1", "h2"]), "links.3: h1 and h2 are hosts"),
        (lambda t: t["links"].append(["s1-p3", "s1-p4"]), "links.3: the link joins s1 to itself"),
        (lambda t: t["links"].append(["s1-p3", "s2-p511"]), "s2-p511: ports are 0 to 510"),
        (lambda t: t["links"].append(["s1-p3"]), "links.3: want [end, end, latency, bandwidth]"),
        (lambda t: t["links"].append(["s1-p3", "s2-p3", "5 parsecs"]), "links.3: latency '5 parsecs': want"),
        (
            lambda t: t["links"].append(["s1-p3", "s2-p3", 0, -1]),
            "links.3: bandwidth -1: want a number of Mbit/s",
        ),
        (lambda t: t["links"].pop(0), "hosts.h1: the host has no link"),
        (lambda t: t["hosts"]["h1"].update(ip="10.0.1"), "hosts.h1.ip: "),
        (lambda t: t["hosts"]["h1"].update(mac="8:0:0"), "hosts.h1.mac: "),
        (
            lambda t: t["hosts"]["h1"].update(comands=[]),
            'hosts.h1.comands: unknown key; did you mean "commands"?',
        ),
        (
            lambda t: t["switches"]["s1"].update(colour="red"),
            "switches.s1.colour: unknown key; known are runtime_json, cli_input, program, cpu_port, priority_queues",
        ),
        (lambda t: t["switches"].update(h1={}), "h1 is a host and a switch"),
        (
            lambda t: t["switches"]["s1"].update(runtime_json="s7.json"),
            "there is no runtime_json s7.json in ",
        ),
        (
            lambda t: t["switches"]["s1"].update(cli_input="s1.txt"),
            "switches.s1: there is no cli_input s1.txt in ",
        ),
        (lambda t: t["switches"]["s1"].update(priority_queues=9), "switches.s1.priority_queues: "),
        (lambda t: t["switches"]["s1"].update(cpu_port="2"), "links.2: s1-p2: is the switch's cpu_port"),
        (lambda t: t["switches"]["s2"].update(cpu_port="2000"), "switches.s2.cpu_port: "),
        (lambda t: t.pop("hosts"), "hosts: Field required"),
        (lambda t: t.update(hosts={}), "hosts: "),
    ],
)
def test_a_wrong_topology_names_the_file_and_the_fault(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = write_exercise(tmp_path, changed(change))
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", ":1:2: no JSON: "),
        ('{"hosts": {"h1": {}, "h1": {}}}', ': "h1" is there twice in one object'),
        ("[]", ": "),
        ("\x00", ":1:1: no JSON: "),
    ],
)
def test_text_that_is_no_document_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_exercise(tmp_path)
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(f"{path}{message}")):
        read(path)
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"cannot read .*: No such file"):
        read(path)


def test_all_faults_are_named_and_a_misspelt_key_is_not_missing(tmp_path: Path) -> None:
    described = topology()
    described["host"] = described.pop("hosts")
    described["switches"]["s1"]["runtimejson"] = described["switches"]["s1"].pop("runtime_json")
    described["links"][0] = ["h1"]
    path = write_exercise(tmp_path, described)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert str(caught.value).splitlines() == [
        f'{path}: switches.s1.runtimejson: unknown key; did you mean "runtime_json"?',
        f'{path}: host: unknown key; did you mean "hosts"?',
        f'{path}: links.0: want [end, end, latency, bandwidth], such as ["h1", "s1-p1", "5ms", 10]',
    ]


def test_a_misspelt_key_of_an_entry_is_named(tmp_path: Path) -> None:
    entry = route("10.0.1.1", 32, "08:00:00:00:01:11", 1)
    entry["action"] = entry.pop("action_name")
    path = write_exercise(tmp_path, runtime_jsons=runtimes() | {"s1": runtime(entry)})
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    file = tmp_path / "topo" / "s1.json"
    assert str(caught.value) == f'{file}: table_entries.0.action: unknown key; did you mean "action_name"?'


def test_a_wrong_runtime_json_is_named(tmp_path: Path) -> None:
    entry = route("10.0.1.1", 32, "08:00:00:00:01:11", 1) | {"action_params": {"port": 1.5}}
    path = write_exercise(tmp_path, runtime_jsons=runtimes() | {"s1": runtime(entry)})
    with pytest.raises(ConfigurationError, match=r"topo/s1.json: table_entries.0.action_params.port"):
        read(path)


def test_each_switch_runs_the_program_that_its_files_name(tmp_path: Path) -> None:
    described = topology()
    described["switches"]["s2"] = {"program": "build/guard.json"}
    described["switches"]["s3"] = {}
    path = write_exercise(tmp_path, described)
    with pytest.raises(ConfigurationError, match=r"switches.s2: its program guard.p4 is neither in "):
        read(path)
    (tmp_path / "guard.p4").touch()
    with pytest.raises(ConfigurationError, match=r"has guard.p4, routes.p4: say with --p4 which one"):
        read(path)
    (tmp_path / "solution").mkdir()
    solution = tmp_path / "solution" / "guard.p4"
    solution.touch()
    programs = [switch.program for switch in read(path, solution).switches]
    assert programs == [tmp_path / "routes.p4", solution, solution]
    (tmp_path / "mine.p4").touch()
    with pytest.raises(ConfigurationError, match=r"call the file guard.p4 or routes.p4"):
        read(path, tmp_path / "mine.p4")


def test_a_program_of_any_name_takes_the_place_of_the_only_one(tmp_path: Path) -> None:
    path, mine = write_exercise(tmp_path), tmp_path / "elsewhere" / "mine.p4"
    mine.parent.mkdir()
    mine.touch()
    assert read(path, mine).programs == [mine]
    with pytest.raises(ConfigurationError, match="no P4 program"):
        read(path, tmp_path / "nosuch.p4")


@st.composite
def networks(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid topology.json."""
    switches = [f"s{n}" for n in range(1, draw(st.integers(1, 5)) + 1)]
    hosts = [f"h{n}" for n in range(1, draw(st.integers(1, 8)) + 1)]
    free = [f"{switch}-p{port}" for switch in switches for port in range(20)]
    links: list[list[Any]] = []

    def port() -> str:
        return free.pop(draw(st.integers(0, len(free) - 1)))

    for host in hosts:
        links.append(draw(st.permutations([host, port()])))
    for _ in range(draw(st.integers(0, 6))):
        first, second = port(), port()
        if first.partition("-")[0] != second.partition("-")[0]:
            links.append([first, second, draw(st.integers(0, 50)), draw(st.floats(0.1, 1000))])
    return {
        "hosts": {
            host: {"ip": f"10.0.0.{number}/24", "mac": f"02:00:00:00:00:{number:02x}"}
            for number, host in enumerate(hosts, 1)
        },
        "switches": {switch: {} for switch in switches},
        "links": draw(st.permutations(links)),
    }


@given(described=networks())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_link_of_a_file_is_in_the_fabric_and_the_manifest(
    tmp_path: Path, described: dict[str, Any]
) -> None:
    made = read(write_exercise(tmp_path, described, {}))
    fabric = made.fabric

    def place(end: str) -> str:
        return end.replace("-p", ":")

    joined = {frozenset((str(port), other)) for port, other in fabric.neighbours.items()}
    assert joined == {frozenset(map(place, link[:2])) for link in described["links"]}
    assert set(made.specs) == set(fabric.link_ports)
    assert Fabric.from_settings(json.loads(json.dumps(fabric.settings))) == fabric
    for trunk in fabric.trunks:
        assert trunk.upper.switch < trunk.lower.switch  # so status shows no switch below itself


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_read_or_refused_with_their_name(tmp_path: Path, data: st.DataObject) -> None:
    described, loaded = copy.deepcopy(topology()), copy.deepcopy(runtimes())
    at: Any = data.draw(st.sampled_from([described, loaded["s1"], loaded["s2"]]))
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(_JSON)
    path, said = write_exercise(tmp_path, described, loaded), "topology.json"
    try:
        read(path)
    except ConfigurationError as error:
        said = str(error)
    assert re.search(r"topology\.json|s[12]\.json", said)
