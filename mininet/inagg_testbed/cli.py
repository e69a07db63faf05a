"""The `inagg` command."""

import logging
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from inagg_testbed import cli_bench
from inagg_testbed.cli_options import (
    LinkOption,
    MtuOption,
    P4Option,
    ResultsOption,
    RunOption,
    SettingsOption,
    SwitchOption,
    console,
    errors_explained,
    opened_testbed,
)
from inagg_testbed.errors import ConfigurationError, MissingRequirementError
from inagg_testbed.lifecycle import RUN_VARIABLE, find_run, sweep
from inagg_testbed.requirements import requirements
from inagg_testbed.terminal import ProgressView, print_table

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="In-network gradient aggregation on one machine."
)
app.add_typer(cli_bench.app, name="bench")


@app.command()
def demo(
    switch: SwitchOption = "model",
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    link: LinkOption = "100mbit",
    mtu: MtuOption = 1500,
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
    what = Demo(switch=switch, workers=workers, link_name=link, mtu=mtu, steps=steps, runs=runs, program=p4)
    with errors_explained():
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


@app.command()
def up(
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    link: LinkOption = "100mbit",
    mtu: MtuOption = 1500,
    switch: SwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    settings: SettingsOption = None,
) -> None:
    """Bring a testbed up and keep it until Ctrl-C or `inagg down`."""
    from inagg_testbed.control import CONTROLLER_URL

    with (
        errors_explained(),
        opened_testbed(
            workers=workers, link=link, mtu=mtu, switch=switch, results=results, p4=p4, settings=settings
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


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run_script(
    command: Annotated[list[str], typer.Argument(help="A script (*.py), or any command, and its arguments.")],
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    link: LinkOption = "100mbit",
    mtu: MtuOption = 1500,
    switch: SwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    settings: SettingsOption = None,
) -> None:
    """Run a training script on a testbed of its own, one rank in each host.

    The ranks have what torchrun gives them (RANK, WORLD_SIZE, MASTER_ADDR...), and INAGG_CONTROLLER. What rank 0 prints
    is shown; what the others print is in their logs.
    """
    with errors_explained():
        if command[0].endswith(".py"):
            if not Path(command[0]).is_file():
                raise ConfigurationError(f"no script {command[0]}")
            command = [sys.executable, *command]
        with opened_testbed(
            workers=workers, link=link, mtu=mtu, switch=switch, results=results, p4=p4, settings=settings
        ) as testbed:
            group = testbed.launch(command, name="run")
            with group.workers[0].process.log_path.open(errors="replace") as said:

                def show() -> None:
                    sys.stdout.write(said.read())
                    sys.stdout.flush()

                group.follow(
                    lambda _rank, _event: None, timeout_s=math.inf, watch=testbed.services, on_poll=show
                )
            console.print(f"logs: {testbed.results}", highlight=False, soft_wrap=True)


@app.command()
def down(run: RunOption = None) -> None:
    """Take a testbed down that `inagg up` keeps, and what crashed launchers left."""
    with errors_explained(needs_root="inagg down"):
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
    with errors_explained(needs_root="inagg exec"):
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
