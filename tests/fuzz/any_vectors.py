# SPDX-License-Identifier: Apache-2.0
"""Random entries and packets for any program, from its P4Info and its BMv2 JSON (docs/JSON_format.md of BMv2)."""

import random
from collections.abc import Iterator
from typing import Any

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch import Group, Member
from inagg_switch.vectors.format import (
    Default,
    Insert,
    Key,
    Packet,
    ProfileGroup,
    ProfileMember,
    Rates,
    Replicas,
    SetMember,
    Vectors,
)

_PORTS = range(1, 5)
_PORT_BITS = 9
_STATES = 16  # parser states on a packet's path, at most
_BY_PRIORITY = (pb.MatchField.TERNARY, pb.MatchField.RANGE, pb.MatchField.OPTIONAL)


def _numbers(config: Any) -> Iterator[int]:
    """Every constant of a program."""
    if isinstance(config, dict):
        if config.get("type") == "hexstr" and isinstance(config.get("value"), str):
            yield int(config["value"], 16)
        for one in config.values():
            yield from _numbers(one)
    elif isinstance(config, list):
        for one in config:
            yield from _numbers(one)


class VectorGenerator:
    """Headers, keys and parameters of one width have the same few values, so that entries match."""

    def __init__(self, info: pb.P4Info, config: dict[str, Any], seed: int) -> None:
        self._info = info
        self._config = config
        self._random = random.Random(seed)
        self._constants = sorted({n for n in _numbers(config) if n > 0})
        self._pools: dict[int, list[int]] = {}
        # Tables without constant entries in the config. p4c removes tables that are never applied.
        tables = [t for pipeline in config["pipelines"] for t in pipeline["tables"]]
        self._tables = {t["name"] for t in tables if not t.get("entries")}
        self._types = {t["name"]: t["fields"] for t in config["header_types"]}
        self._headers = {h["name"]: self._types[h["header_type"]] for h in config["headers"]}
        self._stacks = {s["name"]: self._types[s["header_type"]] for s in config["header_stacks"]}

    def _chance(self, p: float) -> bool:
        return self._random.random() < p

    def _value(self, width: int) -> int:
        if width not in self._pools:
            fitting = [n for n in self._constants if n.bit_length() <= width and n.bit_length() > width // 2]
            self._pools[width] = [
                *self._random.sample(fitting, min(3, len(fitting))),
                *self._random.sample(self._constants, min(2, len(self._constants))),
                0, 1, 2, 3, (1 << width) - 1, self._random.getrandbits(width), self._random.getrandbits(width),
            ]  # fmt: skip
        if width == 0:
            return 0
        if self._chance(0.2):
            return self._random.getrandbits(width)
        if width == _PORT_BITS and self._chance(0.8):
            return self._random.choice(_PORTS)
        return self._random.choice(self._pools[width]) & (1 << width) - 1

    def vectors(self, packets: int) -> Vectors:
        """Random entries and configuration, and `packets` packets."""
        made = Vectors()
        sessions = {n for n in self._constants if n <= 32767}
        for number in range(1, 5):
            made.groups.append(Replicas(number, self._replicas()))
        for number in sorted({1, 2, 3, *self._random.sample(sorted(sessions), min(24, len(sessions)))}):
            made.clones.append(Replicas(number, self._replicas()[:2]))
        for profile in self._info.action_profiles:
            self._profile(made, profile)
        for meter in self._info.meters:
            for index in range(min(4, meter.size)):
                made.meters.append(Rates(meter.preamble.name, index, self._rates()))
        for known in self._info.value_sets:
            for _ in range(self._random.randrange(min(4, known.size) + 1)):
                match: dict[str, Key] = {f.name: self._value(f.bitwidth) for f in known.match}
                made.value_sets.append(
                    SetMember(known.preamble.name, match if len(match) > 1 else match.popitem()[1])
                )
        for table in self._info.tables:
            self._table(made, table)
        for _ in range(packets):
            made.packets.append(Packet(self._random.choice(_PORTS), self._frame()))
        return made

    # --- entries

    def _replicas(self) -> list[tuple[int, int]]:
        """At most one copy a port: two copies could leave in any order."""
        ports = self._random.sample(_PORTS, self._random.randrange(1, 4))
        return [(port, self._random.randrange(4)) for port in ports]

    def _rates(self) -> tuple[int, int, int, int]:
        """Rates of 0 with random bursts: time is not the same on the model and on BMv2."""
        small = self._random.choice((0, 1, 2, 5, 100, 1000))
        return 0, small, 0, small + self._random.choice((0, 1, 3, 200))

    def _profile(self, made: Vectors, profile: pb.ActionProfile) -> None:
        table = next(t for t in self._info.tables if t.preamble.id in profile.table_ids)
        name = profile.preamble.name
        count = min(4, profile.size) if profile.size else 4
        for number in range(count):
            made.members.append(ProfileMember(name, number, *self._action(table, entry=True)))
        if profile.with_selector:
            for group in range(2):
                size = self._random.randrange(1, count + 1)
                chosen = sorted(self._random.sample(range(count), size))
                made.member_groups.append(ProfileGroup(name, group, chosen))

    def _action(self, table: pb.Table, *, entry: bool) -> tuple[str, dict[str, int]]:
        hidden = pb.ActionRef.DEFAULT_ONLY if entry else pb.ActionRef.TABLE_ONLY
        allowed = [r.id for r in table.action_refs if r.scope != hidden]
        chosen = self._random.choice(allowed)
        action = next(a for a in self._info.actions if a.preamble.id == chosen)
        return action.preamble.name, {p.name: self._value(p.bitwidth) for p in action.params}

    def _table(self, made: Vectors, table: pb.Table) -> None:
        name = table.preamble.name
        profile = next(
            (p for p in self._info.action_profiles if p.preamble.id == table.implementation_id), None
        )
        if table.is_const_table or name not in self._tables:
            return
        usable = any(r.scope != pb.ActionRef.DEFAULT_ONLY for r in table.action_refs)
        count = min(self._random.randrange(6), max(0, table.size - 2)) if table.match_fields and usable else 0
        ordered = any(f.match_type in _BY_PRIORITY for f in table.match_fields)
        priorities = self._random.sample(range(10_000, 20_000), count)
        seen: list[dict[str, Key]] = []
        for priority in priorities:
            match: dict[str, Key] = {}
            for field in table.match_fields:
                key = self._key(field)
                if key is not None:
                    match[field.name] = key
            if match in seen:
                continue
            seen.append(match)
            at = priority if ordered else 0
            if profile is None:
                action, params = self._action(table, entry=True)
                made.inserts.append(Insert(name, match, action, params, at))
            else:
                group = profile.with_selector and self._chance(0.6)
                target = Group(self._random.randrange(2)) if group else Member(self._random.randrange(2))
                made.inserts.append(Insert(name, match, target, {}, at))
        fixed = table.const_default_action_id or not any(
            r.scope != pb.ActionRef.TABLE_ONLY for r in table.action_refs
        )
        if profile is None and not fixed and self._chance(0.5):
            made.defaults.append(Default(name, *self._action(table, entry=False)))

    def _key(self, field: pb.MatchField) -> Key | None:
        width = field.bitwidth
        value, other = self._value(width), self._value(width)
        ones = (1 << width) - 1
        if field.match_type == pb.MatchField.LPM:
            if width % 8:  # BMv2 counts the prefix from the start of a whole byte
                return None
            length = self._random.choice((0, 1, width // 2, width - 1, width, width))
            return (value >> (width - length) << (width - length), length) if length else None
        if field.match_type == pb.MatchField.TERNARY:
            mask = self._random.choice((0, ones, ones, ones ^ 1, self._random.getrandbits(width))) & ones
            return (value & mask, mask) if mask else None
        if field.match_type == pb.MatchField.RANGE:
            low, high = min(value, other), max(value, other)
            return (low, high) if (low, high) != (0, ones) else None
        if field.match_type == pb.MatchField.OPTIONAL and self._chance(0.3):
            return None
        return value

    # --- packets

    def _frame(self) -> bytes:
        bits = _Bits(self._random)
        if self._chance(0.95):
            self._walk(bits)
        bits.need(8)
        length = len(bits.bits) // 8
        frame = bytes(
            int("".join(map(str, bits.bits[8 * i : 8 * i + 8])), 2) for i in range(length)
        ) + self._random.randbytes(self._random.choice((0, 0, 1, 7, 20, 46)))
        if self._chance(0.08):
            frame = frame[: self._random.randrange(1, len(frame) + 1)]
        return frame

    def _walk(self, bits: "_Bits") -> None:
        """Follows the parser from its start; transitions are taken by chance, and what they ask for is written."""
        parser = self._config["parsers"][0]
        states = {s["name"]: s for s in parser["parse_states"]}
        name = parser["init_state"]
        places: dict[tuple[str, str], tuple[int, int]] = {}  # of fields: first bit and width
        nexts: dict[str, int] = {}
        for _ in range(_STATES):
            state = states[name]
            for op in state["parser_ops"]:
                self._operation(op, bits, places, nexts)
            transition = self._random.choice(state["transitions"])
            if transition["type"] == "hexstr":
                value, mask = int(transition["value"], 16), transition["mask"]
                if mask is not None:
                    value |= self._random.getrandbits(4 * len(mask)) & ~int(mask, 16)
                self._write_key(state["transition_key"], value, bits, places, nexts)
            name = transition["next_state"]
            if name is None:
                return

    def _operation(
        self,
        op: dict[str, Any],
        bits: "_Bits",
        places: dict[tuple[str, str], tuple[int, int]],
        nexts: dict[str, int],
    ) -> None:
        if op["op"] not in ("extract", "extract_VL"):
            return
        kind, name = op["parameters"][0]["type"], op["parameters"][0]["value"]
        if kind == "regular":
            fields, as_name = self._headers[name], name
        elif kind == "stack":
            fields, as_name = self._stacks[name], name
            nexts[name] = nexts.get(name, 0) + 1
        else:
            return
        for field, width, *_ in fields:
            size = self._random.choice((0, 8, 32, 64)) if width == "*" else width
            places[as_name, field] = (bits.cursor, size)
            if kind == "stack":
                places[f"{as_name}[{nexts[name] - 1}]", field] = (bits.cursor, size)
            bits.take(size, self._value(size))

    def _write_key(
        self,
        keys: list[dict[str, Any]],
        value: int,
        bits: "_Bits",
        places: dict[tuple[str, str], tuple[int, int]],
        nexts: dict[str, int],
    ) -> None:
        """Keys are put together from whole bytes, the last one lowest."""
        for key in reversed(keys):
            if key["type"] == "lookahead":
                place = (bits.cursor + key["value"][0], key["value"][1])
            elif key["type"] in ("field", "stack_field") and tuple(key["value"]) in places:
                place = places[key["value"][0], key["value"][1]]
            else:
                return
            bits.write(*place, value)
            value >>= (place[1] + 7) // 8 * 8


class _Bits:
    """A packet as it grows. What lookahead() has written stays when it is extracted."""

    def __init__(self, source: random.Random) -> None:
        self.bits: list[int] = []
        self.cursor = 0
        self._random = source

    def need(self, count: int) -> None:
        while len(self.bits) < count or len(self.bits) % 8:
            self.bits.append(self._random.getrandbits(1))

    def take(self, width: int, value: int) -> None:
        """A field of a header."""
        if self.cursor >= len(self.bits):
            self.bits += [value >> i & 1 for i in reversed(range(width))]
        self.cursor += width
        while len(self.bits) < self.cursor:
            self.bits.append(self._random.getrandbits(1))

    def write(self, at: int, width: int, value: int) -> None:
        self.need(at + width)
        for i in range(width):
            self.bits[at + i] = value >> (width - 1 - i) & 1
