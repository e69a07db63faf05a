# SPDX-License-Identifier: Apache-2.0
"""The files that the commands below `inagg bench` write: figures as JSON, and a picture of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import check_writable, handing_over, write_text

_PICTURES = (".png", ".pdf", ".svg")

JsonOption = Annotated[Path | None, typer.Option("--json", help="File for the figures.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="PNG, PDF or SVG file for a picture of the figures.")
]


@dataclass(frozen=True)
class Outputs:
    """The files that a user asked for. They are checked before anything is measured.

    Raises ConfigurationError for a file that cannot be written, and for a picture whose name says no known format.
    """

    figures: Path | None
    picture: Path | None

    def __post_init__(self) -> None:
        if self.picture is not None and self.picture.suffix not in _PICTURES:
            raise ConfigurationError(f"--plot {self.picture}: the name must end in {', '.join(_PICTURES)}")
        for path in (self.figures, self.picture):
            if path is not None:
                check_writable(path)

    def write(self, figures: dict[str, Any], draw: Callable[[Path], None]) -> None:
        """Write the figures, and the picture with `draw`. Raises ConfigurationError."""
        if self.figures is not None:
            write_text(self.figures, json.dumps(figures, indent=2) + "\n")
        if self.picture is not None:
            with handing_over(self.picture):
                draw(self.picture)
