# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch shims`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from inagg_switch.cli.options import UsageError

SHIMS = ("p4c", "p4c-bm2-ss", "simple_switch", "simple_switch_grpc", "simple_switch_CLI")


def shims(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the commands; put it on PATH.")
    ],
) -> None:
    """Write commands with the names of p4c's and BMv2's.

    They are for Makefiles of courses: p4c, p4c-bm2-ss, simple_switch, simple_switch_grpc and simple_switch_CLI, with
    their options.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in SHIMS:
            path = folder / name
            if path.exists() and "inagg_switch.shims" not in path.read_text(errors="replace"):
                raise UsageError(f"{path} is not one of these commands: choose another folder")
            path.write_text(_script(name))
            path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from None
    print(f"wrote {', '.join(SHIMS)}\nexport PATH={shlex.quote(str(folder.resolve()))}:$PATH")


def _script(name: str) -> str:
    # -P: a module in the current folder must not hide one of the standard library.
    command = shlex.join([sys.executable, "-P", "-m", "inagg_switch.shims", name])
    return f'#!/bin/sh\n# Written by inagg-switch shims.\nexec {command} "$@"\n'
