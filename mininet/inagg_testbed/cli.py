"""The `inagg` command."""

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console

from inagg_testbed.bench_plan import MAX_LOSS, BackendSpec
from inagg_testbed.errors import ConfigurationError, LauncherError, MissingRequirementError
from inagg_testbed.files import check_writable, write_text
from inagg_testbed.lifecycle import RUN_VARIABLE, Interrupted, find_run, signals_raise, sweep
from inagg_testbed.links import LinkSpec
from inagg_testbed.requirements import SwitchKind, requirements
from inagg_testbed.terminal import ProgressView, print_table

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="In-network gradient aggregation on one machine."
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure collectives.")
app.add_typer(bench_app, name="bench")
console = Console()

SwitchOption = Annotated[SwitchKind, typer.Option(help="What stands in the middle of the star.")]
LinkOption = Annotated[
    str, typer.Option(help="100mbit, 1gbit, any rate like 250mbit, or unshaped; in each direction.")
]
ResultsOption = Annotated[Path, typer.Option(help="Folder for results and logs.")]
P4Option = Annotated[
    Path | None, typer.Option("--p4", help="The P4 program; by default the repository's p4/inagg.p4.")
]
RunOption = Annotated[str | None, typer.Option("--run", help="Id of the testbed, where several are up.")]


@contextmanager
def _errors_explained(needs_root: str | None = None) -> Iterator[None]:
    """Errors of ours become one readable message and exit status 1; signals end the command after teardown.

    needs_root names a command that only root can run, and that has no testbed of its own to take down.
    """
    try:
        if needs_root is not None and os.geteuid() != 0:
            raise MissingRequirementError(
                f"{needs_root} needs root: run it with sudo -E, from the same virtual environment"
            )
        with signals_raise():
            yield
    except LauncherError as error:
        console.print(f"[red]inagg: {type(error).__name__}[/red]", highlight=False, soft_wrap=True)
        console.print(str(error), highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except Interrupted as interruption:
        outcome = "; everything has been taken down" if needs_root is None else ""
        console.print(f"inagg: {interruption}{outcome}", highlight=False, soft_wrap=True)
        raise typer.Exit(128 + interruption.number) from None


@app.command()
def demo(
    switch: SwitchOption = "model",
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    link: LinkOption = "100mbit",
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each run.")] = 120,
    quick: Annotated[
        bool, typer.Option("--quick", help="A dozen steps: shows that everything works, not how well.")
    ] = False,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
) -> None:
    """Train a model through the switch, beside the same training over host all-reduce.

    Writes RESULTS/demo/summary.json, plots and report.html. Exit status 1 if injected loss changed a weight.
    """
    from inagg_testbed.demo import ALL_RUNS, GLOO, Demo, run_demo, summary
    from inagg_testbed.report import TABLE_HEADER, table_rows, verdicts, write_report

    runs = (GLOO,) if switch == "bridge" else ALL_RUNS
    steps = 12 if quick else steps
    what = Demo(switch=switch, workers=workers, link_name=link, steps=steps, runs=runs, program=p4)
    with _errors_explained():
        with ProgressView(console) as view:
            result = run_demo(what, results, on_stage=view.stage, on_progress=view.update)
        files = write_report(result, results / "demo")
        print_table(console, f"{workers} workers, {link}, switch: {switch}", TABLE_HEADER, table_rows(result))
        figures = summary(result)
        for good, text in verdicts(figures):
            console.print(f"{'[green]✓' if good else '[red]✗'}[/] {text}", highlight=False, soft_wrap=True)
        console.print(
            f"report: {files.report.resolve()}\nlogs:   {result.logs}", highlight=False, soft_wrap=True
        )
        if figures["weights_identical_under_loss"] is False:
            raise typer.Exit(1)


@bench_app.command()
def allreduce(
    workers: Annotated[list[int], typer.Option(min=1, max=64, help="May be given several times.")],
    elements: Annotated[list[int], typer.Option(min=1, help="float32 elements; may be given several times.")],
    backend: Annotated[
        list[str], typer.Option(help="gloo, inagg:32 or inagg:16; may be given several times.")
    ],
    link: LinkOption = "100mbit",
    iters: Annotated[int, typer.Option(min=1, help="Timed iterations of each backend.")] = 10,
    warmup: Annotated[int, typer.Option(min=0)] = 2,
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the rows.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Packets in flight a worker asks for; a power of two, 2 or more.")
    ] = None,
    loss: Annotated[
        float,
        typer.Option(
            min=0,
            max=MAX_LOSS,
            help="Probability of loss on each host's port, each way, of all traffic: gloo and the heartbeats too.",
        ),
    ] = 0.0,
    switch: SwitchOption = "model",
    gloo_over: Annotated[
        Literal["switch", "bridge"] | None,
        typer.Option(
            help="What gloo's packets cross; by default the bridge on unshaped links, else the switch."
        ),
    ] = None,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
) -> None:
    """Time all-reduce, backends in turn, every result checked against the exact sum; exit status 1 if one is wrong.

    algbw and busbw are those of nccl-tests, in MB/s. "line rate" is the payload bits that the algorithm has to send
    over each link (elements times lane bits for inagg, 2(N-1)/N times 32 bits times elements for gloo's ring) over
    link rate times time.
    """
    from inagg_testbed.bench_allreduce import AllReduceBench, run_bench, table, title
    from inagg_testbed.testbed import DEFAULT_SLOTS

    with _errors_explained():
        try:
            specs = tuple(BackendSpec.parse(text) for text in backend)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        bench = AllReduceBench(
            workers=tuple(workers),
            elements=tuple(elements),
            link_name=link,
            link=LinkSpec.parse(link),
            backends=specs,
            iterations=iters,
            warmup=warmup,
            slots=DEFAULT_SLOTS if slots is None else slots,
            loss=loss,
            switch=switch,
            program=p4,
            gloo_over=gloo_over or ("bridge" if link == "unshaped" else "switch"),
        )
        if json_path is not None:
            check_writable(json_path)
        with ProgressView(console) as view:
            outcome = run_bench(
                bench,
                results,
                on_stage=view.stage,
                on_progress=lambda done, total: view.update("all-reduce", done, total),
            )
        print_table(console, title(bench), *table(outcome.rows))
        for line in outcome.wrong:
            console.print(f"[red]wrong sum[/red] {line}", highlight=False, soft_wrap=True)
        if json_path is not None:
            write_text(json_path, json.dumps(outcome.rows, indent=2) + "\n")
        if outcome.wrong:
            raise typer.Exit(1)


