# SPDX-License-Identifier: Apache-2.0
"""Tells what the job table has decided: to the log, to the driver of effects, and to requests that wait."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from inagg_controller.jobs.table import JobTable
from inagg_controller.state_file import StateFile

_log = logging.getLogger(__name__)


class Publisher:
    """Everything that changes the job table publishes it. work: set when there are effects. stopping: nothing waits.

    state: keeps what has changed, before anybody learns of it.
    """

    def __init__(self, jobs: JobTable, state: StateFile | None = None) -> None:
        self.work = asyncio.Event()
        self.stopping = False
        self._jobs = jobs
        self._state = state
        self._changed = asyncio.Event()
        self._seen_version = jobs.version

    @property
    def unpublished(self) -> bool:
        """Whether the table has changed since the last publication."""
        return self._jobs.version != self._seen_version

    def publish(self) -> None:
        """Save and log what has changed, and wake whoever waits for a change."""
        if self._state is not None and (self.unpublished or self._state.due):
            self._state.save(self._jobs.changes())
        for notice in self._jobs.take_notices():
            _log.warning("%s", notice)
        for job in self._jobs.take_ended():
            if job.state == "failed":
                _log.warning("%s failed: %s", job.title, job.reason)
            else:
                _log.info("%s %s", job.title, job.state)
        if self._jobs.switches.effects:
            self.work.set()
        if self.unpublished:
            self._seen_version = self._jobs.version
            if not self.stopping:
                self._changed.set()
                self._changed = asyncio.Event()

    @contextmanager
    def logging_servers(self) -> Iterator[None]:
        """Log which servers end here, and publish it."""
        servers = dict(self._jobs.servers.by_name)
        yield
        for name, server in servers.items():
            if self._jobs.servers.by_name.get(name) is not server:
                _log.warning("server %s, instance %d, is gone", name, server.instance)
        self.publish()

    async def wait_while(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait while a condition of the job table holds, at most timeout_s, and not after stop_waiting()."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while condition() and not self.stopping:
                    await self._changed.wait()

    def stop_waiting(self) -> None:
        """End all waits, and let later ones end at once."""
        self.stopping = True
        self._changed.set()
