# SPDX-License-Identifier: Apache-2.0
"""The controller behind a proxy that terminates TLS, whose certificate an operator's own authority has signed."""

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg.errors import ControllerUnreachableError
from inagg.membership.control import ControlClient

HEALTH = json.dumps({
    "switch": "none", "switch_error": None, "words": 4, "slot_versions": 0, "free_slot_versions": 0,
    "shared_slots": 0, "aggregator": None, "jobs": 7, "switches": [], "links": [], "servers": [],
}).encode()  # fmt: skip


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(HEALTH)))
        self.end_headers()
        self.wfile.write(HEALTH)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that signs itself, so it is its own authority; its key is beside it."""
    path = tmp_path_factory.mktemp("tls") / "own.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-nodes",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
    ]
    request += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    request += ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run(request, check=True, capture_output=True, timeout=60)
    return path


@pytest.fixture
def url(certificate: Path) -> Iterator[str]:
    """The URL of an HTTPS server with that certificate."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_authority_in_ssl_cert_file_is_trusted(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with ControlClient(url) as client:
        assert client.health().jobs == 7


def test_an_unknown_authority_is_refused_with_what_to_do(url: str) -> None:
    with ControlClient(url, timeout_s=0.2) as client, pytest.raises(ControllerUnreachableError) as refused:
        client.health()
    assert "certificate verify failed" in str(refused.value)
    assert str(refused.value).endswith(
        "Set INAGG_CONTROLLER_CA to the certificate of the authority that signed it."
    )
