# SPDX-License-Identifier: Apache-2.0
"""A programmable-switch model: compiles v1model P4_16 to native code and runs it with the results of BMv2.

Read `switch` first (a program in this process), then `compiler/`, `program/` (a compiled program's objects), `ports`
(network interfaces) and `p4runtime/` (the server). `native/` has the C++.
"""

import inagg_p4runtime.messages  # noqa: F401  before any module here imports p4.v1
from inagg_switch.errors import CompileError, EntryError, Position, SwitchError, ToolchainError, UnknownName
from inagg_switch.program.arrays import Counter, Meter, Register
from inagg_switch.program.entries import TableEntry
from inagg_switch.program.externs import MeterConfig
from inagg_switch.program.profiles import ActionProfile, Group, Member
from inagg_switch.switch import Digest, Switch

__all__ = [
    "ActionProfile",
    "CompileError",
    "Counter",
    "Digest",
    "EntryError",
    "Group",
    "Member",
    "Meter",
    "MeterConfig",
    "Position",
    "Register",
    "Switch",
    "SwitchError",
    "TableEntry",
    "ToolchainError",
    "UnknownName",
]
