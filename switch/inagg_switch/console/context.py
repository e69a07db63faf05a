# SPDX-License-Identifier: Apache-2.0
"""What a command works with: the running program, what the console keeps of it, and the lines that it prints."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from p4.v1 import p4runtime_pb2

from inagg_p4runtime.names import called
from inagg_switch.console.handles import Handles
from inagg_switch.p4runtime.entities.entries import Key
from inagg_switch.p4runtime.entities.names import Action, Array, Profile, Table, ValueSet
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.read import read_entities
from inagg_switch.p4runtime.write import apply_update
from inagg_switch.ports import Ports

INSERT = p4runtime_pb2.Update.INSERT
MODIFY = p4runtime_pb2.Update.MODIFY
DELETE = p4runtime_pb2.Update.DELETE

_Named = TypeVar("_Named", Table, Action, Array, Profile, ValueSet)

# BMv2's names of refusals (thrift_src/standard.thrift and simple_pre.thrift).
_REFUSALS = {
    Code.ALREADY_EXISTS: "DUPLICATE_ENTRY",
    Code.NOT_FOUND: "INVALID_HANDLE",
    Code.RESOURCE_EXHAUSTED: "TABLE_FULL",
    Code.PERMISSION_DENIED: "IMMUTABLE_TABLE_ENTRIES",
    Code.OUT_OF_RANGE: "INVALID_INDEX",
    Code.FAILED_PRECONDITION: "STILL_USED",
}


# No index, handle or id is greater.
MOST = (1 << 31) - 1
_DIGITS = 20


class CommandError(Exception):
    """A command is refused and has changed nothing. str() is what the client prints."""


def wrong(text: str) -> CommandError:
    """The error for a command that is malformed, or names something that does not exist."""
    return CommandError(f"Error: {text}")


@dataclass(frozen=True)
class Node:
    """A node of the multicast engine: the ports of one replication id."""

    rid: int
    ports: tuple[int, ...]


@dataclass
class Kept:
    """What P4Runtime does not have, and commands refer to: handles of entries, nodes of multicast groups."""

    target: Target | None
    handles: dict[int, Handles] = field(default_factory=dict)  # by table
    nodes: dict[int, Node] = field(default_factory=dict)  # by handle
    members: dict[int, list[int]] = field(default_factory=dict)  # nodes of a group, by group
    mirrors: dict[int, int] = field(default_factory=dict)  # groups of mirroring_add_mc, by session
    next_node: int = 0


@dataclass
class Context:
    """One command's surroundings."""

    target: Target
    kept: Kept
    ports: Ports
    restart: Callable[[], None]  # runs the program again, from its initial state
    printed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def print(self, text: str = "") -> None:
        """Print a line."""
        self.printed.append(f"{text}\n")

    def note(self, text: str) -> None:
        """Print a line on stderr."""
        self.notes.append(f"{text}\n")

    def find(self, items: Iterable[_Named], name: str, what: str) -> _Named:
        """The item with a name, or with a unique ending of it from a dot on."""
        found = called(items, name, lambda one: one.name)
        if len(found) != 1:
            raise wrong(f"Invalid {what} name ({name})")
        return found[0]

    def table(self, name: str) -> Table:
        """The table with a name."""
        return self.find(self.target.names.tables.values(), name, "table")

    def handles(self, table: Table) -> Handles:
        """The handles of a table's entries, brought up to date with what others have written."""
        handles = self.kept.handles.setdefault(table.id, Handles())
        handles.update(self.target.control.table_entries(table.id, table.field_bytes))
        return handles

    def new_handle(self, table: Table, key: Key) -> int:
        """The handle of an entry that has just been added."""
        return self.kept.handles.setdefault(table.id, Handles()).of(key)

    def write(self, kind: int, entity: p4runtime_pb2.Entity, what: str = "table") -> None:
        """Apply an update; a refusal is an "Invalid WHAT operation"."""
        try:
            apply_update(self.target, p4runtime_pb2.Update(type=kind, entity=entity))
        except RequestError as error:
            code = _REFUSALS.get(error.code, "ERROR")
            raise CommandError(f"Invalid {what} operation ({code}): {error}") from None

    def read(self, entity: p4runtime_pb2.Entity) -> list[p4runtime_pb2.Entity]:
        """The entities that match a request."""
        return list(read_entities(self.target, entity))


def exactly(words: Sequence[str], count: int) -> None:
    """Refuse another number of arguments."""
    if len(words) != count:
        raise wrong(f"Wrong number of args, expected {count} but got {len(words)}")


def at_least(words: Sequence[str], count: int) -> None:
    """Refuse fewer arguments."""
    if len(words) < count:
        raise wrong("Insufficient number of args")


def number(text: str, what: str, most: int = MOST) -> int:
    """A decimal number from 0 to `most`."""
    if not (text.isascii() and text.isdigit()):
        raise wrong(f"Bad format for {what}, expected integer")
    if len(text) > _DIGITS or int(text) > most:
        raise wrong(f"{what} is at most {most}")
    return int(text)
