# SPDX-License-Identifier: Apache-2.0
"""The aggregation server that a rank's process runs for its own job (docs/protocol.md, 5.6)."""

import contextlib
import logging
import socket
import time
from typing import Self

from inagg._core import Server
from inagg.errors import ConfigurationError, InaggError
from inagg.membership.control import ControlClient
from inagg_contract.documents import JobStatus
from inagg_contract.sizes import server_memory

_log = logging.getLogger(__name__)

# The largest job that the process may be given to serve.
_MOST_SLOTS, _MOST_WORDS = 1 << 16, 255
# How long ranks that have left still serve those that have not: they may lack their last results. Later, their leaving
# is a failure for those anyway (heartbeat.py).
_LINGER_S = 3.0
_FIRST_PAUSE_S = 0.05


class OwnServer:
    """A server for one job, at a free UDP port of an address of this host.

    Raises:
        ConfigurationError: this host does not have the address.
    """

    def __init__(self, address: str) -> None:
        udp = bind(address)
        self.udp_port: int = udp.getsockname()[1]
        self._chunks: dict[str, int] | None = None
        self._server = Server(socket_fd=udp.detach(), memory=server_memory(_MOST_SLOTS, 1, _MOST_WORDS))

    def serve(self, job: JobStatus, index: int) -> None:
        """Admit the packets of a job that all ranks have registered in. index: of this server among the job's."""
        self._server.serve(
            job=job.id,
            epoch=job.epoch,
            slots=job.slots,
            words=job.words,
            workers=[(member.ip, member.udp_port) for member in job.members],
            servers=len(job.servers),
            index=index,
            relay=None if job.relay is None else (job.relay.ip, job.relay.udp_port),
        )

    def chunks(self) -> dict[str, int] | None:
        """How many chunks this server has completed, by where they were summed; None if it has served no job."""
        # After it has been closed, and in a child process, they stay as they were.
        with contextlib.suppress(RuntimeError):
            self._chunks = next(iter(self._server.stats()["chunks"].values()), None)
        return self._chunks

    def linger(self, client: ControlClient, job: int) -> None:
        """Go on while the job runs for ranks that have not left it, for some seconds at most."""
        end, pause = time.monotonic() + _LINGER_S, _FIRST_PAUSE_S
        try:
            while client.status(job).state == "running" and time.monotonic() < end:
                time.sleep(pause)
                pause *= 1.5
        except InaggError as error:
            _log.debug("job %d: cannot see whether other ranks still need this server: %s", job, error)

    def close(self) -> None:
        """Stop serving."""
        self.chunks()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bind(address: str) -> socket.socket:
    """A UDP socket at any free port of `address`. Raises ConfigurationError if this host does not have it."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.bind((address, 0))
    except OSError as error:
        udp.close()
        raise ConfigurationError(f"{address} is not an address of this host: {error.strerror}") from error
    return udp
