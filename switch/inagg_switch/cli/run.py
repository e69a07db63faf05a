# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch run`.

Logs go to stderr through the standard library's logging, which grpcio and the other libraries use too.
"""

import dataclasses
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inagg_switch.cli.options import Defines, Includes, UsageError, check_readable, parse_defines
from inagg_switch.program.abi import MAX_THREADS

if TYPE_CHECKING:
    from inagg_switch.console.interpreter import Interpreter
    from inagg_switch.p4runtime.server import SwitchServer, Tls
    from inagg_switch.ports import Ports

_LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_PortSpecs = Annotated[
    list[str],
    typer.Option(
        "--port", "-p", metavar="ID@INTERFACE", help="Port and its interface; may be given several times."
    ),
]
_Program = Annotated[
    Path | None,
    typer.Argument(
        metavar="PROGRAM",
        help="Program to run from the start, as P4 source or as a device config; else a controller sets one.",
    ),
]
_Grpc = Annotated[
    str, typer.Option("--grpc", metavar="ADDRESS", help="Serve P4Runtime at HOST:PORT or unix:PATH.")
]
_DeviceId = Annotated[int, typer.Option("--device-id", min=0, help="P4Runtime device id of this switch.")]
_Stats = Annotated[
    Path | None,
    typer.Option("--stats", metavar="FILE.json", help="Write the ports' figures to this file at the end."),
]
_Offloads = Annotated[
    bool,
    typer.Option(
        "--offloads/--no-offloads",
        help="Receive and send frames with segmentation and checksum offloads, if the kernel supports it.",
    ),
]
_FanOut = Annotated[
    bool,
    typer.Option(
        "--fan-out/--no-fan-out",
        help="Send equal copies of a multicast once, if the kernel can clone them to the ports (tc, CAP_NET_ADMIN).",
    ),
]
_Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        max=MAX_THREADS,
        envvar="INAGG_SWITCH_THREADS",
        help="Threads that receive, run the program and send; more than one if it says how to divide its packets."
        " Default: as many as suit the processors.",
    ),
]
_CpuPort = Annotated[
    int | None,
    typer.Option(
        "--cpu-port", metavar="ID", help="Port whose packets go to the controller and come from it."
    ),
]
_PriorityQueues = Annotated[
    int,
    typer.Option(
        "--priority-queues",
        metavar="N",
        min=1,
        max=8,
        help="Queues of each port: a packet with a higher standard_metadata.priority leaves first.",
    ),
]
_Console = Annotated[
    str | None,
    typer.Option(
        "--console",
        metavar="HOST:PORT",
        help="Serve simple_switch_CLI (inagg-switch shims) there. Its clients may change everything.",
    ),
]
_Commands = Annotated[
    Path | None,
    typer.Option(
        "--commands",
        metavar="FILE",
        help="Carry out these commands of simple_switch_CLI, one a line, on PROGRAM before the first packet.",
    ),
]
_Pcap = Annotated[
    Path | None,
    typer.Option(
        "--pcap",
        metavar="DIR",
        help="Write capture files portN_in.pcap and portN_out.pcap for each port.",
    ),
]
_PcapByInterface = Annotated[
    bool,
    typer.Option(
        "--pcap-by-interface",
        help="Name them INTERFACE_in.pcap and INTERFACE_out.pcap, as BMv2 does: switches may share a folder.",
    ),
]
_Trace = Annotated[
    bool, typer.Option("--trace", help="Print the path of each packet through the program; slow.")
]
_TlsCertificate = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve with TLS: the certificate (PEM).")
]
_TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
]
_TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-ca", metavar="FILE", help="Serve only clients with a certificate of this authority."
    ),
]
_Metrics = Annotated[
    str | None,
    typer.Option("--metrics", metavar="ADDRESS", help="Serve /metrics for Prometheus at HOST:PORT."),
]
_Impair = Annotated[
    list[str] | None,
    typer.Option(
        "--impair",
        metavar="PORT:DIRECTION:SPEC",
        help="Impair the packets that a port receives (in) or sends (out), as in 1:in:loss=1%,delay=5ms,jitter=1ms."
        " SPEC has loss, duplicate, reorder, corrupt (probabilities), delay, jitter (times) and seed. May be given"
        " several times.",
    ),
]
_LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def run(
    port: _PortSpecs,
    program: _Program = None,
    define: Defines = None,
    include: Includes = None,
    grpc: _Grpc = "127.0.0.1:9559",
    device_id: _DeviceId = 1,
    stats: _Stats = None,
    offloads: _Offloads = True,
    fan_out: _FanOut = True,
    threads: _Threads = None,
    cpu_port: _CpuPort = None,
    priority_queues: _PriorityQueues = 1,
    console: _Console = None,
    commands: _Commands = None,
    pcap: _Pcap = None,
    pcap_by_interface: _PcapByInterface = False,
    trace: _Trace = False,
    tls_certificate: _TlsCertificate = None,
    tls_key: _TlsKey = None,
    tls_client_ca: _TlsClientCa = None,
    metrics: _Metrics = None,
    impair: _Impair = None,
    log_level: _LogLevel = "info",
) -> None:
    """Run a switch until SIGINT or SIGTERM. Prints "ready" when it serves. Needs CAP_NET_RAW.

    It gives up all other capabilities but CAP_NET_ADMIN, which --fan-out needs, and of root CAP_DAC_OVERRIDE.
    """
    from inagg_switch.console.interpreter import Interpreter
    from inagg_switch.console.server import ConsoleServer
    from inagg_switch.impairment import PortImpairment
    from inagg_switch.p4runtime.server import SwitchServer
    from inagg_switch.ports import PortOptions, Ports, PortSpec, drop_capabilities, threads_of
    from inagg_switch.switch import Switch

    drop_capabilities()
    _configure_logging(log_level)
    tls = _tls(tls_certificate, tls_key, tls_client_ca)
    specs = [PortSpec.parse(text) for text in port]
    impairments = [PortImpairment.parse(text) for text in impair or ()]
    defines = parse_defines(define)
    options = PortOptions(
        offloads=offloads,
        fan_out=fan_out,
        threads=threads,
        cpu_port=cpu_port,
        priority_queues=priority_queues,
        captures=pcap,
        captures_by_interface=pcap_by_interface,
        number=device_id,
    )
    count = threads_of(options, len(specs))
    if commands is not None:
        check_readable(commands)
        if program is None:
            raise UsageError(f"--commands {commands}: there is no PROGRAM to carry them out on")
    loaded = config = None
    if program is not None:
        check_readable(program)
        config = _source_in_config(program)
        if config is None:
            loaded = Switch.from_p4(
                program,
                defines,
                include_paths=include or (),
                traced=trace,
                threads=count,
                or_one=threads is None,
            )
    end = _End()
    ports = Ports(specs, options)
    on_trace = _trace_printer(end) if trace else None
    try:
        # They listen before a device config is compiled: who starts many switches waits for their ports, and not long.
        with ExitStack() as listening:
            for each in impairments:
                ports.impair(each.port, each.direction, each.impairment)
            server = SwitchServer(ports, device_id=device_id, address=grpc, tls=tls, on_trace=on_trace)
            listening.callback(server.stop)
            interpreter = Interpreter(server, ports)
            if console is not None:
                console_server = ConsoleServer(console, interpreter)
                listening.callback(console_server.stop)
            if config is not None:
                loaded = Switch.from_source(
                    config, name=str(program), traced=trace, threads=count, or_one=threads is None
                )
            if loaded is not None:
                server.load(loaded)
            if commands is not None:
                _carry_out(commands, interpreter)
            if console is not None:
                console_server.start()
            _serve(ports, server, metrics, end)
    finally:
        ports.stop()
        if stats is not None:
            _write_statistics(ports, stats)


def _source_in_config(program: Path) -> str | None:
    """The source in a device config as JSON; None for P4 source."""
    from inagg_switch.p4runtime.device_config import source_of

    content = program.read_bytes()
    return source_of(content) if content.lstrip().startswith(b"{") else None


def _carry_out(commands: Path, interpreter: "Interpreter") -> None:
    """Carry out the commands of a file. Raises UsageError at the first that is refused."""
    try:
        lines = commands.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"--commands {commands}: it is not text ({error})") from None
    for number, line in enumerate(lines, 1):
        if refusal := interpreter.execute(line).refusal:
            raise UsageError(f"{commands}:{number}: `{line.strip()}`: {refusal}")


def _serve(ports: "Ports", server: "SwitchServer", metrics: str | None, end: "_End") -> None:
    """Serve P4Runtime, and /metrics at an address, until the end."""
    from inagg_switch.metrics import MetricsServer, SwitchMetrics

    with ExitStack() as stack:
        if metrics is not None:
            stack.callback(MetricsServer(metrics, SwitchMetrics(ports, server)).stop)
        server.start()
        print("ready", flush=True)
        end.wait()


class _End:
    """The end of a switch: SIGINT, SIGTERM, or set().

    A signal may interrupt another thread than the main one, which then stays in a wait for a lock. So it waits for the
    byte that Python writes for each signal.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def set(self) -> None:
        """End the switch."""
        with suppress(BlockingIOError):  # enough has been written
            self._writer.send(b"\0")

    def wait(self) -> None:
        """Wait for the end."""
        self._reader.recv(1)


