# SPDX-License-Identifier: Apache-2.0
"""The service's connection to a switch: opened, watched, opened again after a loss.

The switch blocks, so all its calls run on one thread, one after another: writes keep their order, and none runs beside
a reconnection. Everything else here runs in one asyncio loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

from inagg_controller.errors import SwitchError, SwitchRefusedError, SwitchUnreachableError, UnavailableError
from inagg_controller.switch.client import Switch

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# Between attempts to connect. A switch that restarts is soon there again, and its jobs wait for it.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_SOON_S = 5.0

State = Literal["connecting", "connected", "lost"]


class Connection:
    """The connection to one switch. `state` is connecting at first, connected, or lost until a reconnection succeeds.

    prepare: writes the entries that the switch needs before any job; runs on the switch's thread after each connect,
    and gets whether the switch has kept what it had. keep: let it at the first connect. on_connected, on_lost: called
    in the loop when the state becomes connected and lost. on_packet: called in the loop with each frame that the switch
    passes to the controller. error: why the switch is not connected. connects: number of successful connects, each of
    which pushed the program, unless the switch kept it. kept: whether it did at the last one. lock: held while
    connecting. Hold it to change what `prepare` writes.
    """

    def __init__(
        self,
        name: str,
        switch: Switch,
        prepare: Callable[[bool], None],
        *,
        on_connected: Callable[[], None],
        on_lost: Callable[[SwitchUnreachableError], None],
        on_packet: Callable[[bytes], None],
        keep: bool = False,
    ) -> None:
        self.name = name
        self.state: State = "connecting"
        self.error: str | None = None
        self.connects = 0
        self.kept = False
        self.lock = asyncio.Lock()
        self._switch = switch
        self._prepare = prepare
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_packet = on_packet
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"inagg-{name}")
        self._turn = asyncio.Lock()
        self._lost = asyncio.Event()
        # Numbers the attempts to connect: a notice about an earlier connection is void.
        self._attempt = 0
        self._broken_attempt = 0

    async def open(self, wait_s: float, clock: Callable[[], float]) -> None:
        """Connect; wait up to wait_s for a switch that is not reachable yet. Raises SwitchError."""
        deadline = clock() + wait_s
        while self.state != "connected":
            try:
                await self._connect()
            except SwitchUnreachableError as error:
                if clock() >= deadline:
                    raise
                if self.error is None:
                    _log.info("waiting for switch %s: %s", self.name, error)
                self.error = str(error)
                await asyncio.sleep(_FIRST_PAUSE_S)

    def open_later(self, error: SwitchUnreachableError) -> None:
        """After open() has failed: let keep_connected() go on with it."""
        self.state, self.error = "lost", str(error)
        self._lost.set()

    async def keep_connected(self) -> None:
        """Connect again after each loss, until cancelled."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            began, pause = time.monotonic(), _FIRST_PAUSE_S
            while self.state != "connected":
                try:
                    await self._connect()
                    _log.info("switch %s is connected again, with a fresh pipeline", self.name)
                except SwitchError as error:
                    if str(error) != self.error:
                        _log.warning("switch %s: reconnecting: %s", self.name, error)
                    self.error = str(error)
                    await asyncio.sleep(pause)
                    if time.monotonic() - began >= _SOON_S:
                        pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function on the switch's thread. Raises SwitchError; an unreachable switch is lost then.

        A call that waits for its turn meanwhile is not made: it would wait for its own deadline, before a reconnection.
        """
        async with self._turn:
            if self.state != "connected":
                raise SwitchUnreachableError(f"switch {self.name} is not connected: {self.error}")
            try:
                return await self._on_thread(function)
            except SwitchUnreachableError as error:
                self._lose(self._attempt, error)
                raise

    async def request(self, function: Callable[[], _T]) -> _T:
        """Run a function for a request that needs the switch. Raises UnavailableError."""
        try:
            return await self.call(function)
        except SwitchError as error:
            raise UnavailableError(str(error)) from error

    async def close(self) -> None:
        """Close the connection and end the thread. What is in the switch stays there."""
        await self._on_thread(self._switch.close)
        self._thread.shutdown()

    async def _on_thread(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._attempt += 1
        attempt = self._attempt

        def on_lost(error: SwitchUnreachableError) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._lose, attempt, error)

        def on_packet(frame: bytes) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_packet, frame)

        async with self.lock:
            keep = self._keep and self.connects == 0
            try:
                await self._set_up(partial(self._switch.connect, on_lost, on_packet, keep=keep))
            except SwitchRefusedError as error:
                if not keep:
                    raise
                _log.warning("switch %s: its program is started afresh: %s", self.name, error)
                await self._set_up(partial(self._switch.connect, on_lost, on_packet))
        if self._broken_attempt == attempt:
            raise SwitchUnreachableError("the switch closed the connection at once")
        self.state, self.error = "connected", None
        self.connects += 1
        self._on_connected()

    async def _set_up(self, connect: Callable[[], bool]) -> None:
        self.kept = await self._on_thread(connect)
        await self._on_thread(partial(self._prepare, self.kept))

    def _lose(self, attempt: int, error: SwitchUnreachableError) -> None:
        if attempt != self._attempt or self._broken_attempt == attempt:
            return
        self._broken_attempt = attempt
        if self.state == "connected":
            _log.error("switch %s: %s", self.name, error)
            self.state, self.error = "lost", str(error)
            self._on_lost(error)
            self._lost.set()
