# SPDX-License-Identifier: Apache-2.0
"""The options of the command inagg-server."""

import logging
import re
import signal
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated
from urllib.parse import urlsplit

import typer

from inagg._core import Server
from inagg.base_errors import ConfigurationError, InaggError
from inagg.membership.control import ControlClient
from inagg.membership.interface import source_address
from inagg_contract.addresses import parse_ip
from inagg_contract.documents import DEFAULT_SERVER_PORT
from inagg_contract.sizes import parse_size, server_memory
from inagg_contract.tokens import default_token_file
from inagg_server.agent import ServerAgent

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")

_SMALLEST_JOB = 2, 1, 4  # slots, servers, words

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"inagg-server {version('inagg')}")
        raise typer.Exit


@app.command()
def run(
    controller: Annotated[
        str,
        typer.Option(
            envvar="INAGG_CONTROLLER", help="URL of the controller, such as http://10.0.0.254:9560."
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            metavar="IP[:PORT]",
            help="Address for the workers' packets.",
            show_default=f"that of the route to the controller, port {DEFAULT_SERVER_PORT}",
        ),
    ] = "",
    memory: Annotated[str, typer.Option(help="Memory for jobs, such as 256MiB or 2GiB.")] = "256MiB",
    name: Annotated[str, typer.Option(help="Name among the servers.", show_default="IP:PORT")] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the operator's token, which the controller makes.",
            show_default="/var/lib/inagg/controller.token for root, else ~/.local/state/inagg/controller.token",
        ),
    ] = None,
    controller_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="INAGG_CONTROLLER_CA",
            help="The authority of the controller's certificate (PEM), for an https URL.",
            show_default="those that the system trusts",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Sum the gradients of jobs in this host's memory, as the controller orders.

    Jobs with the settings aggregation = "server" and servers = "registered" use it. Prints "ready" when it is
    registered.
    """
    try:
        _log_to_stderr(log_level)
        size = _memory(memory)
        address = _address(listen, controller)
        name = name or f"{address[0]}:{address[1]}"
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"--name {name}: must be at most 64 letters, digits and . _ : -, the first a letter or digit"
            )
        token = _token(token_file or default_token_file())
        try:
            server = Server(local=address, memory=size)
        except OSError as error:
            raise ConfigurationError(f"--listen {address[0]}:{address[1]}: {error}") from error
        stopping = threading.Event()

        def stop(_number: int, _frame: FrameType | None) -> None:
            stopping.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        try:
            with ControlClient(controller, token=token, authority=controller_ca) as client:
                ServerAgent(client, server, name, size).run(stopping, lambda: print("ready", flush=True))
        finally:
            server.close()
    except InaggError as error:
        print(f"inagg-server: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def _log_to_stderr(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigurationError(f"--log-level {level}: must be debug, info, warning or error")
    logging.basicConfig(level=number, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)


def _memory(text: str) -> int:
    """Bytes of a size such as 256MiB. Raises ConfigurationError."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigurationError(f"--memory {text}: {error}") from error
    least = server_memory(*_SMALLEST_JOB)
    if not least <= size < 1 << 63:
        raise ConfigurationError(
            f"--memory {text}: must be {least} bytes, which the smallest job takes, or more, and less than 2^63 bytes"
        )
    return size


def _address(listen: str, controller: str) -> tuple[str, int]:
    """The address of --listen. Raises ConfigurationError."""
    ip, _, port = listen.partition(":")
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ConfigurationError(f"--listen {listen}: {port!r} is not a UDP port")
    if not ip:
        ip = source_address(urlsplit(controller).hostname or "")
    try:
        parse_ip(ip)
    except ValueError as error:
        raise ConfigurationError(f"--listen {listen}: {error}") from error
    if ip == "0.0.0.0":
        raise ConfigurationError(f"--listen {listen}: must be one address, to which workers can send")
    return ip, int(port or DEFAULT_SERVER_PORT)


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--token-file {path}: {getattr(error, 'strerror', None) or error}; the controller makes this file, on its "
            "own host"
        ) from error
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(f"--token-file {path}: not the controller's token")
    return token


def main() -> None:
    """Entry point."""
    app()
