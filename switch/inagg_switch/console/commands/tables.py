# SPDX-License-Identifier: Apache-2.0
"""Commands of tables and their entries."""

from p4.v1 import p4runtime_pb2

from inagg_switch.console.commands.profiles import dump_profile
from inagg_switch.console.context import (
    DELETE,
    INSERT,
    MODIFY,
    CommandError,
    Context,
    at_least,
    exactly,
    number,
    wrong,
)
from inagg_switch.console.values import (
    full,
    kind_name,
    parse_match,
    parse_params,
    shown_match,
    split_params,
    table_kind,
    with_colons,
)
from inagg_switch.p4runtime.entities.entries import EntryTuple, Key, entry_key, parse_key, write_key
from inagg_switch.p4runtime.entities.idle import elapsed_ns
from inagg_switch.p4runtime.entities.names import Action, Table
from inagg_switch.p4runtime.errors import RequestError
from inagg_switch.program.abi import ACTION, MEMBER

# In BMv2's client the lowest priority wins, in P4Runtime the highest.
_LAST_PRIORITY = (1 << 31) - 1
_MS = 1_000_000  # ns


def action_of(context: Context, table: Table, name: str) -> Action:
    """The action of a table with this name."""
    actions = [context.target.names.actions[one] for one in table.entry_actions | table.default_actions]
    try:
        return context.find(actions, name, "action")
    except CommandError:
        raise wrong(f"Table {table.name} has no action {name}") from None


def split_entry(table: Table, words: list[str]) -> tuple[p4runtime_pb2.TableEntry, list[str]]:
    """An entry's key (and priority) from "MATCH... => WORD... [PRIORITY]", and the words."""
    entry = p4runtime_pb2.TableEntry(table_id=table.id)
    if table.needs_priority:
        entry.priority = _priority(words)
        words = words[:-1]
    cut = words.index("=>") if "=>" in words else len(words)
    if cut != len(table.fields):
        raise wrong(f"Table {table.name} needs {len(table.fields)} key fields")
    entry.match.extend(parse_match(table.fields, words[:cut]))
    return entry, words[cut + 1 :]


def _priority(words: list[str]) -> int:
    if not words or not (words[-1].isascii() and words[-1].isdigit()):
        raise wrong("Table is ternary, but could not extract a valid priority from args")
    given = int(words[-1])
    if given >= _LAST_PRIORITY:
        raise wrong(f"the priority {given} is not below {_LAST_PRIORITY}")
    return _LAST_PRIORITY - given


def key_of(table: Table, entry: p4runtime_pb2.TableEntry) -> Key:
    """The key of a message."""
    try:
        return parse_key(table, entry)
    except RequestError as error:
        raise CommandError(f"Invalid match key: {error}") from None


def entry_of(context: Context, table: Table, word: str) -> p4runtime_pb2.TableEntry:
    """The key of the entry with a handle."""
    key = context.handles(table).key(number(word, "entry handle"))
    if key is None:
        raise CommandError("Invalid table operation (INVALID_HANDLE)")
    message = p4runtime_pb2.TableEntry()
    write_key(message, table, key)
    return message


def show_match(context: Context, table: Table, key: Key) -> None:
    """Print the key of a new entry."""
    shown = (
        f"{kind_name(field).upper()}-{_colons(shown_match(field, match))}"
        for field, match in zip(table.fields, key.match, strict=True)
    )
    context.print("{:20} {}".format("match key:", "\t".join(shown)))


def _colons(text: str) -> str:
    """01020304 &&& ffffffff as 01:02:03:04 &&& ff:ff:ff:ff."""
    words = (word.partition("/") for word in text.split(" "))
    return " ".join(
        word if word in ("&&&", "->") else with_colons(bytes.fromhex(word)) + slash + length
        for word, slash, length in words
    )


def _show_action(context: Context, name: str, action: Action, message: p4runtime_pb2.Action) -> None:
    values = (
        with_colons(full(given.value, param.bit_width))
        for param, given in zip(action.params, message.params, strict=True)
    )
    context.print("{:20} {}".format("action:", name))
    context.print("{:20} {}".format("runtime data:", "\t".join(values)))


