# SPDX-License-Identifier: Apache-2.0
"""Reads registers of a testbed's switches over P4Runtime, beside their controller: reading needs no election."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

import inagg_p4runtime.messages
import inagg_p4runtime.quiet  # noqa: F401  (keeps gRPC's log lines off stderr)
from inagg_p4runtime.registers import Register, find, read, registers_of
from inagg_testbed.errors import ConfigurationError, SwitchUnreadableError
from inagg_testbed.network.control import enter_network_namespace
from inagg_testbed.network.lifecycle import Manifest

_TIMEOUT_S = 30.0


class RegisterReader:
    """A client of one switch's P4Runtime server. registers: those of the program that the switch runs.

    All methods raise SwitchUnreadableError.
    """

    def __init__(self, address: str, device_id: int) -> None:
        self._device_id = device_id
        self._channel = grpc.insecure_channel(address)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self.registers = registers_of(self._p4info())

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def find(self, name: str) -> Register:
        """The register of a name, or of the end of one. Raises ConfigurationError if there is not one."""
        try:
            return find(self.registers, name)
        except KeyError as error:
            raise ConfigurationError(error.args[0]) from None

    def read(self, register: Register, index: int | None = None) -> dict[int, int]:
        """All values of a register, by index; or the one at an index.

        Raises ConfigurationError for an index that the register does not have.
        """
        try:
            entry = register.entry(index)
        except IndexError as error:
            raise ConfigurationError(str(error)) from None
        with _explained(f"register {register.name}"):
            cells = read(self._stub, self._device_id, entry, timeout=_TIMEOUT_S)
            return {index: register.decode(value) for index, value in cells}

    def _p4info(self) -> Any:
        kind = p4runtime_pb2.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self._device_id, response_type=kind
        )
        with _explained("the program"):
            return self._stub.GetForwardingPipelineConfig(request, timeout=_TIMEOUT_S).config.p4info


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        code = error.code()
        hint = "; BMv2's server does not read registers" if code == grpc.StatusCode.UNIMPLEMENTED else ""
        raise SwitchUnreadableError(f"{what} cannot be read: {code.name}: {error.details()}{hint}") from None


def switches(manifest: Manifest) -> list[str]:
    """The names of a testbed's switches. Raises ConfigurationError if bridges stand for them."""
    if manifest.settings.get("switch") == "bridge":
        raise ConfigurationError(f"run {manifest.run} has bridges for switches, which have no registers")
    return [*manifest.settings["p4runtime"]]


@contextmanager
def opened(manifest: Manifest, switch: str) -> Iterator[RegisterReader]:
    """A reader of a switch. If P4Runtime is served in the switch's network namespace, the process moves there.

    Raises ConfigurationError if there is no such switch.
    """
    names = switches(manifest)
    if switch not in names:
        raise ConfigurationError(f"no switch {switch}; there are {', '.join(names)}")
    address, device_id = manifest.settings["p4runtime"][switch]
    if not address.startswith("unix:"):
        enter_network_namespace(manifest.namespace(switch).pid)
    reader = RegisterReader(address, device_id)
    try:
        yield reader
    finally:
        reader.close()
