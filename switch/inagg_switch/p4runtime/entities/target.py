# SPDX-License-Identifier: Apache-2.0
"""A loaded program with the P4Runtime state that the program itself does not keep."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from p4.v1 import p4runtime_pb2

from inagg_switch._ports import ProgramControl, TableEntries
from inagg_switch.p4runtime.entities.digests import Digests
from inagg_switch.p4runtime.entities.entries import Key
from inagg_switch.p4runtime.entities.names import Names, table_shapes
from inagg_switch.p4runtime.entities.timers import Timers
from inagg_switch.program.externs import Externs
from inagg_switch.program.running import Program


@dataclass(frozen=True)
class Opaque:
    """A client's data of an entry, which the switch only returns."""

    metadata: bytes = b""
    controller_metadata: int = 0


@dataclass(frozen=True)
class Reference:
    """An entry's reference: `kind` and `id` of runtime/program.h. A one-shot set's `members` belong to the entry."""

    kind: int
    id: int
    members: tuple[int, ...] = ()
    one_shot: p4runtime_pb2.TableAction | None = None


@dataclass
class Target:
    """One program and its P4Runtime state. Not thread-safe: the service serialises requests."""

    program: Program
    config: p4runtime_pb2.ForwardingPipelineConfig
    now: Callable[[], float] = lambda: 0.0  # the program's time, in seconds
    names: Names = field(init=False)
    control: ProgramControl = field(init=False)
    entries: TableEntries = field(init=False)  # of the tables of table_shapes()
    externs: Externs = field(init=False)
    digests: Digests = field(init=False)
    # Messages as written, which reads return (specification, "Read-Write Symmetry").
    groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = field(default_factory=dict)
    sessions: dict[int, p4runtime_pb2.CloneSessionEntry] = field(default_factory=dict)
    value_sets: dict[int, p4runtime_pb2.ValueSetEntry] = field(default_factory=dict)
    # By action profile and member or group.
    members: dict[tuple[int, int], p4runtime_pb2.ActionProfileMember] = field(default_factory=dict)
    profile_groups: dict[tuple[int, int], p4runtime_pb2.ActionProfileGroup] = field(default_factory=dict)
    # By table id and key, as `opaque`.
    one_shots: dict[tuple[int, Key], Reference] = field(default_factory=dict)
    timers: Timers = field(default_factory=Timers)
    # By table id and key; the default entry's key is None. Entries without opaque data are missing.
    opaque: dict[tuple[int, Key | None], Opaque] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.program.p4info, self.program.layout)
        self.control = ProgramControl(self.program.api_address, self.program.handle)
        self.entries = TableEntries(self.program.api_address, self.program.handle, table_shapes(self.names))
        self.externs = self.program.externs
        self.digests = Digests(list(self.names.digests.values()))
        self._last_id = 0

    def frozen(self) -> "Target":
        """The same program with a copy of the entries' state, to be read while others write."""
        view = copy.copy(self)
        view.opaque, view.one_shots = self.opaque.copy(), self.one_shots.copy()
        view.timers = Timers(self.timers.by_entry.copy())
        return view

    def new_id(self) -> int:
        """A new id for a member or group of a one-shot action set."""
        self._last_id += 1
        return self._last_id

    def opaque_of(self, table_id: int, key: Key | None) -> Opaque:
        """The opaque data of an entry."""
        return self.opaque.get((table_id, key), Opaque())

    def forget(self, table_id: int, key: Key) -> None:
        """Forget the state of a deleted entry."""
        self.opaque.pop((table_id, key), None)
        self.timers.by_entry.pop((table_id, key), None)

    def remember(self, table_id: int, key: Key | None, message: p4runtime_pb2.TableEntry) -> None:
        """Replace the opaque data of an entry by those of a message."""
        opaque = Opaque(message.metadata, message.controller_metadata)
        self.opaque.pop((table_id, key), None)
        if opaque != Opaque():
            self.opaque[table_id, key] = opaque
