# SPDX-License-Identifier: Apache-2.0
"""Lowers tables: keys, actions, entries and properties."""

from dataclasses import replace

from inagg_switch.compiler import ir, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.arguments import pass_arguments
from inagg_switch.compiler.lower.constants import known_number, known_value, zero
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.lower.expressions import expression
from inagg_switch.compiler.lower.instances import make_object
from inagg_switch.compiler.names import control_plane_name
from inagg_switch.errors import CompileError

_DEFAULT_SIZE = 1024


def lower_table(scope: Scope, d: syntax.Table) -> ir.Table:
    full_name = control_plane_name(d, scope.path)
    keys = [_key(scope, k) for k in d.keys if k.match_kind != "selector"]
    uses = [_use(scope, a) for a in d.actions]
    default, arguments, const_default = _default(scope, d, uses)
    table = ir.Table(
        scope.stage.members.unique(full_name),
        full_name,
        d,
        keys,
        uses,
        _table_size(scope, d),
        default,
        arguments,
        const_default,
        d.const_entries,
        [] if "implementation" in d.properties else _entries(scope, d, keys),
        _direct_counter(scope, d),
        _direct_meter(scope, d),
        _profile(scope, d),
        tuple(expression(scope, k.expression) for k in d.keys if k.match_kind == "selector"),
        _is_true(d.properties.get("support_timeout")),
    )
    if table.direct_meter is not None:
        if table.direct_meter.table is not None:
            raise CompileError("the direct meter already belongs to another table", d.at)
        table.direct_meter.table = table
    if table.profile is not None:
        if table.selector and table.profile.algorithm is None:
            raise CompileError("selector keys need an action_selector, not an action_profile", d.at)
        inputs = [_path(e) for e in table.selector]
        if any([_path(e) for e in other.selector] != inputs for other in table.profile.tables):
            raise CompileError("the action selector has other selector keys in another table", d.at)
        table.profile.tables.append(table)
    if table.direct_counter is not None:
        if table.direct_counter.table is not None:
            raise CompileError("the direct counter already belongs to another table", d.at)
        table.direct_counter.table = table
    scope.add_object(table)
    return table


def _table_size(scope: Scope, d: syntax.Table) -> int:
    entry = d.properties.get("size")
    if entry is None:
        return _DEFAULT_SIZE
    size = known_number(scope, entry.value, "the size of a table")
    if size >= 1 << 31:
        raise CompileError(f"size {size} of table {d.name} is too large", entry.value.start)
    return size or _DEFAULT_SIZE


def _key(scope: Scope, key: syntax.Key) -> ir.KeyField:
    expr = expression(scope, key.expression)
    named = next((a for a in key.annotations if a.name == "name"), None)
    name = str(named.arguments[0]) if named is not None and named.arguments else _source(key.expression)
    return ir.KeyField(
        name,
        key.match_kind,
        key.expression.type,
        t.bit_width(key.expression.type),
        _zero_if_invalid(expr),
        key.annotations,
        _mask(expr),
    )


# --- actions


def _use(scope: Scope, ref: syntax.ActionRef) -> ir.ActionUse:
    assert ref.declaration is not None
    action = scope.action_of(ref.declaration)
    for parameter in ref.declaration.parameters:
        bare = t.strip(parameter.type)
        if not (parameter.direction or bare == t.BOOL or isinstance(bare, t.BitType | t.EnumType)):
            raise CompileError(
                f"parameter `{parameter.name}` of action {ref.name} is set by entries, so it must be bits,"
                f" bool or an enum, not {parameter.type}",
                parameter.at,
            )
    directional = [p for p in ref.declaration.parameters if p.direction]
    bound = pass_arguments(scope, directional, ref.bound, private=False)
    names = {a.name for a in ref.annotations}
    return ir.ActionUse(
        action, bound, "defaultonly" not in names, "tableonly" not in names, ref.annotations, action.exits
    )


def _default(scope: Scope, d: syntax.Table, uses: list[ir.ActionUse]) -> tuple[int, list[int], bool]:
    ref = d.default_action
    if ref is not None:
        number = next(i for i, u in enumerate(uses) if u.action.declaration is ref.declaration)
        return number, _arguments(scope, ref), d.const_default
    for number, use in enumerate(uses):
        if use.action.full_name == "NoAction":
            return number, [], False
    # A table without a default action gets NoAction, for misses only.
    mention = syntax.ActionRef(d.at, "NoAction", [], [syntax.Annotation(d.at, "defaultonly", [], "")])
    mention.declaration = _no_action(scope, d)
    uses.append(_use(scope, mention))
    return len(uses) - 1, [], False


def _no_action(scope: Scope, d: syntax.Table) -> syntax.Action:
    for declaration in scope.stage.program.declarations:
        if isinstance(declaration, syntax.Action) and declaration.name == "NoAction":
            return declaration
    raise CompileError(
        f"table {d.name} has no default action and the program has no NoAction; set default_action", d.at
    )


