# SPDX-License-Identifier: Apache-2.0
"""A testbed from a topology.json: `open_exercise`."""

import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inagg_testbed.errors import ConfigurationError, MissingRequirementError
from inagg_testbed.network.exercise.layout import Exercise, ExerciseSwitch, read_exercise
from inagg_testbed.network.exercise.relay import Relay
from inagg_testbed.network.lifecycle import STATE_DIR
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.requirements import has_netem
from inagg_testbed.network.switch_options import NO_OPTIONS, SwitchOptions
from inagg_testbed.network.switches import (
    READY_TIMEOUT_S,
    Pipeline,
    command_path,
    compile_program,
    device_id,
    start_model,
)
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import Network

if TYPE_CHECKING:
    from inagg_testbed.network.exercise.entries import Updates

log = logging.getLogger(__name__)

_COMMAND_TIMEOUT_S = 60.0


class ExerciseSwitches:
    """Starts the switches of an exercise with their programs, loads their entries, and runs the hosts' commands."""

    max_slots: int | None = None
    offloads = True

    def __init__(self, exercise: Exercise, options: SwitchOptions, relay: Relay) -> None:
        self._exercise, self._options, self._relay = exercise, options, relay
        self._pipelines: dict[Path, Pipeline] = {}
        self._wanted: dict[str, Updates] = {}  # by switch

    def compile(self, results: Path, mtu: int) -> None:
        """See SwitchTarget. Reads the entries, too."""
        from inagg_testbed.network.exercise import entries  # imports the switch, which takes time

        for program in self._exercise.programs:
            self._pipelines[program] = compiled(results, program, self._options)
        for switch in self._exercise.switches:
            if switch.runtime is not None and switch.runtime_path is not None:
                p4info = self._pipelines[switch.program].p4info
                self._wanted[switch.name] = entries.updates(p4info, switch.runtime_path, switch.runtime)

    def start(
        self, network: Network, results: Path, addresses: Mapping[str, str], pipeline: Pipeline | None
    ) -> list[NodeProcess]:
        """See SwitchTarget."""
        with ExitStack() as on_error:
            processes = []
            for switch in self._exercise.switches:
                address = addresses[switch.name]
                processes.append(self._started(network, results, switch, address))
                on_error.callback(processes[-1].stop)
            for process in processes:
                process.wait_for_line("ready", timeout_s=READY_TIMEOUT_S)
            for host, commands in self._exercise.commands.items():
                run_commands(network, results, host, commands)
            for switch in self._exercise.switches:
                self._load(network, results, switch, addresses[switch.name])
            on_error.pop_all()
        self._relay.serve([addresses[name].removeprefix("unix:") for name in network.fabric.switches])
        return processes

    def load_again(self, testbed: Testbed, process: NodeProcess) -> None:
        """Load the entries of a switch that has been started again. If that fails, it ends."""
        switch = next(each for each in self._exercise.switches if each.name == process.part)
        address, _ = testbed.run.manifest.settings["p4runtime"][switch.name]
        try:
            process.wait_for_line("ready", timeout_s=READY_TIMEOUT_S)
            self._load(testbed.network, testbed.results, switch, address)
        except BaseException:
            process.kill()
            raise

    def _load(self, network: Network, results: Path, switch: ExerciseSwitch, address: str) -> None:
        from inagg_testbed.network.exercise import console, entries

        if switch.cli_input is not None:
            pid, said = network.pid_of(switch.name), results / f"cli-{switch.name}.log"
            console.run_commands(pid, switch.cli_input, said)
        updates = self._wanted.get(switch.name, ())
        entries.load(address, device_id(network, switch.name), updates)

    def _started(
        self,
        network: Network,
        results: Path,
        switch: ExerciseSwitch,
        address: str,
    ) -> NodeProcess:
        command = [str(self._pipelines[switch.program].device_config), "--device-id"]
        command.append(str(device_id(network, switch.name)))
        cpu_port = self._options.cpu_port if switch.cpu_port is None else switch.cpu_port
        command += [] if cpu_port is None else ["--cpu-port", str(cpu_port)]
        if switch.priority_queues > 1:
            command += ["--priority-queues", str(switch.priority_queues)]
        for number, interface in network.ports(switch.name).items():
            command += ["--port", f"{number}@{interface}"]
        return start_model(network, switch.name, address, command, results, self._options)


def compiled(results: Path, program: Path, options: SwitchOptions) -> Pipeline:
    """Compile a program of an exercise. Raises ProcessFailedError with the compiler's messages."""
    folder = results / "p4" / program.stem
    compiler = [command_path("inagg-switch"), "compile", *options.compiling, *options.threads_option]
    compile_program([*compiler, str(program), "-o", str(folder)])
    return Pipeline(folder / "p4info.txtpb", folder / program.name)


def run_commands(network: Network, results: Path, host: str, commands: Sequence[str]) -> None:
    """Run a host's commands one after the other; the output goes to HOST.log. One that fails is a warning, as an
    exercise goes on then. Raises ConfigurationError if one does not end."""
    path = results / f"{host}.log"
    with path.open("ab") as output:
        for command in commands:
            try:
                # Not through a pipe: a process that the command leaves behind would hold it open.
                status = subprocess.run(
                    ["mnexec", "-a", str(network.pid_of(host)), "sh", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(os.environ) | network.run.environment,
                    timeout=_COMMAND_TIMEOUT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise ConfigurationError(
                    f"hosts.{host}: the command `{command}` has not ended within {_COMMAND_TIMEOUT_S:g} s: let it run"
                    " in the background with &"
                ) from error
            if status != 0:
                log.warning("host %s: `%s` ended with exit status %d; see %s", host, command, status, path)


@contextmanager
def open_exercise(
    path: Path,
    *,
    results_root: Path,
    program: Path | None = None,
    options: SwitchOptions = NO_OPTIONS,
    mtu: int = 1500,
    offloads: bool = False,
    grpc_port: int,
    state_dir: Path = STATE_DIR,
    on_stage: Callable[[str], Any] = lambda _stage: None,
) -> Iterator[Testbed]:
    """Bring up what a topology.json describes, yield it, and take it down in every case.

    program: instead of the exercise's (`layout`). options: of all switches. offloads: off by default, as in the
    exercises' hosts. grpc_port: the P4Runtime port of the first switch, on 127.0.0.1 of this machine; the others have
    the next ones.

    Raises ConfigurationError, MissingRequirementError, and what `open_testbed` raises.
    """
    link = LinkSpec(rate_bps=None, mtu=mtu, offloads=offloads)
    exercise = read_exercise(path, program=program, link=link)
    if any(spec.delay_s for spec in exercise.specs.values()) and not has_netem():
        raise MissingRequirementError(
            f"{path}: links with a latency need netem, which this kernel does not have: load its module (modprobe"
            " sch_netem), or take the latencies out"
        )
    with Relay(grpc_port, len(exercise.switches)) as relay:
        switches = ExerciseSwitches(exercise, options, relay)
        with open_testbed(
            link=link,
            specs=exercise.specs,
            fabric=exercise.fabric,
            target=switches,
            switch_options=options,
            controlled=False,
            results_root=results_root,
            state_dir=state_dir,
            on_stage=on_stage,
        ) as testbed:
            testbed.on_restart = partial(switches.load_again, testbed)
            yield testbed
