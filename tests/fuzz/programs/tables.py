# SPDX-License-Identifier: Apache-2.0
"""Tables of generated programs, with action profiles and selectors. A lookup tries all entries."""

from dataclasses import dataclass, field

from tests.fuzz.programs.expressions import Const, Environment, Expression, literal
from tests.fuzz.programs.externs import digest_of
from tests.fuzz.programs.headers import bits_of
from tests.fuzz.programs.objects import LASTING
from tests.fuzz.programs.pipeline import LENGTH
from tests.fuzz.programs.statements import Block, Routine, Statement


@dataclass
class Profile:
    """An action profile; with `algorithm`, a selector. `members` are numbered 0, 1...; `groups` list member numbers."""

    name: str
    members: list[tuple[Routine, list[int]]]
    groups: list[list[int]]
    algorithm: str | None

    def p4(self) -> str:
        if self.algorithm is None:
            return f"action_profile({len(self.members)}) {self.name};"
        return f"action_selector(HashAlgorithm.{self.algorithm}, {len(self.members)}, 16) {self.name};"


@dataclass
class Entry:
    """`keys`: for each key None (anything), a number, or, by the key's kind, (value, prefix length), (value, mask) or
    (low, high). Earlier entries have priority. In a table with a profile, `action` is ("_member", number) or
    ("_group", number)."""

    keys: list[int | tuple[int, int] | None]
    action: Routine | tuple[str, int]
    arguments: list[int]


@dataclass
class Table:
    name: str
    keys: list[tuple[Expression, str]]  # with the match kind
    actions: list[Routine]
    entries: list[Entry]
    const: bool
    default: Routine
    default_arguments: list[int]
    profile: Profile | None = None
    counted: bool = False  # has a direct counter

    def key_name(self, place: int) -> str:
        return f"k{place}"

    def p4(self) -> list[str]:
        keys = " ".join(
            f'{e.p4()}: {kind} @name("{self.key_name(i)}");' for i, (e, kind) in enumerate(self.keys)
        )
        lines = [] if self.profile is None else [self.profile.p4()]
        if self.counted:
            lines.append(f"direct_counter(CounterType.packets_and_bytes) {self.name}_counter;")
        lines += [f"table {self.name} {{", f"    key = {{ {keys} }}"]
        lines.append(f"    actions = {{ {' '.join(a.name + ';' for a in self.actions)} }}")
        if self.profile is not None:
            lines.append(f"    implementation = {self.profile.name};")
        else:
            lines.append(f"    default_action = {self._action(self.default, self.default_arguments)};")
        if self.counted:
            lines.append(f"    counters = {self.name}_counter;")
        if self.const:
            lines.append("    const entries = {")
            lines += [
                f"        ({', '.join(map(self._keyset, e.keys, range(len(e.keys))))}): "
                f"{self._action(e.action, e.arguments)};"
                for e in self.entries
            ]
            lines.append("    }")
        return [*lines, "}"]

    def _action(self, action: Routine | tuple[str, int], arguments: list[int]) -> str:
        assert isinstance(action, Routine)
        return f"{action.name}({', '.join(literal(a) for a in arguments)})"

    def _keyset(self, key: int | tuple[int, int] | None, place: int) -> str:
        kind, width = self.keys[place][1], self.keys[place][0].type.width
        if key is None:
            return "_"
        if isinstance(key, int):
            return literal(key)
        if kind == "lpm":
            mask = (1 << width) - (1 << (width - key[1]))
            return f"{literal(key[0])} &&& {literal(mask)}"
        return f"{literal(key[0])} {'..' if kind == 'range' else '&&&'} {literal(key[1])}"

    def apply(self, env: Environment) -> tuple[bool, Routine | None]:
        """Looks up and runs the action. Returns whether it hit, and the action. The action is None if a table with a
        profile misses: in BMv2 that table has no default action."""
        values = [e.type.unsigned(e.value(env)) for e, _ in self.keys]
        found = [e for e in self.entries if all(map(self._matches, values, e.keys, self.keys))]
        if not self.by_priority():
            found.sort(key=self._prefix, reverse=True)
        if found and self.counted:
            env[LASTING].count(self.name, self.entries.index(found[0]), env[LENGTH])
        if not found and self.profile is not None:
            return False, None
        action, arguments = (
            self._chosen(found[0], values) if found else (self.default, self.default_arguments)
        )
        self._run(env, action, arguments)
        return bool(found), action

    def by_priority(self) -> bool:
        return any(kind in ("ternary", "range", "optional") for _, kind in self.keys)

    def _chosen(self, entry: Entry, values: list[int]) -> tuple[Routine, list[int]]:
        if isinstance(entry.action, Routine):
            return entry.action, entry.arguments
        assert self.profile is not None
        kind, number = entry.action
        if kind == "_group":
            members = self.profile.groups[number]
            assert self.profile.algorithm is not None
            bits = "".join(
                bits_of(e.type, e.type.wrap(value))
                for (e, of), value in zip(self.keys, values, strict=True)
                if of == "selector"
            )
            number = sorted(members)[digest_of(self.profile.algorithm, bits) % len(members)]
        return self.profile.members[number]

    def _prefix(self, entry: Entry) -> int:
        return sum(k[1] for k in entry.keys if isinstance(k, tuple))

    def _matches(self, value: int, key: int | tuple[int, int] | None, of: tuple[Expression, str]) -> bool:
        expression, kind = of
        if key is None or kind == "selector":
            return True
        if isinstance(key, int):
            return value == key
        if kind == "lpm":
            shift = expression.type.width - key[1]
            return value >> shift == key[0] >> shift
        if kind == "ternary":
            return value & key[1] == key[0] & key[1]
        return key[0] <= value <= key[1]

    def _run(self, env: Environment, action: Routine, arguments: list[int]) -> None:
        constants: list[Expression] = [
            Const(p.type, p.type.wrap(a)) for p, a in zip(action.parameters, arguments, strict=True)
        ]
        action.call(env, constants)


@dataclass
class Apply(Statement):
    """t.apply(); or if (t.apply().hit), or switch (t.apply().action_run)."""

    table: Table
    how: str = "plain"  # plain, hit, miss, switch
    then: Block = field(default_factory=Block)
    other: Block = field(default_factory=Block)

    def p4(self) -> list[str]:
        text = f"{self.table.name}.apply()"
        if self.how == "plain":
            return [f"{text};"]
        if self.how == "switch":
            return [
                f"switch ({text}.action_run) {{",
                f"    {self.table.actions[0].name}: {{", *("    " + s for s in self.then.p4()[1:-1]), "    }",
                "    default: {", *("    " + s for s in self.other.p4()[1:-1]), "    }", "}",
            ]  # fmt: skip
        return [f"if ({text}.{self.how}) {{", *self.then.p4()[1:-1], "} else {", *self.other.p4()[1:-1], "}"]

    def run(self, env: Environment) -> None:
        hit, action = self.table.apply(env)
        if self.how == "plain" or (self.how == "switch" and action is None):
            return  # if no action ran, BMv2 does not even take `default`
        taken = {"hit": hit, "miss": not hit, "switch": action is self.table.actions[0]}[self.how]
        (self.then if taken else self.other).run(env)
