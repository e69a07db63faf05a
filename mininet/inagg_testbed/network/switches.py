# SPDX-License-Identifier: Apache-2.0
"""The kinds of switch in the middle of the star, and the controller.

model   inagg_switch, the default: compiles p4/inagg.p4 and runs it.
bmv2    simple_switch_grpc, the reference switch, with p4/inagg.p4 compiled by p4c-bm2-ss; both from PATH.
bridge  A Linux bridge: no aggregation. For host all-reduce at its best, and for testing the network only.

The first two serve P4Runtime on 127.0.0.1:9559 of the switch's namespace. Without a controller any client may connect,
the switch runs any P4 program, and the controller's port is not a port of the switch.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inagg_contract.program import inagg_p4
from inagg_contract.sizes import data_mtu
from inagg_testbed.errors import ConfigurationError, MissingRequirementError, ProcessFailedError
from inagg_testbed.network.control import token_path
from inagg_testbed.network.links import words_within
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.topology import (
    CONTROL_ADDRESS,
    CONTROL_MAC,
    CONTROL_PORT,
    Network,
    host_address,
    host_mac,
    make_bridge,
    run_in_namespace,
)

P4RUNTIME_ADDRESS = "127.0.0.1:9559"
_COMPILE_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 180.0
_CONTROLLER_READY_TIMEOUT_S = 240.0
_AGGREGATOR = ("10.0.0.253", "02:49:41:00:00:01")


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

    def start(self, network: Network, results: Path) -> tuple[list[NodeProcess], Pipeline | None]:
        """Start the switch on the network's ports; return its processes and, if programmable, its pipeline."""


def switch_target(kind: SwitchKind, program: Path | None = None, *, controlled: bool = True) -> SwitchTarget:
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
    return Bmv2Switch(source, controlled) if kind == "bmv2" else ModelSwitch(source, controlled)


def words_for_mtu(mtu: int) -> int:
    """WORDS of the program that links of an MTU run. Raises ConfigurationError when none fits."""
    if (words := words_within(mtu)) is not None:
        return words
    raise ConfigurationError(
        f"MTU {mtu}: a DATA packet of 4 words needs {data_mtu(4)} bytes; only --switch bridge works below that"
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
    max_slots: int | None = None
    offloads: bool = True

    def start(self, network: Network, results: Path) -> tuple[list[NodeProcess], Pipeline | None]:
        """See SwitchTarget."""
        folder = results / "p4"
        compiler = [command_path("inagg-switch"), "compile", *_defines(network, self.controlled)]
        compile_program([*compiler, str(self.program), "-o", str(folder)])
        pipeline = Pipeline(folder / "p4info.txtpb", folder / self.program.name)
        command = [command_path("inagg-switch"), "run", "--grpc", P4RUNTIME_ADDRESS, "--device-id", "1"]
        command += ["--stats", str(results / "ports.json")]
        if not self.controlled:
            command.append(str(pipeline.device_config))
        for number, interface in _ports(network, self.controlled):
            command += ["--port", f"{number}@{interface}"]
        process = NodeProcess.start(
            network.run, network.switch, "switch", command, log_path=results / "switch.log"
        )
        process.wait_for_line("ready", timeout_s=_READY_TIMEOUT_S)
        return [process], pipeline


@dataclass
class Bmv2Switch:
    """simple_switch_grpc.

    Its egress queues hold 64 packets a port and drop further ones. A window of 32 leaves room for retransmitted results
    and for other traffic. Its ports use libpcap, which does not support offloads.
    """

    program: Path
    controlled: bool = True
    max_slots: int | None = 32
    offloads: bool = False

    def start(self, network: Network, results: Path) -> tuple[list[NodeProcess], Pipeline | None]:
        """See SwitchTarget."""
        compiler, switch = command_path("p4c-bm2-ss"), command_path("simple_switch_grpc")
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
        compile_program([compiler, *options, *_defines(network, self.controlled), str(self.program)])
        command = [switch, "--no-p4", "--device-id", "1", "--log-file", str(results / "bmv2"), "--log-flush"]
        command += ["--log-level", "warn"]
        for number, interface in _ports(network, self.controlled):
            command += ["-i", f"{number}@{interface}"]
        command += ["--", "--grpc-server-addr", P4RUNTIME_ADDRESS]
        process = NodeProcess.start(
            network.run, network.switch, "switch", command, log_path=results / "switch.log"
        )
        return [process], pipeline


@dataclass
class BridgeSwitch:
    """A Linux bridge over the ports."""

    max_slots: int | None = None
    offloads: bool = True

    def start(self, network: Network, results: Path) -> tuple[list[NodeProcess], Pipeline | None]:
        """See SwitchTarget."""
        make_bridge(network.switch.pid, network.ports.values(), network.spec.mtu)
        (results / "switch.log").write_text(run_in_namespace(network.switch.pid, "ip -details link show"))
        return [], None


def _defines(network: Network, controlled: bool) -> list[str]:
    """Compiler options of the program."""
    return [f"-DWORDS={words_for_mtu(network.spec.mtu)}"] if controlled else []


def _ports(network: Network, controlled: bool) -> list[tuple[int, str]]:
    """Port numbers and interfaces of the switch; without a controller, not the controller's."""
    return [(number, name) for number, name in network.ports.items() if controlled or number != CONTROL_PORT]


def start_controller(network: Network, pipeline: Pipeline, results: Path, *, listen_port: int) -> NodeProcess:
    """Start the controller and wait until it has installed the pipeline and serves. Raises ProcessFailedError."""
    command = [command_path("inagg-controller"), "--switch", P4RUNTIME_ADDRESS, "--device-id", "1"]
    command += ["--p4info", str(pipeline.p4info), "--device-config", str(pipeline.device_config)]
    command += ["--listen", f"{CONTROL_ADDRESS}:{listen_port}", "--token-file", str(token_path(results))]
    command += ["--ports", ",".join(str(number) for number in network.ports)]
    command += ["--aggregator-ip", _AGGREGATOR[0], "--aggregator-mac", _AGGREGATOR[1]]
    for number in range(1, network.size + 1):
        command += ["--host", f"{host_address(number)}={number},{host_mac(number)}"]
    command += ["--host", f"{CONTROL_ADDRESS}={CONTROL_PORT},{CONTROL_MAC}"]
    log_path = results / "controller.log"
    process = NodeProcess.start(network.run, network.switch, "controller", command, log_path=log_path)
    process.wait_for_line("ready", timeout_s=_CONTROLLER_READY_TIMEOUT_S)
    return process


def compile_program(command: Sequence[str]) -> None:
    """Run a P4 compiler. Raises ProcessFailedError with its messages."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        raise ProcessFailedError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout).strip()}")
