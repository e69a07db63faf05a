# SPDX-License-Identifier: Apache-2.0
"""simple_switch and simple_switch_grpc: `inagg-switch run` with BMv2's options.

General options stand before `--`, those of the target after it (behavioral-model: src/bm_sim/options_parse.cpp and
targets/simple_switch_grpc/main.cpp). simple_switch serves P4Runtime too, at a free port of this machine.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from inagg_switch.cli.options import UsageError
from inagg_switch.cli.run import run
from inagg_switch.errors import SwitchError
from inagg_switch.ports import DROP_PORT
from inagg_switch.shims.options import Options, parse

_CLI_PORT = 9090
_LEVELS = {
    "trace": "info",
    "debug": "info",
    "info": "info",
    "warn": "warning",
    "error": "error",
    "off": "error",
}


def _general(name: str) -> Options:
    parser = Options(name, "Run a P4 program on network interfaces. Options of the target follow after --.")
    parser.add_argument("--interface", "-i", metavar="PORT@INTERFACE", action="append", default=[])
    parser.add_argument("--pcap", metavar="DIR", nargs="?", const=".", type=Path)
    parser.add_argument("--device-id", type=int, default=0)
    parser.add_argument("--thrift-port", type=int, default=_CLI_PORT, help="where simple_switch_CLI finds it")
    parser.add_argument("--no-p4", action="store_true", help="wait for a program from a controller")
    parser.add_argument("--log-console", action="store_true", help="print the path of each packet")
    parser.add_argument("--log-file", metavar="FILE", help="print the path of each packet to FILE.txt")
    parser.add_argument("--log-level", "-L", choices=_LEVELS, default="trace")
    parser.add_without_effect("--log-flush", "--debugger")
    parser.add_without_effect("--nanolog", "--notifications-addr", "--debugger-addr", value=True)
    parser.add_without_effect("--log-file-max-size", "--log-file-max-files", "--max-port-count", value=True)
    parser.add_without_effect("--dump-packet-data", value=True)
    parser.add_refused("--packet-in", "--use-files", "--restore-state", "--json-version")
    return parser


def _target(name: str) -> Options:
    parser = Options(f"{name} --", "Options of the target.")
    parser.add_argument("--priority-queues", type=int, default=1)
    parser.add_argument("--drop-port", type=int, default=DROP_PORT)
    parser.add_without_effect("--enable-swap", "--disable-swap")
    parser.add_without_effect("--max-mc-groups", "--max-l1-entries", "--max-l2-entries", value=True)
    if name == "simple_switch":
        return parser
    parser.add_argument("--grpc-server-addr", metavar="HOST:PORT", default="0.0.0.0:9559")
    parser.add_argument("--cpu-port", type=int)
    parser.add_argument("--grpc-server-ssl", action="store_true")
    parser.add_argument("--grpc-server-cert", metavar="FILE", type=Path)
    parser.add_argument("--grpc-server-key", metavar="FILE", type=Path)
    parser.add_argument("--grpc-server-cacert", metavar="FILE", type=Path)
    parser.add_argument("--grpc-server-with-client-auth", action="store_true")
    parser.add_refused("--dp-grpc-server-addr")
    return parser


def main(name: str, arguments: Sequence[str]) -> int:
    """Run a switch until it gets SIGINT or SIGTERM; return the exit status."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        options = parse(_general(name), arguments[:cut], "the JSON of p4c-bm2-ss")
        target = parse(_target(name), arguments[cut + 1 :], "nothing")
        _run(options, target)
    except SwitchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace, target: argparse.Namespace) -> None:
    _check(options, target)
    if options.log_file is not None:
        _redirect(Path(f"{options.log_file}.txt"))
    traced = options.log_level in ("trace", "debug") and (options.log_console or options.log_file is not None)
    tls = getattr(target, "grpc_server_ssl", False)
    run(
        options.interface,
        program=Path(options.file) if options.file is not None else None,
        grpc=getattr(target, "grpc_server_addr", "127.0.0.1:0"),
        device_id=options.device_id,
        cpu_port=getattr(target, "cpu_port", None),
        priority_queues=target.priority_queues,
        console=f"127.0.0.1:{options.thrift_port}",
        pcap=options.pcap,
        pcap_by_interface=True,
        trace=traced,
        tls_certificate=target.grpc_server_cert if tls else None,
        tls_key=target.grpc_server_key if tls else None,
        tls_client_ca=target.grpc_server_cacert if tls and target.grpc_server_with_client_auth else None,
        log_level=_LEVELS[options.log_level],
    )


def _check(options: argparse.Namespace, target: argparse.Namespace) -> None:
    if target.file is not None:
        raise UsageError(f"{target.file} after --: the JSON of p4c-bm2-ss stands before it")
    if options.no_p4 == (options.file is not None):
        raise UsageError("give either the JSON of p4c-bm2-ss or --no-p4")
    if target.drop_port != DROP_PORT:
        raise UsageError(f"--drop-port {target.drop_port}: it is {DROP_PORT} in inagg's switch")


def _redirect(path: Path) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise UsageError(f"--log-file: {path}: {error.strerror}") from None
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
