# SPDX-License-Identifier: Apache-2.0
"""The console, the options and the error handling that the commands of `inagg` share."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from inagg_testbed.errors import ConfigurationError, LauncherError, MissingRequirementError
from inagg_testbed.network.fabric import MAX_HOSTS, STAR, Fabric, RankOrder
from inagg_testbed.network.lifecycle import Interrupted, manifests, signals_raise
from inagg_testbed.network.links import JUMBO_MTU, SMALLEST_MTU, LinkSpec
from inagg_testbed.network.requirements import SummingSwitchKind, SwitchKind, check_requirements
from inagg_testbed.network.switch_options import NO_OPTIONS, SwitchOptions

if TYPE_CHECKING:
    from inagg_testbed.network.testbed import Testbed

console = Console()
complaints = Console(stderr=True)

DEFAULT_WORKERS = 4
FIRST_GRPC_PORT = 50051  # of p4lang/tutorials
_OPTION_NAME = re.compile("[a-z][a-z0-9-]*")
# What the testbed itself tells the controller.
_OF_TESTBED = dict.fromkeys(
    ("device-config", "listen", "no-switch", "p4info", "state", "token-file", "topology", "words"),
    "the testbed sets it",
) | {"pool": "use the option --pool, where the command has it"}
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_HOSTS,
        help="Workers, one a host: by default 4 in a star. Other topologies say it themselves.",
    ),
]
TopologyOption = Annotated[
    str,
    typer.Option(
        help="star; tree:2x4 (2 racks of 4 workers below a root) or tree:2x2x2 (one more level); or leaf-spine:2x4x2"
        " (2 leaves, 4 workers a leaf, 2 spines)."
    ),
]
TopologyOrFileOption = Annotated[
    str,
    typer.Option(
        help="star; tree:2x4 (2 racks of 4 workers below a root) or tree:2x2x2 (one more level); leaf-spine:2x4x2"
        " (2 leaves, 4 workers a leaf, 2 spines); or FOLDER/topology.json of an exercise of p4lang/tutorials."
    ),
]
UplinkOption = Annotated[
    str | None, typer.Option(help="Rate of the links between switches; by default that of --link.")
]
RankOrderOption = Annotated[
    RankOrder,
    typer.Option(
        help="contiguous: rank r runs on host r + 1, rack by rack; interleaved: ranks go round the racks."
    ),
]
ServersOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=MAX_HOSTS - 1,
        help="Further hosts, each with an aggregation server (inagg-server); no rank runs there.",
    ),
]
PoolOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Slots of each switch that jobs may lease, one job all of them if it asks for as many; by default all of"
        " the program's, with the controller's shares for jobs and hosts.",
    ),
]
ControllerSettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set-controller",
        metavar="NAME=VALUE",
        help="An option of inagg-controller, such as mark_queue=32. May be given several times.",
    ),
]
RestartOption = Annotated[
    str | None,
    typer.Option(
        "--restart",
        metavar="KINDS",
        help="What starts again by itself when it ends, such as switch,controller; also server and bridge. By default"
        " nothing: `inagg restart PART` starts it.",
    ),
]
ManagementOption = Annotated[
    bool,
    typer.Option(
        "--management",
        help="A management network beside that of the switches, for the controller and gloo, as clusters have: when the"
        " switches die, sums go on there.",
    ),
]
_SWITCH = typer.Option(help="The kind of all switches.")
_SWITCH_OR_BRIDGE = typer.Option(
    help="The kind of all switches. With bridge there is no switch: servers do the sums (INAGG_AGGREGATION=server)."
)
SwitchOption = Annotated[SwitchKind, _SWITCH_OR_BRIDGE]
SummingSwitchOption = Annotated[SummingSwitchKind, _SWITCH]
LinkOption = Annotated[
    str, typer.Option(help="Rate in each direction: 100mbit, 1gbit, any rate like 250mbit, or unshaped.")
]
MtuOption = Annotated[
    int,
    typer.Option(
        min=SMALLEST_MTU,
        max=JUMBO_MTU,
        help="MTU of the links. From 8240 bytes on, DATA packets have 32 words (8 KiB), else 4 (1 KiB).",
    ),
]
ResultsOption = Annotated[Path, typer.Option(help="Folder for results and logs.")]
P4Option = Annotated[Path | None, typer.Option("--p4", help="The P4 program; by default inagg.p4.")]
# The names and texts of these are those of `inagg-switch run`, whose module would take a quarter of a second to import.
DefineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--define", "-D", metavar="NAME[=VALUE]", help="Preprocessor macro; may be given several times."
    ),
]
IncludeOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--include", "-I", metavar="DIR", help="Further folder of #include files; may be given several times."
    ),
]
CpuPortOption = Annotated[
    int | None,
    typer.Option(
        "--cpu-port",
        metavar="ID",
        min=1,
        max=510,
        help="Port whose packets go to the controller and come from it.",
    ),
]
PcapOption = Annotated[
    Path | None,
    typer.Option(
        "--pcap", metavar="DIR", help="Write capture files portN_in.pcap and portN_out.pcap for each port."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        max=64,
        help="Threads of each switch (of the model); by default as many as suit the processors.",
    ),
]
ImpairOption = Annotated[
    list[str] | None,
    typer.Option(
        "--impair",
        metavar="[HOST[:in|out]=]SPEC",
        help="Impair the links of all hosts, or of one, for every kind of traffic, as in loss=1%,delay=5ms,jitter=1ms"
        " or h2:out=loss=5%. SPEC has loss, duplicate, reorder, corrupt (probabilities), delay, jitter (times), seed."
        " out is what the host sends. HOST may be a link between switches, such as leaf1-spine1. May be given several"
        " times. off: nothing at first, but `inagg impair` works also where gloo has links of its own.",
    ),
]
TraceOption = Annotated[
    bool, typer.Option("--trace", help="Print the path of each packet through the program; slow.")
]
OffloadsOption = Annotated[
    bool | None,
    typer.Option(
        "--offloads/--no-offloads",
        help="Segmentation and checksum offloads on the links. Without them captures show every packet as the wire has"
        " it; sums take longer. By default on, but off with a topology file.",
    ),
]
GrpcPortOption = Annotated[
    int,
    typer.Option(
        "--grpc-port",
        min=1,
        max=65535,
        help="With a topology file: the P4Runtime port of its first switch, on 127.0.0.1. Others have the next ones.",
    ),
]
SlotsOption = Annotated[
    int | None,
    typer.Option(help="Slots (packets in flight) that a worker asks for: a power of two, 2 or more."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Option of inagg's groups, such as lane_bits=16 (docs/options.md); may be given several times.",
    ),
]
TakeOverOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="For a script that names another backend: gloo, nccl, or gloo,nccl. Groups that it makes under these"
        " names, or none, become inagg's (docs/take-over.md).",
    ),
]


def _runs(incomplete: str) -> list[str]:
    return [name for name in manifests() if name.startswith(incomplete)]


def nodes_that_are_up(incomplete: str) -> list[str]:
    """Names of the nodes of all testbeds: shell completion does not say which testbed is meant."""
    names = {node for manifest in manifests().values() for node in manifest.namespaces}
    return sorted(name for name in names if name.startswith(incomplete))


RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        autocompletion=_runs,
        help="Id of the testbed; needed if this installation has several up.",
    ),
]
NodeArgument = Annotated[
    str, typer.Argument(autocompletion=nodes_that_are_up, help="h1, h2, ..., or a switch: s1, leaf1, ...")
]


def tell_part(line: str) -> None:
    """Show a line about a part of the testbed that has ended."""
    complaints.print(f"inagg: {escape(line)}", highlight=False, soft_wrap=True)


def as_called() -> str:
    """How this command was called, for hints that can be copied to another terminal."""
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if called.name == "__main__.py":
        words = f"{sys.executable} -m inagg_testbed"
    elif found is not None and Path(found).samefile(called):
        words = called.name
    else:
        words = str(called)
    return f"sudo {words}" if "SUDO_UID" in os.environ else words


def chosen_fabric(
    topology: str, workers: int | None, rank_order: RankOrder, uplink: str | None = None
) -> Fabric:
    """The fabric that a command's options describe. Raises ConfigurationError."""
    if topology == STAR and workers is None:
        workers = DEFAULT_WORKERS
    if topology == STAR and uplink is not None:
        raise ConfigurationError(
            "a star has no links between switches: leave --uplink out, or name a --topology"
        )
    return Fabric.parse(topology, hosts=workers, rank_order=rank_order)


