# SPDX-License-Identifier: Apache-2.0
"""`inagg trace` and `inagg run --timeline`: what all ranks did in a step, as one file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inagg_testbed.cli.options import console, errors_explained
from inagg_testbed.files import check_writable, write_text

if TYPE_CHECKING:
    from inagg_testbed.network.testbed import Testbed
    from inagg_testbed.trace.ranks import RankTrace

_STEPS = 3

TimelineOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a trace of the script's last three steps, on all ranks and switches, for Perfetto.",
    ),
]


def trace(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the ranks wrote rank0.json, rank1.json and so on.")
    ],
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The trace.")],
    steps: Annotated[int, typer.Option(min=1, max=16, help="How many of the last steps.")] = _STEPS,
) -> None:
    """Merge the last steps of all ranks into one file for Perfetto.

    Ranks that run with INAGG_TRACE=FOLDER write FOLDER/rankR.json when they end. On a testbed `inagg run --timeline`
    does it all, and adds the switches. Open the file at https://ui.perfetto.dev or chrome://tracing.

    Example: inagg trace /shared/trace trace.json
    """
    with errors_explained():
        from inagg_testbed.trace.events import make_trace
        from inagg_testbed.trace.ranks import read_ranks

        check_writable(output)
        ranks = read_ranks(folder)
        _write(output, make_trace(ranks, steps=steps))
        for line in _remarks(ranks):
            console.print(line, highlight=False, soft_wrap=True)


def _remarks(ranks: Sequence["RankTrace"]) -> Iterator[str]:
    """What to know of a trace."""
    from inagg_testbed.trace.ranks import of_earlier_training

    errors = [one.error_s for one in ranks]
    if None in errors:
        yield "clocks of ranks differ by what NTP or PTP leaves: the world is of another backend than inagg"
    elif (error_s := max(filter(None, errors), default=0.0)) > 0:
        yield f"clocks of ranks differ by at most {1e6 * error_s:.0f} us"
    if (old := of_earlier_training(ranks)) is not None:
        yield f"rank{old.rank}.json seems to be of an earlier training: that rank ended before another one began"


@contextmanager
def recorded(testbed: "Testbed", output: Path | None) -> Iterator[Mapping[str, str]]:
    """Record what ranks and switches do in the block, and write the trace after it. Gives variables for the ranks.

    output: None: record nothing. Raises LauncherError.
    """
    if output is None:
        yield {}
        return
    from inagg_testbed.trace.recording import Recording

    with closing(Recording(testbed)) as recording:
        yield recording.environment
    _write(output, recording.trace(_STEPS))
    if recording.dropped:
        console.print(
            f"the trace lacks {recording.dropped} packets: the kernel had no memory for them",
            highlight=False,
            soft_wrap=True,
        )


def _write(output: Path, document: dict[str, Any]) -> None:
    write_text(output, json.dumps(document) + "\n")
    console.print(
        f"trace:  {output.resolve()} (https://ui.perfetto.dev opens it)", highlight=False, soft_wrap=True
    )
