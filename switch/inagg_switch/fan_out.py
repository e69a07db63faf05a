# SPDX-License-Identifier: Apache-2.0
"""Makes the devices from which the kernel clones a frame to several ports (native/ports/fan_out.hpp).

A device is a TAP interface: what is written to its descriptor enters the kernel there, and filters at its ingress pass
it on. It ends with its descriptor, so a switch that dies leaves none behind. `tc filter show dev fan0 ingress` shows
what a device does.
"""

import fcntl
import logging
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from inagg_switch._ports import PacketLoop

logger = logging.getLogger(__name__)

# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_NAME = "fan%d"  # the kernel puts a number in its place
_MOST_ACTIONS = 32  # of a filter (TCA_ACT_MAX_PRIO)
_COMMAND_S = 10.0  # patience with a command


class _CommandError(Exception):
    """A command has failed."""


class FanOutDevices:
    """Makes and removes devices as a packet loop asks, on a thread. stop() it after the loop."""

    def __init__(self, loop: PacketLoop) -> None:
        self._loop = loop
        self._descriptors: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="inagg-fan-out", daemon=True)
        # Why no device can be made; None: none has been refused.
        self.refusal: str | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Remove all devices. The loop has stopped."""
        if self._thread.is_alive():
            self._thread.join()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _run(self) -> None:
        while (task := self._loop.next_fan_out()) is not None:
            number, interfaces = task
            if interfaces:
                self._make(number, interfaces)
            elif number in self._descriptors:
                os.close(self._descriptors.pop(number))

    def _make(self, number: int, interfaces: Sequence[str]) -> None:
        try:
            self._descriptors[number] = _make_device(interfaces)
        except (OSError, _CommandError) as error:
            self._loop.fan_out_made(number, -1)
            if _exist(interfaces):
                self._refuse(error)
        else:
            self._loop.fan_out_made(number, self._descriptors[number])

    def _refuse(self, error: Exception) -> None:
        self.refusal = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        self._loop.refuse_fan_outs()
        logger.info(
            "each port sends its own copy of a multicast, because the kernel cannot: %s", self.refusal
        )


def _exist(interfaces: Sequence[str]) -> bool:
    """False if one of them has just gone: another set of ports may have a device."""
    return set(interfaces) <= {name for _, name in socket.if_nameindex()}


def _make_device(interfaces: Sequence[str]) -> int:
    """The descriptor of a TAP interface that clones to the interfaces. Raises OSError, _CommandError."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", _NAME.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
        try:
            name = fcntl.ioctl(descriptor, _TUNSETIFF, request)[:16].rstrip(b"\0").decode()
        except OSError as error:
            raise OSError(error.errno, error.strerror, "TUNSETIFF") from error
        # Nobody reads what the kernel would send on it. Containers may not change this setting and can do without.
        with suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        _command("tc", "-batch", "-", given="\n".join(_filters(name, interfaces)))
        _command("ip", "link", "set", "dev", name, "up")
        logger.debug("%s clones to %s", name, ", ".join(interfaces))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _filters(name: str, interfaces: Sequence[str]) -> list[str]:
    """tc's commands. The last port gets the frame itself; behind a full filter the next one goes on."""
    commands = [f"qdisc add dev {name} clsact"]
    for first in range(0, len(interfaces), _MOST_ACTIONS):
        some = interfaces[first : first + _MOST_ACTIONS]
        actions = [f"mirror dev {target} pipe" for target in some]
        last = f"redirect dev {some[-1]}" if some[-1] is interfaces[-1] else f"mirror dev {some[-1]} continue"
        actions[-1] = last
        commands.append(
            f"filter add dev {name} ingress protocol all prio {1 + first // _MOST_ACTIONS} u32 match u32 0 0 "
            + " ".join(f"action mirred egress {action}" for action in actions)
        )
    return commands


def _command(*command: str, given: str = "") -> None:
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_COMMAND_S)
    except FileNotFoundError:
        raise _CommandError(f"{command[0]} is not installed (iproute2)") from None
    except subprocess.TimeoutExpired:
        raise _CommandError(f"{command[0]} did not answer within {_COMMAND_S:g} s") from None
    if done.returncode != 0:
        cause = done.stderr.strip().partition("\n")[0]
        raise _CommandError(f"{command[0]}: {cause or f'exit code {done.returncode}'}")
