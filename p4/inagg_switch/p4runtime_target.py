"""A loaded program together with what P4Runtime has to remember about it and the program itself does not."""

from dataclasses import dataclass, field
from typing import Protocol

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch._ports import ProgramControl
from inagg_switch.p4runtime_entries import Key
from inagg_switch.p4runtime_names import Names


class Program(Protocol):
    """What the server needs of inagg_switch.switch.Switch."""

    @property
    def p4info(self) -> p4info_pb2.P4Info: ...

    @property
    def api_address(self) -> int: ...

    @property
    def handle(self) -> int: ...


@dataclass(frozen=True)
class Opaque:
    """What a client wants back with an entry; it means nothing to the switch."""

    metadata: bytes = b""
    controller_metadata: int = 0


@dataclass
class Target:
    """One program and its P4Runtime state. Not thread-safe: the server serialises requests."""

    program: Program
    config: p4runtime_pb2.ForwardingPipelineConfig
    names: Names = field(init=False)
    control: ProgramControl = field(init=False)
    # As written, so that a read gives back what a write gave (specification, "Read-Write Symmetry").
    groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = field(default_factory=dict)
    # By table id and key; the default entry's key is None. Entries without any are not there.
    opaque: dict[tuple[int, Key | None], Opaque] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.program.p4info)
        self.control = ProgramControl(self.program.api_address, self.program.handle)

    def remember(self, table_id: int, key: Key | None, message: p4runtime_pb2.TableEntry) -> None:
        """Keeps the opaque fields of a written entry, in place of the ones it had."""
        opaque = Opaque(message.metadata, message.controller_metadata)
        self.opaque.pop((table_id, key), None)
        if opaque != Opaque():
            self.opaque[table_id, key] = opaque
