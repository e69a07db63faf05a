# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, and their checks."""

from pathlib import Path
from typing import Annotated

import typer

from inagg_contract.program import inagg_p4
from inagg_switch.errors import SwitchError

Defines = Annotated[
    list[str] | None,
    typer.Option(
        "--define", "-D", metavar="NAME[=VALUE]", help="Preprocessor macro; may be given several times."
    ),
]
Includes = Annotated[
    list[Path] | None,
    typer.Option(
        "--include", "-I", metavar="DIR", help="Further folder of #include files; may be given several times."
    ),
]
P4File = Annotated[Path, typer.Argument(metavar="PROGRAM.p4", help="P4_16 source for v1model.")]
P4FileOrOurs = Annotated[
    Path,
    typer.Argument(
        metavar="PROGRAM.p4",
        help="P4_16 source for v1model.",
        default_factory=inagg_p4,
        show_default="inagg's own inagg.p4",
    ),
]


class UsageError(SwitchError):
    """The command line is wrong."""


def parse_defines(texts: list[str] | None) -> dict[str, str]:
    """Macro -> value, "1" without one. Raises UsageError."""
    defines: dict[str, str] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not name.isidentifier():
            raise UsageError(f"-D {text}: expected NAME or NAME=VALUE")
        defines[name] = value if separator else "1"
    return defines


def check_readable(path: Path) -> None:
    """Raise UsageError if a file cannot be read."""
    try:
        path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
