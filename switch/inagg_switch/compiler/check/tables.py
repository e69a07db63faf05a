# SPDX-License-Identifier: Apache-2.0
"""Checks tables: keys, actions, properties and entries."""

import logging

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.arguments import bind, compile_time
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.check.expressions import set_of
from inagg_switch.compiler.check.names import check_annotations, declare
from inagg_switch.compiler.check.values import constant_value, rvalue
from inagg_switch.errors import CompileError, Position

_log = logging.getLogger(__name__)
_PROPERTY_TYPES = {
    "counters": ("direct_counter",),
    "meters": ("direct_meter",),
    "implementation": ("action_profile", "action_selector"),
}
_MATCH_KINDS = frozenset(["exact", "lpm", "ternary", "range", "optional", "selector"])


def check_table(checker: Checker, d: syntax.Table) -> None:
    failures = checker.failures
    for key in d.keys:
        with checker.recovering():
            _check_key(checker, d, key)
    for ref in d.actions:
        with checker.recovering():
            _action_ref(checker, d, ref)
    for name, entry in d.properties.items():
        with checker.recovering():
            _property(checker, d, name, entry)
    if checker.failures == failures:  # otherwise every entry would have an error too
        _rows(checker, d)
    declare(checker, d)


def _check_key(checker: Checker, d: syntax.Table, key: syntax.Key) -> None:
    if key.match_kind not in checker.match_kinds or key.match_kind not in _MATCH_KINDS:
        raise CompileError(f"`{key.match_kind}` is not a match kind of this architecture", key.kind_at)
    key.expression = rvalue(checker, key.expression)
    check_annotations(checker, key.annotations)
    _key_type(d, key)


def _rows(checker: Checker, d: syntax.Table) -> None:
    """Checks the default action and the entries, after the keys and the actions."""
    with checker.recovering():
        _default_action(checker, d)
    if d.entries and not d.keys:
        raise CompileError(f"table {d.name} has entries but no key", d.entries[0].at)
    failures = checker.failures
    for row in d.entries:
        with checker.recovering():
            _entry(checker, d, row)
    if d.entries and "implementation" in d.properties:
        _warn(d, "BMv2 ignores the entries of a table with an action profile", d.entries[0].at)
    if checker.failures == failures:
        _priorities(d)


def _key_type(d: syntax.Table, key: syntax.Key) -> None:
    bits = t.strip(key.expression.type)
    if key.expression.type == t.INTEGER or not (
        isinstance(bits, t.BitType | t.EnumType) or bits in (t.BOOL, t.ERROR)
    ):
        raise CompileError(
            f"a key of table {d.name} must be bits, bool, an enum or an error, found "
            f"{describe(key.expression)}",
            key.at,
        )
    free = ("exact", "optional", "selector", "ternary")
    if key.match_kind not in free and not isinstance(bits, t.BitType):
        raise CompileError(
            f"a key of kind {key.match_kind} must be bits, found {describe(key.expression)}", key.at
        )
    if sum(k.match_kind == "lpm" for k in d.keys) > 1:
        raise CompileError(f"table {d.name} has more than one lpm key", key.kind_at)


def _action_ref(checker: Checker, d: syntax.Table, ref: syntax.ActionRef) -> None:
    check_annotations(checker, ref.annotations)
    found = checker.scope.find(ref.name, absolute=ref.absolute)
    if not isinstance(found, syntax.Action):
        raise CompileError(f"`{ref.name}` is not an action", ref.at)
    if any(a is not ref and a.declaration is found for a in d.actions):
        raise CompileError(f"table {d.name} lists action `{ref.name}` twice", ref.at)
    ref.declaration = found
    directional = [p for p in found.parameters if p.direction]
    outside, checker.inside = checker.inside, "action"  # p4c computes the arguments in the action's body
    ref.bound = bind(checker, f"action {ref.name}", directional, ref.arguments, {}, ref.at, of_action=True)
    checker.inside = outside


def _default_action(checker: Checker, d: syntax.Table) -> None:
    ref = d.default_action
    if ref is None:
        return
    listed = _listed(checker, d, ref)
    if any(a.name == "tableonly" for a in listed.annotations):
        raise CompileError(f"action `{ref.name}` is @tableonly and cannot be the default", ref.at)
    _constant_arguments(checker, ref)
    for name, value in listed.bound.items():
        given = ref.bound.get(name)
        if value is not None and given is not None and not _may_be_same(value, given):
            raise CompileError(
                f"argument `{name}` of {ref.name} differs from the one in the list of actions", given.start
            )


def _listed(checker: Checker, d: syntax.Table, ref: syntax.ActionRef) -> syntax.ActionRef:
    """The table's reference in `actions` to the action of an entry or of the default. Raises CompileError without
    one."""
    found = checker.scope.find(ref.name, absolute=ref.absolute)
    for listed in d.actions:
        if listed.declaration is found:
            ref.declaration = listed.declaration
            return listed
    raise CompileError(f"`{ref.name}` is not among the actions of table {d.name}", ref.at)


def _constant_arguments(checker: Checker, ref: syntax.ActionRef) -> None:
    """Checks the arguments of a default action or entry: those of the directionless parameters, or of all."""
    assert ref.declaration is not None
    parameters = ref.declaration.parameters
    directionless = [p for p in parameters if not p.direction]
    given = parameters if len(ref.arguments) == len(parameters) else directionless
    ref.bound = bind(checker, f"action {ref.name}", given, ref.arguments, {}, ref.at, of_action=True)
    for parameter in directionless:
        value = ref.bound[parameter.name]
        if value is None or not compile_time(value):
            raise CompileError(
                f"argument `{parameter.name}` of {ref.name} must be known at compile time",
                value.at if value is not None else ref.at,
            )