def _trace_printer(end: _End) -> Callable[[str], None]:
    """A function that prints the lines of packets' paths; ends the switch when the reader is gone, as in `| head`."""

    def write(line: str) -> None:
        # The first line of a packet is at the margin, the others are indented.
        text = line if line.startswith("packet of") and " received on " in line else f"    {line}"
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # Discard later output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            end.set()

    return write


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> "Tls | None":
    from inagg_switch.p4runtime.server import Tls

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs both --tls-cert and --tls-key")
    return Tls(certificate=certificate, key=key, client_ca=client_ca)


def _configure_logging(level: str) -> None:
    if level not in _LOG_LEVELS:
        raise UsageError(f"--log-level {level}: expected one of {', '.join(_LOG_LEVELS)}")
    logging.basicConfig(
        level=_LOG_LEVELS[level],
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def _write_statistics(ports: "Ports", path: Path) -> None:
    figures = {
        "ports": [dataclasses.asdict(one) for one in ports.statistics()],
        "fan_out": dataclasses.asdict(ports.fan_out()),
        "threads": ports.threads,
        "unknown_port_drops": ports.unknown_port_drops(),
        "to_cpu_drops": ports.to_cpu_drops(),
    }
    try:
        path.write_text(json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"--stats {path}: {error.strerror}") from None
