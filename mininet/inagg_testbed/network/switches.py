# SPDX-License-Identifier: Apache-2.0
"""The kinds of switch, one process for each switch of the fabric, and the controller.

model   inagg_switch, the default: compiles p4/inagg.p4 and runs it.
bmv2    simple_switch_grpc, the reference switch, with p4/inagg.p4 compiled by p4c-bm2-ss; both from PATH.
bridge  A Linux bridge, which aggregates nothing: for sums on servers, for host all-reduce at its best, and for testing
        the network only. The controller has no switch then. Bridges know no loops: of a leaf-spine they use the links
        to the first spine only.

The first two kinds serve P4Runtime on 127.0.0.1:9559 of the switch's namespace. If one controller controls several
switches, each serves at a UNIX socket instead, which network namespaces do not separate: so no management network is
needed, and no worker can reach P4Runtime. Without a controller any client may connect, the switch runs any P4 program,
and the controller's port is not a port of the switch, unless `SwitchOptions` names one.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inagg_contract.constants import CPU_PORT
from inagg_contract.program import inagg_p4
from inagg_contract.sizes import data_mtu
from inagg_testbed.errors import ConfigurationError, MissingRequirementError, ProcessFailedError
from inagg_testbed.files import make_folder, write_text
from inagg_testbed.network.control import token_path
from inagg_testbed.network.fabric import CONTROL_PORT
from inagg_testbed.network.links import WORDS, words_within
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.switch_console import CONSOLE_PORT
from inagg_testbed.network.switch_options import NO_OPTIONS, WORDS_MACRO, SwitchOptions
from inagg_testbed.network.topology import CONTROL_ADDRESS, Network, host_address, run_in_namespace

P4RUNTIME_ADDRESS = "127.0.0.1:9559"
_SWITCH_PROCESS = "switch"
_COMPILE_TIMEOUT_S = 300.0
READY_TIMEOUT_S = 180.0
_CONTROLLER_READY_TIMEOUT_S = 240.0
_ONE_MAY_HAVE_ALL = ("--host-share", "1", "--job-share", "1")


@dataclass(frozen=True)
class Pipeline:
    """What the controller installs: P4Info and the target-specific form of the program."""

    p4info: Path
    device_config: Path


class SwitchTarget(Protocol):
    """A kind of switch.

    max_slots: the window that its queues can hold, None for any. offloads: whether its ports accept GSO frames and
    frames without a checksum, so that the links may have offloads.
    """

    max_slots: int | None
    offloads: bool

    def compile(self, results: Path, mtu: int) -> Pipeline | None:
        """Compile what the switches run, before there is a network; return the pipeline if all have the same.

        mtu: of the links. Raises ProcessFailedError with the compiler's messages, and ConfigurationError.
        """

    def start(
        self, network: Network, results: Path, addresses: Mapping[str, str], pipeline: Pipeline | None
    ) -> list[NodeProcess]:
        """Start every switch on its ports; return the processes.

        addresses: where each switch serves P4Runtime (`p4runtime_addresses`). pipeline: what compile() has returned.
        """


def switch_target(
    kind: SwitchKind,
    program: Path | None = None,
    options: SwitchOptions = NO_OPTIONS,
    *,
    controlled: bool = True,
) -> SwitchTarget:
    """The target for a kind of switch.

    Raises ConfigurationError if the program does not exist, or for a bridge without a controller.
    """
    if program is not None and not program.is_file():
        raise ConfigurationError(f"no P4 program {program}")
    if kind == "bridge":
        if not controlled:
            raise ConfigurationError(
                "--no-controller needs a switch that runs P4 programs; a bridge does not"
            )
        return BridgeSwitch()
    source = program or inagg_p4()
    target = Bmv2Switch if kind == "bmv2" else ModelSwitch
    return target(source, controlled, options)


def words_for_mtu(mtu: int) -> int:
    """WORDS of the program that links of an MTU run. Raises ConfigurationError when none fits."""
    if (words := words_within(mtu)) is not None:
        return words
    raise ConfigurationError(
        f"MTU {mtu}: a DATA packet of 4 words needs {data_mtu(4)} bytes; below that only gloo works, over --switch"
        " bridge"
    )


def command_path(name: str) -> str:
    """Path of a command in this virtual environment, else on PATH. Raises MissingRequirementError."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingRequirementError(f"the command {name} is neither in {beside.parent} nor on PATH")
    return found