def _property(checker: Checker, d: syntax.Table, name: str, entry: syntax.Property) -> None:
    entry.value = rvalue(checker, entry.value)
    if name == "size":
        size = entry.value.value
        number = isinstance(t.strip(entry.value.type), t.BitType) or entry.value.type == t.INTEGER
        if not (number and compile_time(entry.value)) or (size is not None and size < 0):
            raise CompileError(
                "the size of a table must be a number known at compile time", entry.value.start
            )
    elif name == "support_timeout":
        if not isinstance(entry.value.value, bool):
            raise CompileError("`support_timeout` must be true or false", entry.value.start)
    elif name in _PROPERTY_TYPES:
        wanted = _PROPERTY_TYPES[name]
        type_ = entry.value.type
        if not (isinstance(type_, t.ExternType) and type_.name in wanted):
            raise CompileError(
                f"expected {' or '.join(wanted)}, found {describe(entry.value)}", entry.value.start
            )
    elif name == "largest_priority_wins":
        if not isinstance(entry.value.value, bool):
            raise CompileError(f"`{name}` must be true or false", entry.value.start)
    elif name == "priority_delta":
        entry.value.value = constant_value(checker, entry.value, "`priority_delta`")
        if entry.value.value <= 0:
            raise CompileError("`priority_delta` must be positive", entry.value.start)
    else:
        _warn(d, f"property `{name}` is unknown and ignored", entry.at)


def _warn(d: syntax.Table, message: str, at: Position) -> None:
    _log.warning("%s:%d:%d: warning: table %s: %s", at.path, at.line, at.column, d.name, message)


def _entry(checker: Checker, d: syntax.Table, row: syntax.Entry) -> None:
    row.keys = one_by_one(row.keys, len(d.keys), row.at)
    if len(row.keys) != len(d.keys):
        raise CompileError(f"table {d.name} has {len(d.keys)} keys, the entry {len(row.keys)}", row.at)
    row.keys = [set_of(checker, k, key.expression.type) for k, key in zip(row.keys, d.keys, strict=True)]
    for value, key in zip(row.keys, d.keys, strict=True):
        if key.match_kind == "selector" and "implementation" not in d.properties:
            raise CompileError("an entry cannot have a value for a selector key", value.start)
        if not all(map(compile_time, set_parts(value))):
            raise CompileError("the keys of an entry must be known at compile time", value.start)
        _check_entry_key(value, key)
    listed = _listed(checker, d, row.action)
    if any(a.name == "defaultonly" for a in listed.annotations):
        raise CompileError(
            f"action `{row.action.name}` is @defaultonly and cannot be in an entry", row.action.at
        )
    _constant_arguments(checker, row.action)
    if row.priority is not None:
        row.priority.value = constant_value(checker, row.priority, "a priority")


def _priorities(d: syntax.Table) -> None:
    """Checks which entries have a priority."""
    given = next((row.priority for row in d.entries if row.priority is not None), None)
    if given is None:
        return
    if d.const_entries:
        raise CompileError(
            "`const` entries have no priorities: they match in the order in which they are written", given.at
        )
    if all(k.match_kind in ("exact", "lpm") for k in d.keys):
        raise CompileError(f"the keys of table {d.name} need no priorities", given.at)
    if d.entries[0].priority is None:
        raise CompileError("the first entry has no priority, but a later one has", d.entries[0].at)


def one_by_one(keys: list[syntax.Expression], count: int, at: Position) -> list[syntax.Expression]:
    """One set for each value. A single `_` is `_` for every value; a list is the list of its items."""
    if len(keys) == 1 and isinstance(keys[0], syntax.Anything | syntax.DefaultValue):
        return [syntax.Anything(at) for _ in range(count)]
    if len(keys) == 1 and isinstance(keys[0], syntax.ListExpression) and len(keys[0].items) == count:
        return keys[0].items
    return keys


def _check_entry_key(value: syntax.Expression, key: syntax.Key) -> None:
    allowed = {
        syntax.Mask: ("ternary", "lpm"),
        syntax.Range: ("range",),
        syntax.Anything: ("ternary", "lpm", "range", "optional"),
        syntax.DefaultValue: ("ternary", "lpm", "range", "optional"),
    }.get(type(value))
    if allowed is not None and key.match_kind not in allowed:
        what = {syntax.Mask: "a mask", syntax.Range: "a range"}.get(type(value), "`_`")
        raise CompileError(f"{what} does not fit a key of kind {key.match_kind}", value.start)


def _may_be_same(a: syntax.Expression, b: syntax.Expression) -> bool:
    """False if two expressions certainly differ."""
    if isinstance(a, syntax.Name) and isinstance(b, syntax.Name):
        return a.declaration is b.declaration
    if isinstance(a, syntax.Member) and isinstance(b, syntax.Member):
        return a.name == b.name and _may_be_same(a.base, b.base)
    return type(a) is type(b) and a.value == b.value


def set_parts(value: syntax.Expression) -> tuple[syntax.Expression, ...]:
    if isinstance(value, syntax.Mask):
        return value.left, value.mask
    if isinstance(value, syntax.Range):
        return value.low, value.high
    return () if isinstance(value, syntax.Anything | syntax.DefaultValue) else (value,)
