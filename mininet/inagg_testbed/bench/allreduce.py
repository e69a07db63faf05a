# SPDX-License-Identifier: Apache-2.0
"""`inagg bench allreduce`: times host all-reduce and aggregation in turn on one testbed, and checks the sums.

`rows` defines the figures, `allreduce_worker` an iteration.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inagg_testbed.bench.allreduce_check import inputs
from inagg_testbed.bench.cpu import softirq_threads
from inagg_testbed.bench.pages.allreduce import contents
from inagg_testbed.bench.plan import (
    INAGG_SERVER,
    INAGG_SERVER_1,
    MAX_LOSS,
    BackendSpec,
    Case,
    Plan,
    check_slots,
)
from inagg_testbed.bench.rows import Conditions, make_rows, wrong_results
from inagg_testbed.bench.settings import settings_of
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import write_text
from inagg_testbed.network.bridges import is_bridge
from inagg_testbed.network.control import token_path
from inagg_testbed.network.fabric import STAR, Fabric, RankOrder
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.servers import is_server
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.switches import is_switch, words_for_mtu
from inagg_testbed.network.testbed import GlooPath, Testbed, open_testbed
from inagg_testbed.network.traffic import host_interfaces
from inagg_testbed.network.workers import Event
from inagg_testbed.report.page import write_report
from inagg_testbed.report.record import Record

_SECONDS_PER_ITERATION = 60.0
_START_UP_S = 180.0
# Up to this link rate gloo is as fast through the switch model as over a bridge. Measured with two processors and 4M
# elements: 1.00, 1.01 and 1.02 times the bridge's time at 1 Gbit/s with 2, 4 and 8 workers. With 4 workers it is 1.02
# at 2 Gbit/s, 1.85 at 4 Gbit/s and 2.25 on unshaped links.
_GLOO_THROUGH_SWITCH_BPS = 1e9


def gloo_path(fabric: Fabric, link: LinkSpec, switch: SwitchKind = "model") -> GlooPath:
    """What gloo's packets cross where gloo is fastest."""
    fast = link.rate_bps is None or link.rate_bps > _GLOO_THROUGH_SWITCH_BPS
    # In a tree a packet crosses several switch processes, which share the machine's cores with the ranks.
    several = not fabric.is_star and switch != "bridge"
    return "bridge" if switch == "bmv2" or fast or several else "switch"