@app.command()
def up(
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    link: LinkOption = "100mbit",
    switch: SwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
) -> None:
    """Bring a testbed up and keep it until Ctrl-C or `inagg down`."""
    from inagg_testbed.control import CONTROLLER_URL
    from inagg_testbed.testbed import open_testbed

    with (
        _errors_explained(),
        open_testbed(
            hosts=workers,
            link=LinkSpec.parse(link),
            results_root=results,
            switch=switch,
            program=p4,
            on_stage=console.print,
        ) as testbed,
    ):
        console.print(
            f"run {testbed.run.id} is up: hosts h1 to h{workers} (10.0.0.1 to .{workers}), switch s1\n"
            f"  in a host:   inagg exec h1 -- ping 10.0.0.2\n"
            f"  controller:  {CONTROLLER_URL} (from the hosts)\n"
            f"  take down:   inagg down, or Ctrl-C here\n"
            f"  logs:        {testbed.results}",
            highlight=False,
            soft_wrap=True,
        )
        while True:
            for process in testbed.services:
                process.check()
            time.sleep(1.0)


@app.command()
def down(run: RunOption = None) -> None:
    """Take a testbed down that `inagg up` keeps, and what crashed launchers left."""
    with _errors_explained(needs_root="inagg down"):
        for name in sweep():
            console.print(f"removed what run {name} had left behind", highlight=False, soft_wrap=True)
        manifest = find_run(run)
        manifest.launcher.signal(signal.SIGTERM)
        while manifest.launcher.alive():
            time.sleep(0.05)
        console.print(f"run {manifest.run} is down", highlight=False, soft_wrap=True)


@app.command("exec", context_settings={"ignore_unknown_options": True})
def run_in_node(node: str, command: Annotated[list[str], typer.Argument()], run: RunOption = None) -> None:
    """Run a command in a host (h1, h2, ...) or the switch's node (s1) of a testbed that is up.

    In a host GLOO_SOCKET_IFNAME and INAGG_CONTROLLER are set, unless they are already.
    """
    with _errors_explained(needs_root="inagg exec"):
        manifest = find_run(run)
        if node not in manifest.namespaces:
            raise ConfigurationError(f"no node {node}; there are {', '.join(manifest.namespaces)}")
        pid = manifest.namespaces[node].pid
        own = manifest.settings.get("environment", {}).get(node, {})
        environment = {**own, **os.environ, RUN_VARIABLE: manifest.run}
        _become(["mnexec", "-a", str(pid), *command], environment)


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Go on as another command: signals reach it, and its exit status is ours. Raises MissingRequirementError."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise MissingRequirementError(f"cannot run {command[0]}: {error.strerror}") from error


@app.command()
def doctor() -> None:
    """Say what this machine has of what the testbed needs, and what to do about the rest."""
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
    raise typer.Exit(int(lacking))


def main() -> None:
    """Entry point."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    app()
