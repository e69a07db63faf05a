# SPDX-License-Identifier: Apache-2.0
"""The launcher's requests to the controller: injected loss ends with its block, also if the controller is gone."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.errors import ControllerRefusedError, ControllerUnreachableError
from inagg_testbed.network.control import _request
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.testbed import Testbed


class Controller:
    """A client that records losses. It can fail to clear them."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.stuck = stuck
        self.calls: list[str] = []

    def set_loss(self, port: SwitchPort, direction: str, probability: float, traffic: str) -> None:
        self.calls.append(f"{port} {direction} {probability:g} {traffic}")

    def clear_loss(self) -> None:
        if self.stuck:
            raise ControllerUnreachableError("stuck")
        self.calls.append("clear")


class OneHost:
    """The part of a network that injected loss uses."""

    fabric = Fabric.star(1)


def controlled_by(controller: Controller) -> Testbed:
    stand_ins: Any = (None, OneHost(), Path(), "model", None, None)
    testbed = Testbed(*stand_ins)
    testbed.controller = controller  # type: ignore[assignment]
    return testbed


def fail_under(testbed: Testbed, loss: float) -> None:
    with testbed.loss(loss):
        raise ZeroDivisionError


def test_loss_lasts_for_its_block() -> None:
    controller = Controller()
    with controlled_by(controller).loss(0.25, "aggregation"):
        assert controller.calls == ["s1:1 ingress 0.25 aggregation", "s1:1 egress 0.25 aggregation"]
    assert controller.calls[2:] == ["clear"]


def test_loss_is_cleared_after_an_error() -> None:
    controller = Controller()
    with pytest.raises(ZeroDivisionError):
        fail_under(controlled_by(controller), 0.25)
    assert controller.calls[2:] == ["clear"]


def test_an_error_in_clearing_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_under(controlled_by(Controller(stuck=True)), 0.25)
    assert "injected loss remains: stuck" in caplog.text


def test_without_loss_the_controller_is_not_asked() -> None:
    controller = Controller()
    testbed = controlled_by(controller)
    with testbed.loss(0.0):
        pass
    testbed.clear_loss()
    assert controller.calls == []


def test_a_controller_that_is_gone_is_an_error_of_ours() -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/loss"
        with pytest.raises(ControllerUnreachableError, match=rf"DELETE {url}: .*refused.*controller\.log"):
            _request("DELETE", url, None, "token")


class Page(BaseHTTPRequestHandler):
    """A web server that has a page at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>Welcome</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_web_server_that_is_no_controller_is_named() -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{server.server_port}/health"
        with pytest.raises(
            ControllerRefusedError, match=rf"^GET {url}: not the answer of an inagg controller"
        ):
            _request("GET", url, None, "token")
        answering.join()
