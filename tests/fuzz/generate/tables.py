# SPDX-License-Identifier: Apache-2.0
"""Random tables, with entries and action profiles."""

from tests.fuzz.generate.expressions import ExpressionGenerator
from tests.fuzz.programs.expressions import Expression, Type
from tests.fuzz.programs.externs import ALGORITHMS
from tests.fuzz.programs.statements import Routine
from tests.fuzz.programs.tables import Entry, Profile, Table

KINDS = ("exact", "lpm", "ternary", "range", "optional")


class TableGenerator(ExpressionGenerator):
    def table(self, actions: list[Routine]) -> Table:
        keys: list[tuple[Expression, str]] = []
        kinds = self.random.choice(
            (("exact",), ("exact", "lpm"), KINDS, ("ternary",), ("exact", "ternary", "range"))
        )
        for _ in range(self.random.randrange(1, 4)):
            kind = self.random.choice(kinds)
            unsigned = [r for r in self.scope if 1 < r.type.width <= 64 and not r.type.signed]
            key: Expression = self.random.choice(unsigned)
            if self.chance(0.3):
                key = self.expression(Type(self.random.choice((4, 8, 16))), 1)
            # BMv2 counts a prefix from the start of a whole byte.
            if kind == "lpm" and (key.type.width % 8 or any(k == "lpm" for _, k in keys)):
                kind = "exact"
            keys.append((key, kind))
        few = self.random.sample(actions, min(len(actions), 2))
        profile = self.profile(few) if self.chance(0.3) else None
        if profile is not None and profile.algorithm is not None:
            for _ in range(self.random.randrange(1, 3)):
                numbers = [r for r in self.scope if r.type.width > 1 and not r.type.signed]
                keys.append((self.random.choice(numbers), "selector"))
        entries: list[Entry] = []
        for _ in range(self.random.randrange(5)):
            entry = self.entry(keys, few, profile)
            if all(e.keys != entry.keys for e in entries):
                entries.append(entry)
        default = self.random.choice(few)
        const = self.chance(0.6) and bool(entries) and profile is None
        arguments, counted = self.arguments(default), self.chance(0.3)
        return Table(self.name("t"), keys, few, entries, const, default, arguments, profile, counted)

    def entry(
        self, keys: list[tuple[Expression, str]], actions: list[Routine], profile: Profile | None
    ) -> Entry:
        values = [self.key(e.type.width, kind) for e, kind in keys]
        if profile is None:
            action = self.random.choice(actions)
            return Entry(values, action, self.arguments(action))
        if profile.groups and self.chance(0.7):
            return Entry(values, ("_group", self.random.randrange(len(profile.groups))), [])
        return Entry(values, ("_member", self.random.randrange(len(profile.members))), [])

    def profile(self, actions: list[Routine]) -> Profile:
        members = []
        for _ in range(self.random.randrange(1, 6)):
            action = self.random.choice(actions)
            members.append((action, self.arguments(action)))
        name, numbers = self.name("profile"), range(len(members))
        if self.chance(0.3):
            return Profile(name, members, [], None)
        groups = [
            self.random.sample(numbers, self.random.randrange(1, len(members) + 1))
            for _ in range(self.random.randrange(1, 3))
        ]
        return Profile(name, members, groups, self.random.choice(ALGORITHMS))

    def arguments(self, action: Routine) -> list[int]:
        return [self.random.getrandbits(p.type.width) for p in action.parameters]

    def key(self, width: int, kind: str) -> int | tuple[int, int] | None:
        if kind == "selector":
            return None
        value = self.small(width)
        ones = (1 << width) - 1
        if kind == "exact":
            return value
        if kind == "optional":
            return None if self.chance(0.4) else value
        if kind == "lpm":
            length = self.random.randrange(width + 1)
            return value >> (width - length) << (width - length), length
        if kind == "ternary":
            mask = self.random.choice((0, 1, 3, ones, ones ^ 1, self.random.getrandbits(width))) & ones
            return value & mask, mask
        other = self.small(width)
        return min(value, other), max(value, other)