@dataclass
class ModelSwitch:
    """inagg_switch. Without a controller it runs the program from its start, so p4runtime-shell needs no --config."""

    program: Path
    controlled: bool = True
    options: SwitchOptions = NO_OPTIONS
    max_slots: int | None = None
    offloads: bool = True

    def compile(self, results: Path, mtu: int) -> Pipeline:
        """See SwitchTarget."""
        folder = results / "p4"
        compiler = [command_path("inagg-switch"), "compile", *_compiling(mtu, self.controlled, self.options)]
        compile_program([*compiler, *self.options.threads_option, str(self.program), "-o", str(folder)])
        return Pipeline(folder / "p4info.txtpb", folder / self.program.name)

    def start(
        self, network: Network, results: Path, addresses: Mapping[str, str], pipeline: Pipeline | None
    ) -> list[NodeProcess]:
        """See SwitchTarget."""
        assert pipeline is not None
        processes = []
        for switch, address in addresses.items():
            command = [
                "--device-id",
                str(device_id(network, switch)),
                *_cpu_port(self.controlled, self.options),
            ]
            command += [] if self.controlled else [str(pipeline.device_config)]
            for number, interface in _ports(network, switch, self.controlled):
                command += ["--port", f"{number}@{interface}"]
            processes.append(start_model(network, switch, address, command, results, self.options))
        for process in processes:
            process.wait_for_line("ready", timeout_s=READY_TIMEOUT_S)
        return processes


def start_model(
    network: Network,
    switch: str,
    address: str,
    command: Sequence[str],
    results: Path,
    options: SwitchOptions,
) -> NodeProcess:
    """Start inagg_switch in the node of a switch. command: what `inagg-switch run` is to do there."""
    command = [command_path("inagg-switch"), "run", "--grpc", address, *command]
    command += ["--console", f"127.0.0.1:{CONSOLE_PORT}", *_impaired(network, switch, options)]
    command += ["--stats", str(results / f"{_named(network, 'ports', switch)}.json")]
    command += [] if network.spec.offloads else ["--no-offloads"]
    command += ["--trace"] if options.trace else []
    command += options.threads_option
    captures = options.captures(network.fabric, switch)
    command += [] if captures is None else ["--pcap", str(captures)]
    return _start(network, switch, command, results)


@dataclass
class Bmv2Switch:
    """simple_switch_grpc.

    Its egress queues hold 64 packets a port and drop further ones. A window of 32 leaves room for retransmitted results
    and for other traffic. Its ports use libpcap, which does not support offloads.
    """

    program: Path
    controlled: bool = True
    options: SwitchOptions = NO_OPTIONS
    max_slots: int | None = 32
    offloads: bool = False

    def compile(self, results: Path, mtu: int) -> Pipeline:
        """See SwitchTarget."""
        compiler = command_path("p4c-bm2-ss")
        folder = results / "p4"
        folder.mkdir(exist_ok=True)
        pipeline = Pipeline(folder / "p4info.txtpb", folder / "prog.json")
        options = [
            "--std",
            "p4-16",
            "--p4runtime-files",
            str(pipeline.p4info),
            "-o",
            str(pipeline.device_config),
        ]
        compile_program(
            [compiler, *options, *_compiling(mtu, self.controlled, self.options), str(self.program)]
        )
        return pipeline

    def start(
        self, network: Network, results: Path, addresses: Mapping[str, str], pipeline: Pipeline | None
    ) -> list[NodeProcess]:
        """See SwitchTarget."""
        switch = command_path("simple_switch_grpc")
        processes = []
        for name, address in addresses.items():
            log = results / _named(network, "bmv2", name)
            command = [switch, "--no-p4", "--device-id", str(device_id(network, name))]
            if self.options.trace:
                command += ["--log-console", "--log-level", "trace"]
            else:
                command += ["--log-file", str(log), "--log-flush", "--log-level", "warn"]
            captures = self.options.captures(network.fabric, name)
            if captures is not None:
                make_folder(captures)  # the switch makes none
                command += ["--pcap", str(captures)]
            for number, interface in _ports(network, name, self.controlled):
                command += ["-i", f"{number}@{interface}"]
            command += ["--", "--grpc-server-addr", address, *_cpu_port(self.controlled, self.options)]
            processes.append(_start(network, name, command, results))
        return processes


@dataclass
class BridgeSwitch:
    """A Linux bridge over the ports of each switch, without those that would close a loop."""

    max_slots: int | None = None
    offloads: bool = True

    def compile(self, results: Path, mtu: int) -> None:
        """See SwitchTarget."""

    def start(
        self, network: Network, results: Path, addresses: Mapping[str, str], pipeline: Pipeline | None
    ) -> list[NodeProcess]:
        """See SwitchTarget."""
        network.make_bridges(own_links=False)
        for switch in network.fabric.switches:
            shown = run_in_namespace(network.switch_node(switch).pid, "ip -details link show")
            write_text(results / f"{_named(network, 'switch', switch)}.log", shown)
        return []