def _arguments(scope: Scope, ref: syntax.ActionRef) -> list[int]:
    """The values of the directionless parameters, in order."""
    assert ref.declaration is not None
    values: list[int] = []
    for parameter in ref.declaration.parameters:
        if parameter.direction:
            continue
        given = ref.bound[parameter.name]
        assert given is not None
        value = known_value(scope, given, f"argument `{parameter.name}` of {ref.name}")
        values.append(int(value) & ((1 << t.bit_width(parameter.type)) - 1))
    return values


# --- entries and properties


def _entries(scope: Scope, d: syntax.Table, keys: list[ir.KeyField]) -> list[ir.Entry]:
    ordered = any(k.kind in ("ternary", "range", "optional") for k in keys)
    entries: list[ir.Entry] = []
    priorities = _priorities(d)
    for row, priority in zip(d.entries, priorities, strict=True):
        if not 0 < priority < 1 << 31:
            raise CompileError("the priority of an entry is not between 1 and 2^31 - 1", row.at)
    for number, row in enumerate(d.entries):
        action = next(i for i, a in enumerate(d.actions) if a.declaration is row.action.declaration)
        values = [_masked(_entry_key(scope, k, f), f) for k, f in zip(row.keys, keys, strict=True)]
        priority = 0
        if ordered:
            priority = priorities[number]
        is_const = d.const_entries or row.is_const
        entries.append(ir.Entry(values, priority, action, _arguments(scope, row.action), is_const))
    _refuse_doubles(d, keys, entries)
    return entries


def _entry_key(scope: Scope, key: syntax.Expression, field: ir.KeyField) -> tuple[int | None, int, int]:
    """(value or None, mask or high, prefix length), in the form of the ABI."""
    ones = (1 << field.width) - 1
    if isinstance(key, syntax.Anything | syntax.DefaultValue):
        return None, 0, 0
    if isinstance(key, syntax.Range):
        low, high = _key_part(scope, key.low) & ones, _key_part(scope, key.high) & ones
        if low > high:
            raise CompileError(f"the range from {low} to {high} is empty", key.at)
        return low, high, 0
    if isinstance(key, syntax.Mask):
        mask = _key_part(scope, key.mask) & ones
        value = _key_part(scope, key.left) & mask
        prefix = mask.bit_count()
        if field.kind == "lpm" and mask != ones ^ (ones >> prefix):
            raise CompileError("the mask of an lpm key must be a prefix", key.at)
        if mask == 0:
            return None, 0, 0
        return value, mask, prefix
    value = _key_part(scope, key) & ones
    return value, value if field.kind == "range" else ones, field.width


def _key_part(scope: Scope, e: syntax.Expression) -> int:
    return int(known_value(scope, e, "the keys of an entry"))


def _direct_counter(scope: Scope, d: syntax.Table) -> ir.DirectCounter | None:
    found = _object_of(scope, d, "counters")
    assert found is None or isinstance(found, ir.DirectCounter)
    return found


def _direct_meter(scope: Scope, d: syntax.Table) -> ir.DirectMeter | None:
    found = _object_of(scope, d, "meters")
    assert found is None or isinstance(found, ir.DirectMeter)
    return found


def _profile(scope: Scope, d: syntax.Table) -> ir.Profile | None:
    found = _object_of(scope, d, "implementation")
    assert found is None or isinstance(found, ir.Profile)
    return found


def _object_of(scope: Scope, d: syntax.Table, name: str) -> ir.Object | None:
    """The extern object that a property of the table names or constructs; None without the property."""
    entry = d.properties.get(name)
    if entry is None:
        return None
    value = entry.value
    found = scope.values.get(id(value.declaration)) if isinstance(value, syntax.Name) else None
    if isinstance(value, syntax.Call) and isinstance(value.target, targets.ConstructorTarget):
        found = make_object(scope, value, entry, control_plane_name(d, scope.path))
    if not isinstance(found, ir.Object):
        raise CompileError(f"the object for `{name}` is not known at compile time", entry.at)
    return found


def _priorities(d: syntax.Table) -> list[int]:
    """The priorities of the entries; the largest wins. Without priorities, entries match in the order in which they are
    written (P4-16 specification, section 14.2.1.4); p4c's @priority(n) moves an entry to the n-th place."""
    if all(row.priority is None for row in d.entries):
        places = [_place(row, number) for number, row in enumerate(d.entries, 1)]
        order = sorted(range(len(places)), key=places.__getitem__)
        return [len(places) - order.index(number) for number in range(len(places))]
    wins, delta = d.properties.get("largest_priority_wins"), d.properties.get("priority_delta")
    largest = wins is None or bool(wins.value.value)
    step = (1 if delta is None else int(delta.value.value)) * (-1 if largest else 1)
    priorities: list[int] = []
    for row in d.entries:
        priorities.append(priorities[-1] + step if row.priority is None else int(row.priority.value))
    if largest:
        return priorities
    return [max(priorities) + 1 - p for p in priorities]


def _place(row: syntax.Entry, number: int) -> int:
    for annotation in row.annotations:
        if annotation.name == "priority":
            match annotation.arguments:
                case [int(place)]:
                    return place
            raise CompileError("@priority takes a number", row.at)
    return number


