"""A programmable-switch model: compiles v1model P4_16 to native code and runs it, bit for bit as BMv2 would."""

from inagg_switch.errors import CompileError, EntryError, Position, SwitchError, ToolchainError, UnknownName
from inagg_switch.switch import Counter, Register, Switch, TableEntry

__all__ = [
    "CompileError",
    "Counter",
    "EntryError",
    "Position",
    "Register",
    "Switch",
    "SwitchError",
    "TableEntry",
    "ToolchainError",
    "UnknownName",
]
