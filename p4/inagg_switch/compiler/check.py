"""Stage 4: resolves names, checks types and directions, evaluates constants.

Works on the syntax tree in place: after it every expression has its `type`, its `value` where it is known at compile
time, every name its declaration and every call its target and bound arguments; implicit conversions are Cast nodes.

One class in five files: _check_types (scopes and type references), _check_expressions, _check_calls,
_check_statements, and this one (declarations).
"""

import copy
import logging
from dataclasses import dataclass

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler._check_calls import Binding
from inagg_switch.compiler._check_expressions import describe
from inagg_switch.compiler._check_statements import StatementChecker
from inagg_switch.compiler._check_types import Scope, set_fields
from inagg_switch.errors import CompileError, Position

_log = logging.getLogger(__name__)
_PROPERTY_TYPES = {
    "counters": ("direct_counter",),
    "meters": ("direct_meter",),
    "implementation": ("action_profile", "action_selector"),
}
_MATCH_KINDS = frozenset(["exact", "lpm", "ternary", "range", "optional", "selector"])


@dataclass(frozen=True)
class CheckedProgram:
    """What later stages need: the tree, the errors by number, the structs and headers that are declared (but those of
    generic ones), and the `main` package."""

    declarations: list[syntax.Declaration]
    errors: dict[str, int]
    structs: list[t.StructType]
    main: syntax.Instantiation

    def constants(self) -> dict[str, int | bool | str]:
        """Top-level constants with a scalar value, by name."""
        return {
            d.name: d.value.value
            for d in self.declarations
            if isinstance(d, syntax.Constant) and isinstance(d.value.value, int | bool | str)
        }


def check(program: syntax.Program) -> CheckedProgram:
    """Checks the whole program. Raises CompileError at the first mistake."""
    return _DeclarationChecker().program(program)


