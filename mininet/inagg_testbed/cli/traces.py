# SPDX-License-Identifier: Apache-2.0
"""`inagg trace` and `inagg run --timeline`: what all ranks did in a step, as one file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inagg_testbed.cli.options import console, errors_explained
from inagg_testbed.errors import LauncherError
from inagg_testbed.files import check_writable, write_text

if TYPE_CHECKING:
    from inagg_testbed.network.testbed import Testbed
    from inagg_testbed.trace.ranks import RankTrace
    from inagg_testbed.trace.recording import Recording

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
            _say(line)


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
    """Record what ranks and switches do in the block. Gives variables for the ranks.

    After the block, also after one that failed, it writes the trace of what the ranks have left, or says why there is
    none. output: None: record nothing. Raises NetworkError if the kernel refuses.
    """
    if output is None:
        yield {}
        return
    from inagg_testbed.trace.recording import Recording

    recording = Recording(testbed)
    try:
        yield recording.environment
    finally:
        recording.close()
        _write_recorded(output, recording)


def _write_recorded(output: Path, recording: "Recording") -> None:
    try:
        _write(output, recording.trace(_STEPS))
    except LauncherError as error:
        _say(f"no trace: {error}")
        return
    if recording.dropped:
        _say(f"the trace lacks {recording.dropped} packets: the kernel had no memory for them")


def _write(output: Path, document: dict[str, Any]) -> None:
    write_text(output, json.dumps(document) + "\n")
    _say(f"trace:  {output.resolve()} (https://ui.perfetto.dev opens it)")


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
