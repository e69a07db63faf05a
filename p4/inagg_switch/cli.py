# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch`: compile a P4 program, run one on network interfaces, or measure it.

Logs go to stderr through the standard library's logging: it is what grpcio and the other libraries here log to.
"""

import dataclasses
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from google.protobuf import text_format

import inagg_p4runtime.quiet  # noqa: F401  before grpc is imported
from inagg_contract.program import inagg_p4
from inagg_switch.errors import CompileError, SwitchError

if TYPE_CHECKING:
    from inagg_switch.p4runtime.server import Tls
    from inagg_switch.ports import Ports

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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
    """A programmable switch: runs v1model P4_16 programs on network interfaces, and serves P4Runtime."""


Defines = Annotated[
    list[str] | None,
    typer.Option("--define", "-D", metavar="NAME[=VALUE]", help="Preprocessor macro; may be repeated."),
]
Includes = Annotated[
    list[Path] | None,
    typer.Option("--include", "-I", metavar="DIR", help="Where #include looks as well; may be repeated."),
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
    """What was typed makes no sense."""


def _parse_defines(texts: list[str] | None) -> dict[str, str]:
    defines: dict[str, str] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not name.isidentifier():
            raise UsageError(f"-D {text}: expected NAME or NAME=VALUE")
        defines[name] = value if separator else "1"
    return defines


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


@app.command("compile")
def compile_command(
    program: P4FileOrOurs,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for what is written.")
    ],
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Compiles a program and writes its P4Info (p4info.txtpb), its device config (PROGRAM.p4, preprocessed) and the C++
    that it became (PROGRAM.cpp, for reading)."""
    # Imported late: `--help` should not wait for the compiler.
    from inagg_switch.switch import Switch

    _check_readable(program)
    names = ("p4info.txtpb", program.name, program.with_suffix(".cpp").name)
    for path in (output / name for name in names):
        if path.exists() and path.samefile(program):
            raise UsageError(f"{path}: is the program itself: choose another folder with --output")
    compiled = Switch.from_p4(program, _parse_defines(define), include_paths=include or ())
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "p4info.txtpb").write_text(text_format.MessageToString(compiled.p4info))
        (output / program.name).write_text(compiled.source)
        (output / program.with_suffix(".cpp").name).write_text(compiled.generated.read_text())
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None


@app.command("test")
def run_vectors(
    program: P4File,
    vectors: Annotated[
        list[Path], typer.Argument(metavar="FILE.vectors...", help="Packets and what they should lead to.")
    ],
    define: Defines = None,
    include: Includes = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the path of each packet that went wrong below it.")
    ] = False,
) -> None:
    """Runs a program on packet vectors, each file on a new switch. The exit code is 1 if anything is not as they
    say."""
    from inagg_switch.switch import Switch
    from inagg_switch.vectors.format import VectorError, read_vectors
    from inagg_switch.vectors.run import failures

    _check_readable(program)
    wrong = 0
    for path in vectors:
        _check_readable(path)
        try:
            read = read_vectors(path)
            with Switch.from_p4(
                program, _parse_defines(define), include_paths=include or (), traced=trace
            ) as switch:
                found = list(failures(switch, read, traced=trace))
        except VectorError as error:
            print(error, file=sys.stderr)  # starts with file:line
            raise typer.Exit(2) from None
        for failure in found:
            print(failure)
        wrong += len(found)
        print(f"{path}: {len(read.packets)} packets, {len(found)} wrong")
    if wrong:
        raise typer.Exit(1)