class _DeclarationChecker(StatementChecker):
    def __init__(self) -> None:
        super().__init__()
        self._generic: dict[int, syntax.Function] = {}  # generic functions as written
        self._specialised_functions: dict[tuple[int, tuple[t.Type, ...]], syntax.Function] = {}

    def program(self, program: syntax.Program) -> CheckedProgram:
        for declaration in program.declarations:
            self._declaration(declaration)
        main = self.scope.find("main")
        if not isinstance(main, syntax.Instantiation):
            at = program.declarations[-1].at if program.declarations else Position("<source>", 1, 1)
            raise CompileError("the program has no `main` package", at)
        return CheckedProgram(program.declarations, self.errors, self.structs(), main)

    def _declaration(self, d: syntax.Declaration) -> None:
        if isinstance(d, syntax.MembersDeclaration):
            self.declare_members(d)
        elif isinstance(d, syntax.ExternDeclaration):
            self._extern(d)
        elif isinstance(d, syntax.BlockTypeDeclaration):
            self._block_type(d)
        elif isinstance(d, syntax.Control):
            self._control(d)
        elif isinstance(d, syntax.Parser):
            self._parser(d)
        elif isinstance(d, syntax.TypeDeclaration):
            self.declare_type(d)
        elif isinstance(d, syntax.Function):
            self._function(d)
        elif isinstance(d, syntax.Action):
            self._action(d)
        else:
            self.statement(d)

    # --- functions and externs

    def _parameters(self, parameters: list[syntax.Parameter]) -> None:
        """Resolves the types; declares the names in the scope that is open."""
        optional = False
        for parameter in parameters:
            parameter.type = self.type_of(parameter.ref)
            if parameter.default is not None:
                if parameter.direction in ("out", "inout"):
                    raise CompileError(
                        f"an `{parameter.direction}` parameter cannot have a default", parameter.at
                    )
                parameter.default = self.rvalue(parameter.default, parameter.type)
                optional = True
            elif optional:
                raise CompileError("a parameter without a default follows one that has one", parameter.at)
            self.declare(parameter)

    def _prototype(self, d: syntax.Function) -> None:
        """Types of a function; leaves its scope to the caller."""
        self._parameters(d.parameters)
        d.result_type = t.VOID if d.result is None else self.type_of(d.result)

    def _function(self, d: syntax.Function) -> None:
        if d.type_parameters:
            self._generic[id(d)] = copy.deepcopy(d)
        with self.type_parameters(d.type_parameters) as variables:
            self.variables[id(d)] = list(variables.values())
            self._prototype(d)
            if not d.type_parameters:
                self._function_body(d)
        self.declare(d)

    def _function_body(self, d: syntax.Function) -> None:
        if d.body is None:
            return
        outside = self.inside, self.result, self._loops
        self.inside, self.result, self._loops = "function", d.result_type, 0
        self.block(d.body)
        if d.result_type != t.VOID and not _always_returns(d.body):
            raise CompileError(f"function {d.name} does not always return a value", d.at)
        self.inside, self.result, self._loops = outside

    def specialised(self, function: syntax.Function, binding: Binding) -> syntax.Function:
        """A generic function's body is checked once for each choice of types."""
        types = tuple(binding[v] for v in self.variables[id(function)])
        key = (id(function), types)
        if key not in self._specialised_functions:
            made = copy.deepcopy(self._generic[id(function)])
            self._specialised_functions[key] = made
            outside, self.scope = self.scope, Scope(self.scope.outermost())
            self.scope.names.update(zip(made.type_parameters, types, strict=True))
            made.type_parameters = []
            self.variables[id(made)] = []
            with self.inner_scope():
                self._prototype(made)
                self._function_body(made)
            self.scope = outside
        return self._specialised_functions[key]

    def _extern(self, d: syntax.ExternDeclaration) -> None:
        self.declare(d)
        with self.type_parameters(d.type_parameters) as variables:
            self.variables[id(d)] = list(variables.values())
            for method in (*d.methods, *d.constructors):
                with self.type_parameters(method.type_parameters) as own:
                    self.variables[id(method)] = list(own.values())
                    self._prototype(method)

    def _block_type(self, d: syntax.BlockTypeDeclaration) -> None:
        with self.type_parameters(d.type_parameters) as variables:
            self.variables[id(d)] = list(variables.values())
            self._parameters(d.parameters)
        self.declare(d)

    # --- controls

    def _control(self, d: syntax.Control) -> None:
        self._no_type_parameters(d)
        with self.inner_scope():
            self._parameters(d.constructor_parameters)
            self._parameters(d.parameters)
            self.inside = "control"
            with self.inner_scope():
                for local in d.locals:
                    self._control_local(local)
                self.block(d.body)
            self.inside = "top"
        self.declare(d)

    def _no_type_parameters(self, d: syntax.Control | syntax.Parser) -> None:
        if d.type_parameters:
            raise CompileError(f"{type(d).__name__.lower()} {d.name} has a body and cannot be generic", d.at)
        self.variables[id(d)] = []

    def _control_local(self, local: syntax.Declaration) -> None:
        if isinstance(local, syntax.Action):
            self._action(local)
        elif isinstance(local, syntax.Table):
            self._table(local)
        else:
            self.statement(local)

    def _action(self, d: syntax.Action) -> None:
        outside = self.inside
        self.inside = "action"
        with self.inner_scope():
            self._parameters(d.parameters)
            directions = [p.direction for p in d.parameters]
            if "" in directions and any(directions[directions.index("") :]):
                raise CompileError(f"directionless parameters of action {d.name} must come last", d.at)
            self.block(d.body)
        self.inside = outside
        self.declare(d)

    # --- tables

    def _table(self, d: syntax.Table) -> None:
        for key in d.keys:
            if key.match_kind not in self.match_kinds or key.match_kind not in _MATCH_KINDS:
                raise CompileError(
                    f"`{key.match_kind}` is not a match kind of this architecture", key.kind_at
                )
            key.expression = self.rvalue(key.expression)
            self._key_type(d, key)
        for ref in d.actions:
            self._action_ref(d, ref)
        self._default_action(d)
        for name, entry in d.properties.items():
            self._property(d, name, entry)
        if d.entries and not d.keys:
            raise CompileError(f"table {d.name} has entries and no key", d.entries[0].at)
        for row in d.entries:
            self._entry(d, row)
        if d.entries and "implementation" in d.properties:
            self._warn(d, "BMv2 ignores the entries of a table with an action profile", d.entries[0].at)
        self._priorities(d)
        self.declare(d)

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
        found = self.scope.find(ref.name)
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

    def _listed(self, d: syntax.Table, ref: syntax.ActionRef) -> syntax.ActionRef:
        """The table's own mention of an action that an entry or the default names."""
        found = self.scope.find(ref.name)
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
            if value is None or value.value is None:
                raise CompileError(
                    f"argument `{parameter.name}` of {ref.name} must be known at compile time",
                    value.at if value is not None else ref.at,
                )

    def _property(self, d: syntax.Table, name: str, entry: syntax.Property) -> None:
        entry.value = self.rvalue(entry.value)
        if name == "size":
            if not isinstance(entry.value.value, int) or entry.value.value < 0:
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
        row.keys = _one_by_one(row.keys, len(d.keys), row.at)
        if len(row.keys) != len(d.keys):
            raise CompileError(f"table {d.name} has {len(d.keys)} keys, the entry {len(row.keys)}", row.at)
        row.keys = [self.set_of(k, key.expression.type) for k, key in zip(row.keys, d.keys, strict=True)]
        for value, key in zip(row.keys, d.keys, strict=True):
            if key.match_kind == "selector" and "implementation" not in d.properties:
                raise CompileError("an entry cannot have a value for a selector key", value.start)
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

    # --- parsers

    def _parser(self, d: syntax.Parser) -> None:
        self._no_type_parameters(d)
        names = {"accept", "reject"}
        for state in d.states:
            if state.name in names:
                raise CompileError(f"state `{state.name}` is already declared", state.at)
            names.add(state.name)
        if "start" not in names:
            raise CompileError(f"parser {d.name} has no `start` state", d.at)
        with self.inner_scope():
            self._parameters(d.constructor_parameters)
            self._parameters(d.parameters)
            self.inside = "parser"
            with self.inner_scope():
                for local in d.locals:
                    if isinstance(local, syntax.ValueSet):
                        self._value_set(local)
                    else:
                        self.statement(local)
                for state in d.states:
                    self._state(state, names)
            self.inside = "top"
        if not _ends(d):
            raise CompileError(f"parser {d.name} reaches neither accept nor reject", d.at)
        self.declare(d)

    def _value_set(self, local: syntax.ValueSet) -> None:
        local.type = t.SetType(self.type_of(local.ref))
        for name, type_, _ in set_fields(local.type):
            if not _can_be_selected(type_):
                what = f"field `{name}`" if name else "the element"
                raise CompileError(
                    f"{what} of a value set must be bits, bool or an enum, not {type_}", local.at
                )
        local.size = self.rvalue(local.size)
        self.declare(local)

    def _state(self, state: syntax.State, names: set[str]) -> None:
        with self.inner_scope():
            self.sequence(state.body)
            if isinstance(state.transition, str):
                if state.transition not in names:
                    raise CompileError(f"state `{state.transition}` is not declared", state.transition_at)
            elif state.transition is not None:
                self._select(state.transition, names)

    def _select(self, select: syntax.Select, names: set[str]) -> None:
        select.subjects = [self.rvalue(s) for s in select.subjects]
        for subject in select.subjects:
            if not _can_be_selected(subject.type):
                raise CompileError(f"`select` needs bits, found {describe(subject)}", subject.start)
        for case in select.cases:
            if case.state not in names:
                raise CompileError(f"state `{case.state}` is not declared", case.at)
            if self._is_value_set(case, select):
                continue
            case.keys = _one_by_one(case.keys, len(select.subjects), case.at)
            if len(case.keys) != len(select.subjects):
                raise CompileError(
                    f"`select` has {len(select.subjects)} values, the case {len(case.keys)}", case.at
                )
            case.keys = [self.set_of(k, s.type) for k, s in zip(case.keys, select.subjects, strict=True)]
            for part in (part for key in case.keys for part in _set_parts(key)):
                if not self.compile_time(part):
                    raise CompileError("a value of a select case must be known at compile time", part.start)

    def _is_value_set(self, case: syntax.SelectCase, select: syntax.Select) -> bool:
        """A value set alone stands for all the subjects, a field for each."""
        if len(case.keys) != 1:
            return False
        key = self.expression(case.keys[0]) if isinstance(case.keys[0], syntax.Name) else None
        if not (isinstance(key, syntax.Name) and isinstance(key.declaration, syntax.ValueSet)):
            return False
        wanted = [f for _, f, _ in set_fields(key.type)]
        have = [s.type for s in select.subjects]
        if [t.strip(w) for w in wanted] != [t.strip(h) for h in have]:
            raise CompileError(
                f"the value set has elements {', '.join(map(str, wanted))}, `select` {', '.join(map(str, have))}",
                case.at,
            )
        case.keys = [key]
        return True