def table_add(context: Context, words: list[str]) -> None:
    """Add entry to a match table: table_add <table name> <action name> <match fields> => <action parameters>
    [priority]"""
    at_least(words, 3)
    table = context.table(words[0])
    action = action_of(context, table, words[1])
    entry, values = split_entry(table, words[2:])
    params = parse_params(action, values, words[1])
    entry.action.action.CopyFrom(params)
    key = key_of(table, entry)
    context.print(f"Adding entry to {table_kind(table)} match table {words[0]}")
    show_match(context, table, key)
    _show_action(context, words[1], action, params)
    context.write(INSERT, p4runtime_pb2.Entity(table_entry=entry))
    context.print(f"Entry has been added with handle {context.new_handle(table, key)}")


def table_set_default(context: Context, words: list[str]) -> None:
    """Set default action for a match table: table_set_default <table name> <action name> <action parameters>"""
    at_least(words, 2)
    table = context.table(words[0])
    action = action_of(context, table, words[1])
    params = parse_params(action, [word for word in words[2:] if word != "=>"], words[1])
    context.print(f"Setting default action of {words[0]}")
    _show_action(context, words[1], action, params)
    set_default(context, table, p4runtime_pb2.TableAction(action=params))


def set_default(context: Context, table: Table, action: p4runtime_pb2.TableAction | None) -> None:
    """Set a table's default entry; None: to the program's."""
    entry = p4runtime_pb2.TableEntry(table_id=table.id, is_default_action=True)
    if action is not None:
        entry.action.CopyFrom(action)
    context.write(MODIFY, p4runtime_pb2.Entity(table_entry=entry))


def table_reset_default(context: Context, words: list[str]) -> None:
    """Reset default entry for a match table: table_reset_default <table name>"""
    exactly(words, 1)
    set_default(context, context.table(words[0]), None)


def table_modify(context: Context, words: list[str]) -> None:
    """Change an entry's action: table_modify <table name> <action name> <entry handle> [action parameters]"""
    at_least(words, 3)
    table = context.table(words[0])
    action = action_of(context, table, words[1])
    entry = entry_of(context, table, words[2])
    entry.action.action.CopyFrom(parse_params(action, [word for word in words[3:] if word != "=>"], words[1]))
    context.print(f"Modifying entry {words[2]} for {table_kind(table)} match table {words[0]}")
    context.write(MODIFY, p4runtime_pb2.Entity(table_entry=entry))


def table_delete(context: Context, words: list[str]) -> None:
    """Delete entry from a match table: table_delete <table name> <entry handle>"""
    exactly(words, 2)
    table = context.table(words[0])
    entry = entry_of(context, table, words[1])
    context.print(f"Deleting entry {words[1]} from {words[0]}")
    context.write(DELETE, p4runtime_pb2.Entity(table_entry=entry))


def table_clear(context: Context, words: list[str]) -> None:
    """Clear all entries in a match table, but not the default entry: table_clear <table name>"""
    exactly(words, 1)
    table = context.table(words[0])
    for _, key in context.handles(table).in_order():
        entry = p4runtime_pb2.TableEntry()
        write_key(entry, table, key)
        context.write(DELETE, p4runtime_pb2.Entity(table_entry=entry))


def table_set_timeout(context: Context, words: list[str]) -> None:
    """Set a timeout for an entry; the table has to support timeouts: table_set_timeout <table name> <entry handle>
    <timeout (ms)>"""
    exactly(words, 3)
    table = context.table(words[0])
    if not table.has_idle_timeout:
        raise wrong(f"Table {words[0]} does not support entry timeouts")
    entry = entry_of(context, table, words[1])
    entry.idle_timeout_ns = number(words[2], "timeout") * _MS
    context.print(f"Setting a {words[2]} ms timeout for entry {words[1]}")
    context.write(MODIFY, p4runtime_pb2.Entity(table_entry=entry))


def table_num_entries(context: Context, words: list[str]) -> None:
    """Return the number of entries in a match table: table_num_entries <table name>"""
    exactly(words, 1)
    table = context.table(words[0])
    context.print(str(len(context.target.control.table_entries(table.id, table.field_bytes))))


def show_tables(context: Context, words: list[str]) -> None:
    """List tables defined in the P4 program: show_tables"""
    exactly(words, 0)
    for table in sorted(context.target.names.tables.values(), key=lambda one: one.name):
        context.print(_table_text(table))


def _table_text(table: Table) -> str:
    keys = ",\t".join(f"{field.name}({kind_name(field)}, {field.bit_width})" for field in table.fields)
    profile = table.profile.name if table.profile is not None else "None"
    return f"{table.name:30} [implementation={profile}, mk={keys}]"


def _action_text(action: Action) -> str:
    params = ",\t".join(f"{param.name}({param.bit_width})" for param in action.params)
    return f"{action.name:30} [{params}]"


