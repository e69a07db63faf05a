# SPDX-License-Identifier: Apache-2.0
"""P4Runtime with TLS between the controller and a switch, over real gRPC, and what each side refuses."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from inagg_controller.errors import ConfigurationError, SwitchRefusedError, SwitchUnreachableError
from inagg_controller.switch.client import P4RuntimeSwitch
from inagg_controller.switch.program import Program
from inagg_controller.tls import SwitchTls, switch_tls
from inagg_switch.p4runtime.server import SwitchServer, Tls
from inagg_switch.ports import Ports
from tests.controller.authorities import Authorities
from tests.controller.fake_server import FakeServer

StartSwitch = Callable[..., str]


@pytest.fixture
def switch() -> Iterator[StartSwitch]:
    """Starts a P4Runtime server of the switch with a folder's certificate; returns its address."""
    started: list[SwitchServer] = []

    def start(folder: Path, client_ca: Path | None) -> str:
        tls = Tls(certificate=folder / "switch-s1.pem", key=folder / "switch-s1.key", client_ca=client_ca)
        server = SwitchServer(Ports([]), device_id=1, address="127.0.0.1:0", tls=tls)
        server.start()
        started.append(server)
        return f"127.0.0.1:{server.port}"

    yield start
    for server in started:
        server.stop()


def of_controller(folder: Path, authority: Path | None = None) -> SwitchTls:
    """The controller's TLS with a folder's certificate; authority: of switches, by default the same folder's."""
    return SwitchTls(
        authority=authority or folder / "ca.pem",
        certificate=folder / "controller.pem",
        key=folder / "controller.key",
    )


def refusal(address: str, program: Program, tls: SwitchTls | None) -> str:
    with pytest.raises(SwitchRefusedError) as refused:
        P4RuntimeSwitch(address, 1, program, tls).connect(lambda _: None)
    return str(refused.value)


def test_controller_and_switch_know_each_other_by_their_certificates(
    switch: StartSwitch, program: Program, authorities: Authorities
) -> None:
    address = switch(authorities.good, authorities.good / "ca.pem")
    files = (authorities.good / name for name in ("ca.pem", "controller.key", "controller.pem"))
    assert _capabilities(address, *files) == grpc.StatusCode.OK
    # The program of the fixture is no P4: the switch refuses it, as nobody but a controller in charge can learn.
    said = refusal(address, program, of_controller(authorities.good))
    assert "answered INVALID_ARGUMENT" in said


def test_a_switch_whose_clients_need_no_certificate_is_known_by_its_own(
    switch: StartSwitch, program: Program, authorities: Authorities
) -> None:
    address = switch(authorities.good, None)
    said = refusal(address, program, SwitchTls(authority=authorities.good / "ca.pem"))
    assert "answered INVALID_ARGUMENT" in said


@pytest.mark.parametrize(
    ("folder", "authority", "message"),
    [
        ("expired", "good", "is not valid here: certificate has expired"),
        (
            "elsewhere",
            "good",
            "is not valid here: IP address mismatch, certificate is not valid for '127.0.0.1'",
        ),
        ("stranger", "good", "is not valid here: "),
        ("good", "stranger", "is not valid here: "),
    ],
)
def test_the_controller_refuses_the_certificate_of_a_switch(
    switch: StartSwitch, program: Program, authorities: Authorities, folder: str, authority: str, message: str
) -> None:
    address = switch(getattr(authorities, folder), None)
    trusted = getattr(authorities, authority) / "ca.pem"
    said = refusal(address, program, of_controller(authorities.good, trusted))
    assert f"the certificate of the switch at {address} {message}" in said
    assert said.endswith(f"(--p4runtime-ca {trusted})")


def test_the_switch_refuses_a_controller_without_a_certificate(
    switch: StartSwitch, program: Program, authorities: Authorities
) -> None:
    address = switch(authorities.good, authorities.good / "ca.pem")
    said = refusal(address, program, SwitchTls(authority=authorities.good / "ca.pem"))
    assert "refuses the controller's certificate (it was given no --p4runtime-cert)" in said


@pytest.mark.parametrize(
    ("folder", "name"),
    [("stranger", "controller"), ("good", "switch-s1"), ("good", "api")],
)
def test_the_switch_refuses_other_clients(
    switch: StartSwitch, program: Program, authorities: Authorities, folder: str, name: str
) -> None:
    address = switch(authorities.good, authorities.good / "ca.pem")
    path = getattr(authorities, folder)
    certificate = path / f"{name}.pem"
    tls = SwitchTls(authority=authorities.good / "ca.pem", certificate=certificate, key=path / f"{name}.key")
    said = refusal(address, program, tls)
    assert f"refuses the controller's certificate (--p4runtime-cert {certificate})" in said
    files = (authorities.good / "ca.pem", path / f"{name}.key", certificate)
    assert _capabilities(address, *files) == grpc.StatusCode.UNAVAILABLE


