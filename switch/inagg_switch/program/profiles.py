# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors: members and groups of members, to which table entries refer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch.errors import EntryError
from inagg_switch.program import abi
from inagg_switch.program.arguments import several, shown, whole
from inagg_switch.program.arrays import refusals
from inagg_switch.program.running import Program
from inagg_switch.program.values import encode_params, find


@dataclass(frozen=True)
class Member:
    """An entry's action: a member of the table's action profile."""

    id: int
    kind: ClassVar[int] = abi.MEMBER


@dataclass(frozen=True)
class Group:
    """An entry's action: a group of the table's action selector."""

    id: int
    kind: ClassVar[int] = abi.GROUP


class ActionProfile:
    """An action profile or selector. The caller chooses the ids of members and groups."""

    def __init__(self, program: Program, info: pb.ActionProfile) -> None:
        self._program = program
        self._info = info

    def insert(self, member: int, action: str, params: Mapping[str, int | bytes] | None = None) -> None:
        """Add a member. Raises EntryError if it exists."""
        self._change("insert", member, action, {} if params is None else params)

    def modify(self, member: int, action: str, params: Mapping[str, int | bytes] | None = None) -> None:
        """Change a member's action. Raises EntryError if it does not exist."""
        self._change("modify", member, action, {} if params is None else params)

    def delete(self, member: int) -> None:
        """Remove a member. Raises EntryError while an entry or a group refers to it."""
        what = f"cannot delete member {shown(member)} of {self._info.preamble.name}"
        member = whole(member, what)
        with refusals(what):
            self._program.externs.member_delete(self._info.preamble.id, member)

    def set_group(self, group: int, members: Sequence[int]) -> None:
        """Make or replace a group; `members` contains a member of weight n n times. Raises EntryError."""
        what = f"cannot set group {shown(group)} of {self._info.preamble.name}"
        group = whole(group, what)
        members = [whole(member, f"{what}, member") for member in several(members, what, "a list of members")]
        if not self._info.with_selector:
            raise EntryError(f"{what}: it has no selector, so there are no groups")
        size = len(set(members)) if self._info.HasField("sum_of_members") else len(members)
        if self._info.max_group_size and size > self._info.max_group_size:
            raise EntryError(f"{what}: a group has at most {self._info.max_group_size} members")
        with refusals(what):
            self._program.externs.group_set(self._info.preamble.id, group, members)

    def delete_group(self, group: int) -> None:
        """Remove a group. Raises EntryError while an entry refers to it."""
        what = f"cannot delete group {shown(group)} of {self._info.preamble.name}"
        group = whole(group, what)
        with refusals(what):
            self._program.externs.group_delete(self._info.preamble.id, group)

    def _change(self, how: str, member: int, action: str, params: Mapping[str, int | bytes]) -> None:
        what = f"cannot {how} member {shown(member)} of {self._info.preamble.name}"
        member = whole(member, what)
        tables = [t for t in self._program.layout.tables if t.preamble.id in self._info.table_ids]
        allowed = {ref.id for table in tables for ref in table.action_refs}
        actions = [a for a in self._program.layout.actions if a.preamble.id in allowed]
        info = find(actions, action, "action", f"action profile {self._info.preamble.name}")
        data = encode_params(info, params)
        externs = self._program.externs
        call = externs.member_insert if how == "insert" else externs.member_modify
        with refusals(what):
            call(self._info.preamble.id, member, info.preamble.id, data)
