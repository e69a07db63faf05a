# SPDX-License-Identifier: Apache-2.0
"""The API over HTTPS: a controller process with --tls-cert, and its clients."""

import contextlib
import http.client
import http.server
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg.errors import ConfigurationError, ControllerUnreachableError
from inagg.membership.control import ControlClient
from inagg_controller.cli import app
from inagg_testbed.errors import ControllerUnreachableError as OperatorUnreachableError
from inagg_testbed.network.control import ControllerClient
from tests import forks
from tests.controller.authorities import Authorities
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.controller.serving import OPERATORS_TOKEN
from tests.free_ports import free_port as unused_port
from tests.hostlib.membership.two_ranks import RANKS, run_ranks
from tests.waiting import wait_until

PATIENCE_S = 0.2


@pytest.fixture
def command_line(free_port: int, token_file: Path, authorities: Authorities) -> CommandLine:
    return CommandLine(
        {
            "no-switch": True,
            "listen": f"127.0.0.1:{free_port}",
            "token-file": token_file,
            "tls-cert": authorities.good / "api.pem",
            "tls-key": authorities.good / "api.key",
        }
    )


@pytest.fixture
def controller(launch: Launcher) -> forks.Process:
    process = launch()
    assert read_line(process) == "ready"
    return process


def client(port: int, authorities: Authorities) -> ControlClient:
    return ControlClient(
        f"https://127.0.0.1:{port}", token=OPERATORS_TOKEN, authority=authorities.good / "ca.pem"
    )


def problem(url: str, authority: Path | None = None) -> str:
    """What a client says that cannot speak with the controller."""
    with (
        ControlClient(url, PATIENCE_S, authority=authority) as one,
        pytest.raises(ControllerUnreachableError) as error,
    ):
        one.health()
    return str(error.value)


def test_a_job_runs_and_its_ranks_are_present_over_https(
    controller: forks.Process, free_port: int, authorities: Authorities
) -> None:
    for result, log in run_ranks(
        INAGG_CONTROLLER=f"https://127.0.0.1:{free_port}",
        INAGG_CONTROLLER_CA=str(authorities.good / "ca.pem"),
        INAGG_AGGREGATION="server",
    ):
        assert (result["sum"], result["stats"]["path"]) == ([RANKS] * 3, "server"), log
    with client(free_port, authorities) as operator:
        assert operator.status(1).state == "finished"


def test_a_server_of_sums_registers_and_the_operator_sees_it(
    controller: forks.Process, free_port: int, authorities: Authorities, token_file: Path
) -> None:
    url, ca = f"https://127.0.0.1:{free_port}", authorities.good / "ca.pem"
    process = forks.start_piped(
        *(
            sys.executable,
            str(Path(sys.executable).with_name("inagg-server")),
            "--controller",
            url,
            "--controller-ca",
            str(ca),
        ),
        *("--token-file", str(token_file), "--listen", f"127.0.0.1:{unused_port()}", "--name", "a"),
        modules=forks.OF_COMMANDS,
    )
    try:
        assert read_line(process) == "ready"
        operator = ControllerClient(token_file, url=url, authority=ca)
        assert [server.name for server in operator.health().servers] == ["a"]
        with pytest.raises(OperatorUnreachableError, match="certificate verify failed"):
            ControllerClient(token_file, url=url).health()
    finally:
        process.kill()
        process.communicate()


def test_the_system_trusts_its_own_authorities_and_not_the_operators(
    controller: forks.Process, free_port: int, authorities: Authorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://127.0.0.1:{free_port}"
    assert problem(url).endswith(
        "Set INAGG_CONTROLLER_CA to the certificate of the authority that signed it."
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities.good / "ca.pem"))
    with ControlClient(url) as one:
        assert one.health().switch == "none"


def test_the_controller_of_another_authority_is_refused(
    controller: forks.Process, free_port: int, authorities: Authorities
) -> None:
    said = problem(f"https://127.0.0.1:{free_port}", authorities.stranger / "ca.pem")
    assert "certificate verify failed" in said


