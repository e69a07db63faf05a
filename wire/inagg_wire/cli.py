# SPDX-License-Identifier: Apache-2.0
"""The command `inagg decode`. It needs the extra `wire` only."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from inagg_wire import DISSECTOR
from inagg_wire.errors import CaptureError

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)


def _show_dissector(wanted: bool) -> None:
    if wanted:
        print(DISSECTOR)
        raise typer.Exit


@app.command()
def decode(
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE...", help="Files of pcap or pcapng, also gzipped.")
    ],
    chunk: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Tell the story of this chunk.")
    ] = None,
    job: Annotated[int | None, typer.Option(min=1, max=65535, help="Only this job's packets.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="S",
            help="The job's slots, as `inagg status` shows them: a story names slot and version.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    _dissector: Annotated[
        bool,
        typer.Option(
            "--dissector",
            is_eager=True,
            callback=_show_dissector,
            help="Print the path of the dissector for Wireshark and exit.",
        ),
    ] = False,
) -> None:
    """Say what packets in captures were for.

    Without --chunk it prints a summary: who sent how much, what was sent again and lost, who was last, which chunks
    took longest. With --chunk it tells what became of one chunk. Give all files of one run at once.

    Exit status 1 if a file cannot be read, or has no packet of the chunk.

    Example: inagg decode captures/*.pcap

    Example: inagg decode captures/*.pcap --chunk 70001 --slots 128

    Example: wireshark -X lua_script:$(inagg decode --dissector) h1.pcap
    """
    from inagg_wire.captures import Captures
    from inagg_wire.decoder import Decoder
    from inagg_wire.story import stories, told
    from inagg_wire.summary import lines, summary

    if slots is not None and slots.bit_count() != 1:
        raise typer.BadParameter("must be a power of two", param_hint="--slots")
    files, decoder = Captures(captures), Decoder(job=job, chunk=chunk)
    try:
        decoder.take_all(files.frames())
        found = summary(decoder, files.notes) if chunk is None else stories(decoder, slots)
        if as_json:
            print(json.dumps(found))
        elif isinstance(found, dict):
            print("\n".join(lines(found)))
        else:
            print("\n\n".join("\n".join(told(story)) for story in found))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + 13) from None
    except CaptureError as error:
        print(f"inagg: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    for note in files.notes:
        print(f"inagg: {note}", file=sys.stderr)
    if not found:
        of_job = "" if job is None else f" of job {job}"
        print(f"inagg: no packet of chunk {chunk}{of_job} in these captures", file=sys.stderr)
        raise typer.Exit(1)


def main() -> None:
    """Entry point, without the rest of `inagg`."""
    app(args=sys.argv[2:], prog_name="inagg decode")
