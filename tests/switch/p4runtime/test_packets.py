# SPDX-License-Identifier: Apache-2.0
"""Packet-in and packet-out with plain P4Runtime and with p4runtime-shell, unencrypted and with TLS."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import p4runtime_sh.shell as sh
import pytest
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import SSLOptions

from inagg_switch import Switch
from inagg_switch.p4runtime import controllers as p4runtime_controllers
from inagg_switch.p4runtime.errors import Code
from inagg_switch.p4runtime.server import ServerError, SwitchServer, Tls
from inagg_switch.p4runtime.service import P4RuntimeService
from inagg_switch.ports import PortOptions, Ports
from tests.switch.p4runtime.client import Connect, Controller
from tests.waiting import wait_until

PACKETS_P4 = Path(__file__).parent / "packets.p4"
CPU_PORT = 510


@pytest.fixture(scope="module")
def program() -> Switch:
    return Switch.from_p4(PACKETS_P4)


@pytest.fixture
def ports() -> Ports:
    return Ports([], PortOptions(cpu_port=CPU_PORT))


@pytest.fixture
def served(ports: Ports, tmp_path: Path) -> Iterator[str]:
    """The address of a switch without interfaces whose CPU port is 510."""
    address = f"unix:{tmp_path}/switch.sock"
    server = SwitchServer(ports, device_id=1, address=address)
    server.start()
    yield address
    server.stop()


@pytest.fixture
def controller(served: str, connect: Connect, program: Switch) -> Controller:
    made = connect(served)
    made.arbitrate()
    assert made.next().arbitration.status.code == Code.OK
    made.configure(program)
    return made


def packet_out(payload: bytes, **metadata: bytes) -> p4runtime_pb2.StreamMessageRequest:
    """`metadata` is by field id: id1, id2."""
    message = p4runtime_pb2.StreamMessageRequest()
    message.packet.payload = payload
    for name, value in metadata.items():
        message.packet.metadata.add(metadata_id=int(name[2:]), value=value)
    return message


def fields(message: p4runtime_pb2.PacketIn) -> list[tuple[int, bytes]]:
    return [(m.metadata_id, m.value) for m in message.metadata]


def test_a_packet_in_that_fails_is_logged_and_does_not_end_the_others(
    controller: Controller, ports: Ports, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = P4RuntimeService.packet_in

    def packet_in(service: P4RuntimeService, frame: bytes) -> None:
        if frame.endswith(b"first"):
            raise ValueError("broken")
        whole(service, frame)

    monkeypatch.setattr(P4RuntimeService, "packet_in", packet_in)
    ports.inject(300, b"the first")
    ports.inject(300, b"the second")
    assert controller.next().packet.payload == b"the second"
    assert "packet-in of" in caplog.text
    assert "ValueError: broken" in caplog.text


def test_a_packet_to_the_cpu_port_is_a_packet_in_with_its_metadata(
    controller: Controller, ports: Ports
) -> None:
    ports.inject(300, b"from a host")
    message = controller.next().packet
    assert message.payload == b"from a host"
    assert fields(message) == [(1, b"\x01\x2c"), (2, b"\x05"), (3, b"\x00")]


def test_a_packet_out_runs_through_the_program(controller: Controller) -> None:
    # To the CPU port, so that it comes back: the first two bytes are then read as packet_in's header.
    controller.send(packet_out(b"\x00\x96\x41payload", id1=b"\x01\xfe", id2=b"\x00"))
    message = controller.next().packet
    assert message.payload == b"\x41payload"
    assert fields(message) == [(1, b"\x01"), (2, b"\x01"), (3, b"\x06")]


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"id1": b"\x01"}, Code.INVALID_ARGUMENT),
        ({"id1": b"\x01", "id2": b"\x00", "id3": b"\x00"}, Code.INVALID_ARGUMENT),
        ({"id1": b"\x02\x00", "id2": b"\x00"}, Code.INVALID_ARGUMENT),
        ({"id1": b"", "id2": b"\x00"}, Code.INVALID_ARGUMENT),
    ],
)
def test_a_packet_out_with_other_metadata_is_dropped_with_the_reason(
    controller: Controller, ports: Ports, metadata: dict[str, bytes], code: Code
) -> None:
    message = packet_out(b"x", **metadata)
    controller.send(message)
    error = controller.next().error
    assert error.canonical_code == code
    assert error.packet_out.packet_out == message.packet
    ports.inject(1, b"next")  # the refused packet-out left no packet
    assert controller.next().packet.payload == b"next"


def test_packets_that_a_controller_does_not_read_are_dropped(
    controller: Controller,
    ports: Ports,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(p4runtime_controllers, "MAX_QUEUED_MESSAGES", 0)
    ports.inject(300, b"lost")
    ports.inject(300, b"lost too")
    controller.send(packet_out(b"", id1=b""))  # refused; there is no room for the error either
    controller.arbitrate()
    assert controller.next().arbitration.status.code == Code.OK

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if "does not read its stream" in record.msg]

    wait_until(lambda: len(levels()) == 3, "all three to be dropped")
    assert levels() == ["WARNING", "DEBUG", "DEBUG"]
    monkeypatch.undo()
    ports.inject(300, b"not lost")
    assert controller.next().packet.payload == b"not lost"


def test_at_most_1000_packets_wait_for_the_switch(ports: Ports) -> None:
    # The ports are not started, so nothing takes the packets.
    assert [ports.inject(300, b"x") for _ in range(1001)] == [True] * 1000 + [False]


def test_a_packet_out_that_finds_no_room_comes_back(
    controller: Controller, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "inject", lambda *_: False)
    controller.send(packet_out(b"x", id1=b"\x01", id2=b"\x00"))
    assert controller.next().error.canonical_code == Code.RESOURCE_EXHAUSTED


def test_only_primaries_send_and_receive_packets(
    controller: Controller, served: str, connect: Connect, ports: Ports
) -> None:
    backup, operator = connect(served, None), connect(served, 7)
    backup.arbitrate()
    operator.arbitrate(role="operator")
    assert backup.next().arbitration.status.code == Code.ALREADY_EXISTS
    assert operator.next().arbitration.status.code == Code.OK
    backup.send(packet_out(b"x", id1=b"\x01", id2=b"\x00"))
    assert backup.next().error.canonical_code == Code.PERMISSION_DENIED
    ports.inject(1, b"for primaries")
    assert controller.next().packet.payload == operator.next().packet.payload == b"for primaries"
    assert backup.received.empty()


def test_a_cpu_port_must_be_a_port_without_an_interface() -> None:
    from inagg_switch.ports import PortError

    for number in (0, 511):
        with pytest.raises(PortError, match=f"CPU port {number}"):
            Ports([], PortOptions(cpu_port=number))


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and server and client certificates that it has signed; other.pem, which signs itself."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("req", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1")
    for name in ("ca", "other"):
        openssl(*new, "-x509", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(*new[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "1", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return folder


@pytest.fixture
def tls_server(ports: Ports, certificates: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a switch with TLS. Parameter: clients need a certificate."""
    tls = Tls(certificate=certificates / "server.pem", key=certificates / "server.key",
              client_ca=certificates / "ca.pem" if request.param else None)  # fmt: skip
    server = SwitchServer(ports, device_id=1, address="127.0.0.1:0", tls=tls)
    server.load(Switch.from_p4(PACKETS_P4))  # the shell asks for the P4Info
    server.start()
    yield f"localhost:{server.port}"
    server.stop()


