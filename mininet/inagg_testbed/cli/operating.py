# SPDX-License-Identifier: Apache-2.0
"""Commands on a testbed that is up: status, counters, registers, slots, loss, impair, link, kill, restart, logs,
capture, shell."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from rich.live import Live
from rich.markup import escape

from inagg_contract.tokens import default_token_file
from inagg_testbed.cli.options import RunOption, complaints, console, errors_explained, nodes_that_are_up
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import check_writable, handing_over, writing
from inagg_testbed.network.fabric import Fabric, SwitchPort, host_name
from inagg_testbed.network.lifecycle import INSTALLATION, Interrupted, find_ready_run, find_run, manifests
from inagg_testbed.terminal import plain_table, print_table

if TYPE_CHECKING:
    from inagg_testbed.network.control import ControllerClient

app = typer.Typer()

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextlib.contextmanager
def _until_ctrl_c() -> Iterator[None]:
    """End the block on Ctrl-C without an error."""
    try:
        yield
    except Interrupted as interruption:
        if interruption.number != signal.SIGINT:
            raise


ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        envvar="INAGG_CONTROLLER",
        metavar="URL",
        help="A controller that belongs to no testbed. The variable counts only while no testbed of this installation"
        " is up.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(help="The operator's token for --controller; by default where the controller keeps it."),
]
ControllerCaOption = Annotated[
    Path | None,
    typer.Option(
        envvar="INAGG_CONTROLLER_CA",
        metavar="FILE",
        help="The authority of the controller's certificate, for an https URL.",
    ),
]


@app.command()
def status(
    context: typer.Context,
    run: RunOption = None,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    controller_ca: ControllerCaOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds over which rates are measured.")] = 1.0,
    ended: Annotated[bool, typer.Option("--all", help="Show jobs that have ended, too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show jobs, ranks, rates, switches of a testbed or a controller.

    --controller names a controller of a deployment. That needs no root. INAGG_CONTROLLER does the same, but a
    testbed that is up, or --run, comes before the variable.

    Exit status 1 if the testbed is still starting, or a part has ended or does not answer. --json prints one
    document; with --watch it prints one document a line.

    Example: inagg status --watch

    Example: inagg status --controller http://10.0.0.254:9560 --token-file controller.token
    """
    source = context.get_parameter_source("controller")
    named = source is not None and source.name == "COMMANDLINE"
    of_testbed = controller is None or (not named and (run is not None or _testbed_is_up()))
    with errors_explained(needs_root="inagg status" if of_testbed else None, keeps_testbed=False):
        from inagg_testbed.operate import status as state

        if of_testbed or controller is None:
            documents, rendered = _documents_of_run(run, interval), state.rendered
        else:
            if urlsplit(controller).scheme not in ("http", "https"):
                raise ConfigurationError(
                    f"--controller {controller}: must be a URL such as http://10.0.0.254:9560"
                )
            from inagg_testbed.network.control import ControllerClient

            token = token_file or default_token_file()
            client = ControllerClient(token, url=controller, authority=controller_ca)
            documents = _documents_of_controller(controller, client, interval)
            rendered = state.rendered_controller
        if not watch:
            found = next(documents)
            if as_json:
                print(json.dumps(found, indent=2))
            else:
                console.print(rendered(found, ended=ended), highlight=False)
            raise typer.Exit(int(bool(found.get("starting") or state.troubles(found))))
        with _until_ctrl_c():
            if as_json or not console.is_terminal:
                for found in documents:
                    if as_json:
                        print(json.dumps(found), flush=True)
                    else:
                        console.print(rendered(found, ended=ended), highlight=False)
            with Live(console=console, auto_refresh=False) as live:
                for found in documents:
                    live.update(rendered(found, ended=ended), refresh=True)


def _testbed_is_up() -> bool:
    """Whether a testbed of this installation is up."""
    return any(
        each.launcher.alive() and each.settings.get("installation") == INSTALLATION
        for each in manifests().values()
    )