def _ends(d: syntax.Parser) -> bool:
    """Some way leads out of the states."""
    following = {state.name: _following(state) for state in d.states}
    reached = {"start"}
    todo = ["start"]
    while todo:
        for name in following[todo.pop()] - reached:
            if name in ("accept", "reject"):
                return True
            reached.add(name)
            todo.append(name)
    return False


def _following(state: syntax.State) -> set[str]:
    if not isinstance(state.transition, syntax.Select):
        return {state.transition or "reject"}
    cases = state.transition.cases
    always = any(all(isinstance(k, syntax.Anything | syntax.DefaultValue) for k in c.keys) for c in cases)
    return {c.state for c in cases} | (set() if always else {"reject"})


def _can_be_selected(type_: t.Type) -> bool:
    bits = t.strip(type_)
    return isinstance(bits, t.BitType | t.EnumType) or bits in (t.BOOL, t.ERROR)


def _one_by_one(keys: list[syntax.Expression], count: int, at: Position) -> list[syntax.Expression]:
    """A set for each value: `_` stands for any number of them, and a list is its items."""
    if len(keys) == 1 and isinstance(keys[0], syntax.Anything | syntax.DefaultValue):
        return [syntax.Anything(at) for _ in range(count)]
    if len(keys) == 1 and isinstance(keys[0], syntax.ListExpression) and len(keys[0].items) == count:
        return keys[0].items
    return keys