def _refuse_doubles(d: syntax.Table, keys: list[ir.KeyField], entries: list[ir.Entry]) -> None:
    """Raises CompileError if two entries have the same keys and priority."""
    seen: dict[object, syntax.Entry] = {}
    for row, entry in zip(d.entries, entries, strict=True):
        matched = tuple(_matched(key, field) for key, field in zip(entry.keys, keys, strict=True))
        first = seen.setdefault((matched, entry.priority), row)
        if first is not row:
            raise CompileError(
                f"the table has an entry with this key already, at line {first.at.line}", row.at
            )


def _matched(key: tuple[int | None, int, int], field: ir.KeyField) -> tuple[int | None, int]:
    """A value that is equal for all spellings of one key."""
    value, second, prefix = key
    if field.kind == "range":
        return (0, (1 << field.width) - 1) if value is None else (value, second)
    return value, prefix if field.kind == "lpm" else second


def _zero_if_invalid(e: ir.Expr) -> ir.Expr:
    """A key as BMv2 reads it: a field of an invalid header is 0, masked or not. Other expressions stay as they are,
    fields of a stack's elements too: p4c copies them to a variable first."""
    if isinstance(e, ir.Field) and t.is_header(e.base.type) and _is_field(e):
        return ir.Operation(
            e.type, "conditional", (ir.Operation(t.BOOL, "valid", (e.base,)), e, zero(e.type))
        )
    if _mask(e) is not None:
        assert isinstance(e, ir.Operation)
        return replace(e, operands=tuple(map(_zero_if_invalid, e.operands)))
    return e


def _mask(e: ir.Expr) -> int | None:
    """The mask of `field & mask`, which BMv2 supports in keys; None for other expressions, which p4c copies to a
    variable."""
    if not isinstance(e, ir.Operation) or e.name != "&":
        return None
    masks = [o.value for o in e.operands if isinstance(o, ir.Const)]
    return masks[0] if masks and any(map(_is_field, e.operands)) else None


def _is_field(e: ir.Expr) -> bool:
    """True for a variable, or a field of one without an index on the way."""
    return isinstance(e, ir.Var) or (isinstance(e, ir.Field) and _is_field(e.base))


def _masked(key: tuple[int | None, int, int], field: ir.KeyField) -> tuple[int | None, int, int]:
    value, second, prefix = key
    return key if value is None or field.mask is None else (value & field.mask, second, prefix)


def _path(e: ir.Expr) -> object:
    """The path of a field, without the name of the parameter, which may differ in another control."""
    if isinstance(e, ir.Field):
        return e.name, _path(e.base)
    return e.type if isinstance(e, ir.Var) else e


def _is_true(entry: syntax.Property | None) -> bool:
    return entry is not None and entry.value.value is True


def _source(e: syntax.Expression) -> str:
    """The name of a key without @name, as p4c forms it: the expression as written, with the @name of fields, and
    constants as their value."""
    if isinstance(e.value, int) and not isinstance(e.value, bool) and not isinstance(e.type, t.EnumType):
        return f"{e.value:#{_base(e)}}"
    if isinstance(e, syntax.Name):
        return e.name
    if isinstance(e, syntax.Member):
        owner = e.base.type
        fields = owner.declaration.fields if isinstance(owner, t.StructType) else []
        name = next((f.shown_name() for f in fields if f.name == e.name), e.name)
        return name[1:] if name.startswith(".") else f"{_source(e.base)}.{name}"
    if isinstance(e, syntax.Index):
        return f"{_source(e.base)}[{_source(e.index) if e.index.value is None else e.index.value}]"
    if isinstance(e, syntax.Slice):
        return f"{_source(e.base)}[{e.high.value}:{e.low.value}]"
    if isinstance(e, syntax.Cast):
        return _source(e.operand)
    if isinstance(e, syntax.Call) and isinstance(e.callee, syntax.Member) and e.callee.name == "isValid":
        return f"{_source(e.callee.base)}.$valid$"
    if isinstance(e, syntax.Binary) and e.operator == "&":
        return f"{_source(e.left)} & {_source(e.right)}"
    if isinstance(e, syntax.Binary) and e.operator in ("<<", ">>") and e.right.value == 0:
        return _source(e.left)
    if isinstance(e, syntax.Conditional) and e.condition.value is not None:
        return _source(e.then if e.condition.value else e.otherwise)
    raise CompileError('a key that is not a field needs a name: @name("...")', e.start)


def _base(e: syntax.Expression) -> str:
    """The base in which p4c writes a constant: that of the first literal of its expression."""
    if isinstance(e, syntax.Integer):
        return next((b for b in "xob" if f"0{b}" in e.text.lower()), "d")
    if isinstance(e, syntax.Name) and isinstance(e.declaration, syntax.Constant):
        return _base(e.declaration.value)
    first = e.left if isinstance(e, syntax.Binary) else getattr(e, "operand", getattr(e, "base", None))
    return _base(first) if isinstance(first, syntax.Expression) else "d"