@app.command()
def run(
    port: Annotated[
        list[str],
        typer.Option(
            "--port", "-p", metavar="ID@INTERFACE", help="A port and its interface; repeat for each."
        ),
    ],
    program: Annotated[
        Path | None, typer.Argument(metavar="[PROGRAM.p4]", help="Runs at once; else a controller sets one.")
    ] = None,
    define: Defines = None,
    include: Includes = None,
    grpc: Annotated[
        str, typer.Option("--grpc", metavar="ADDRESS", help="P4Runtime at HOST:PORT or unix:PATH.")
    ] = "127.0.0.1:9559",
    device_id: Annotated[
        int, typer.Option("--device-id", min=1, help="P4Runtime's number of this switch.")
    ] = 1,
    stats: Annotated[
        Path | None,
        typer.Option("--stats", metavar="FILE.json", help="Write the ports' figures here at the end."),
    ] = None,
    offloads: Annotated[
        bool,
        typer.Option(
            "--offloads/--no-offloads",
            help="Take and send frames with segmentation and checksum offloads, where the kernel can.",
        ),
    ] = True,
    cpu_port: Annotated[
        int | None,
        typer.Option(
            "--cpu-port", metavar="ID", help="Port whose packets go to and come from the controller."
        ),
    ] = None,
    pcap: Annotated[
        Path | None,
        typer.Option(
            "--pcap", metavar="DIR", help="Capture files: portN_in.pcap and portN_out.pcap of each port."
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print each packet's path: slow, for looking at a program.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve with TLS: the certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca", metavar="FILE", help="Serve only clients with a certificate of this authority."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="ADDRESS", help="Serve /metrics for Prometheus at HOST:PORT."),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
) -> None:
    """Runs a switch until SIGINT or SIGTERM; prints "ready" when it serves. Needs CAP_NET_RAW."""
    from inagg_switch.metrics import MetricsServer, SwitchMetrics
    from inagg_switch.p4runtime.server import SwitchServer
    from inagg_switch.ports import PortOptions, Ports, PortSpec
    from inagg_switch.switch import Switch

    _configure_logging(log_level)
    tls = _tls(tls_certificate, tls_key, tls_client_ca)
    specs = [PortSpec.parse(text) for text in port]
    defines = _parse_defines(define)
    loaded = None
    if program is not None:
        _check_readable(program)
        loaded = Switch.from_p4(program, defines, include_paths=include or (), traced=trace)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ports = Ports(specs, PortOptions(offloads=offloads, cpu_port=cpu_port, captures=pcap))
    try:
        server = SwitchServer(
            ports,
            device_id=device_id,
            address=grpc,
            tls=tls,
            on_trace=_trace_printer(stop) if trace else None,
        )
        try:
            if loaded is not None:
                server.load(loaded)
            with ExitStack() as stack:
                if metrics is not None:
                    stack.callback(MetricsServer(metrics, SwitchMetrics(ports, server)).stop)
                server.start()
                print("ready", flush=True)
                stop.wait()
        finally:
            server.stop()
    finally:
        ports.stop()
        if stats is not None:
            _write_statistics(ports, stats)


def _trace_printer(stop: threading.Event) -> Callable[[str], None]:
    """Prints the lines of packets' paths; sets `stop` when nobody reads them any more, as behind `| head`."""

    def write(line: str) -> None:
        # A packet's first line stands at the margin, what becomes of it below.
        text = line if line.startswith("packet of") and " in by " in line else f"    {line}"
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # What is printed on the way out goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            stop.set()

    return write


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> "Tls | None":
    from inagg_switch.p4runtime.server import Tls

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs both --tls-cert and --tls-key")
    return Tls(certificate=certificate, key=key, client_ca=client_ca)


@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def shell(
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS]...", help="Of p4runtime-shell.")
    ] = None,
) -> None:
    """Opens p4runtime-shell, as `python -m p4runtime_sh` does; that works only with protobuf 3.20, this with any."""
    from p4runtime_sh.shell import main as open_shell

    sys.argv = ["inagg-switch shell", *(options or [])]
    open_shell()


@app.command()
def explain(
    program: P4FileOrOurs,
    define: Defines = None,
    include: Includes = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the tables.")] = False,
) -> None:
    """Shows what a program consists of: pipeline, tables by stage, memory of registers and counters, digests,
    headers."""
    from inagg_switch.explain.stages import explain as explain_program

    _check_readable(program)
    explanation = explain_program(program, _parse_defines(define), include or ())
    if as_json:
        print(json.dumps(dataclasses.asdict(explanation), indent=2))
        return
    from inagg_switch.explain.report import print_explanation

    print_explanation(explanation)