@dataclass(frozen=True, kw_only=True)
class AllReduceBench:
    """What to measure on one testbed.

    uplink_name: the rate of links between switches, None: as link_name. slots None: the number that the links need.
    threads: of each switch, None: it chooses. impair: as SwitchOptions.impair. gloo_over None: the switch where that
    costs gloo less than a tenth of its time, else bridges.
    """

    link_name: str
    link: LinkSpec
    cases: tuple[Case, ...]
    topology: str = STAR
    uplink_name: str | None = None
    rank_order: RankOrder = "contiguous"
    slots: int | None = None
    switch: SwitchKind = "model"
    program: Path | None = None
    threads: int | None = None
    impair: tuple[str, ...] = ()
    gloo_over: GlooPath | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_slots(self.slots)
        for case in self.cases if self.topology != STAR else ():
            Fabric.parse(self.topology, hosts=case.workers)
        LinkSpec.parse(self.uplink_name or self.link_name)
        _each_once(
            "workers and elements",
            [f"{case.experiment} of {case.elements} {case.dtype}s at {case.workers}" for case in self.cases],
        )
        for case in self.cases:
            _each_once("backend", case.backends)
            _each_once("loss", [f"{loss:g}" for loss in case.losses])
            self._check_case(case)
        self.fabric  # noqa: B018 (raises what is wrong with the hosts)

    def _check_case(self, case: Case) -> None:
        specs = [BackendSpec.parse(backend) for backend in case.backends]
        for loss in case.losses:
            if not 0 <= loss <= MAX_LOSS:
                raise ConfigurationError(f"loss {loss:g} is outside 0 to {MAX_LOSS:g}")
        switched = any(spec.through_switch for spec in specs)
        if self.switch == "bridge" and (switched or any(case.losses)):
            raise ConfigurationError(
                f"a bridge neither aggregates nor drops packets: measure gloo, {INAGG_SERVER} and {INAGG_SERVER_1}, "
                "without loss"
            )
        served = [str(spec) for spec in specs if spec.on_servers]
        if any(case.losses) and served:
            raise ConfigurationError(
                f"only aggregation packets are lost, and packets to servers are ordinary ones: measure"
                f" {', '.join(served)} without --loss"
            )
        if any(case.losses) and not switched:
            raise ConfigurationError("only aggregation packets are lost, and gloo has none")

    @property
    def _specs(self) -> list[BackendSpec]:
        return [BackendSpec.parse(backend) for case in self.cases for backend in case.backends]

    @property
    def gloo_path(self) -> GlooPath:
        """What gloo's packets cross."""
        if self.gloo_over is not None:
            return self.gloo_over
        return gloo_path(self.fabric, self.link, self.switch)

    @property
    def fabric(self) -> Fabric:
        """Switches, links and hosts, with one for a server if a backend needs it. Raises ConfigurationError."""
        servers = int(any(spec.needs_server for spec in self._specs))
        made = Fabric.parse(self.topology, hosts=self.hosts, rank_order=self.rank_order)
        return made.with_servers(servers)

    @property
    def uplink(self) -> LinkSpec:
        """The links between switches."""
        return LinkSpec.parse(self.uplink_name or self.link_name, mtu=self.link.mtu)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the rows do not contain."""
        return {
            "switch": self.switch,
            "gloo_over": self.gloo_path,
            **({"impair": list(self.impair)} if self.impair else {}),
            "slots": self.link.slots if self.slots is None else self.slots,
            "seed": self.seed,
            "inputs": inputs(self.seed),
        }

    @property
    def hosts(self) -> int:
        """Number of workers' hosts that the testbed needs."""
        return max(case.workers for case in self.cases)

    @property
    def conditions(self) -> Conditions:
        """Settings that all rows share."""
        return Conditions(
            link_name=self.link_name,
            rate_bps=self.link.rate_bps,
            topology=self.topology,
            uplink_name=None if self.fabric.is_star else self.uplink_name or self.link_name,
            rank_order=self.rank_order,
            racks=self.fabric.ranks_of_racks,
            mtu=self.link.mtu,
            words=self.words,
        )

    @property
    def words(self) -> int | None:
        """WORDS of a DATA packet; None over a bridge if gloo does all sums."""
        summed = self.switch != "bridge" or any(spec.on_servers for spec in self._specs)
        return words_for_mtu(self.link.mtu) if summed else None


def _each_once(what: str, values: Sequence[str]) -> None:
    if len(set(values)) < len(values):
        raise ConfigurationError(f"{what} {', '.join(values)}: a value is given twice")


@dataclass(frozen=True)
class BenchOutcome:
    """rows: one for each combination of backend, workers, elements and loss. wrong: a message for each wrong result.

    folder: the logs of the run.
    """

    rows: list[dict[str, Any]]
    settings: dict[str, Any]
    wrong: list[str]
    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        """The figures, as JSON has them."""
        return {"rows": self.rows, "settings": self.settings, "wrong": self.wrong}

    def write_page(self) -> Path:
        """Write report.json and the page into the folder; return the page's path. Raises ConfigurationError."""
        return write_report(self.folder, Record("allreduce", self.document), {"allreduce": contents})


def run_bench(
    bench: AllReduceBench,
    results_root: Path,
    *,
    on_stage: Callable[[str], Any],
    on_progress: Callable[[int, int], Any],
) -> BenchOutcome:
    """Bring a testbed up, measure, take it down. `on_progress` gets iterations done and all iterations.

    Raises LauncherError. A wrong sum does not raise: the outcome reports it.
    """
    with open_testbed(
        fabric=bench.fabric,
        link=bench.link,
        uplink=bench.uplink,
        results_root=results_root,
        switch=bench.switch,
        program=bench.program,
        switch_options=SwitchOptions(threads=bench.threads, impair=bench.impair),
        gloo_over=bench.gloo_path,
        on_stage=on_stage,
    ) as testbed:
        on_stage(f"{bench.hosts} workers")
        return measure(bench, testbed, on_progress=on_progress)


