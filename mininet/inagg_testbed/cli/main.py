# SPDX-License-Identifier: Apache-2.0
"""The commands of `inagg` that bring testbeds up and take them down."""

import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from inagg_testbed.cli import bench, operating, reports
from inagg_testbed.cli.compare import compare
from inagg_testbed.cli.live import LiveOption, shown_live
from inagg_testbed.cli.options import (
    FIRST_GRPC_PORT,
    ControllerSettingsOption,
    CpuPortOption,
    DefineOption,
    GrpcPortOption,
    ImpairOption,
    IncludeOption,
    LinkOption,
    ManagementOption,
    MtuOption,
    NodeArgument,
    OffloadsOption,
    P4Option,
    PcapOption,
    PoolOption,
    RankOrderOption,
    RestartOption,
    ResultsOption,
    RunOption,
    ServersOption,
    SettingsOption,
    SwitchOption,
    TakeOverOption,
    ThreadsOption,
    TopologyOption,
    TopologyOrFileOption,
    TraceOption,
    UplinkOption,
    WorkersOption,
    as_called,
    chosen_fabric,
    console,
    errors_explained,
    opened_exercise,
    opened_testbed,
    refuse_with_file,
    tell_part,
)
from inagg_testbed.cli.packages import broken_requirements
from inagg_testbed.cli.traces import TimelineOption, recorded, trace
from inagg_testbed.errors import ConfigurationError, MissingRequirementError
from inagg_testbed.files import check_writable
from inagg_testbed.network.fabric import STAR, host_name
from inagg_testbed.network.lifecycle import find_ready_run, find_run, sweep
from inagg_testbed.network.requirements import check_requirements, requirements
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.terminal import ProgressView, print_table
from inagg_wire.cli import decode

if TYPE_CHECKING:
    from inagg_testbed.network.testbed import Testbed

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(operating.app)
app.add_typer(bench.app, name="bench")
app.command()(compare)
app.command()(decode)
app.command()(reports.report)
app.command()(reports.explain)
app.command()(trace)


