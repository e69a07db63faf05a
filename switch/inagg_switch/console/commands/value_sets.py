# SPDX-License-Identifier: Apache-2.0
"""Commands of parser value sets."""

from p4.v1 import p4runtime_pb2

from inagg_switch.console.context import MODIFY, Context, exactly, wrong
from inagg_switch.console.values import full, parse_match
from inagg_switch.p4runtime.entities.names import MatchKind, ValueSet


def _value_set(context: Context, name: str) -> ValueSet:
    found = context.find(context.target.names.value_sets.values(), name, "parser value set")
    if len(found.fields) != 1 or found.fields[0].kind is not MatchKind.EXACT:
        raise wrong(f"value set {found.name}: only sets of one exact field have commands; use P4Runtime")
    return found


def _members(context: Context, value_set: ValueSet) -> list[p4runtime_pb2.ValueSetMember]:
    written = context.target.value_sets.get(value_set.id)
    return list(written.members) if written is not None else []


def _member(value_set: ValueSet, word: str) -> p4runtime_pb2.ValueSetMember:
    return p4runtime_pb2.ValueSetMember(match=parse_match(value_set.fields, [word]))


def _write(context: Context, value_set: ValueSet, members: list[p4runtime_pb2.ValueSetMember]) -> None:
    entity = p4runtime_pb2.Entity()
    entity.value_set_entry.value_set_id = value_set.id
    entity.value_set_entry.members.extend(members)
    context.write(MODIFY, entity, "parser value set")


def show_pvs(context: Context, words: list[str]) -> None:
    """List parser value sets defined in the P4 program: show_pvs"""
    exactly(words, 0)
    for value_set in sorted(context.target.names.value_sets.values(), key=lambda one: one.name):
        bits = sum(field.bit_width for field in value_set.fields)
        context.print(f"{value_set.name:30} [compressed bitwidth:{bits}]")


def pvs_add(context: Context, words: list[str]) -> None:
    """Add a value to a parser value set: pvs_add <pvs_name> <value>
    A value that it has already is not an error."""
    exactly(words, 2)
    value_set = _value_set(context, words[0])
    members, member = _members(context, value_set), _member(value_set, words[1])
    if member not in members:
        _write(context, value_set, [*members, member])


def pvs_remove(context: Context, words: list[str]) -> None:
    """Remove a value from a parser value set: pvs_remove <pvs_name> <value>
    A value that it does not have is not an error."""
    exactly(words, 2)
    value_set = _value_set(context, words[0])
    member = _member(value_set, words[1])
    _write(context, value_set, [one for one in _members(context, value_set) if one != member])


def pvs_get(context: Context, words: list[str]) -> None:
    """Print all values from a parser value set: pvs_get <pvs_name>"""
    exactly(words, 1)
    value_set = _value_set(context, words[0])
    for member in _members(context, value_set):
        context.print(full(member.match[0].exact.value, value_set.fields[0].bit_width).hex())


def pvs_clear(context: Context, words: list[str]) -> None:
    """Remove all values from a parser value set: pvs_clear <pvs_name>"""
    exactly(words, 1)
    _write(context, _value_set(context, words[0]), [])


COMMANDS = {command.__name__: command for command in (show_pvs, pvs_add, pvs_remove, pvs_get, pvs_clear)}
