# SPDX-License-Identifier: Apache-2.0
"""Commands of action profiles. A handle is P4Runtime's id less 1: BMv2's count from 0."""

from p4.v1 import p4runtime_pb2

from inagg_switch.console.context import DELETE, INSERT, MODIFY, Context, at_least, exactly, number, wrong
from inagg_switch.console.values import full, parse_params
from inagg_switch.p4runtime.entities.names import Action, Profile


def profile_of(context: Context, name: str) -> Profile:
    """The action profile with a name."""
    return context.find(context.target.names.profiles.values(), name, "action profile")


def _action(context: Context, profile: Profile, name: str) -> Action:
    return context.find((context.target.names.actions[one] for one in profile.actions), name, "action")


def _selector(context: Context, name: str) -> Profile:
    profile = profile_of(context, name)
    if not profile.with_selector:
        raise wrong("Cannot run this command on an action profile without selector")
    return profile


def _free(used: set[int]) -> int:
    """The lowest id from 1 that is not used, as BMv2 chooses handles."""
    return next(one for one in range(1, len(used) + 2) if one not in used)


def act_prof_create_member(context: Context, words: list[str]) -> None:
    """Add a member to an action profile: act_prof_create_member <action profile name> <action name> [parameters]"""
    at_least(words, 2)
    profile = profile_of(context, words[0])
    action = parse_params(_action(context, profile, words[1]), words[2:], words[1])
    used = {member for owner, member in context.target.members if owner == profile.id}
    member = p4runtime_pb2.ActionProfileMember(
        action_profile_id=profile.id, member_id=_free(used), action=action
    )
    context.write(INSERT, p4runtime_pb2.Entity(action_profile_member=member))
    context.print(f"Member has been created with handle {member.member_id - 1}")


def act_prof_modify_member(context: Context, words: list[str]) -> None:
    """Modify member in an action profile: act_prof_modify_member <action profile name> <action name> <member handle>
    [parameters]"""
    at_least(words, 3)
    profile = profile_of(context, words[0])
    values = [word for word in words[3:] if word != "=>"]
    member = p4runtime_pb2.ActionProfileMember(
        action_profile_id=profile.id,
        member_id=number(words[2], "member handle") + 1,
        action=parse_params(_action(context, profile, words[1]), values, words[1]),
    )
    context.write(MODIFY, p4runtime_pb2.Entity(action_profile_member=member))


def act_prof_delete_member(context: Context, words: list[str]) -> None:
    """Delete a member in an action profile: act_prof_delete_member <action profile name> <member handle>"""
    exactly(words, 2)
    member = p4runtime_pb2.ActionProfileMember(
        action_profile_id=profile_of(context, words[0]).id, member_id=number(words[1], "member handle") + 1
    )
    context.write(DELETE, p4runtime_pb2.Entity(action_profile_member=member))


def act_prof_create_group(context: Context, words: list[str]) -> None:
    """Add a group to an action profile: act_prof_create_group <action profile name>"""
    exactly(words, 1)
    profile = _selector(context, words[0])
    used = {group for owner, group in context.target.profile_groups if owner == profile.id}
    group = p4runtime_pb2.ActionProfileGroup(action_profile_id=profile.id, group_id=_free(used))
    context.write(INSERT, p4runtime_pb2.Entity(action_profile_group=group))
    context.print(f"Group has been created with handle {group.group_id - 1}")


def act_prof_delete_group(context: Context, words: list[str]) -> None:
    """Delete a group from an action profile: act_prof_delete_group <action profile name> <group handle>"""
    exactly(words, 2)
    group = p4runtime_pb2.ActionProfileGroup(
        action_profile_id=_selector(context, words[0]).id, group_id=number(words[1], "group handle") + 1
    )
    context.write(DELETE, p4runtime_pb2.Entity(action_profile_group=group))


def act_prof_add_member_to_group(context: Context, words: list[str]) -> None:
    """Add member to group in an action profile: act_prof_add_member_to_group <action profile name> <member handle>
    <group handle>"""
    group, member = _group(context, words)
    if any(one.member_id == member for one in group.members):
        raise wrong(f"member {member - 1} is in the group")
    group.members.add(member_id=member, weight=1)
    context.write(MODIFY, p4runtime_pb2.Entity(action_profile_group=group))


