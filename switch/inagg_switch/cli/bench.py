# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch bench`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inagg_switch.cli.options import (
    Defines,
    Includes,
    P4FileOrOurs,
    UsageError,
    check_readable,
    parse_defines,
)
from inagg_switch.program.abi import MAX_THREADS

if TYPE_CHECKING:
    from inagg_switch.bench import Rate

_Frames = Annotated[
    list[str] | None,
    typer.Option("--frame", metavar="PORT:HEX", help="Input packet; may be given several times."),
]
_Pcaps = Annotated[
    list[str] | None,
    typer.Option(
        "--pcap", metavar="PORT@FILE", help="Capture file with input packets; may be given several times."
    ),
]
_Entries = Annotated[
    Path | None,
    typer.Option("--entries", metavar="FILE.json", help="Table entries and multicast groups to install."),
]
_Loads = Annotated[
    Path | None,
    typer.Option(
        "--load",
        metavar="FILE.vectors",
        help="Packet vectors with entries and input packets; also a path in the program's folder.",
    ),
]


def bench(
    program: P4FileOrOurs,
    define: Defines = None,
    include: Includes = None,
    frame: _Frames = None,
    pcap: _Pcaps = None,
    entries: _Entries = None,
    load: _Loads = None,
    packets: Annotated[int, typer.Option("--packets", min=1, help="Input packets of each run.")] = 200_000,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs, whose median is the result.")] = 9,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", min=1, max=MAX_THREADS, help="Threads that divide the packets, as ports do."
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, not a table.")] = False,
) -> None:
    """Measure how fast a program is in this process.

    The figures are packets a second and nanoseconds a packet. The default input is an Ethernet frame of 60 bytes.
    """
    from inagg_switch import bench as benchmark
    from inagg_switch.switch import Switch
    from inagg_switch.vectors.format import VectorError

    chosen = [*(benchmark.parse_frame(text) for text in frame or []), *_captured(pcap or [])]
    if chosen and load is not None:
        raise UsageError("--load has its own packets: leave --frame and --pcap out")
    check_readable(program)
    if entries is not None:
        check_readable(entries)
    if load is not None:
        load = _found(load, program)
        check_readable(load)
    with Switch.from_p4(
        program, parse_defines(define), include_paths=include or (), threads=threads
    ) as loaded:
        if entries is not None:
            benchmark.install(loaded, entries)
        if load is not None:
            try:
                traffic = benchmark.read_load(loaded, load)
            except VectorError as error:
                print(error, file=sys.stderr)  # starts with file:line
                raise typer.Exit(2) from None
        else:
            traffic = benchmark.Load(chosen) if chosen else benchmark.minimum_frame()
        rate = benchmark.measure(loaded, traffic, packets=packets, runs=runs)
    _print_rate(rate, as_json=as_json)


def _found(load: Path, program: Path) -> Path:
    """The file of a load. A program can have its loads below its folder, wherever it is installed."""
    beside = program.parent / load
    return beside if beside.exists() and not load.exists() else load


def _print_rate(rate: "Rate", *, as_json: bool) -> None:
    if as_json:
        figures = {**dataclasses.asdict(rate), "packets_per_second": rate.packets_per_second}
        print(json.dumps(figures, indent=2))
        return
    rows = (
        ("packets", f"{rate.packets:,} in, {rate.sent_per_packet:.2f} out for each; {rate.runs} runs"),
        ("threads", str(rate.threads)),
        ("packets/s", f"{rate.packets_per_second:,.0f}"),
        ("ns a packet", f"{rate.ns_per_packet:.0f} (from {rate.ns_fastest:.0f} to {rate.ns_slowest:.0f})"),
    )
    for name, value in rows:
        print(f"{name:12} {value}")


def _captured(texts: list[str]) -> list[tuple[int, bytes]]:
    """(port, frame) of each packet in the capture files."""
    from inagg_switch.bench import read_pcap
    from inagg_switch.ports import PortSpec

    packets = []
    for text in texts:
        spec = PortSpec.parse(text)
        path = Path(spec.interface)
        check_readable(path)
        packets += read_pcap(path, spec.id)
    return packets
