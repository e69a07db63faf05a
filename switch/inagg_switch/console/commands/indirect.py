# SPDX-License-Identifier: Apache-2.0
"""Commands of tables with an action profile: their entries refer to its members and groups."""

from p4.v1 import p4runtime_pb2

from inagg_switch.console.commands.tables import (
    key_of,
    set_default,
    split_entry,
    table_delete,
    table_reset_default,
)
from inagg_switch.console.context import INSERT, Context, at_least, exactly, number, wrong
from inagg_switch.p4runtime.entities.names import Table


def _table(context: Context, name: str, *, selector: bool = False) -> Table:
    table = context.table(name)
    if table.profile is None:
        raise wrong("Cannot run this command on non-indirect table")
    if selector and not table.profile.with_selector:
        raise wrong("Cannot run this command on non-indirect table, or on indirect table with no selector")
    return table


def _reference(word: str, *, group: bool) -> p4runtime_pb2.TableAction:
    """A handle as P4Runtime's id, which counts from 1."""
    identity = number(word, "handle") + 1
    if group:
        return p4runtime_pb2.TableAction(action_profile_group_id=identity)
    return p4runtime_pb2.TableAction(action_profile_member_id=identity)


def _add(context: Context, words: list[str], *, group: bool) -> None:
    at_least(words, 2)
    table = _table(context, words[0], selector=group)
    entry, values = split_entry(table, words[1:])
    if len(values) != 1:
        raise wrong("Invalid arguments, could not find handle")
    entry.action.CopyFrom(_reference(values[0], group=group))
    key = key_of(table, entry)
    context.print(f"Adding entry to indirect match table {table.name}")
    context.write(INSERT, p4runtime_pb2.Entity(table_entry=entry))
    context.print(f"Entry has been added with handle {context.new_handle(table, key)}")


def table_indirect_add(context: Context, words: list[str]) -> None:
    """Add entry to an indirect match table: table_indirect_add <table name> <match fields> => <member handle>
    [priority]"""
    _add(context, words, group=False)


def table_indirect_add_with_group(context: Context, words: list[str]) -> None:
    """Add entry to an indirect match table: table_indirect_add_with_group <table name> <match fields> => <group handle>
    [priority]"""
    _add(context, words, group=True)


def table_indirect_delete(context: Context, words: list[str]) -> None:
    """Delete entry from an indirect match table: table_indirect_delete <table name> <entry handle>"""
    exactly(words, 2)
    _table(context, words[0])
    table_delete(context, words)


def table_indirect_set_default(context: Context, words: list[str]) -> None:
    """Set default member for indirect match table: table_indirect_set_default <table name> <member handle>"""
    exactly(words, 2)
    set_default(context, _table(context, words[0]), _reference(words[1], group=False))


def table_indirect_set_default_with_group(context: Context, words: list[str]) -> None:
    """Set default group for indirect match table: table_indirect_set_default_with_group <table name> <group handle>"""
    exactly(words, 2)
    set_default(context, _table(context, words[0], selector=True), _reference(words[1], group=True))


def table_indirect_reset_default(context: Context, words: list[str]) -> None:
    """Reset default entry for indirect match table: table_indirect_reset_default <table name>"""
    exactly(words, 1)
    _table(context, words[0])
    table_reset_default(context, words)


COMMANDS = {
    command.__name__: command
    for command in (
        table_indirect_add,
        table_indirect_add_with_group,
        table_indirect_delete,
        table_indirect_set_default,
        table_indirect_set_default_with_group,
        table_indirect_reset_default,
    )
}