def act_prof_remove_member_from_group(context: Context, words: list[str]) -> None:
    """Remove member from group in action profile: act_prof_remove_member_from_group <action profile name> <member
    handle> <group handle>"""
    group, member = _group(context, words)
    kept = [one for one in group.members if one.member_id != member]
    if len(kept) == len(group.members):
        raise wrong(f"member {member - 1} is not in the group")
    del group.members[:]
    group.members.extend(kept)
    context.write(MODIFY, p4runtime_pb2.Entity(action_profile_group=group))


def _group(context: Context, words: list[str]) -> tuple[p4runtime_pb2.ActionProfileGroup, int]:
    """A copy of a group, and a member's id."""
    exactly(words, 3)
    profile = _selector(context, words[0])
    member, group = number(words[1], "member handle") + 1, number(words[2], "group handle") + 1
    if (profile.id, group) not in context.target.profile_groups:
        raise wrong(f"action profile {profile.name} has no group {group - 1}")
    copy = p4runtime_pb2.ActionProfileGroup()
    copy.CopyFrom(context.target.profile_groups[profile.id, group])
    return copy, member


def dump_profile(context: Context, profile: Profile) -> None:
    """Print the members and groups of an action profile."""
    context.print("==========")
    context.print("MEMBERS")
    for (owner, member), message in sorted(context.target.members.items(), key=lambda item: item[0]):
        if owner == profile.id:
            context.print("**********")
            _dump_member(context, member, message)
    if not profile.with_selector:
        return
    context.print("==========")
    context.print("GROUPS")
    for (owner, group), grouped in sorted(context.target.profile_groups.items(), key=lambda item: item[0]):
        if owner == profile.id:
            context.print("**********")
            _dump_group(context, group, grouped)


def _dump_member(context: Context, member: int, message: p4runtime_pb2.ActionProfileMember) -> None:
    action = context.target.names.action(message.action.action_id)
    given = {param.param_id: param.value for param in message.action.params}
    values = ", ".join(full(given[param.id], param.bit_width).hex() for param in action.params)
    context.print(f"Dumping member {member - 1}")
    context.print(f"Action entry: {action.name} - {values}")


def _dump_group(context: Context, group: int, message: p4runtime_pb2.ActionProfileGroup) -> None:
    context.print(f"Dumping group {group - 1}")
    context.print(f"Members: [{', '.join(str(one.member_id - 1) for one in message.members)}]")


def act_prof_dump(context: Context, words: list[str]) -> None:
    """Display entries in an action profile: act_prof_dump <action profile name>"""
    exactly(words, 1)
    dump_profile(context, profile_of(context, words[0]))


def act_prof_dump_member(context: Context, words: list[str]) -> None:
    """Display some information about a member: act_prof_dump_member <action profile name> <member handle>"""
    exactly(words, 2)
    member = number(words[1], "member handle") + 1
    message = context.target.members.get((profile_of(context, words[0]).id, member))
    if message is None:
        raise wrong(f"there is no member {member - 1}")
    _dump_member(context, member, message)


def act_prof_dump_group(context: Context, words: list[str]) -> None:
    """Display some information about a group: act_prof_dump_group <action profile name> <group handle>"""
    exactly(words, 2)
    group = number(words[1], "group handle") + 1
    message = context.target.profile_groups.get((profile_of(context, words[0]).id, group))
    if message is None:
        raise wrong(f"there is no group {group - 1}")
    _dump_group(context, group, message)


COMMANDS = {
    command.__name__: command
    for command in (
        act_prof_create_member,
        act_prof_modify_member,
        act_prof_delete_member,
        act_prof_create_group,
        act_prof_delete_group,
        act_prof_add_member_to_group,
        act_prof_remove_member_from_group,
        act_prof_dump,
        act_prof_dump_member,
        act_prof_dump_group,
    )
}
