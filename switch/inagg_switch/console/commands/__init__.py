# SPDX-License-Identifier: Apache-2.0
"""The console's commands by name. A command's docstring is its help.

Each takes the context and its words, prints through the context, and raises CommandError if it is refused.
"""

from collections.abc import Callable

from inagg_switch.console.commands import (
    arrays,
    indirect,
    profiles,
    replication,
    switch,
    tables,
    value_sets,
)
from inagg_switch.console.context import Context

Command = Callable[[Context, list[str]], None]

COMMANDS: dict[str, Command] = {
    name: command
    for module in (tables, profiles, indirect, arrays, replication, value_sets, switch)
    for name, command in module.COMMANDS.items()
}