def launcher_settings(settings: Sequence[str], take_over: str | None = None) -> dict[str, str]:
    """The environment that sets options of inagg's groups, given as NAME=VALUE, and the backends to take over.

    Raises ConfigurationError.
    """
    if not settings and take_over is None:
        return {}
    from inagg import options, takeover
    from inagg.base_errors import ConfigurationError as WrongSetting

    try:
        environment = options.launcher_environment(settings)
        if take_over is not None:
            takeover.check_launch(os.environ, take_over)
            environment[takeover.VARIABLE] = take_over
        return environment
    except WrongSetting as error:
        raise ConfigurationError(str(error)) from error


def refuse_with_file(context: typer.Context, *names: str) -> None:
    """Raise ConfigurationError if an option is on the command line that a topology file leaves no place for."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            name = "/".join([*parameter.opts, *parameter.secondary_opts])
            raise ConfigurationError(
                f"{name}: a topology file says what hosts, switches and links there are, and inagg's controller does"
                " not manage them: leave the option out"
            )


def controller_settings(settings: Sequence[str]) -> list[str]:
    """The options of inagg-controller that are given as NAME=VALUE. Raises ConfigurationError."""
    options = []
    for setting in settings:
        name, is_set, value = setting.partition("=")
        name = name.replace("_", "-")
        if not is_set or not _OPTION_NAME.fullmatch(name):
            raise ConfigurationError(f"--set-controller {setting!r}: want NAME=VALUE, as in mark_queue=32")
        if name in _OF_TESTBED:
            raise ConfigurationError(f"--set-controller {setting!r}: {_OF_TESTBED[name]}")
        options += ["--" + name, value]
    return options


@contextmanager
def errors_explained(
    needs_root: str | None = None, *, keeps_testbed: bool | None = None, signals: bool = True
) -> Iterator[None]:
    """Turn a LauncherError or OSError into one message and exit status 1; end the command on a signal, after teardown.

    needs_root: name of a command that only root can run. keeps_testbed: whether the block brings a testbed up and takes
    it down; by default, a command with needs_root does not. signals: False leaves signals to the block.
    """
    if keeps_testbed is None:
        keeps_testbed = needs_root is None
    try:
        if needs_root is not None and os.geteuid() != 0:
            raise MissingRequirementError(
                f"{needs_root} needs root: run it with sudo -E, from the same virtual environment"
            )
        with signals_raise() if signals else nullcontext():
            yield
    except BrokenPipeError:  # the reader has closed the pipe, as in `inagg logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except (LauncherError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is None:
            text = f"standard output or another file: {error.strerror}"
        complaints.print(f"[red]inagg:[/red] {escape(text)}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except Interrupted as interruption:
        outcome = "; everything has been taken down" if keeps_testbed else ""
        complaints.print(f"inagg: {interruption}{outcome}", highlight=False, soft_wrap=True)
        raise typer.Exit(128 + interruption.number) from None


@contextmanager
def opened_testbed(
    *,
    workers: int | None,
    link: str,
    mtu: int,
    switch: SwitchKind,
    results: Path,
    p4: Path | None,
    switch_options: SwitchOptions = NO_OPTIONS,
    controller: bool = True,
    settings: Sequence[str] | None = None,
    take_over: str | None = None,
    servers: int = 0,
    topology: str = STAR,
    uplink: str | None = None,
    offloads: bool = True,
    rank_order: RankOrder = "contiguous",
    pool: int | None = None,
    set_controller: Sequence[str] | None = None,
    gloo_over: Literal["switch", "bridge"] = "switch",
    management: bool = False,
    on_stage: Callable[[str], object] = console.print,
) -> Iterator["Testbed"]:
    """Open a testbed with a command's options. Raises LauncherError."""
    fabric = chosen_fabric(topology, workers, rank_order, uplink).with_servers(servers)
    links = (
        LinkSpec.parse(link, mtu=mtu, offloads=offloads),
        LinkSpec.parse(
            uplink or link, mtu=mtu, offloads=offloads, what="link" if uplink is None else "uplink"
        ),
    )
    check_requirements(switch)  # before the import of Mininet, to name everything that is missing
    from inagg_testbed.network.testbed import open_testbed

    with open_testbed(
        fabric=fabric,
        link=links[0],
        uplink=links[1],
        results_root=results,
        switch=switch,
        program=p4,
        switch_options=switch_options,
        controlled=controller,
        environment=launcher_settings(settings or [], take_over),
        pool=pool,
        controller_options=controller_settings(set_controller or []),
        gloo_over=gloo_over,
        management=management,
        on_stage=on_stage,
    ) as testbed:
        yield testbed


@contextmanager
def opened_exercise(
    topology: Path,
    *,
    results: Path,
    p4: Path | None,
    options: SwitchOptions,
    mtu: int,
    offloads: bool,
    grpc_port: int,
) -> Iterator["Testbed"]:
    """Open a testbed that a topology file describes. Raises LauncherError."""
    check_requirements("model")
    from inagg_testbed.network.exercise.testbed import open_exercise

    with open_exercise(
        topology,
        results_root=results,
        program=p4,
        options=options,
        mtu=mtu,
        offloads=offloads,
        grpc_port=grpc_port,
        on_stage=partial(console.print, soft_wrap=True),
    ) as testbed:
        yield testbed