@app.command()
def bench(
    program: P4FileOrOurs,
    define: Defines = None,
    include: Includes = None,
    frame: Annotated[
        list[str] | None,
        typer.Option("--frame", metavar="PORT:HEX", help="A packet to put in; repeat for more."),
    ] = None,
    pcap: Annotated[
        list[str] | None,
        typer.Option("--pcap", metavar="PORT@FILE", help="Put in a capture file's packets; may be repeated."),
    ] = None,
    entries: Annotated[
        Path | None,
        typer.Option("--entries", metavar="FILE.json", help="Table entries and multicast groups to install."),
    ] = None,
    aggregate: Annotated[
        int | None,
        typer.Option(
            "--aggregate", metavar="WORKERS", min=1, max=64, help="For p4/inagg.p4: sum their packets."
        ),
    ] = None,
    packets: Annotated[int, typer.Option("--packets", min=1, help="Packets put in, each run.")] = 200_000,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs to take the median of.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
) -> None:
    """Measures a program in this process, on one core: packets a second, nanoseconds a packet. Without packets it gets
    an Ethernet frame of 60 bytes."""
    from inagg_switch import bench as benchmark
    from inagg_switch.switch import Switch

    chosen = [*(benchmark.parse_frame(text) for text in frame or []), *_captured(pcap or [])]
    if chosen and aggregate is not None:
        raise UsageError("--aggregate makes its own packets: leave --frame and --pcap out")
    _check_readable(program)
    if entries is not None:
        _check_readable(entries)
    with Switch.from_p4(program, _parse_defines(define), include_paths=include or ()) as loaded:
        if entries is not None:
            benchmark.install(loaded, entries)
        if aggregate is not None:
            load = benchmark.aggregation(loaded, aggregate)
        else:
            load = benchmark.Load(chosen) if chosen else benchmark.minimum_frame()
        rate = benchmark.measure(loaded, load, packets=packets, runs=runs)
    if as_json:
        print(
            json.dumps({**dataclasses.asdict(rate), "packets_per_second": rate.packets_per_second}, indent=2)
        )
        return
    rows = (
        ("packets", f"{rate.packets:,} in, {rate.sent_per_packet:.2f} out for each; {rate.runs} runs"),
        ("packets/s", f"{rate.packets_per_second:,.0f}"),
        ("ns a packet", f"{rate.ns_per_packet:.0f} (from {rate.ns_fastest:.0f} to {rate.ns_slowest:.0f})"),
    )
    for name, value in rows:
        print(f"{name:12} {value}")


def _captured(texts: list[str]) -> "list[tuple[int, bytes]]":
    from inagg_switch.bench import read_pcap
    from inagg_switch.ports import PortSpec

    packets = []
    for text in texts:
        spec = PortSpec.parse(text)
        path = Path(spec.interface)
        _check_readable(path)
        packets += read_pcap(path, spec.id)
    return packets


def _configure_logging(level: str) -> None:
    numbers = {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }
    if level not in numbers:
        raise UsageError(f"--log-level {level}: expected one of {', '.join(numbers)}")
    logging.basicConfig(
        level=numbers[level], stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _write_statistics(ports: "Ports", path: Path) -> None:
    figures = {
        "ports": [dataclasses.asdict(one) for one in ports.statistics()],
        "unknown_port_drops": ports.unknown_port_drops(),
        "to_cpu_drops": ports.to_cpu_drops(),
    }
    try:
        path.write_text(json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"--stats {path}: {error.strerror}") from None


def main() -> None:
    """Entry point. Errors that a user can act on end with exit code 2 and one message."""
    try:
        app()
    except CompileError as error:
        print(error, file=sys.stderr)  # starts with file:line:column, as editors expect
        sys.exit(2)
    except SwitchError as error:
        print(f"inagg-switch: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