def _documents_of_run(run: str | None, interval: float) -> Iterator[dict[str, Any]]:
    """The documents of `inagg status`, one after each interval."""
    from inagg_testbed.operate import status as state

    manifest = find_run(run)
    before = state.take_snapshot(manifest)
    while True:
        time.sleep(interval)
        if not manifest.launcher.alive():
            raise ConfigurationError(f"run {manifest.run} is down")
        manifest = find_run(manifest.run)  # its processes have changed
        after = state.take_snapshot(manifest)
        yield state.document(manifest, before, after)
        before = after


def _documents_of_controller(
    url: str, client: "ControllerClient", interval: float
) -> Iterator[dict[str, Any]]:
    """The same of a controller without a testbed."""
    from inagg_testbed.operate import status as state

    before = state.ask_controller(client)
    while True:
        time.sleep(interval)
        after = state.ask_controller(client)
        yield {"url": url, **state.controller_document(before, after)}
        before = after


@app.command()
def counters(run: RunOption = None, as_json: JsonFlag = False) -> None:
    """Show the counters of the switches' programs.

    They count since the switches' start. Those that are zero are left out. The counters of inagg.p4 count each port
    apart; others are shown by their index. Only indexed counters are shown, not direct ones.

    Exit status 1 if a switch cannot be read. The others are shown nevertheless.

    Example: inagg counters --json
    """
    with errors_explained(needs_root="inagg counters"):
        from inagg_contract.counters import PORT_COUNTERS
        from inagg_contract.documents import dump
        from inagg_testbed.network.control import has_controller
        from inagg_testbed.operate import switch_reader

        manifest = find_ready_run(run)
        found, unread = switch_reader.counters(manifest)
        for error in unread:
            complaints.print(f"[red]inagg:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        if as_json:
            print(dump(found))
            raise typer.Exit(int(bool(unread)))
        fabric = Fabric.from_settings(manifest.settings)
        known = PORT_COUNTERS if has_controller(manifest) else frozenset()  # without one, of any program
        cells = [
            (switch, name, index, (f"{count.packets:,}", f"{count.bytes:,}"))
            for switch, counters in found.items()
            for name, counts in sorted(counters.items())
            for index, count in sorted(counts.items())
        ]
        by_port = [
            (name, _leads_to(fabric, SwitchPort(switch, port)), *count)
            for switch, name, port, count in cells
            if name in known
        ]
        others = [
            (name if fabric.is_star else f"{switch} {name}", str(index), *count)
            for switch, name, index, count in cells
            if name not in known
        ]
        if not cells and not unread:
            console.print("nothing has been counted yet")
        for rows, key in ((by_port, "port"), (others, "index")):
            if rows:
                print_table(console, "", ("counter", key, "packets", "bytes"), rows, text_columns=2)
        raise typer.Exit(int(bool(unread)))


SwitchName = Annotated[
    str | None,
    typer.Option("--switch", help="s1, leaf1, ...; by default the switch of a star, or the topmost."),
]


@app.command()
def registers(
    name: Annotated[
        str | None, typer.Argument(help="A register, or the end of its name; by default, list all.")
    ] = None,
    index: Annotated[int | None, typer.Argument(min=0, help="By default, all values but zeros.")] = None,
    switch: SwitchName = None,
    run: RunOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show registers of a switch's program while it runs.

    Example: inagg registers slot_chunk

    Example: inagg registers seen 3 --switch leaf1
    """
    with errors_explained(needs_root="inagg registers"):
        from inagg_testbed.operate.switch_reader import opened

        manifest = find_ready_run(run)
        node = switch or Fabric.from_settings(manifest.settings).control_switch
        with opened(manifest, node) as reader:
            if name is None:
                found = [(each.name, f"{each.cells:,}", f"{each.bits}") for each in reader.registers]
                if as_json:
                    print(json.dumps([vars(each) for each in reader.registers]))
                elif found:
                    console.print(plain_table(("register", "cells", "bits"), found))
                else:
                    console.print("the program has no registers")
                return
            values = reader.read(reader.find(name), index)
        if as_json:
            print(json.dumps(values))
            return
        rows = [
            # A word of many lanes has no decimal that says anything.
            (str(at), f"{value:,}" if value < 1 << 64 else "", f"{value:#x}")
            for at, value in values.items()
            if value or index is not None
        ]
        if rows:
            console.print(plain_table(("index", "value", ""), rows, text_columns=0))
        else:
            console.print(f"all {len(values):,} values are zero")


@app.command()
def slots(
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show all slot versions that a job has used, not only those that sum."),
    ] = False,
    run: RunOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what the slots of running jobs hold and wait for.

    That is: which chunk, whose contributions, and for which ranks they wait.

    Example: inagg slots
    """
    with errors_explained(needs_root="inagg slots"):
        from inagg_testbed.operate import slots as state

        found = state.document(find_ready_run(run))
        if as_json:
            print(json.dumps(found))
        else:
            console.print(state.rendered(found, everything=everything), highlight=False)


def _leads_to(fabric: Fabric, port: SwitchPort) -> str:
    """What a port leads to; with several switches, where the port is."""
    node = fabric.neighbours.get(port, str(port.port))
    return node if fabric.is_star else f"{port} ({node})"


def _probability(text: str) -> float:
    """Parse 5%, 0.05 or off. Raises ConfigurationError."""
    number = "0" if text == "off" else text.removesuffix("%")
    try:
        value = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ConfigurationError(f"loss {text}: want a percentage like 5%, a probability like 0.05, or off")
    return value


@app.command()
def loss(
    node: Annotated[
        str | None,
        typer.Argument(
            autocompletion=nodes_that_are_up,
            help="h1, h2, ...; a port of a switch, such as leaf1:101; or all hosts. By default, show what is lost.",
        ),
    ] = None,
    probability: Annotated[str | None, typer.Argument(help="5%, 0.05, or off.")] = None,
    direction: Annotated[
        Literal["both", "ingress", "egress"],
        typer.Option(help="ingress: packets into the switch; egress: packets out of it."),
    ] = "both",
    traffic: Annotated[
        Literal["all", "aggregation", "other"], typer.Option(help="Which packets; other: TCP, ping, ...")
    ] = "all",
    run: RunOption = None,
) -> None:
    """Drop packets of a host or port at random; show what is lost.

    Example: inagg loss h2 5% --traffic aggregation

    Example: inagg loss leaf1:101 1%

    Example: inagg loss all off
    """
    with errors_explained(needs_root="inagg loss"):
        from inagg_testbed.network.control import switch_controller_of

        manifest = find_ready_run(run)
        fabric = Fabric.from_settings(manifest.settings)
        controller = switch_controller_of(manifest)
        if node is not None:
            if probability is None:
                raise ConfigurationError(f"the probability is missing, as in: inagg loss {node} 5%")
            directions = ("ingress", "egress") if direction == "both" else (direction,)
            wanted = _probability(probability)
            if (node, wanted, direction, traffic) == ("all", 0, "both", "all"):
                controller.clear_loss()
            else:
                for port in _ports(fabric, node):
                    for one in directions:
                        controller.set_loss(
                            port, "ingress" if one == "ingress" else "egress", wanted, traffic
                        )
        hosts = {port: name for name, port in _host_ports(fabric).items()}
        losses = [
            (SwitchPort(each.switch or fabric.control_switch, each.port), each) for each in controller.loss()
        ]
        rows = [
            (
                hosts.get(port, str(port)),
                each.direction,
                each.traffic,
                f"{each.probability:.4%}".replace(".0000%", "%"),
            )
            for port, each in losses
        ]
        if rows:
            console.print(plain_table(("at", "direction", "traffic", "probability"), rows, text_columns=3))
        else:
            console.print("no loss is injected")


@app.command()
def impair(
    node: Annotated[
        str | None,
        typer.Argument(
            autocompletion=nodes_that_are_up,
            help="h1, h2, ...; a link between switches, such as leaf1-spine1; or all hosts. By default, show what is"
            " impaired.",
        ),
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[in|out] [SPEC|off]",
            help="SPEC is as in loss=1%,delay=5ms,jitter=1ms,duplicate=0.1%,reorder=1%,corrupt=0.01%,seed=7. out is"
            " what the host, or the first switch, sends; by default, both directions. Without SPEC, show what is.",
        ),
    ] = None,
    run: RunOption = None,
) -> None:
    """Lose, delay, or change packets of links; show what is impaired.

    The ports of the switch model lose, delay, duplicate, reorder or corrupt packets of every kind of traffic, so gloo
    and inagg suffer alike. A SPEC replaces the one before.

    Example: inagg impair h2 loss=5%

    Example: inagg impair h2 out delay=20ms,jitter=2ms

    Example: inagg impair all off
    """
    with errors_explained(needs_root="inagg impair"):
        from inagg_testbed.operate import impair as impairing

        manifest = find_ready_run(run)
        words = what or []
        if node is not None and words:
            *directions, spec = words
            if len(directions) > 1 or spec in ("in", "out"):
                raise ConfigurationError(
                    f"{' '.join(words)}: want [in|out] and then a SPEC or off, as in: inagg impair {node} out loss=5%"
                )
            impairing.change(manifest, node, directions[0] if directions else None, spec)
        rows = impairing.rows(manifest, None if words else node)
        if rows:
            console.print(plain_table(("at", "direction", "impairment"), rows, text_columns=3))
        else:
            console.print("no link is impaired")


def _host_ports(fabric: Fabric) -> dict[str, SwitchPort]:
    return {host_name(number): port for number, port in enumerate(fabric.host_ports, 1)}


def _ports(fabric: Fabric, node: str) -> list[SwitchPort]:
    """The port of one host, of all hosts, or one that leads to a switch. Raises ConfigurationError."""
    hosts = _host_ports(fabric)
    if node == "all":
        return list(hosts.values())
    port = hosts.get(node) or fabric.find_port(node)
    if port is None:
        trunks = "".join(f", ports such as {trunk.lower}" for trunk in fabric.trunks[:1])
        raise ConfigurationError(f"no host {node}; there are h1 to h{len(fabric.hosts)}{trunks}, and all")
    return [port]


@app.command()
def kill(
    part: Annotated[
        str,
        typer.Argument(
            metavar="PART",
            help="switch; leaf1, ... where there are several; controller; h5, ...: the server of this host; rank2, ...:"
            " of `inagg run`.",
        ),
    ],
    signal_name: Annotated[
        Literal["KILL", "STOP", "CONT", "TERM", "INT", "HUP"],
        typer.Option("--signal", help="STOP: the part stands still until CONT."),
    ] = "KILL",
    run: RunOption = None,
) -> None:
    """Kill a part of what `inagg up` or `inagg run` keeps.

    The rest goes on. `inagg restart` starts the part again.

    Example: inagg kill switch

    Example: inagg kill leaf1 --signal STOP
    """
    with errors_explained(needs_root="inagg kill"):
        from inagg_testbed.operate import parts

        parts.send_signal(find_ready_run(run), part, signal_name)


@app.command()
def restart(
    part: Annotated[
        str,
        typer.Argument(
            metavar="PART",
            help="switch; leaf1, ... where there are several; controller; h5, ...: the server of this host.",
        ),
    ],
    run: RunOption = None,
) -> None:
    """Start a part again, and wait until it is ready.

    A part that runs is killed before. Its log is a new file, such as controller.2.log.

    Example: inagg restart controller
    """
    with errors_explained(needs_root="inagg restart"):
        from inagg_testbed.operate import parts

        console.print(parts.restart(find_ready_run(run), part), highlight=False, soft_wrap=True)


@app.command()
def link(
    node: Annotated[
        str,
        typer.Argument(
            autocompletion=nodes_that_are_up,
            help="h1, h2, ...; a port of a switch, such as leaf1:101; all: those of all hosts.",
        ),
    ],
    state: Annotated[Literal["down", "up"], typer.Argument()],
    run: RunOption = None,
) -> None:
    """Cut the link of a host or a port, or mend it.

    Example: inagg link h2 down

    Example: inagg link leaf1:101 up
    """
    with errors_explained(needs_root="inagg link"):
        from inagg_testbed.network.topology import set_link

        manifest = find_ready_run(run)
        for port in _ports(Fabric.from_settings(manifest.settings), node):
            set_link(manifest, port, state)


@app.command()
def logs(
    names: Annotated[
        list[str] | None, typer.Argument(help="switch, controller, run-rank0, ...; by default all.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until Ctrl-C or the testbed ends.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Existing lines to show of each log.")
    ] = 20,
    run: RunOption = None,
) -> None:
    """Show the logs of switch, controller and ranks.

    Example: inagg logs -f controller
    """
    with errors_explained(keeps_testbed=False):
        from inagg_testbed.operate.logs import show_logs

        manifest = find_run(run)
        folder = Path(manifest.settings["results"])
        alone = names is not None and len(names) == 1

        def on_line(name: str, line: str) -> None:
            console.out(line if alone else f"{name:<14} {line}", highlight=False)

        with _until_ctrl_c():
            show_logs(
                folder,
                names or (),
                lines=lines,
                follow=manifest.launcher.alive if follow else None,
                on_line=on_line,
            )


@app.command()
def capture(
    where: Annotated[
        str,
        typer.Argument(
            autocompletion=nodes_that_are_up,
            help="h1: the host's interface; 1: port 1 of a star's switch; leaf1:101: a port of another switch;"
            " ctl0: the controller's interface.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File; - is standard output. By default WHERE-TIME.pcap."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this number of frames.")
    ] = None,
    run: RunOption = None,
) -> None:
    """Capture packets for Wireshark or tcpdump, until Ctrl-C.

    With offloads on, as in any capture, a large frame is one that is segmented into packets later: `inagg up
    --no-offloads` makes links without.

    Example: inagg capture h1 --count 100 -o h1.pcap

    Example: inagg capture 2 -o - | wireshark -k -i -
    """
    with errors_explained(needs_root="inagg capture"):
        from inagg_testbed.operate.capture import Captured, find_place
        from inagg_testbed.operate.capture import capture as capture_frames

        manifest = find_ready_run(run)
        place = find_place(manifest, where)
        captured = Captured()
        to_terminal = str(output) == "-" and sys.stdout.isatty()
        if to_terminal:
            raise ConfigurationError(
                "a capture is binary: write it to a file (-o FILE) or pipe it to a program"
            )
        if str(output) == "-":
            with _until_ctrl_c():
                capture_frames(place, sys.stdout.buffer, captured, count=count, alive=manifest.launcher.alive)
            return
        path = output or Path(f"{place.name}-{time.strftime('%H%M%S')}.pcap")
        check_writable(path)
        console.print(
            f"capturing {place.interface} into {path}; Ctrl-C ends it", highlight=False, soft_wrap=True
        )
        with _until_ctrl_c(), writing(path), handing_over(path), path.open("wb") as file:
            capture_frames(place, file, captured, count=count, alive=manifest.launcher.alive)
        dropped = f"; the kernel dropped {captured.dropped} more" if captured.dropped else ""
        console.print(f"{captured.frames} frames in {path}{dropped}", highlight=False, soft_wrap=True)


@app.command()
def shell(
    command: Annotated[
        list[str] | None,
        typer.Option("--command", "-c", help="Run this command and exit; may be given several times."),
    ] = None,
    run: RunOption = None,
) -> None:
    """Open Mininet's command line on a testbed that is up.

    Its commands are `h1 ping h2`, `pingall`, `nodes`, `net`, `help` and others. Without a terminal it reads
    commands from standard input, one a line.

    Example: inagg shell -c "h1 ping -c 1 h2" -c pingall
    """
    with errors_explained(needs_root="inagg shell", signals=False):
        manifest = find_ready_run(run)
        from inagg_testbed.operate.shell import operate

        scripted = command or (None if sys.stdin.isatty() else sys.stdin)
        operate(manifest, scripted)
