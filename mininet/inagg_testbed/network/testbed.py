# SPDX-License-Identifier: Apache-2.0
"""A testbed that is up: network, switch, controller, and the workers launched on it.

Example::

    with open_testbed(hosts=4, link=LinkSpec.parse("100mbit"), results_root=Path("results")) as testbed:
        group = testbed.launch([sys.executable, "train.py"], name="train")
        group.follow(print, timeout_s=300)
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from inagg_contract.aggregation import SERVER
from inagg_contract.documents import DEFAULT_PORT, dump
from inagg_testbed.errors import (
    ConfigurationError,
    ControllerRefusedError,
    ControllerUnreachableError,
    LauncherError,
    ProcessFailedError,
)
from inagg_testbed.files import handing_over, make_folder, write_text
from inagg_testbed.network.bridges import start_bridges
from inagg_testbed.network.control import (
    CONTROLLER_URL,
    ControllerClient,
    Traffic,
    controller_url,
    token_path,
)
from inagg_testbed.network.fabric import Fabric, SwitchPort, host_name
from inagg_testbed.network.lifecycle import READY, STATE_DIR, Run, open_run
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.requirements import SwitchKind, check_requirements
from inagg_testbed.network.servers import start_servers
from inagg_testbed.network.switch_options import NO_OPTIONS, SwitchOptions
from inagg_testbed.network.switches import (
    Pipeline,
    SwitchTarget,
    device_id,
    p4runtime_addresses,
    start_controller,
    switch_target,
)
from inagg_testbed.network.topology import LinkState, Network, host_address, set_link
from inagg_testbed.network.topology_file import topology_toml
from inagg_testbed.network.workers import ONE_THREAD, EventFile, Worker, WorkerGroup, worker_environment

log = logging.getLogger(__name__)

GlooPath = Literal["switch", "bridge"]
_FIRST_MASTER_PORT = 29500
_OWN_OPTIONS = (
    "slots",
    "aggregation",
    "packet_threads",
)  # of inagg's groups: the testbed's defaults depend on them


@dataclass
class Testbed:
    """A testbed made by `open_testbed`. The fabric's rank order says which host runs a rank.

    own_options: those of inagg's groups that the user's environment or inagg.toml sets, of `_OWN_OPTIONS`.
    """

    __test__ = False  # the name looks like a test class to pytest

    run: Run
    network: Network
    results: Path
    switch: SwitchKind
    max_slots: int | None
    own_options: Mapping[str, Any]
    controlled: bool = True
    switch_options: SwitchOptions = NO_OPTIONS
    environment: Mapping[str, str] = field(default_factory=dict)
    services: list[NodeProcess] = field(default_factory=list)
    controller: ControllerClient | None = None
    pipeline: Pipeline | None = None
    groups: list[WorkerGroup] = field(default_factory=list)
    on_restart: Callable[[NodeProcess], None] = lambda _process: None
    _lossy: bool = False

    @property
    def has_switch(self) -> bool:
        """Whether switches forward the packets; if not, bridges do."""
        return self.switch != "bridge"

    def slots(self, asked: int | None = None) -> int:
        """Slots to ask the controller for: `asked`, by default what the links need, at most what the switch's queues
        can hold."""
        asked = self.network.spec.slots if asked is None else asked
        return asked if self.max_slots is None else min(asked, self.max_slots)

    def _inagg_environment(self, slots: int | None) -> dict[str, str]:
        """Variables for inagg's groups. `slots` of an experiment come before the user's.

        INAGG_LINK_RATE is the token bucket's rate, which the library cannot read from the interface. Over bridges only
        servers can sum. A rank knows nothing of the others on this machine: two packet threads each, and the switch,
        need three processors for each rank.
        """
        rate = self.network.spec.rate_bps
        chosen = self.has_switch or "aggregation" in self.own_options
        scarce = len(os.sched_getaffinity(0)) < 3 * len(self.network.fabric.hosts)
        return {
            **({"INAGG_PACKET_THREADS": "1"} if scarce and "packet_threads" not in self.own_options else {}),
            "INAGG_CONTROLLER": controller_url(self.network),
            "INAGG_SLOTS": str(self.slots(self.own_options.get("slots") if slots is None else slots)),
            **({} if rate is None else {"INAGG_LINK_RATE": str(rate)}),
            **({} if chosen else {"INAGG_AGGREGATION": SERVER}),
            **self.environment,
        }

    def _host_environment(self, host: int) -> dict[str, str]:
        """Variables that say which host it is, and over bridges its rack, which the controller does not know then."""
        fabric = self.network.fabric
        rack = {} if self.has_switch or fabric.is_star else {"INAGG_RACK": fabric.leaf_of(host)}
        return {"INAGG_HOST_NAME": host_name(host), **rack}

    def node_environments(self) -> dict[str, dict[str, str]]:
        """Variables that `inagg exec` adds to the environment in each host, by host."""
        if self.network.fabric.described:
            return {}
        inagg = self._inagg_environment(None) if self.controlled else {}
        return {
            host_name(number): {
                "GLOO_SOCKET_IFNAME": self.network.gloo_interface(number),
                **self._host_environment(number),
                **ONE_THREAD,
                **inagg,
            }
            for number in self.network.fabric.hosts
        }

    def launch(
        self,
        command: Sequence[str],
        *,
        name: str,
        workers: int | None = None,
        hosts: Sequence[int] | None = None,
        environment: Mapping[str, str] | None = None,
        slots: int | None = None,
    ) -> WorkerGroup:
        """Start `command` as ranks 0 to `workers` - 1 (by default one on each workers' host).

        hosts: the number of each rank's host, instead of `workers`. So several groups can run at the same time.
        `{events}` in the command becomes the path of the worker's event file. Logs and events are NAME-rankR.log and
        NAME-rankR.jsonl in the results folder; each launch needs a new name. Raises ConfigurationError,
        MissingRequirementError.
        """
        hosts = self._hosts_of(workers) if hosts is None else self._checked(hosts)
        port = _FIRST_MASTER_PORT + len(self.groups)
        group = WorkerGroup(workers=[])
        self.groups.append(group)
        try:
            for rank, host in enumerate(hosts):
                own = worker_environment(
                    rank=rank,
                    world=len(hosts),
                    interface=self.network.gloo_interface(host),
                    master_address=host_address(hosts[0], bridge=self.network.management),
                    master_port=port,
                    run=self.run.id,
                )
                inagg = self._inagg_environment(slots)
                group.workers.append(
                    self._start_worker(
                        command,
                        name,
                        rank,
                        host,
                        {**own, **inagg, **self._host_environment(host), **(environment or {})},
                    )
                )
        except BaseException:
            group.stop()
            raise
        return group

    def _hosts_of(self, workers: int | None) -> list[int]:
        """The hosts of ranks 0 to `workers` - 1, by default of all ranks. Raises ConfigurationError."""
        world = self.network.size if workers is None else workers
        if not 1 <= world <= self.network.size:
            raise ConfigurationError(f"{world} workers on {self.network.size} hosts for workers")
        return [self.network.fabric.host_of(rank) for rank in range(world)]

    def _checked(self, hosts: Sequence[int]) -> Sequence[int]:
        """Return the hosts if each is a worker's and occurs once. Raises ConfigurationError."""
        known = range(1, self.network.size + 1)
        if not hosts or len(set(hosts)) < len(hosts) or not set(hosts) <= set(known):
            raise ConfigurationError(
                f"ranks on hosts {', '.join(map(str, hosts))}: want different ones of 1 to {self.network.size}"
            )
        return hosts

    def _start_worker(
        self, command: Sequence[str], name: str, rank: int, host: int, environment: Mapping[str, str]
    ) -> Worker:
        events = self.results / f"{name}-rank{rank}.jsonl"
        process = NodeProcess(
            self.run,
            self.network.host(host),
            f"{name} rank {rank}",
            [str(events) if part == "{events}" else part for part in command],
            log_path=self.results / f"{name}-rank{rank}.log",
            environment=environment,
        )
        return Worker(rank, process, EventFile(events))

    def inject_loss(self, probability: float, traffic: Traffic = "all") -> None:
        """Drop packets on every link, in each direction, with this probability.

        Above a few percent use traffic="aggregation": with that much loss TCP stalls for seconds, and with it gloo and
        the heartbeats.
        """
        if probability == 0:
            return
        if not self.has_switch:
            raise ConfigurationError("a bridge cannot inject loss: it drops no packets for inagg")
        if self.controller is None:
            raise ConfigurationError("without a controller no loss can be injected")
        self._lossy = True
        for port in self.network.fabric.link_ports:
            self.controller.set_loss(port, "ingress", probability, traffic)
            self.controller.set_loss(port, "egress", probability, traffic)

    def clear_loss(self) -> None:
        """Remove the injected loss, if any.

        Does nothing if a service has ended: the testbed is unusable then, and the code that follows the workers
        reports it.
        """
        if self._lossy and self.controller is not None:
            if all(process.poll() is None for process in self.services):
                self.controller.clear_loss()
            self._lossy = False

    @contextlib.contextmanager
    def loss(self, probability: float, traffic: Traffic = "all") -> Iterator[None]:
        """Inject loss during a block. An error while clearing never hides an error of the block."""
        try:
            self.inject_loss(probability, traffic)
            yield
        except BaseException:
            try:
                self.clear_loss()
            except LauncherError as error:
                log.warning("injected loss remains: %s", error)
            raise
        self.clear_loss()

    def save_counters(self) -> None:
        """Write the switch's counters, if there is one, to counters.json beside the logs. A failure is only logged."""
        if self.controller is None or not self.has_switch:
            return
        try:
            text = dump(self.controller.counters()) + "\n"
            (self.results / "counters.json").write_text(text)
        except (ControllerRefusedError, ControllerUnreachableError, OSError) as error:
            log.warning("no counters.json: %s", error)

    def kill(self, part: str) -> None:
        """Kill a part: "controller"; "switch", or by name where there are several; the host of a server; or a rank of
        the last launch, such as "rank2". Raises ConfigurationError."""
        self._process(part).kill()

    def signal(self, part: str, number: int) -> None:
        """Send it a signal. Raises ConfigurationError, also if it has ended."""
        process = self._process(part)
        if process.poll() is not None:
            raise ConfigurationError(f"{part} has ended")
        if number == signal.SIGKILL:
            process.kill()
        else:
            process.signal(number)

    def restart(self, part: str) -> NodeProcess:
        """Start a part again, and kill it before if it runs. Does not wait until it is ready, but until a switch of an
        exercise has its entries.

        Returns its new process. Raises ConfigurationError, also for a rank, and ProcessFailedError.
        """
        process = self._process(part)
        if process not in self.services:
            raise ConfigurationError(f"{part} cannot be started again: only a script or torchrun can do that")
        again = process.again()
        self.services[self.services.index(process)] = again
        self.on_restart(again)
        return again

    def _process(self, part: str) -> NodeProcess:
        """The process of a part or of a rank. Raises ConfigurationError."""
        ranks = {f"rank{each.rank}": each.process for each in self.groups[-1].workers} if self.groups else {}
        found = {process.part: process for process in self.services} | ranks
        if part not in found:
            raise ConfigurationError(f"there is no {part} here; there is {', '.join(found) or 'nothing'}")
        return found[part]

    def set_link(self, port: SwitchPort, state: LinkState) -> None:
        """Cut the link at a port of a switch, or mend it."""
        set_link(self.run.manifest, port, state)

    def stop_processes(self) -> None:
        """End the remaining workers, then the services."""
        for group in self.groups:
            group.stop()
        for process in reversed(self.services):
            process.stop()


@contextlib.contextmanager
def open_testbed(
    *,
    link: LinkSpec,
    results_root: Path,
    hosts: int | None = None,
    fabric: Fabric | None = None,
    servers: int = 0,
    uplink: LinkSpec | None = None,
    switch: SwitchKind = "model",
    target: SwitchTarget | None = None,
    specs: Mapping[SwitchPort, LinkSpec] | None = None,
    program: Path | None = None,
    switch_options: SwitchOptions = NO_OPTIONS,
    controlled: bool = True,
    gloo_over: GlooPath = "switch",
    management: bool = False,
    pool: int | None = None,
    controller_options: Sequence[str] = (),
    state_dir: Path = STATE_DIR,
    environment: Mapping[str, str] | None = None,
    on_stage: Callable[[str], Any] = lambda _stage: None,
) -> Iterator[Testbed]:
    """Bring a testbed up, yield it, and take it down in every case.

    hosts makes a star; fabric says more, and is given instead. servers: further hosts, each with an aggregation
    server. uplink: the links between switches, by default like the hosts'. Logs go to a new folder
    RESULTS_ROOT/DATE-TIME-RUN, which stays. `on_stage` gets the name of each stage. gloo_over="bridge" gives gloo its
    own links, and a Linux bridge for each switch, or with impairments one of the switch model. management: the
    controller is there, too, so that a switch may die.
    `environment` is added to that of all workers. The links have
    offloads only if the switch supports them. controlled=False starts no controller: the switch runs any P4 program
    and serves P4Runtime to any client. Over bridges the controller has no switch, and servers do the sums. pool: the
    slots of each switch that jobs may lease, by default all of the program's. controller_options: further ones of
    inagg-controller. target: another way to start the switches. specs: links that differ from the others
    (`topology.Network`).

    Raises MissingRequirementError, ConfigurationError, NetworkError, ProcessFailedError.
    """
    if fabric is None:
        assert hosts is not None, "hosts or fabric"
        fabric = Fabric.star(hosts)
    fabric = fabric.with_servers(servers)
    if fabric.servers and not controlled:
        raise ConfigurationError(
            "servers register with a controller, so --servers and --no-controller exclude each other"
        )
    if pool is not None and (switch == "bridge" or not controlled):
        raise ConfigurationError(
            "--pool limits the slots that a controller leases: it needs a switch and a controller"
        )
    if controller_options and not controlled:
        raise ConfigurationError("--set-controller and --no-controller exclude each other")
    check_requirements(switch)
    switch_options.check(switch, fabric, controlled=controlled)
    bridges = switch_options.bridges if management or gloo_over == "bridge" else None
    target = target or switch_target(switch, program, switch_options, controlled=controlled)
    with open_run(state_dir) as run, contextlib.ExitStack() as stack:
        results = results_root.resolve() / f"{time.strftime('%Y%m%d-%H%M%S')}-{run.id}"
        make_folder(results.parent)
        stack.enter_context(handing_over(results))
        make_folder(results)
        stack.enter_context(handing_over(*switch_options.capture_files(fabric)))
        link, uplink = (
            replace(each, offloads=each.offloads and target.offloads) for each in (link, uplink or link)
        )
        run.manifest.settings.update(
            **fabric.settings,
            switch=switch,
            results=str(results),
            link=link.description,
            uplink=uplink.description,
            link_bps=link.rate_bps,
            uplink_bps=uplink.rate_bps,
            controlled=controlled,
            bridges=bridges,
        )
        if fabric.described:
            rates = {_lower(fabric, port): spec.rate_bps for port, spec in (specs or {}).items()}
            run.manifest.settings["rates"] = rates

        def enter(stage: str) -> None:
            is_first = "stage" not in run.manifest.settings
            run.manifest.settings["stage"] = stage
            run.save()
            on_stage(f"run {run.id}: {stage}" if is_first else stage)

        pipeline = None
        if switch != "bridge":
            enter("compiling the P4 program")
            pipeline = target.compile(results, link.mtu)
        enter(f"network of {_described(fabric)}")
        network = Network(
            run,
            fabric=fabric,
            spec=link,
            uplink=uplink,
            specs=specs,
            bridge=gloo_over == "bridge",
            management=management,
            bridges=switch_options.bridges,
            resolved=controlled,
        )
        stack.callback(network.stop)
        testbed = Testbed(
            *(run, network, results, switch, target.max_slots, _options_of_the_user()),
            controlled=controlled,
            switch_options=switch_options,
            environment=environment or {},
            pipeline=pipeline,
        )
        run.manifest.settings["environment"] = testbed.node_environments()
        run.save()
        stack.callback(testbed.stop_processes)
        if bridges == "model":
            enter("bridges that can be impaired")
            testbed.services.extend(start_bridges(network, results, switch_options))
        enter(f"switch ({switch})")
        topology = _start_switches(testbed, target)
        if controlled:
            enter("controller")
            try:
                _start_controller(testbed, topology, pool, controller_options)
            except ProcessFailedError as error:
                hint = "" if program is None else "\nA program that is not inagg's runs with --no-controller."
                raise ProcessFailedError(f"{error}{hint}") from error
        if fabric.servers:
            enter(f"servers on {', '.join(map(host_name, fabric.servers))}")
            testbed.services.extend(start_servers(network, results))
        enter(READY)
        yield testbed
        testbed.save_counters()


def _start_switches(testbed: Testbed, target: SwitchTarget) -> Path:
    """Start the switches, or make the bridges; returns the file that describes the network."""
    network, results = testbed.network, testbed.results
    addresses = p4runtime_addresses(network, controlled=testbed.controlled and testbed.has_switch)
    if testbed.has_switch:
        testbed.run.manifest.settings["p4runtime"] = {
            switch: (address, device_id(network, switch)) for switch, address in addresses.items()
        }
    topology = results / "topology.toml"
    if testbed.controlled:
        write_text(topology, topology_toml(network.fabric, addresses))
    testbed.services.extend(target.start(network, results, addresses, testbed.pipeline))
    return topology


def _lower(fabric: Fabric, port: SwitchPort) -> str:
    """How `traffic.links` calls the lower end of the link at a port of `Fabric.link_ports`."""
    return fabric.neighbours[port] if port in fabric.host_ports else str(port)


def _start_controller(testbed: Testbed, topology: Path, pool: int | None, options: Sequence[str]) -> None:
    network, results = testbed.network, testbed.results
    testbed.services.append(
        start_controller(
            network,
            testbed.pipeline,
            results,
            topology,
            listen_port=DEFAULT_PORT,
            pool=pool,
            options=options,
        )
    )
    testbed.controller = ControllerClient(token_path(results), pid=network.switch.pid)
    testbed.controller.health()


def _described(fabric: Fabric) -> str:
    hosts = f"{len(fabric.hosts)} hosts"
    return hosts if fabric.is_star else f"{hosts} and {len(fabric.switches)} switches, {fabric.name}"


def _options_of_the_user() -> dict[str, Any]:
    """Those of `_OWN_OPTIONS` that the environment or inagg.toml sets. Raises ConfigurationError."""
    variables = {"INAGG_CONFIG", *(f"INAGG_{name.upper()}" for name in _OWN_OPTIONS)}
    if not (os.environ.keys() & variables or Path("inagg.toml").exists()):
        return {}
    from inagg.base_errors import ConfigurationError as WrongSetting
    from inagg.options import Options

    try:
        options = Options.resolve(Options(controller=CONTROLLER_URL))
    except WrongSetting as error:
        raise ConfigurationError(str(error)) from error
    return options.model_dump(include=set(_OWN_OPTIONS) & options.model_fields_set)