_LOOK_S = 0.2
# Options of `up` that a topology file leaves no place for.
_NOT_WITH_FILE = (
    *("workers", "link", "uplink", "rank_order", "switch", "servers", "settings", "pool", "set_controller"),
    *("controller", "management"),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"inagg {metadata.version('inagg')}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """In-network gradient aggregation on one machine."""


@app.command()
def demo(
    switch: SwitchOption = "model",
    workers: WorkersOption = None,
    topology: TopologyOption = STAR,
    link: LinkOption = "100mbit",
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    mtu: MtuOption = 1500,
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each run.")] = 120,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a dozen steps: shows that everything works, not how well.")
    ] = False,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
    impair: ImpairOption = None,
    fault: Annotated[
        str | None,
        typer.Option(
            metavar="PART@STEPS",
            help="One more run, in which a part is killed at each of these steps and started again: switch@20 or "
            "switch@20,40, or spine2@20 where there are several, or controller@20. With it --quick runs 30 steps.",
        ),
    ] = None,
    live: LiveOption = False,
) -> None:
    """Train a model through the switch, and over gloo beside it.

    Writes RESULTS/demo/summary.json, plots and report.html. Exit status 1 if injected loss or a fault changed a weight.

    Example: inagg demo --quick

    Example: inagg demo --quick --fault switch@20
    """
    with errors_explained():
        fabric = chosen_fabric(topology, workers, rank_order, uplink)
        check_requirements(switch)
        from inagg_testbed.demo.figures import TABLE_HEADER, heading, table_rows, unmeasured, verdicts
        from inagg_testbed.demo.report import write_report
        from inagg_testbed.demo.run import ALL_RUNS, GLOO, INAGG_32, Demo, Fault, run_demo, summary

        steps = (12 if fault is None else 30) if quick else steps
        runs = (GLOO,) if switch == "bridge" else ALL_RUNS
        if fault is not None:
            if switch == "bridge":
                raise ConfigurationError("--fault: bridges sum nothing, so there is nothing to kill")
            killed = Fault.parse(fault, steps, fabric)
            runs = (*runs, replace(INAGG_32, name="inagg32-fault", fault=killed))
        what = Demo(
            switch=switch,
            workers=fabric.size,
            topology=topology,
            rank_order=rank_order,
            link_name=link,
            uplink_name=uplink,
            mtu=mtu,
            steps=steps,
            quick=quick,
            runs=runs,
            program=p4,
            threads=threads,
            impair=tuple(impair or ()),
        )
        with ProgressView(console) as view:
            result = run_demo(
                what,
                results,
                on_stage=view.stage,
                on_progress=view.update,
                around=partial(shown_live, view=view, wanted=live),
            )
        files = write_report(result, results / "demo")
        print_table(console, heading(what), TABLE_HEADER, table_rows(result))
        if note := unmeasured(result.runs):
            console.print(note, highlight=False, soft_wrap=True)
        figures = summary(result)
        for good, text in verdicts(figures):
            console.print(f"{'[green]✓' if good else '[red]✗'}[/] {text}", highlight=False, soft_wrap=True)
        console.print(
            f"report: {files.report.resolve()}\nlogs:   {result.logs}", highlight=False, soft_wrap=True
        )
        if False in (
            figures["weights_identical_under_loss"],
            figures.get("weights_identical_after_fault"),
        ):
            raise typer.Exit(1)


@app.command()
def up(
    context: typer.Context,
    workers: WorkersOption = None,
    topology: TopologyOrFileOption = STAR,
    link: LinkOption = "100mbit",
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    mtu: MtuOption = 1500,
    switch: SwitchOption = "model",
    servers: ServersOption = 0,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
    impair: ImpairOption = None,
    controller: Annotated[
        bool,
        typer.Option(
            "--controller/--no-controller",
            help="Without a controller the switch runs any P4 program, and you control it over P4Runtime.",
        ),
    ] = True,
    define: DefineOption = None,
    include: IncludeOption = None,
    cpu_port: CpuPortOption = None,
    trace: TraceOption = False,
    pcap: PcapOption = None,
    offloads: OffloadsOption = None,
    grpc_port: GrpcPortOption = FIRST_GRPC_PORT,
    settings: SettingsOption = None,
    pool: PoolOption = None,
    set_controller: ControllerSettingsOption = None,
    restart: RestartOption = None,
    management: ManagementOption = False,
) -> None:
    """Bring a testbed up and keep it until Ctrl-C or `inagg down`.

    It stays up when a part ends, such as the switch: `inagg restart` or --restart starts the part again.

    Example: inagg up --workers 2 --link unshaped

    Example: inagg up --topology tree:2x4 --link 1gbit --uplink 2gbit

    Example: inagg up --switch bridge --servers 1

    Example: inagg up --workers 4 --set-controller mark_queue=32

    Example: inagg up --workers 2 --p4 mine.p4 --no-controller

    Example: inagg up --workers 2 --p4 mine.p4 --no-controller --cpu-port 255 -D DEBUG -I include --pcap captures

    Example: inagg up --topology exercises/basic/pod-topo/topology.json --p4 exercises/basic/solution/basic.p4
    """
    options = SwitchOptions(
        define=define or (),
        include=include or (),
        cpu_port=cpu_port,
        trace=trace,
        pcap=None if pcap is None else pcap.resolve(),
        threads=threads,
        impair=impair or (),
    )
    with errors_explained():
        from inagg_testbed.operate.parts import parse_kinds

        again = parse_kinds(restart or "")
        if topology.endswith(".json"):
            refuse_with_file(context, *_NOT_WITH_FILE)
            with opened_exercise(
                Path(topology),
                results=results,
                p4=p4,
                options=options,
                mtu=mtu,
                offloads=bool(offloads),
                grpc_port=grpc_port,
            ) as testbed:
                _keep(testbed, _exercise_hints(testbed, grpc_port), again)
        with opened_testbed(
            workers=workers,
            link=link,
            mtu=mtu,
            switch=switch,
            results=results,
            p4=p4,
            switch_options=options,
            controller=controller,
            settings=settings,
            servers=servers,
            topology=topology,
            uplink=uplink,
            offloads=offloads is not False,
            rank_order=rank_order,
            pool=pool,
            set_controller=set_controller,
            management=management,
        ) as testbed:
            _keep(testbed, _hints(testbed), again)


def _keep(testbed: "Testbed", hints: list[str], again: Collection[str]) -> NoReturn:
    """Show how to use a testbed, and keep it until a signal."""
    from inagg_testbed.operate.parts import Attendant

    with closing(Attendant(testbed, tell_part, again)) as attendant:
        for line in hints:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        while True:
            attendant.attend(_LOOK_S)


def _hints(testbed: "Testbed") -> list[str]:
    """Commands to use a testbed that is up. They name the run, so they work beside other testbeds."""
    from inagg_testbed.network.control import controller_url
    from inagg_testbed.network.switches import P4RUNTIME_ADDRESS, command_path
    from inagg_testbed.network.topology import CONTROL_ADDRESS, host_address

    inagg, run, fabric = as_called(), f"--run {testbed.run.id}", testbed.network.fabric
    hosts, node = fabric.size, fabric.control_switch
    switches = (
        f"switch {node}" if fabric.is_star else f"{fabric.name} of switches {', '.join(fabric.switches)}"
    )
    switch = command_path("inagg-switch")
    shell = f"{switch} shell --grpc-addr {P4RUNTIME_ADDRESS} --device-id 1 --election-id 0,1"
    lines = [
        f"run {testbed.run.id} is up: hosts h1 to h{hosts} (10.0.0.1 to .{hosts}), {switches}",
        f"  in a host:   {inagg} exec {run} h1 -- ping {'h2' if hosts > 1 else CONTROL_ADDRESS}",
        f"  look at it:  {inagg} status {run}",
    ]
    if fabric.servers:
        servers = ", ".join(f"{host_name(number)} ({host_address(number)})" for number in fabric.servers)
        lines.append(f"  servers:     {servers}")
    if testbed.controller is not None:
        lines.append(f"  controller:  {controller_url(testbed.network)} (from the hosts)")
    elif testbed.pipeline is not None:
        files = f" --config {testbed.pipeline.p4info},{testbed.pipeline.device_config}"
        config = (
            "" if testbed.switch == "model" else files
        )  # BMv2 starts without a program, so without P4Info
        where = f"in {node}" if fabric.is_star else "in each switch; device ids 1, 2, ... in that order"
        lines.append(f"  P4Runtime:   {P4RUNTIME_ADDRESS} ({where}), P4Info: {testbed.pipeline.p4info}")
        lines.append(f"               {inagg} exec {run} {node} -- {shell}{config}")
    return [*lines, *_last_hints(testbed, inagg, run)]


def _exercise_hints(testbed: "Testbed", grpc_port: int) -> list[str]:
    """The same for a testbed from a topology file."""
    from inagg_testbed.network.switches import command_path
    from inagg_testbed.network.topology import station

    inagg, run, fabric = as_called(), f"--run {testbed.run.id}", testbed.network.fabric
    hosts = [station(fabric, number) for number in fabric.hosts]
    shell = f"{command_path('inagg-switch')} shell --grpc-addr 127.0.0.1:{grpc_port} --device-id 0"
    lines = [
        f"run {testbed.run.id} is up: hosts {', '.join(f'{host.name} ({host.ip})' for host in hosts)},"
        f" switches {', '.join(fabric.switches)}",
        f"  in a host:   {inagg} exec {run} {hosts[0].name} -- ping {hosts[-1].ip}",
        f"  look at it:  {inagg} status {run}",
        f"  Mininet:     {inagg} shell {run}",
    ]
    for number, switch in enumerate(fabric.switches):
        name = "P4Runtime:" if number == 0 else ""
        lines.append(f"  {name:<12} 127.0.0.1:{grpc_port + number} is {switch}, device id {number}")
    lines.append(f"               {shell} --election-id 0,1")
    for folder in sorted((testbed.results / "p4").iterdir()):
        lines.append(f"  {folder.name + '.p4:':<12} P4Info: {folder / 'p4info.txtpb'}")
        lines.append(f"               device config: {folder / folder.name}.json")
    return [*lines, *_last_hints(testbed, inagg, run)]


def _last_hints(testbed: "Testbed", inagg: str, run: str) -> list[str]:
    from inagg_testbed.network.switches import is_switch

    lines = []
    if testbed.switch_options.trace:
        logs = " ".join(process.log_path.stem for process in testbed.services if is_switch(process))
        lines.append(f"  trace:       {inagg} logs {run} -f {logs}")
    if testbed.switch_options.pcap is not None:
        lines.append(f"  captures:    {testbed.switch_options.pcap}")
    lines.append(f"  take down:   {inagg} down {run}, or Ctrl-C here")
    lines.append(f"  logs:        {testbed.results}")
    return lines


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run_script(
    command: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="A script (*.py), or any command, and its arguments."),
    ],
    workers: WorkersOption = None,
    topology: TopologyOption = STAR,
    link: LinkOption = "100mbit",
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    mtu: MtuOption = 1500,
    switch: SwitchOption = "model",
    servers: ServersOption = 0,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
    impair: ImpairOption = None,
    settings: SettingsOption = None,
    take_over: TakeOverOption = None,
    set_controller: ControllerSettingsOption = None,
    restart: RestartOption = None,
    management: ManagementOption = False,
    timeline: TimelineOption = None,
    live: LiveOption = False,
) -> None:
    """Bring a testbed up and run a training script in each host.

    Each host runs one rank. The ranks get the environment that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR...),
    INAGG_CONTROLLER and, with --switch bridge, INAGG_AGGREGATION=server. The output of rank 0 is shown; each rank has a
    log. Exit status 0 if all ranks succeed.

    Example: inagg run --workers 4 --set lane_bits=16 train.py --epochs 3

    Example: inagg run --switch bridge train.py

    Example: inagg run --live train.py

    Example: inagg run --take-over gloo,nccl train.py

    Example: inagg run --servers 1 --set aggregation=server --set servers=registered train.py

    Example: inagg run --timeline trace.json train.py
    """
    with errors_explained():
        from inagg_testbed.operate.parts import parse_kinds

        if timeline is not None:
            check_writable(timeline)

        again = parse_kinds(restart or "")
        if command[0].endswith(".py"):
            if not Path(command[0]).is_file():
                raise ConfigurationError(f"no script {command[0]}")
            command = [sys.executable, *command]
        with opened_testbed(
            workers=workers,
            link=link,
            mtu=mtu,
            switch=switch,
            results=results,
            p4=p4,
            switch_options=SwitchOptions(threads=threads, impair=impair or ()),
            settings=settings,
            take_over=take_over,
            servers=servers,
            topology=topology,
            uplink=uplink,
            rank_order=rank_order,
            set_controller=set_controller,
            management=management,
        ) as testbed:
            from inagg_testbed.operate.script import follow_script

            def show(text: str) -> None:
                sys.stdout.write(text)
                sys.stdout.flush()

            with recorded(testbed, timeline) as environment, ExitStack() as stack:
                if live:
                    view = stack.enter_context(ProgressView(console))
                    stack.enter_context(shown_live(testbed, view))
                    show = view.write
                follow_script(
                    testbed, command, on_output=show, say=tell_part, again=again, environment=environment
                )
            console.print(f"logs: {testbed.results}", highlight=False, soft_wrap=True)


@app.command(
    "launch",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    },
)
def launch_program(arguments: Annotated[list[str], typer.Argument(metavar="...")]) -> None:
    """Start a program whose groups of other backends become inagg's.

    It runs on this host, without a testbed. `inagg launch --help` lists the options.

    Example: inagg launch --controller http://10.0.0.254:9560 -- torchrun --nproc-per-node 2 train.py
    """
    from inagg.cli import launch

    launch(arguments)


@app.command()
def down(run: RunOption = None) -> None:
    """Take down a testbed that `inagg up` keeps.

    It also removes what crashed launchers left behind. Without --run it takes down the only testbed of this
    installation.

    Example: inagg down --run k3x9fa
    """
    with errors_explained(needs_root="inagg down"):
        for name in sweep():
            console.print(f"removed what run {name} had left behind", highlight=False, soft_wrap=True)
        manifest = find_run(run)
        manifest.launcher.signal(signal.SIGTERM)
        while manifest.launcher.alive():
            time.sleep(0.05)
        console.print(f"run {manifest.run} is down", highlight=False, soft_wrap=True)


@app.command("exec", context_settings={"ignore_unknown_options": True})
def run_in_node(
    node: NodeArgument, command: Annotated[list[str], typer.Argument()], run: RunOption = None
) -> None:
    """Run a command in a host or a switch of a testbed that is up.

    In a host the command gets GLOO_SOCKET_IFNAME, INAGG_CONTROLLER, INAGG_LINK_RATE, INAGG_SLOTS, OMP_NUM_THREADS=1,
    MKL_NUM_THREADS=1 and, where bridges stand for the switches, INAGG_AGGREGATION=server, unless these variables are
    already set.

    Example: inagg exec h1 -- ping h2
    """
    with errors_explained(needs_root="inagg exec"):
        manifest = find_ready_run(run)
        pid = manifest.namespace(node).pid
        _become(["mnexec", "-a", str(pid), *command], {**manifest.node_environment(node, os.environ)})


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by a command: signals reach it, and its exit status is ours.

    Raises MissingRequirementError if the command cannot be run.
    """
    signal.signal(
        signal.SIGPIPE, signal.SIG_DFL
    )  # Python ignores SIGPIPE, and the command would inherit that
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise MissingRequirementError(f"cannot run {command[0]}: {error.strerror}") from error


@app.command()
def doctor() -> None:
    """Check this machine for what the testbed needs.

    It says how to install what is missing. Exit status 1 if a requirement is missing. Requirements of BMv2 are
    optional.

    Example: inagg doctor
    """
    lacking = False
    for need in requirements():
        if need.present:
            where = shutil.which(need.name)
            console.print(f"[green]✓[/green] {need.name} {where or ''}", highlight=False, soft_wrap=True)
            continue
        optional = need.switch == "bmv2"
        lacking |= not optional
        mark = "[yellow]-[/yellow]" if optional else "[red]✗[/red]"
        console.print(f"{mark} {need.name}: {need.remedy}", highlight=False, soft_wrap=True)
    for broken in broken_requirements():
        lacking |= not broken.works
        mark = "[yellow]-[/yellow]" if broken.works else "[red]✗[/red]"
        console.print(mark, escape(str(broken)), highlight=False, soft_wrap=True)
    raise typer.Exit(int(lacking))


def main() -> None:
    """Entry point."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    app()
