# SPDX-License-Identifier: Apache-2.0
"""Gloo's devices. A device has a thread and a listening port, so the groups of a process share devices.

While a group connects, it has a device for itself: connections that appear at its port are the group's. A group that
another thread of the program makes meanwhile opens another device.
"""

import ctypes
import os
import threading
from typing import Any

import torch.distributed as dist

from inagg.errors import ConfigurationError
from inagg.membership.sockets import listeners
from inagg.torch_versions import connecting_at_once

_TRANSPORT = "GLOO_DEVICE_TRANSPORT"

_lock = threading.Lock()  # guards what follows, and the users of each. New listeners are those of devices
_known: "list[Devices]" = []


class Devices:
    """Devices that groups share. `lend` returns them.

    listeners: the addresses and ports at which they listen.
    """

    def __init__(self, address: str | None, interfaces: str | None) -> None:
        before = set(listeners())
        self.devices = open_devices(address, interfaces)
        self.listeners = sorted(set(listeners()) - before)
        self._kind = _kind(address, interfaces)
        self._users = 0
        self._connecting = False

    @classmethod
    def lend(cls, address: str | None) -> "Devices":
        """Devices at an address that no other group connects with. Raises what gloo raises if it cannot open them.

        address: None: those that gloo would open by default, or that GLOO_SOCKET_IFNAME names.
        """
        interfaces = os.environ.get("GLOO_SOCKET_IFNAME")
        with _lock:
            kind = _kind(address, interfaces)
            found = next((one for one in _known if one._kind == kind and not one._connecting), None)
            if found is None:
                found = cls(address, interfaces)
                _known.append(found)
            found._users += 1
            found._connecting = True
            return found

    def connected(self) -> None:
        """Let another group connect with them. All ranks of the last one must have connected."""
        with _lock:
            self._connecting = False

    def give_back(self) -> None:
        """Say that a group has ended. The devices' threads end with the last one, when gloo has freed it."""
        with _lock:
            self._connecting = False
            self._users -= 1
            if self._users == 0 and self in _known:
                _known.remove(self)
                self.devices = []


def _kind(address: str | None, interfaces: str | None) -> tuple[int | str | None, ...]:
    return os.getpid(), address, interfaces, os.environ.get(_TRANSPORT)


def open_devices(address: str | None, interfaces: str | None) -> list[Any]:
    """Open gloo's devices: at `address`, at interfaces, or those that gloo would open by default.

    Raises:
        ConfigurationError: gloo does not have the transport that GLOO_DEVICE_TRANSPORT asks for.
    """
    gloo: Any = dist.ProcessGroupGloo  # torch's stub has neither its options nor its devices
    how = connecting_at_once()
    try:
        if address is not None:
            return [gloo.create_device(hostname=address, **how)]
        if interfaces:
            return [gloo.create_device(interface=interface, **how) for interface in interfaces.split(",")]
        return [gloo.create_default_device(**how)]
    except RuntimeError as error:
        if "unsupported gloo device" not in str(error):
            raise
        raise ConfigurationError(
            f"{_TRANSPORT} is {os.environ.get(_TRANSPORT)!r}, a transport that gloo does not have in this torch. Unset "
            "it: the default is TCP"
        ) from error


def _keep_all() -> None:
    """Keep the devices in a forked child: to free one would wait for its thread, which the child does not have."""
    global _lock
    _lock = threading.Lock()
    for one in _known:
        for device in one.devices:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))


os.register_at_fork(after_in_child=_keep_all)
