# SPDX-License-Identifier: Apache-2.0
"""The entry point of `inagg-switch` and its list of commands."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

import inagg_p4runtime.quiet  # noqa: F401  before grpc is imported
from inagg_switch.cli import bench, labs, programs, run, shims
from inagg_switch.errors import CompileError, SwitchError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.command("compile")(programs.compile_program)
app.command("test")(programs.run_vectors)
app.command()(run.run)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"inagg-switch {version('inagg')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A programmable switch: runs v1model P4_16 programs on network interfaces and serves P4Runtime."""


@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def shell(
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS]...", help="Options of p4runtime-shell.")
    ] = None,
) -> None:
    """Open p4runtime-shell, with commands for registers.

    It is like `python -m p4runtime_sh`, but works with any version of protobuf. The commands are `registers()` and
    `register_entry["NAME"](index=3).read(print)`. It takes a file, too (`< commands.py`): exit status 1 if one of the
    commands fails.
    """
    from inagg_switch.cli.shell import open_shell

    if open_shell(options or []):
        raise typer.Exit(1)


app.command()(programs.explain)
app.command()(bench.bench)
app.command()(shims.shims)
app.command()(labs.lab)


def main() -> None:
    """Entry point. An error that the user can mend ends with exit status 2 and one message."""
    try:
        app()
    except CompileError as error:
        print(error, file=sys.stderr)  # starts with file:line:column, as editors expect
        sys.exit(2)
    except SwitchError as error:
        print(f"inagg-switch: {error}", file=sys.stderr)
        sys.exit(2)
