# SPDX-License-Identifier: Apache-2.0
"""The gateway to a testbed's controller: it passes on what the live page reads, and nothing else."""

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from inagg_testbed.network.gateway import Gateway
from tests.waiting import wait_until

pytestmark = pytest.mark.netns


@dataclass
class Behind:
    """A server behind a gateway. requests: its (method, path, token). over: ends what never ends, at /events."""

    gateway: Gateway
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        found = urlsplit(self.gateway.url).port
        assert found is not None
        return found

    def status(self, method: str, path: str, **headers: str) -> int:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        client.request(method, path, headers=headers)
        answer = client.getresponse()
        answer.read()
        client.close()
        return answer.status


@contextmanager
def server_behind_a_gateway() -> Iterator[Behind]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            behind.requests.append((self.command, self.path, self.headers["Authorization"]))
            self.send_response(200)
            if self.path == "/events":
                self.end_headers()
                behind.over.wait(60)
                return
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    behind = Behind(Gateway(f"http://127.0.0.1:{server.server_address[1]}", os.getpid()))
    try:
        with behind.gateway:
            yield behind
    finally:
        behind.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_passes_on_what_the_page_reads() -> None:
    with server_behind_a_gateway() as behind:
        for path in ("/live", "/live/page.js", "/overview?x=1"):
            assert behind.status("GET", path, Authorization="Bearer secret") == 200
        assert behind.status("GET", "/live", Host=f"localhost:{behind.port}") == 200
    assert behind.requests == [
        ("GET", "/live", "Bearer secret"),
        ("GET", "/live/page.js", "Bearer secret"),
        ("GET", "/overview?x=1", "Bearer secret"),
        ("GET", "/live", None),
    ]


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/jobs", {}),
        ("DELETE", "/jobs/1", {}),
        ("POST", "/live", {}),
        ("GET", "/jobs", {}),
        ("GET", "/lives", {}),
        ("GET", "/overview", {"Host": "pages.example"}),  # a page whose domain resolves to 127.0.0.1
    ],
)
def test_it_refuses_everything_else(method: str, path: str, headers: dict[str, str]) -> None:
    with server_behind_a_gateway() as behind:
        assert behind.status(method, path, **headers) == 403
    assert behind.requests == []


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n"])
def test_a_second_request_of_a_connection_is_dropped(end: bytes) -> None:
    with server_behind_a_gateway() as behind:
        host = f"Host: 127.0.0.1:{behind.port}".encode()
        first = b"GET /live HTTP/1.1\r\n" + host + b"\r\nConnection: keep-alive" + end
        with socket.create_connection(("127.0.0.1", behind.port), timeout=10) as client:
            client.sendall(first + b"POST /jobs HTTP/1.1\r\n" + host + b"\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.count(b"HTTP/1.1") == 1
    assert behind.requests == [("GET", "/live", None)]


def test_it_ends_with_pages_open() -> None:
    with server_behind_a_gateway() as behind:
        client = http.client.HTTPConnection("127.0.0.1", behind.port, timeout=10)
        client.request("GET", "/events")
        stream = client.getresponse()
        behind.gateway.__exit__(None, None, None)
        assert not behind.gateway._thread.is_alive()
        assert stream.read() == b""
        client.close()


def test_it_tells_that_it_cannot_accept_connections() -> None:
    gateway = Gateway("http://127.0.0.1:9", os.getpid())
    gateway._listener.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        gateway.__enter__()
    wait_until(lambda: not gateway._thread.is_alive(), "its thread ends")


def test_it_tells_that_the_controller_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Gateway(f"http://127.0.0.1:{port}", os.getpid()) as gateway:
        assert Behind(gateway).status("GET", "/live") == 502
