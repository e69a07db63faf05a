"""Tables: keys, actions, properties and entries."""

import logging

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.check.statements import StatementChecker
from inagg_switch.errors import CompileError, Position

_log = logging.getLogger(__name__)
_PROPERTY_TYPES = {
    "counters": ("direct_counter",),
    "meters": ("direct_meter",),
    "implementation": ("action_profile", "action_selector"),
}
_MATCH_KINDS = frozenset(["exact", "lpm", "ternary", "range", "optional", "selector"])


class TableChecker(StatementChecker):
    """Checks tables."""

    def table(self, d: syntax.Table) -> None:
        failures = self.failures
        for key in d.keys:
            with self.recovering():
                self._key(d, key)
        for ref in d.actions:
            with self.recovering():
                self._action_ref(d, ref)
        for name, entry in d.properties.items():
            with self.recovering():
                self._property(d, name, entry)
        if self.failures == failures:  # else every entry would be wrong as well
            self._rows(d)
        self.declare(d)

    def _key(self, d: syntax.Table, key: syntax.Key) -> None:
        if key.match_kind not in self.match_kinds or key.match_kind not in _MATCH_KINDS:
            raise CompileError(f"`{key.match_kind}` is not a match kind of this architecture", key.kind_at)
        key.expression = self.rvalue(key.expression)
        self.structured(key.annotations)
        self._key_type(d, key)

    def _rows(self, d: syntax.Table) -> None:
        """What needs the keys and the actions: the default action, and the entries."""
        with self.recovering():
            self._default_action(d)
        if d.entries and not d.keys:
            raise CompileError(f"table {d.name} has entries and no key", d.entries[0].at)
        failures = self.failures
        for row in d.entries:
            with self.recovering():
                self._entry(d, row)
        if d.entries and "implementation" in d.properties:
            self._warn(d, "BMv2 ignores the entries of a table with an action profile", d.entries[0].at)
        if self.failures == failures:
            self._priorities(d)

    def _key_type(self, d: syntax.Table, key: syntax.Key) -> None:
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

    def _action_ref(self, d: syntax.Table, ref: syntax.ActionRef) -> None:
        self.structured(ref.annotations)
        found = self.scope.find(ref.name, absolute=ref.absolute)
        if not isinstance(found, syntax.Action):
            raise CompileError(f"`{ref.name}` is not an action", ref.at)
        if any(a is not ref and a.declaration is found for a in d.actions):
            raise CompileError(f"table {d.name} lists action `{ref.name}` twice", ref.at)
        ref.declaration = found
        directional = [p for p in found.parameters if p.direction]
        ref.bound = self.bind(f"action {ref.name}", directional, ref.arguments, {}, ref.at, of_action=True)

    def _default_action(self, d: syntax.Table) -> None:
        ref = d.default_action
        if ref is None:
            return
        listed = self._listed(d, ref)
        if any(a.name == "tableonly" for a in listed.annotations):
            raise CompileError(f"action `{ref.name}` is @tableonly and cannot be the default", ref.at)
        self._constant_arguments(ref)
        for name, value in listed.bound.items():
            given = ref.bound.get(name)
            if value is not None and given is not None and not _may_be_same(value, given):
                raise CompileError(
                    f"argument `{name}` of {ref.name} is not the one in the list of actions", given.start
                )

    def _listed(self, d: syntax.Table, ref: syntax.ActionRef) -> syntax.ActionRef:
        """The table's own mention of an action that an entry or the default names."""
        found = self.scope.find(ref.name, absolute=ref.absolute)
        for listed in d.actions:
            if listed.declaration is found:
                ref.declaration = listed.declaration
                return listed
        raise CompileError(f"`{ref.name}` is not among the actions of table {d.name}", ref.at)

    def _constant_arguments(self, ref: syntax.ActionRef) -> None:
        """Arguments of a default action or entry: the directionless parameters, or all of them."""
        assert ref.declaration is not None
        parameters = ref.declaration.parameters
        plain = [p for p in parameters if not p.direction]
        given = parameters if len(ref.arguments) == len(parameters) else plain
        ref.bound = self.bind(f"action {ref.name}", given, ref.arguments, {}, ref.at, of_action=True)
        for parameter in plain:
            value = ref.bound[parameter.name]
            if value is None or not self.compile_time(value):
                raise CompileError(
                    f"argument `{parameter.name}` of {ref.name} must be known at compile time",
                    value.at if value is not None else ref.at,
                )

    def _property(self, d: syntax.Table, name: str, entry: syntax.Property) -> None:
        entry.value = self.rvalue(entry.value)
        if name == "size":
            size = entry.value.value
            number = isinstance(t.strip(entry.value.type), t.BitType) or entry.value.type == t.INTEGER
            if not (number and self.compile_time(entry.value)) or (size is not None and size < 0):
                raise CompileError(
                    "the size of a table must be a number known at compile time", entry.value.start
                )
        elif name == "support_timeout":
            if not isinstance(entry.value.value, bool):
                raise CompileError("support_timeout is true or false", entry.value.start)
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
            entry.value.value = self.constant(entry.value, "`priority_delta`")
            if entry.value.value <= 0:
                raise CompileError("`priority_delta` must be positive", entry.value.start)
        else:
            self._warn(d, f"property `{name}` means nothing here", entry.at)

    def _warn(self, d: syntax.Table, message: str, at: Position) -> None:
        _log.warning("%s:%d:%d: warning: table %s: %s", at.path, at.line, at.column, d.name, message)

    def _entry(self, d: syntax.Table, row: syntax.Entry) -> None:
        row.keys = one_by_one(row.keys, len(d.keys), row.at)
        if len(row.keys) != len(d.keys):
            raise CompileError(f"table {d.name} has {len(d.keys)} keys, the entry {len(row.keys)}", row.at)
        row.keys = [self.set_of(k, key.expression.type) for k, key in zip(row.keys, d.keys, strict=True)]
        for value, key in zip(row.keys, d.keys, strict=True):
            if key.match_kind == "selector" and "implementation" not in d.properties:
                raise CompileError("an entry cannot have a value for a selector key", value.start)
            if not all(map(self.compile_time, set_parts(value))):
                raise CompileError("the keys of an entry must be known at compile time", value.start)
            _check_entry_key(value, key)
        listed = self._listed(d, row.action)
        if any(a.name == "defaultonly" for a in listed.annotations):
            raise CompileError(
                f"action `{row.action.name}` is @defaultonly and cannot be in an entry", row.action.at
            )
        self._constant_arguments(row.action)
        if row.priority is not None:
            row.priority.value = self.constant(row.priority, "a priority")

    def _priorities(self, d: syntax.Table) -> None:
        """Which entries may, and must, say their priority."""
        given = next((row.priority for row in d.entries if row.priority is not None), None)
        if given is None:
            return
        if d.const_entries:
            raise CompileError("`const` entries match in the order in which they are written", given.at)
        if all(k.match_kind in ("exact", "lpm") for k in d.keys):
            raise CompileError(f"the keys of table {d.name} need no priorities", given.at)
        if d.entries[0].priority is None:
            raise CompileError("the first entry has no priority, and a later one has", d.entries[0].at)


def one_by_one(keys: list[syntax.Expression], count: int, at: Position) -> list[syntax.Expression]:
    """A set for each value: `_` stands for any number of them, and a list is its items."""
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
    """Whether two expressions, at two places, may stand for the same."""
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