def shell(address: str, folder: Path, client: str | None, ca: str = "ca") -> str:
    """The API version, asked with p4runtime-shell."""
    keys = (str(folder / f"{client}.pem"), str(folder / f"{client}.key")) if client else (None, None)
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), verbose=False,
             ssl_options=SSLOptions(False, str(folder / f"{ca}.pem"), *keys))  # fmt: skip
    try:
        version: str = sh.APIVersion()
        return version
    finally:
        sh.teardown()


@pytest.mark.parametrize("tls_server", [False], indirect=True)
def test_the_shell_connects_with_tls(tls_server: str, certificates: Path) -> None:
    assert shell(tls_server, certificates, None) == "1.4.1"
    with grpc.insecure_channel(tls_server) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(1)


@pytest.mark.parametrize("tls_server", [True], indirect=True)
def test_mutual_tls_admits_only_clients_of_the_authority(tls_server: str, certificates: Path) -> None:
    assert shell(tls_server, certificates, "client") == "1.4.1"
    for keys in (None, "other"):
        names = ("key", "pem")
        private, chain = (
            (certificates / f"{keys}.{n}").read_bytes() if keys is not None else None for n in names
        )
        credentials = grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes(), private, chain)
        with grpc.secure_channel(tls_server, credentials) as channel:
            stub = channel.unary_unary("/p4.v1.P4Runtime/Capabilities")
            with pytest.raises(grpc.RpcError) as caught:
                stub(b"", timeout=5)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("certificate", "key", "client_ca", "message"),
    [
        ("server.pem", "other.key", None, "other.key are not a certificate and its key"),
        ("names", "server.key", None, "names and .* are not a certificate"),
        ("server.pem", "server.key", "names", "names has no certificate"),
    ],
)
def test_files_that_are_not_certificates_are_errors(
    ports: Ports, certificates: Path, certificate: str, key: str, client_ca: str | None, message: str
) -> None:
    tls = Tls(
        certificate=certificates / certificate,
        key=certificates / key,
        client_ca=certificates / client_ca if client_ca else None,
    )
    with pytest.raises(ServerError, match=message):
        SwitchServer(ports, device_id=1, address="127.0.0.1:0", tls=tls)


def test_a_missing_certificate_is_an_error(ports: Ports, tmp_path: Path) -> None:
    tls = Tls(certificate=tmp_path / "nothere.pem", key=tmp_path / "nothere.key")
    with pytest.raises(ServerError, match=r"nothere.key: No such file"):
        SwitchServer(ports, device_id=1, address="127.0.0.1:0", tls=tls)


# --- the shell


def test_the_shell_sends_and_sniffs_packets(
    served: str, ports: Ports, program: Switch, tmp_path: Path
) -> None:
    (tmp_path / "p4info.txtpb").write_text(text_format.MessageToString(program.p4info))
    (tmp_path / "program.p4").write_text(program.source)
    config = sh.FwdPipeConfig(str(tmp_path / "p4info.txtpb"), str(tmp_path / "program.p4"))
    sh.setup(device_id=1, grpc_addr=served, election_id=(0, 1), config=config, verbose=False)
    try:
        packets = sh.PacketIn()
        sh.PacketOut(b"\x00\x96\x41payload", egress_port="510", unused="0").send()
        (message,) = packets.sniff(timeout=1)
        assert message.packet.payload == b"\x41payload"
    finally:
        sh.teardown()
