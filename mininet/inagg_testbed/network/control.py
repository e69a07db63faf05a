# SPDX-License-Identifier: Apache-2.0
"""The commands' client of a controller. That of a testbed listens inside the namespace of the topmost switch or bridge.

There each request runs in a thread that joins that namespace and ends after the request: setns(2) moves only the
calling thread, so the launcher's other threads stay in theirs.
"""

import ctypes
import http.client
import json
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from inagg_contract.documents import (
    DEFAULT_PORT,
    Counters,
    Health,
    JobList,
    JobStatus,
    Loss,
    LossList,
    Overview,
    read,
)
from inagg_testbed.errors import (
    ConfigurationError,
    ControllerRefusedError,
    ControllerUnreachableError,
    NetworkError,
)
from inagg_testbed.network.fabric import Fabric, SwitchPort
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.topology import CONTROL_ADDRESS, MANAGEMENT_ADDRESS, Network

CONTROLLER_URL = f"http://{CONTROL_ADDRESS}:{DEFAULT_PORT}"
_MANAGEMENT_URL = f"http://{MANAGEMENT_ADDRESS}:{DEFAULT_PORT}"
_CLONE_NEWNET = 0x40000000
_TIMEOUT_S = 10.0
_OF_TESTBED = "its log is controller.log"  # what to do when the controller does not answer

T = TypeVar("T")
Direction = Literal["ingress", "egress"]
Traffic = Literal["aggregation", "other", "all"]


def controller_url(network: Network) -> str:
    """Where hosts reach the controller."""
    return _MANAGEMENT_URL if network.management else CONTROLLER_URL


def call_in_network_namespace(pid: int, function: Callable[[], T]) -> T:
    """Run `function` in a thread that has joined the network namespace of process `pid`; return or raise as it does."""
    outcome: list[T] = []
    failure: list[Exception] = []

    def work() -> None:
        try:
            enter_network_namespace(pid)
            outcome.append(function())
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=work, name=f"in namespace of {pid}")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def enter_network_namespace(pid: int) -> None:
    """Move the calling thread, and everything it starts later, to the network namespace of process `pid`.

    Raises NetworkError.
    """
    library = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkError(f"cannot enter the namespace of process {pid}: {error.strerror}") from error
    try:
        if library.setns(descriptor, _CLONE_NEWNET) != 0:
            raise NetworkError(
                f"cannot enter the namespace of process {pid}: {os.strerror(ctypes.get_errno())}"
            )
    finally:
        os.close(descriptor)


class ControllerClient:
    """Makes requests to a controller (docs/controller-api.md) as its operator.

    token_file: the file in which the controller keeps the operator's token. pid: of a process in the controller's
    network namespace; None: it is reached from here. authority: the file with the certificate of the authority that
    signed the controller's, for an https URL; by default, the system's authorities. All methods raise
    ControllerRefusedError and ControllerUnreachableError.
    """

    def __init__(
        self,
        token_file: Path,
        *,
        url: str = CONTROLLER_URL,
        pid: int | None = None,
        authority: Path | None = None,
    ) -> None:
        self.token_file = token_file
        self.url = url.rstrip("/")
        self.pid = pid
        self._authority = authority
        self._hint = "is inagg-controller running there?" if pid is None else _OF_TESTBED

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Make one request; return the decoded answer, None for an empty one.

        Raises ControllerRefusedError for an HTTP error, ControllerUnreachableError when the controller does not answer
        or the token cannot be read.
        """
        token = self.token

        def ask() -> Any:
            return _request(method, self.url + path, body, token, self._hint, self._authority)

        return ask() if self.pid is None else call_in_network_namespace(self.pid, ask)

    @property
    def token(self) -> str:
        """The operator's token. Raises ControllerUnreachableError."""
        return _token(self.token_file)

    def _get(self, kind: type[T], path: str) -> T:
        document = self.request("GET", path)
        try:
            return read(kind, document)
        except ValueError as error:
            raise ControllerRefusedError(
                f"GET {path}: not the answer of an inagg controller: {error}"
            ) from error

    def health(self) -> Health:
        """GET /health."""
        return self._get(Health, "/health")

    def overview(self) -> Overview:
        """GET /overview: everything of the last second."""
        return self._get(Overview, "/overview")

    def jobs(self) -> list[JobStatus]:
        """GET /jobs: jobs that are active and jobs that ended recently."""
        return self._get(JobList, "/jobs").jobs

    def job(self, number: int) -> JobStatus:
        """GET /jobs/{id}: with its counters while the switch is connected."""
        return self._get(JobStatus, f"/jobs/{number}")

    def counters(self) -> Counters:
        """GET /counters: switch -> counter name -> port -> packets, bytes."""
        return self._get(Counters, "/counters")

    def loss(self) -> list[Loss]:
        """GET /loss: the injected loss."""
        return self._get(LossList, "/loss").loss

    def set_loss(
        self, at: SwitchPort, direction: Direction, probability: float, traffic: Traffic = "all"
    ) -> None:
        """Drop packets of a port and direction with a probability."""
        loss = Loss.model_construct(
            switch=at.switch, port=at.port, direction=direction, probability=probability, traffic=traffic
        )
        self.request("PUT", "/loss", loss.model_dump())

    def clear_loss(self) -> None:
        """DELETE /loss: remove all injected loss."""
        self.request("DELETE", "/loss")


def token_path(results: Path) -> Path:
    """The file in which the controller of a run keeps the operator's token."""
    return results / "controller.token"


def has_controller(manifest: Manifest) -> bool:
    """Whether a testbed was brought up with a controller."""
    return bool(manifest.settings.get("controlled", True))


def controller_of(manifest: Manifest) -> ControllerClient:
    """The client of the controller of a testbed that another process keeps up.

    Raises ConfigurationError when the testbed has no controller.
    """
    if not has_controller(manifest):
        raise ConfigurationError(
            f"run {manifest.run} has no controller; `inagg counters` and `inagg registers` need none"
        )
    node = Fabric.from_settings(manifest.settings).control_switch
    token_file = token_path(Path(manifest.settings["results"]))
    return ControllerClient(token_file, pid=manifest.namespace(node).pid)


def switch_controller_of(manifest: Manifest) -> ControllerClient:
    """The same, for what only a controller of switches can do: injected loss, jobs in slots.

    Raises ConfigurationError when the testbed has bridges for switches, or no controller.
    """
    if manifest.settings.get("switch") == "bridge":
        raise ConfigurationError(
            f"run {manifest.run} has bridges for switches, which neither count nor drop packets for inagg"
        )
    return controller_of(manifest)


def _token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ControllerUnreachableError(
            f"the operator's token of the controller cannot be read: {path}: {error.strerror}; the controller makes "
            "this file, on its own host"
        ) from error


def _request(
    method: str, url: str, body: Any, token: str, hint: str = _OF_TESTBED, authority: Path | None = None
) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=authority))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise ControllerRefusedError(f"{method} {url}: {_explain(error.read())}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ControllerUnreachableError(
            f"{method} {url}: the controller does not answer ({reason}); {hint}"
        ) from error
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise ControllerRefusedError(
            f"{method} {url}: not the answer of an inagg controller: {error}"
        ) from error


def _explain(body: bytes) -> str:
    """The detail of a problem document (RFC 9457), or the body as it is."""
    try:
        document = json.loads(body)
        return f"{document['title']}: {document['detail']}"
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
