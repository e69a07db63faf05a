"""What the commands of `inagg` share: the console, options, and how errors end a command."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from inagg_testbed.errors import ConfigurationError, LauncherError, MissingRequirementError
from inagg_testbed.lifecycle import Interrupted, signals_raise
from inagg_testbed.links import JUMBO_MTU, SMALLEST_MTU, LinkSpec
from inagg_testbed.requirements import SummingSwitchKind, SwitchKind

if TYPE_CHECKING:
    from inagg_testbed.testbed import Testbed

console = Console()

_SWITCH = typer.Option(help="What stands in the middle of the star.")
SwitchOption = Annotated[SwitchKind, _SWITCH]
SummingSwitchOption = Annotated[SummingSwitchKind, _SWITCH]
LinkOption = Annotated[
    str, typer.Option(help="100mbit, 1gbit, any rate like 250mbit, or unshaped; in each direction.")
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
P4Option = Annotated[
    Path | None, typer.Option("--p4", help="The P4 program; by default the repository's p4/inagg.p4.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting of inagg's groups, such as lane_bits=16 (docs/options.md); repeat."
    ),
]
RunOption = Annotated[str | None, typer.Option("--run", help="Id of the testbed, where several are up.")]


def launcher_settings(settings: Sequence[str]) -> dict[str, str]:
    """The environment for settings of inagg's groups, written NAME=VALUE. Raises ConfigurationError."""
    if not settings:
        return {}
    from inagg import options  # takes seconds: torch
    from inagg.errors import ConfigurationError as WrongSetting

    try:
        return options.launcher_environment(settings)
    except WrongSetting as error:
        raise ConfigurationError(str(error)) from error


@contextmanager
def errors_explained(needs_root: str | None = None) -> Iterator[None]:
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


@contextmanager
def opened_testbed(
    *,
    workers: int,
    link: str,
    mtu: int,
    switch: SwitchKind,
    results: Path,
    p4: Path | None,
    settings: Sequence[str] | None = None,
    on_stage: Callable[[str], object] = console.print,
) -> Iterator["Testbed"]:
    """A testbed as the options say. Raises LauncherError."""
    from inagg_testbed.testbed import open_testbed

    with open_testbed(
        hosts=workers,
        link=LinkSpec.parse(link, mtu=mtu),
        results_root=results,
        switch=switch,
        program=p4,
        environment=launcher_settings(settings or []),
        on_stage=on_stage,
    ) as testbed:
        yield testbed
