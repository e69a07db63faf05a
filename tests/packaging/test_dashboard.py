# SPDX-License-Identifier: Apache-2.0
"""deploy/grafana: the dashboard is what its panels say, and a real Prometheus answers each query.

Grafana itself is not run.
"""

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from inagg_contract.documents import DEFAULT_PORT
from inagg_testbed.network.control import call_in_network_namespace, token_path
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import CONTROL_ADDRESS
from tests import ROOT
from tests.attack.ranks import Ranks
from tests.waiting import wait_until

DASHBOARD = ROOT / "deploy" / "grafana" / "inagg.json"
SWITCH_METRICS = "127.0.0.1:9561"
PROMETHEUS = "127.0.0.1:9099"
# Of a healthy job of two ranks on a star with leased slots.
NOTHING_TO_SEE = {
    "Links between switches",
    "Shared slots: collided and lost",
    "Packets that met a queue",
    "Dropped packets of the protocol",
    "Chunks, by where they were summed",
    "Requests answered with an error",
    "Injected loss",
    "Memory of registered servers",
}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> dict[tuple[str, str], str]:
    """By title and reference: PromQL, with the variables as Grafana replaces them."""
    return {
        (panel["title"], target["refId"]): target["expr"]
        .replace("$__rate_interval", "10s")
        .replace("$job", ".*")
        for panel in panels()
        for target in panel["targets"]
    }


def test_the_file_is_what_its_panels_say() -> None:
    made = runpy.run_path(str(DASHBOARD.parent))["dashboard"]()
    assert json.loads(DASHBOARD.read_text()) == made, "run python deploy/grafana"


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells


def test_every_metric_is_documented() -> None:
    counters, switch = (ROOT / "docs" / name for name in ("counters.md", "switch.md"))
    documented = set(re.findall(r"`(inagg_\w+)`", counters.read_text()))
    documented |= {f"inagg_switch_{name}" for name in re.findall(r"`(\w+)`", switch.read_text())}
    used = {name for query in queries().values() for name in re.findall(r"\binagg_(?!job\b)\w+", query)}
    assert used
    assert used <= documented


@contextmanager
def running(pid: int, command: list[str], log: Path) -> Iterator[None]:
    """A program in the network namespace of a process."""
    with log.open("wb") as out:
        process = subprocess.Popen(["mnexec", "-a", str(pid), *command], stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def prometheus(testbed: Testbed, folder: Path) -> Iterator[int]:
    """Reads the testbed's controller, and a switch of its own. Yields the process in whose namespace it is."""
    pid = testbed.network.switch.pid
    jobs = [
        {
            "job_name": "controller",
            "authorization": {"credentials_file": str(token_path(testbed.results))},
            "static_configs": [{"targets": [f"{CONTROL_ADDRESS}:{DEFAULT_PORT}"]}],
        },
        {"job_name": "switch", "static_configs": [{"targets": [SWITCH_METRICS]}]},
    ]
    config = folder / "prometheus.yml"  # JSON is YAML
    config.write_text(
        json.dumps(
            {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": jobs}
        )
    )
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    switch = [
        str(Path(sys.executable).with_name("inagg-switch")),
        "run",
        "--grpc",
        f"unix:{folder / 'switch.sock'}",
    ]
    with (
        running(pid, [*switch, "--port", "1@lo", "--metrics", SWITCH_METRICS], folder / "switch.log"),
        running(pid, [*command, f"--web.listen-address={PROMETHEUS}"], folder / "prometheus.log"),
    ):
        yield pid


def answers(pid: int, query: str) -> list[Any]:
    """Raises AssertionError if Prometheus refuses the query."""

    def ask() -> httpx.Response:
        return httpx.get(f"http://{PROMETHEUS}/api/v1/query", params={"query": query}, trust_env=False)

    answer = call_in_network_namespace(pid, ask)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["data"]["result"]
    return found


def is_ready(pid: int) -> bool:
    def ask() -> bool:
        try:
            return httpx.get(f"http://{PROMETHEUS}/-/ready", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    return call_in_network_namespace(pid, ask)


@pytest.mark.netns
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not on PATH (Debian: prometheus)"
)
def test_prometheus_answers_each_query(tmp_path: Path) -> None:
    with (
        open_testbed(hosts=2, link=LinkSpec.parse("100mbit"), results_root=tmp_path) as testbed,
        prometheus(testbed, tmp_path) as pid,
    ):
        wait_until(lambda: is_ready(pid), "Prometheus is ready", timeout_s=60)
        ranks = Ranks(testbed, 2)
        missing = queries()

        def ask_again() -> bool:
            for place, query in list(missing.items()):
                if answers(pid, query):
                    del missing[place]
            return {title for title, _ in missing} <= NOTHING_TO_SEE

        try:
            wait_until(ask_again, "an answer to each query", timeout_s=60)
        finally:
            print("without an answer:", missing)
        ranks.finish()
        ranks.wait_ended(timeout_s=60)