def _check_entry_key(value: syntax.Expression, key: syntax.Key) -> None:
    if any(p.value is None for p in _set_parts(value)):
        raise CompileError("the keys of an entry must be known at compile time", value.start)
    allowed = {
        syntax.Mask: ("ternary", "lpm"),
        syntax.Range: ("range",),
        syntax.Anything: ("ternary", "lpm", "range", "optional"),
        syntax.DefaultValue: ("ternary", "lpm", "range", "optional"),
    }.get(type(value))
    if allowed is not None and key.match_kind not in allowed:
        what = {syntax.Mask: "a mask", syntax.Range: "a range"}.get(type(value), "`_`")
        raise CompileError(f"{what} does not fit a key of kind {key.match_kind}", value.start)


def _set_parts(value: syntax.Expression) -> tuple[syntax.Expression, ...]:
    if isinstance(value, syntax.Mask):
        return value.left, value.mask
    if isinstance(value, syntax.Range):
        return value.low, value.high
    return () if isinstance(value, syntax.Anything | syntax.DefaultValue) else (value,)


def _always_returns(s: syntax.Statement) -> bool:
    if isinstance(s, syntax.Return):
        return True
    if isinstance(s, syntax.Block):
        return any(_always_returns(x) for x in s.statements)
    if isinstance(s, syntax.If):
        return s.otherwise is not None and _always_returns(s.then) and _always_returns(s.otherwise)
    if isinstance(s, syntax.Switch):
        return any(c.label is None for c in s.cases) and all(
            c.body is None or _always_returns(c.body) for c in s.cases
        )
    return False
