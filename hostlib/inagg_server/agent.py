# SPDX-License-Identifier: Apache-2.0
"""Registers an aggregation server with the controller, and has it serve the jobs that the controller orders."""

import logging
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from inagg._core import JobShape, ServedPart, Server
from inagg.base_errors import ControllerError, ControllerRefusedError, InaggError
from inagg.membership.control import ControlClient
from inagg_contract.documents import ServedJob, ServerRegistration

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5  # after a heartbeat without an answer
_GOODBYE_S = 2.0
_UNKNOWN = 404
# What the controller answers when it would always answer so: the token, the name, or the request is wrong.
_FINAL = frozenset({401, 403, 409, 422})

_Id = tuple[int, int]  # job, epoch


@dataclass
class ServerAgent:
    """One server's standing with the controller.

    name: its own among all servers. memory: bytes that it gives to jobs.
    """

    client: ControlClient
    server: Server
    name: str
    memory: int
    _serving: dict[_Id, ServedJob] = field(default_factory=dict)
    _refused: dict[_Id, str] = field(default_factory=dict)
    _ended: dict[_Id, dict[str, int]] = field(default_factory=dict)  # chunks, for the next heartbeat

    def run(self, stopping: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stopping` is set. on_ready: called when the server is registered.

        Raises InaggError if it cannot register at first, if the controller refuses it, or if the server fails: its jobs
        end with the reason.
        """
        registration = self._register()
        on_ready()
        try:
            while not stopping.is_set():
                registration = self._beat(registration, stopping)
        except RuntimeError as error:
            if self.server.failure is None:
                raise
            raise self._give_up(registration) from error
        if self.server.failure is not None:
            raise self._give_up(registration)
        self._leave(registration)

    def _beat(self, registration: ServerRegistration, stopping: threading.Event) -> ServerRegistration:
        """Send one heartbeat, and act on the answer or its lack. Returns the registration from then on."""
        try:
            self._obey(registration)
        except ControllerError as error:
            if _is(error, _FINAL):
                raise
            if _is(error, {_UNKNOWN}):
                _log.warning("the controller does not know this server any more, so its jobs have ended")
                self._drop_all()
                return self._register_again(stopping) or registration
            _log.warning("no answer to a heartbeat: %s", error)
            stopping.wait(_PAUSE_S)
        return registration

    def _leave(self, registration: ServerRegistration) -> None:
        try:
            self.client.remove_server(self.name, registration.instance, timeout_s=_GOODBYE_S)
        except InaggError as error:
            _log.warning("could not tell the controller that this server stops: %s", error)

    def _give_up(self, registration: ServerRegistration) -> InaggError:
        """End the jobs of a server whose thread has ended, and leave. Returns the error to raise."""
        reason = f"its thread has ended: {self.server.failure}"
        try:
            self.client.server_beat(
                self.name,
                registration.instance,
                (),
                self._refused | dict.fromkeys(self._serving, reason),
                self._ended,
                timeout_s=_GOODBYE_S,
            )
        except InaggError as error:
            _log.warning("could not tell the controller why this server ends: %s", error)
        self._leave(registration)
        return InaggError(f"the server cannot go on: {reason}")

    def _register(self) -> ServerRegistration:
        ip, udp_port = self.server.local_address
        registration = self.client.register_server(self.name, ip, udp_port, self.memory)
        _log.info("registered as %s, at %s:%d, with %d bytes for jobs", self.name, ip, udp_port, self.memory)
        return registration

    def _register_again(self, stopping: threading.Event) -> ServerRegistration | None:
        """Register until it succeeds; None if `stopping` is set before, or the server fails."""
        while not stopping.is_set() and self.server.failure is None:
            try:
                return self._register()
            except ControllerError as error:
                if _is(error, _FINAL):
                    raise
                _log.warning("cannot register: %s", error)
                stopping.wait(_PAUSE_S)
        return None

    def _obey(self, registration: ServerRegistration) -> None:
        """Send one heartbeat, and do what its answer orders."""
        # The controller holds the answer back for an interval if nothing is to be done.
        stats = self.server.stats()
        chunks = stats["chunks"]
        orders = self.client.server_beat(
            self.name,
            registration.instance,
            list(self._serving),
            self._refused,
            self._ended | {one: chunks[one[0]] for one in self._serving},
            stats["unknown"],
            timeout_s=registration.heartbeat_interval_s + registration.heartbeat_timeout_s,
        )
        self._ended.clear()
        ordered = {(job.id, job.epoch): job for job in orders.jobs}
        self._refused = {one: reason for one, reason in self._refused.items() if one in ordered}
        for one in self._serving.keys() - ordered.keys():
            self._drop(one)
        for one in ordered.keys() - self._serving.keys() - self._refused.keys():
            self._serve(one, ordered[one])

    def _serve(self, one: _Id, job: ServedJob) -> None:
        try:
            self.server.serve(
                JobShape(
                    number=job.id,
                    epoch=job.epoch,
                    first_chunk=job.first_chunk,
                    slots=job.slots,
                    words=job.words,
                    workers=len(job.workers),
                ),
                [
                    ServedPart(
                        {worker.rank: (worker.ip, worker.udp_port) for worker in job.workers},
                        index=job.index,
                        relay=None if job.relay is None else (job.relay.ip, job.relay.udp_port),
                    )
                ],
                servers=job.servers,
            )
        except (ValueError, MemoryError) as error:
            _log.error("job %d: refused: %s", job.id, error)
            self._refused[one] = str(error) or "it has no memory left"
            return
        except RuntimeError as error:
            self._refused[one] = str(error)
            raise
        self._serving[one] = job
        _log.info(
            "job %d: serving %d workers, as server %d of %d", job.id, len(job.workers), job.index, job.servers
        )

    def _drop(self, one: _Id) -> None:
        stats = self.server.stats()
        counts, self._ended[one] = stats["jobs"][one[0]], stats["chunks"][one[0]]
        self.server.drop(*one)
        del self._serving[one]
        _log.info("job %d: ended; packets: %s", one[0], {name: n for name, n in counts.items() if n})

    def _drop_all(self) -> None:
        for one in list(self._serving):
            self._drop(one)
        self._refused.clear()
        self._ended.clear()


def _is(error: ControllerError, statuses: Container[int]) -> bool:
    """Whether the controller has answered with one of these HTTP statuses."""
    return isinstance(error, ControllerRefusedError) and error.status in statuses