def test_a_certificate_that_has_expired_is_refused_by_ranks(authorities: Authorities) -> None:
    with _server(authorities.expired) as port:
        said = problem(f"https://127.0.0.1:{port}", authorities.good / "ca.pem")
    assert "certificate has expired" in said
    assert said.endswith("Renew the controller's certificate (inagg-controller certificates).")


def test_a_certificate_for_another_host_is_refused_by_ranks(
    launch: Launcher, free_port: int, authorities: Authorities
) -> None:
    process = launch(tls_cert=authorities.elsewhere / "api.pem", tls_key=authorities.elsewhere / "api.key")
    assert read_line(process) == "ready"
    said = problem(f"https://127.0.0.1:{free_port}", authorities.good / "ca.pem")
    assert "certificate is not valid for '127.0.0.1'" in said
    assert "The controller's certificate must name the host of the URL" in said


def test_a_url_with_the_other_scheme_is_explained(
    controller: forks.Process, free_port: int, authorities: Authorities
) -> None:
    assert "If the controller has --tls-cert, the URL must begin with https://." in problem(
        f"http://127.0.0.1:{free_port}"
    )


def test_https_to_a_controller_without_a_certificate_is_explained(
    token_file: Path, free_port: int, authorities: Authorities
) -> None:
    plain = CommandLine({"no-switch": True, "listen": f"127.0.0.1:{free_port}", "token-file": token_file})
    with contextlib.closing(Launcher(plain)) as launch:
        assert read_line(launch()) == "ready"
        said = problem(f"https://127.0.0.1:{free_port}", authorities.good / "ca.pem")
    assert "The controller speaks HTTP there: the URL must begin with http://." in said


def test_connections_that_never_shake_hands_are_within_the_limits(
    launch: Launcher, free_port: int, authorities: Authorities
) -> None:
    assert read_line(launch(connections_per_host=20)) == "ready"
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", free_port), 10, source_address=("127.0.0.2", 0))
            )
            for _ in range(30)
        ]
        refused = [connection for connection in silent[20:] if _ended(connection)]
        assert len(refused) == 10
        with client(free_port, authorities) as other:
            assert other.health().jobs == 0
    with client(free_port, authorities) as same:
        wait_until(lambda: _connections(same, free_port, authorities) <= 2, "the silent connections are gone")


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _connections(operator: ControlClient, port: int, authorities: Authorities) -> int:
    """The open connections, as /metrics counts them."""
    context = ssl.create_default_context(cafile=authorities.good / "ca.pem")
    one = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    with contextlib.closing(one):
        one.request("GET", "/metrics", headers={"Authorization": f"Bearer {OPERATORS_TOKEN}"})
        text = one.getresponse().read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith("inagg_api_connections "))
    return int(float(line.split()[1]))


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[int]:
    """The port of a TLS server with the folder's certificate of the API, which the controller would not take."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "api.pem", folder / "api.key")
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls_key": None}, "HTTPS needs both --tls-cert and --tls-key"),
        ({"tls_cert": "expired"}, "expired at "),
        ({"tls_cert": "stranger"}, "are not a certificate and its key in PEM form"),
        ({"tls_cert": "/nowhere.pem"}, "cannot read /nowhere.pem: No such file or directory"),
        ({"tls_key": "/nowhere.key"}, "cannot read /nowhere.key: No such file or directory"),
    ],
)
def test_a_certificate_that_cannot_serve_ends_the_controller_with_one_line(
    authorities: Authorities, token_file: Path, given: dict[str, str | None], message: str
) -> None:
    files: dict[str, Path | None] = {
        "tls_cert": authorities.good / "api.pem",
        "tls_key": authorities.good / "api.key",
    }
    for option, value in given.items():
        folder = getattr(authorities, value, None) if value else None
        files[option] = folder / "api.pem" if folder else Path(value) if value else None
    if given.get("tls_cert") == "expired":
        files["tls_key"] = authorities.expired / "api.key"
    words = [
        word for name, path in files.items() if path for word in (f"--{name.replace('_', '-')}", str(path))
    ]
    result = CliRunner().invoke(app, ["--no-switch", "--token-file", str(token_file), *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file or directory"), ("no certificate", "no certificate in PEM form")],
)
def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"controller_ca {path}: {message}"):
        ControlClient("https://127.0.0.1:1", authority=path)