def test_neither_side_takes_a_certificate_of_the_controller_that_has_expired(
    switch: StartSwitch, program: Program, authorities: Authorities
) -> None:
    address = switch(authorities.good, authorities.good / "ca.pem")
    own = authorities.expired
    assert f"{own}/controller.pem expired at " in refusal(address, program, of_controller(own))
    files = (own / "ca.pem", own / "controller.key", own / "controller.pem")
    assert _capabilities(address, *files) == grpc.StatusCode.UNAVAILABLE


def _capabilities(address: str, *files: Path) -> grpc.StatusCode:
    """How gRPC itself ends a call with an authority, a key and a certificate: without the controller's checks."""
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    with grpc.secure_channel(address, credentials) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        try:
            stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=10)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_a_switch_that_expects_tls_is_named_as_such(
    switch: StartSwitch, program: Program, authorities: Authorities
) -> None:
    address = switch(authorities.good, authorities.good / "ca.pem")
    assert refusal(address, program, None) == (
        f"the switch at {address} expects TLS: give the controller --p4runtime-ca, --p4runtime-cert and --p4runtime-key"
    )


def test_a_switch_without_tls_is_named_as_such(
    fake_server: FakeServer, program: Program, authorities: Authorities
) -> None:
    said = refusal(fake_server.address, program, of_controller(authorities.good))
    assert said == f"the switch at {fake_server.address} does not speak TLS: leave out --p4runtime-ca"


def test_an_address_in_the_file_system_needs_no_tls(
    fake_server: FakeServer, program: Program, authorities: Authorities
) -> None:
    one = P4RuntimeSwitch(f"unix:{fake_server.path}", 1, program, of_controller(authorities.good))
    one.connect(lambda _: None)
    one.close()
    assert fake_server.servicer.pushes == 1


def test_certificates_are_read_again_for_each_connection(
    switch: StartSwitch, program: Program, authorities: Authorities, tmp_path: Path
) -> None:
    address = switch(authorities.good, authorities.good / "ca.pem")
    for name in ("ca.pem", "controller.pem", "controller.key"):
        (tmp_path / name).write_bytes((authorities.stranger / name).read_bytes())
    one = P4RuntimeSwitch(address, 1, program, of_controller(tmp_path))
    with pytest.raises(SwitchRefusedError, match="is not valid here"):
        one.connect(lambda _: None)
    for name in ("ca.pem", "controller.pem", "controller.key"):
        (tmp_path / name).write_bytes((authorities.good / name).read_bytes())
    with pytest.raises(SwitchRefusedError, match="answered INVALID_ARGUMENT"):
        one.connect(lambda _: None)
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(SwitchRefusedError, match=rf"cannot read {tmp_path}/ca\.pem"):
        one.connect(lambda _: None)


def test_nobody_there_is_no_matter_of_certificates(program: Program, authorities: Authorities) -> None:
    with pytest.raises(SwitchUnreachableError, match=r"no switch at 127\.0\.0\.1:1: Connection refused"):
        P4RuntimeSwitch("127.0.0.1:1", 1, program, of_controller(authorities.good)).connect(lambda _: None)


@pytest.fixture
def closing() -> Iterator[Callable[[bool], str]]:
    """Starts a server that closes connections when it is greeted, with a reset or not; returns its address."""
    with contextlib.ExitStack() as undo:

        def start(reset: bool) -> str:
            listener = undo.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                with contextlib.suppress(OSError):  # the listener was shut down
                    while True:
                        connection, _ = listener.accept()
                        connection.recv(1 << 16)
                        if reset:
                            connection.setsockopt(
                                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                            )
                        connection.close()

            thread = threading.Thread(target=serve)
            thread.start()
            undo.callback(thread.join)
            undo.callback(listener.shutdown, socket.SHUT_RDWR)
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield start


@pytest.mark.parametrize("reset", [False, True])
def test_a_switch_that_closes_connections_may_still_be_starting(
    closing: Callable[[bool], str], program: Program, authorities: Authorities, reset: bool
) -> None:
    address = closing(reset)
    with pytest.raises(
        SwitchUnreachableError, match=rf"{address} closes the connection before .* it is starting"
    ):
        P4RuntimeSwitch(address, 1, program, of_controller(authorities.good)).connect(lambda _: None)


@pytest.mark.parametrize(
    ("authority", "certificate", "key", "message"),
    [
        ("ca.pem", "controller.pem", None, "--p4runtime-cert and --p4runtime-key belong together"),
        ("ca.pem", None, "controller.key", "--p4runtime-cert and --p4runtime-key belong together"),
        (None, "controller.pem", "controller.key", "--p4runtime-cert needs --p4runtime-ca"),
        ("ca.pem", "controller.pem", "ca.key", "are not a certificate and its key in PEM form"),
        ("ca.key", "controller.pem", "controller.key", r"ca\.key has no certificate in PEM form"),
        ("none.pem", None, None, r"cannot read .*none\.pem: No such file or directory"),
    ],
)
def test_options_that_do_not_fit_are_named(
    authorities: Authorities, authority: str | None, certificate: str | None, key: str | None, message: str
) -> None:
    given = [None if name is None else authorities.good / name for name in (authority, certificate, key)]
    with pytest.raises(ConfigurationError, match=message):
        switch_tls(*given)