def show_actions(context: Context, words: list[str]) -> None:
    """List actions defined in the P4 program: show_actions"""
    exactly(words, 0)
    for action in sorted(context.target.names.actions.values(), key=lambda one: one.name):
        context.print(_action_text(action))


def table_show_actions(context: Context, words: list[str]) -> None:
    """List one table's actions as per the P4 program: table_show_actions <table name>"""
    exactly(words, 1)
    table, actions = context.table(words[0]), context.target.names.actions
    for action in sorted(
        (actions[one] for one in table.entry_actions | table.default_actions), key=lambda one: one.name
    ):
        context.print(_action_text(action))


def table_info(context: Context, words: list[str]) -> None:
    """Show info about a table: table_info <table name>"""
    exactly(words, 1)
    context.print(_table_text(context.table(words[0])))
    context.print("*" * 80)
    table_show_actions(context, words)


def _dump_action(context: Context, entry: EntryTuple) -> None:
    action_id, params, kind, identity = entry[2], entry[3], entry[7], entry[8]
    if kind != ACTION:
        # BMv2's handles count from 0, P4Runtime's ids from 1.
        context.print(f"Index: {'member' if kind == MEMBER else 'group'}({identity - 1})")
    elif action_id == 0:
        context.print("EMPTY")
    else:
        action = context.target.names.action(action_id)
        values = ", ".join(value.hex() for value in split_params(action, params))
        context.print(f"Action entry: {action.name} - {values}")


def _dump_entry(context: Context, table: Table, handle: int, entry: EntryTuple) -> None:
    key = entry_key(entry)
    width = max(20, *(len(field.name) for field in table.fields))
    context.print(f"Dumping entry {hex(handle)}")
    context.print("Match key:")
    for field, match in zip(table.fields, key.match, strict=True):
        context.print(f"* {field.name:{width}}: {kind_name(field).upper():10}{shown_match(field, match)}")
    if table.needs_priority:
        context.print(f"Priority: {_LAST_PRIORITY - key.priority}")
    _dump_action(context, entry)
    timer = context.target.timers.by_entry.get((table.id, key))
    if timer is not None and timer.timeout_ns:
        idle = elapsed_ns(context.target, table, entry) // _MS
        context.print(f"Life: {idle}ms since hit, timeout is {timer.timeout_ns // _MS}ms")


def _find_dumped(context: Context, table: Table, key: Key) -> None:
    try:
        entry = context.target.control.table_entry(table.id, key.match, key.priority)
    except FileNotFoundError:
        raise CommandError("Invalid table operation (BAD_MATCH_KEY)") from None
    _dump_entry(context, table, context.handles(table).of(key), entry)


def table_dump(context: Context, words: list[str]) -> None:
    """Display entries in a match table: table_dump <table name>"""
    exactly(words, 1)
    table = context.table(words[0])
    handles = context.handles(table)
    entries = {entry_key(e): e for e in context.target.control.table_entries(table.id, table.field_bytes)}
    context.print("==========")
    context.print("TABLE ENTRIES")
    for handle, key in handles.in_order():
        context.print("**********")
        _dump_entry(context, table, handle, entries[key])
    if table.profile is not None:
        dump_profile(context, table.profile)
    context.print("==========")
    context.print("Dumping default entry")
    default = context.target.control.table_default(table.id)
    if default:
        _dump_action(context, default[0])
    else:
        context.print("EMPTY")
    context.print("==========")


def table_dump_entry(context: Context, words: list[str]) -> None:
    """Display some information about a table entry: table_dump_entry <table name> <entry handle>"""
    exactly(words, 2)
    table = context.table(words[0])
    _find_dumped(context, table, key_of(table, entry_of(context, table, words[1])))


def table_dump_entry_from_key(context: Context, words: list[str]) -> None:
    """Display some information about a table entry: table_dump_entry_from_key <table name> <match fields> [priority]"""
    at_least(words, 1)
    table = context.table(words[0])
    _find_dumped(context, table, key_of(table, split_entry(table, words[1:])[0]))


COMMANDS = {
    command.__name__: command
    for command in (
        table_add,
        table_set_default,
        table_reset_default,
        table_modify,
        table_delete,
        table_clear,
        table_set_timeout,
        table_num_entries,
        show_tables,
        show_actions,
        table_show_actions,
        table_info,
        table_dump,
        table_dump_entry,
        table_dump_entry_from_key,
    )
}
