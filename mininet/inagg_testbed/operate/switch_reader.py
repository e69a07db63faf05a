# SPDX-License-Identifier: Apache-2.0
"""Reads registers and counters of a testbed's switches over P4Runtime, beside their controller, if there is one.

Reading needs no election.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

import inagg_p4runtime.messages
import inagg_p4runtime.quiet  # noqa: F401  (keeps gRPC's log lines off stderr)
from inagg_contract.documents import Counters, PacketCount
from inagg_p4runtime.cells import read_counters
from inagg_p4runtime.names import short_names
from inagg_p4runtime.registers import Register, find, read, registers_of
from inagg_testbed.errors import ConfigurationError, LauncherError, SwitchUnreadableError
from inagg_testbed.network.control import enter_network_namespace
from inagg_testbed.network.lifecycle import Manifest

_ANSWER_S = 5.0  # for the program, which a switch that runs names in milliseconds
_READ_S = 30.0  # for all cells of registers or counters, which may be a million


class SwitchReader:
    """A client of one switch's P4Runtime server. registers: those of the program that the switch runs.

    All methods raise SwitchUnreadableError.
    """

    def __init__(self, switch: str, address: str, device_id: int) -> None:
        self._switch = switch
        self._device_id = device_id
        self._channel = grpc.insecure_channel(address)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._p4info = self._read_p4info()
        self.registers = registers_of(self._p4info)

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
        hint = "; BMv2's server does not read registers"
        with self._explained(f"register {register.name}", unimplemented=hint):
            cells = read(self._channel, self._device_id, entry, timeout=_READ_S)
            return {index: register.decode(value) for index, value in cells}

    def counters(self) -> dict[str, dict[int, PacketCount]]:
        """The indexed counters by short name and index, without cells that are zero."""
        infos = [counter.preamble for counter in self._p4info.counters]
        names = dict(
            zip((each.id for each in infos), short_names([each.name for each in infos]), strict=True)
        )
        found: dict[str, dict[int, PacketCount]] = {name: {} for name in names.values()}
        entries = [p4runtime_pb2.CounterEntry(counter_id=number) for number in names]
        with self._explained("the counters"):
            for cell in read_counters(self._channel, self._device_id, entries, timeout=_READ_S):
                if cell.packets or cell.bytes:
                    found[names[cell.counter_id]][cell.index] = PacketCount(
                        packets=cell.packets, bytes=cell.bytes
                    )
        return found

    @contextmanager
    def _explained(self, what: str, unimplemented: str = "") -> Iterator[None]:
        """Raise an error of gRPC as SwitchUnreadableError. unimplemented: what an UNIMPLEMENTED may mean."""
        try:
            yield
        except grpc.RpcError as error:
            code = error.code()
            hint = unimplemented if code == grpc.StatusCode.UNIMPLEMENTED else ""
            raise SwitchUnreadableError(
                f"switch {self._switch}: {what} cannot be read: {code.name}: {error.details()}{hint}"
            ) from None

    def _read_p4info(self) -> Any:
        kind = p4runtime_pb2.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self._device_id, response_type=kind
        )
        with self._explained("the program"):
            return self._stub.GetForwardingPipelineConfig(request, timeout=_ANSWER_S).config.p4info


def switches(manifest: Manifest) -> list[str]:
    """The names of a testbed's switches. Raises ConfigurationError if bridges stand for them."""
    if manifest.settings.get("switch") == "bridge":
        raise ConfigurationError(f"run {manifest.run} has bridges for switches, which run no P4 program")
    return [*manifest.settings["p4runtime"]]


@contextmanager
def opened(manifest: Manifest, switch: str) -> Iterator[SwitchReader]:
    """A reader of a switch. If P4Runtime is served in the switch's network namespace, the process moves there.

    Raises ConfigurationError if there is no such switch.
    """
    names = switches(manifest)
    if switch not in names:
        raise ConfigurationError(f"no switch {switch}; there are {', '.join(names)}")
    address, device_id = manifest.settings["p4runtime"][switch]
    if not address.startswith("unix:"):
        enter_network_namespace(manifest.namespace(switch).pid)
    reader = SwitchReader(switch, address, device_id)
    try:
        yield reader
    finally:
        reader.close()


def counters(manifest: Manifest) -> tuple[Counters, list[LauncherError]]:
    """The counters of all switches that can be read, and an error for each of the others.

    Raises ConfigurationError for bridges.
    """
    # Threads of gRPC stay in the namespace of the first connection. So each switch gets a process of its own.
    forks = get_context("fork")
    answers = {}
    for switch in switches(manifest):
        answers[switch], answer = forks.Pipe(duplex=False)
        forks.Process(target=_answer_counters, args=(manifest, switch, answer), daemon=True).start()
        answer.close()
    found: Counters = {}
    unread: list[LauncherError] = []
    for switch, pipe in answers.items():
        try:
            outcome = pipe.recv()
        except EOFError:
            outcome = SwitchUnreadableError(f"switch {switch}: the process that reads it has ended")
        if isinstance(outcome, LauncherError):
            unread.append(outcome)
        else:
            found[switch] = outcome
    return found, unread


def _answer_counters(manifest: Manifest, switch: str, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with opened(manifest, switch) as reader:
            answer.send(reader.counters())
    except LauncherError as error:
        answer.send(error)