def measure(
    bench: AllReduceBench, testbed: Testbed, *, on_progress: Callable[[int, int], Any]
) -> BenchOutcome:
    """Measure on a testbed that is up; write the outcome to its results folder too. Raises LauncherError."""
    events: list[Event] = []
    rounds = sum(len(list(case.contestants())) * (case.iterations + case.warmup) for case in bench.cases)
    total = sum(len(list(case.contestants())) * case.iterations for case in bench.cases)

    done = 0

    def on_event(rank: int, event: Event) -> None:
        nonlocal done
        events.append({**event, "rank": rank})
        done += rank == 0
        on_progress(done, total)

    name = f"bench-{len(testbed.groups) + 1}"
    command = [
        sys.executable,
        "-m",
        "inagg_testbed.bench.allreduce_worker",
        make_plan(bench, testbed).to_json(),
    ]
    group = testbed.launch([*command, "{events}"], name=name, workers=bench.hosts, slots=bench.slots)
    group.follow(on_event, timeout_s=_START_UP_S + rounds * _SECONDS_PER_ITERATION, watch=testbed.services)
    outcome = BenchOutcome(
        rows=make_rows(bench.conditions, bench.cases, events),
        settings={**settings_of(testbed), **bench.settings},
        wrong=list(wrong_results(bench.cases, events)),
        folder=testbed.results,
    )
    write_text(testbed.results / f"{name}.json", json.dumps(outcome.document, indent=2) + "\n")
    return outcome


def make_plan(bench: AllReduceBench, testbed: Testbed) -> Plan:
    """The plan for the workers."""
    fabric = testbed.network.fabric
    words = 0 if testbed.controller is None else testbed.controller.health().words
    forwarding = [
        process.identity.pid
        for process in testbed.services
        if is_switch(process) or is_bridge(process) or is_server(process)
    ]
    return Plan(
        cases=bench.cases,
        seed=bench.seed,
        words=words,
        racks=fabric.ranks_of_racks,
        ports=tuple((port.switch, port.port) for port in fabric.link_ports),
        links=tuple(map(tuple, host_interfaces(testbed.network))),
        cpu_pids=(*forwarding, *softirq_threads()),
        token_file=None if testbed.controller is None else str(token_path(testbed.results)),
    )


def title(bench: AllReduceBench) -> str:
    """Title of a table of the rows."""
    workers = ", ".join(str(count) for count in dict.fromkeys(case.workers for case in bench.cases))
    elements = ", ".join(f"{count:,}" for count in dict.fromkeys(case.elements for case in bench.cases))
    (kind,) = {case.element_type for case in bench.cases}
    size = kind.bits // 8
    sizes = ", ".join(f"{size * count:,}" for count in dict.fromkeys(case.elements for case in bench.cases))
    text = f"all-reduce of {elements} {kind.name} ({sizes} bytes), {workers} workers, {bench.link_name}"
    text += f", switch: {bench.switch}"
    text += f", MTU {bench.link.mtu}" if bench.link.mtu != 1500 else ""
    if not bench.fabric.is_star:
        text += f", {bench.topology}, {bench.uplink_name or bench.link_name} between switches, {bench.rank_order} ranks"
    if bench.switch != "bridge":
        several = not bench.fabric.is_star
        bridge, switch = ("bridges", "the switches") if several else ("a bridge", "the switch")
        text += f", gloo over {bridge if bench.gloo_path == 'bridge' else switch}"
    text += f", impaired: {' '.join(bench.impair)}" if bench.impair else ""
    return f"{text}\ninputs: {inputs(bench.seed)}"