def _impaired(network: Network, switch: str, options: SwitchOptions) -> list[str]:
    return options.impair_options(network.fabric, switch, network.ports(switch))


def _compiling(mtu: int, controlled: bool, options: SwitchOptions) -> list[str]:
    """Compiler options of the program."""
    words = [f"-D{WORDS_MACRO}={words_for_mtu(mtu)}"] if controlled else []
    return [*words, *options.compiling]


def _cpu_port(controlled: bool, options: SwitchOptions) -> list[str]:
    port = CPU_PORT if controlled else options.cpu_port
    return [] if port is None else ["--cpu-port", str(port)]


def _ports(network: Network, switch: str, controlled: bool) -> list[tuple[int, str]]:
    """Port numbers and interfaces of a switch; without a controller, not the controller's."""
    ports = network.ports(switch)
    return [(number, name) for number, name in ports.items() if controlled or number != CONTROL_PORT]


def p4runtime_addresses(network: Network, *, controlled: bool) -> dict[str, str]:
    """Where each switch serves P4Runtime: HOST:PORT of its namespace, or unix:PATH; see the module docstring."""
    switches = network.fabric.switches
    if not network.fabric.described and (network.fabric.is_star or not controlled):
        return dict.fromkeys(switches, P4RUNTIME_ADDRESS)
    folder = network.run.temporary_folder()  # the path of a socket has at most 107 bytes (unix(7))
    return {switch: f"unix:{folder / switch}" for switch in switches}


def device_id(network: Network, switch: str) -> int:
    """A switch's P4Runtime device id: 1, 2, ...; in an exercise 0, 1, ..."""
    return network.fabric.switches.index(switch) + (0 if network.fabric.described else 1)


def is_switch(process: NodeProcess) -> bool:
    """Whether a process is that of a switch."""
    return process.kind == _SWITCH_PROCESS


def _named(network: Network, what: str, switch: str) -> str:
    """Name of a file about a switch: `switch` in a star, `switch-leaf1` in other fabrics."""
    return what if network.fabric.is_star else f"{what}-{switch}"


def _start(network: Network, switch: str, command: Sequence[str], results: Path) -> NodeProcess:
    name = _SWITCH_PROCESS if network.fabric.is_star else f"{_SWITCH_PROCESS} {switch}"
    log_path = results / f"{_named(network, 'switch', switch)}.log"
    return NodeProcess(network.run, network.switch_node(switch), name, command, log_path=log_path)


def start_controller(
    network: Network,
    pipeline: Pipeline | None,
    results: Path,
    topology: Path,
    *,
    listen_port: int,
    pool: int | None = None,
    options: Sequence[str] = (),
) -> NodeProcess:
    """Start the controller and wait until it has installed the pipeline in all switches and serves.

    pipeline None: a controller without a switch. Over links whose MTU no DATA packet fits, it refuses all workers, and
    only gloo works. topology: the file that describes the fabric (`topology_file`). pool: the slots of each switch that
    jobs may lease, by default all of the program's; one job may have them all. options: further ones of the command.
    Raises ProcessFailedError.
    """
    command = [command_path("inagg-controller")]
    if pipeline is None:
        command += ["--no-switch", "--words", str(words_within(network.spec.mtu) or min(WORDS))]
    else:
        command += ["--topology", str(topology), "--p4info", str(pipeline.p4info)]
        command += ["--device-config", str(pipeline.device_config)]
        command += [] if pool is None else ["--pool", str(pool), *_ONE_MAY_HAVE_ALL]
    command += options
    address = "0.0.0.0" if network.management else CONTROL_ADDRESS
    command += ["--listen", f"{address}:{listen_port}", "--token-file", str(token_path(results))]
    if network.management:
        for number in network.fabric.hosts:
            command += ["--host-address", f"{host_address(number, bridge=True)}={host_address(number)}"]
    log_path = results / "controller.log"
    process = NodeProcess(network.run, network.switch, "controller", command, log_path=log_path)
    process.wait_for_line("ready", timeout_s=_CONTROLLER_READY_TIMEOUT_S)
    return process


def compile_program(command: Sequence[str]) -> None:
    """Run a P4 compiler. Raises ProcessFailedError with its messages."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        raise ProcessFailedError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout).strip()}")
