# SPDX-License-Identifier: Apache-2.0
"""Action profiles: members, groups, and references of table entries to them, one-shot action sets included.

In the program a one-shot set is a group with its own members, which reads do not show. Their ids never collide with a
client's, because an action profile has either one-shot sets or members and groups (specification, "One Shot Action
Selector Programming").
"""

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.entries import Key, parse_params
from inagg_switch.p4runtime.entities.names import Profile, Table
from inagg_switch.p4runtime.entities.target import Reference, Target
from inagg_switch.p4runtime.errors import Code, RequestError, from_errno, invalid
from inagg_switch.program.abi import GROUP, MEMBER

INSERT = p4runtime_pb2.Update.INSERT
MODIFY = p4runtime_pb2.Update.MODIFY
DELETE = p4runtime_pb2.Update.DELETE

MAX_WEIGHT = 10_000  # of a group; BMv2 has no limit


def _check_known(kind: int, identity: int, there: bool, subject: str) -> None:
    if identity == 0:
        raise invalid(f"{subject}: 0 is not an id")
    if kind == INSERT and there:
        raise RequestError(Code.ALREADY_EXISTS, f"{subject} exists")
    if kind != INSERT and not there:
        raise RequestError(Code.NOT_FOUND, f"{subject} does not exist")


def _refuse_mixture(target: Target, profile: Profile) -> None:
    if any(target.names.tables[table].profile == profile for table, _ in target.one_shots):
        raise invalid(f"action profile {profile.name}: its tables have action sets, so there are no members")


def _parse_action(target: Target, profile: Profile, message: p4runtime_pb2.Action) -> tuple[int, bytes]:
    if message.action_id not in profile.actions:
        raise invalid(f"action profile {profile.name} has no action with the id 0x{message.action_id:08x}")
    return message.action_id, parse_params(target.names.action(message.action_id), message.params)


# --- members


def write_member(target: Target, kind: int, message: p4runtime_pb2.ActionProfileMember) -> None:
    """Insert, modify or delete a member. Raises RequestError."""
    profile = target.names.profile(message.action_profile_id)
    subject = f"action profile {profile.name}, member {message.member_id}"
    member = message.member_id
    key = (profile.id, member)
    _check_known(kind, member, key in target.members, subject)
    try:
        if kind == DELETE:
            target.externs.member_delete(profile.id, member)
            del target.members[key]
            return
        _refuse_mixture(target, profile)
        if not message.HasField("action"):
            raise invalid(f"{subject}: it needs an action")
        action, params = _parse_action(target, profile, message.action)
        if kind == INSERT:
            target.externs.member_insert(profile.id, member, action, params)
        else:
            target.externs.member_modify(profile.id, member, action, params)
    except OSError as error:
        raise from_errno(error, subject) from None
    target.members[key] = p4runtime_pb2.ActionProfileMember()
    target.members[key].CopyFrom(message)


def read_members(
    target: Target, request: p4runtime_pb2.ActionProfileMember
) -> Iterator[p4runtime_pb2.Entity]:
    """The requested members, looked up at once; id 0 selects all profiles or members. Raises RequestError."""
    if request.action_profile_id:
        target.names.profile(request.action_profile_id)
    found = [
        message
        for (profile, member), message in target.members.items()
        if request.action_profile_id in (0, profile) and request.member_id in (0, member)
    ]
    return (p4runtime_pb2.Entity(action_profile_member=message) for message in found)


# --- groups


def write_group(target: Target, kind: int, message: p4runtime_pb2.ActionProfileGroup) -> None:
    """Insert, modify or delete a group. Raises RequestError."""
    profile = target.names.profile(message.action_profile_id)
    subject = f"action profile {profile.name}, group {message.group_id}"
    if not profile.with_selector:
        raise invalid(f"action profile {profile.name} has no selector, so there are no groups")
    group = message.group_id
    key = (profile.id, group)
    _check_known(kind, group, key in target.profile_groups, subject)
    try:
        if kind == DELETE:
            target.externs.group_delete(profile.id, group)
            del target.profile_groups[key]
            return
        _refuse_mixture(target, profile)
        kept = p4runtime_pb2.ActionProfileGroup()
        kept.CopyFrom(message)
        if kind == MODIFY:
            kept.max_size = target.profile_groups[key].max_size
            if message.max_size not in (0, kept.max_size):
                raise invalid(f"{subject}: max_size is set when a group is inserted")
        target.externs.group_set(profile.id, group, _group_members(target, profile, kept, subject))
    except OSError as error:
        raise from_errno(error, subject) from None
    target.profile_groups[key] = kept


def _group_members(
    target: Target, profile: Profile, message: p4runtime_pb2.ActionProfileGroup, subject: str
) -> list[int]:
    """The ids of a group's members, each as often as its weight. Raises RequestError."""
    if message.max_size < 0 or (profile.max_group_size and message.max_size > profile.max_group_size):
        raise invalid(f"{subject}: max_size {message.max_size} is not in 0 to {profile.max_group_size}")
    members: list[int] = []
    limit = message.max_size or profile.max_group_size
    for member in message.members:
        if (profile.id, member.member_id) not in target.members:
            raise RequestError(Code.NOT_FOUND, f"{subject}: there is no member {member.member_id}")
        if member.member_id in members:
            raise invalid(f"{subject}: member {member.member_id} is given twice")
        _check_weight(profile, member, subject)
        members += [member.member_id] * member.weight
        _check_size(profile, len(set(members)), len(members), limit, subject)
    return members


