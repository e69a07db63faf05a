# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch lab`."""

from pathlib import Path
from typing import Annotated

import typer

from inagg_switch.cli.options import UsageError
from inagg_switch.labs import LABS, copy_lab


def lab(
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="Number of the lab.", min=LABS[0], max=LABS[-1])
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New or empty folder for the lab.")],
    solution: Annotated[
        bool, typer.Option("--solution", help="Write the solution, too: solution/labN.p4.")
    ] = False,
) -> None:
    """Copy a lab of the course on in-network aggregation into a folder.

    A lab has a README, a P4 program with gaps, tests for `inagg-switch test`, and a topology for `inagg up`.
    """
    try:
        files = copy_lab(number, folder, solution=solution)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from None
    print(f"wrote {', '.join(map(str, files))}\nstart with {folder / 'README.md'}")