def _check_weight(
    profile: Profile,
    member: p4runtime_pb2.ActionProfileGroup.Member | p4runtime_pb2.ActionProfileAction,
    subject: str,
) -> None:
    most = min(profile.max_member_weight or MAX_WEIGHT, MAX_WEIGHT)
    if not 0 < member.weight <= most:
        raise invalid(f"{subject}: the weight {member.weight} is not in 1 to {most}")
    if member.WhichOneof("watch_kind") is not None:
        raise RequestError(Code.UNIMPLEMENTED, f"{subject}: watch ports are not supported")


def _check_size(profile: Profile, members: int, weight: int, limit: int, subject: str) -> None:
    if profile.counts_members and members > (limit or members):
        raise RequestError(Code.RESOURCE_EXHAUSTED, f"{subject}: {members} members are more than {limit}")
    most = MAX_WEIGHT if profile.counts_members else limit or MAX_WEIGHT
    if weight > most:
        raise RequestError(Code.RESOURCE_EXHAUSTED, f"{subject}: weights of {weight} are more than {most}")


def read_groups(target: Target, request: p4runtime_pb2.ActionProfileGroup) -> Iterator[p4runtime_pb2.Entity]:
    """The requested groups, looked up at once; id 0 selects all profiles or groups. Raises RequestError."""
    if request.action_profile_id:
        target.names.profile(request.action_profile_id)
    found = [
        message
        for (profile, group), message in target.profile_groups.items()
        if request.action_profile_id in (0, profile) and request.group_id in (0, group)
    ]
    return (p4runtime_pb2.Entity(action_profile_group=message) for message in found)


# --- entries of a table with an action profile


def refer(target: Target, table: Table, message: p4runtime_pb2.TableAction) -> Reference:
    """The member or group that an entry's action refers to; creates those of a one-shot set. Raises RequestError."""
    profile, kind = table.profile, message.WhichOneof("type")
    assert profile is not None
    if kind == "action_profile_member_id":
        member = message.action_profile_member_id
        if (profile.id, member) not in target.members:
            raise RequestError(Code.NOT_FOUND, f"action profile {profile.name} has no member {member}")
        return Reference(MEMBER, member)
    if kind == "action_profile_group_id" and profile.with_selector:
        group = message.action_profile_group_id
        if (profile.id, group) not in target.profile_groups:
            raise RequestError(Code.NOT_FOUND, f"action profile {profile.name} has no group {group}")
        return Reference(GROUP, group)
    if kind == "action_profile_action_set" and profile.with_selector:
        return _make_one_shot(target, table, profile, message)
    allowed = "a member, a group or an action set" if profile.with_selector else "a member"
    raise invalid(f"table {table.name}: an entry needs {allowed} of {profile.name}, not {kind or 'nothing'}")


def _make_one_shot(
    target: Target, table: Table, profile: Profile, message: p4runtime_pb2.TableAction
) -> Reference:
    subject = f"table {table.name}, action set"
    if any(owner == profile.id for owner, _ in (*target.members, *target.profile_groups)):
        raise invalid(f"{subject}: action profile {profile.name} has members or groups, so there are none")
    parsed = []
    for one in message.action_profile_action_set.action_profile_actions:
        _check_weight(profile, one, subject)
        parsed.append((*_parse_action(target, profile, one.action), one.weight))
    weight = sum(weight for *_, weight in parsed)
    _check_size(profile, len(parsed), weight, profile.max_group_size, subject)
    copy = p4runtime_pb2.TableAction()
    copy.CopyFrom(message)
    made: list[int] = []
    group = target.new_id()
    try:
        weighted: list[int] = []
        for action, params, weight in parsed:
            member = target.new_id()
            target.externs.member_insert(profile.id, member, action, params)
            made.append(member)
            weighted += [member] * weight
            # BMv2 creates the copies of an action one after another; their order decides which one a hash selects.
            target.externs.group_set(profile.id, member, [member] * weight)
        target.externs.group_set(profile.id, group, weighted)
    except OSError as error:
        for member in made:
            target.externs.group_delete(profile.id, member)
            target.externs.member_delete(profile.id, member)
        raise from_errno(error, subject) from None
    for member in made:
        target.externs.group_delete(profile.id, member)
    return Reference(GROUP, group, tuple(made), copy)


def let_go(target: Target, table: Table, reference: Reference | None) -> None:
    """Remove the members and the group of a one-shot set, to which no entry refers; else do nothing."""
    if reference is None or reference.one_shot is None or table.profile is None:
        return
    target.externs.group_delete(table.profile.id, reference.id)
    for member in reference.members:
        target.externs.member_delete(table.profile.id, member)


def place(
    target: Target, table: Table, key: Key, message: p4runtime_pb2.TableAction, *, insert: bool
) -> None:
    """Insert or modify an entry. Raises RequestError; nothing has changed then."""
    reference = refer(target, table, message)
    call = target.externs.insert_indirect if insert else target.externs.modify_indirect
    try:
        call(table.id, key.match, key.priority, reference.kind, reference.id)
    except OSError as error:
        let_go(target, table, reference)
        raise from_errno(error, f"table {table.name}") from None
    let_go(target, table, target.one_shots.pop((table.id, key), None))
    if reference.one_shot is not None:
        target.one_shots[table.id, key] = reference


def write_reference(
    out: p4runtime_pb2.TableAction, target: Target, table: Table, key: Key, kind: int, identity: int
) -> None:
    """Write the action of an entry that refers to a member or a group to a message."""
    reference = target.one_shots.get((table.id, key))
    if reference is not None and reference.one_shot is not None:
        out.CopyFrom(reference.one_shot)
    elif kind == MEMBER:
        out.action_profile_member_id = identity
    else:
        out.action_profile_group_id = identity
