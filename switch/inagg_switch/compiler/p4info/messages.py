# SPDX-License-Identifier: Apache-2.0
"""Writes the P4Info message. As in p4c, the alias of a name is its shortest suffix that no other name has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from p4.config.v1 import p4info_pb2 as pb
from p4.config.v1 import p4types_pb2

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.p4info.ids import field_ids, symbols_listed
from inagg_switch.compiler.p4info.types import TypeWriter, shown_annotations
from inagg_switch.compiler.reach import Reached
from inagg_switch.errors import CompileError

_UNITS = {
    "packets": pb.CounterSpec.PACKETS,
    "bytes": pb.CounterSpec.BYTES,
    "packets_and_bytes": pb.CounterSpec.BOTH,
}
_METER_UNITS = {"packets": pb.MeterSpec.PACKETS, "bytes": pb.MeterSpec.BYTES}
_MATCH_TYPES = {
    "exact": pb.MatchField.EXACT,
    "lpm": pb.MatchField.LPM,
    "ternary": pb.MatchField.TERNARY,
    "range": pb.MatchField.RANGE,
    "optional": pb.MatchField.OPTIONAL,
}
_PROFILE_ANNOTATIONS = frozenset(["max_group_size", "selector_size_semantics", "max_member_weight"])


def p4info(program: ir.Program, ids: Mapping[tuple[str, str], int], found: Reached) -> pb.P4Info:
    """The P4Info message, with the reachable resources that are not @hidden."""
    return _Writer(program, ids, found).run()


def layout(program: ir.Program, ids: Mapping[tuple[str, str], int]) -> pb.P4Info:
    """A P4Info message with all resources of the program, and with the program's own widths in place of types that
    controllers know by name or with another width."""
    return _Writer(program, ids, None).run()


def _actions(block: ir.Block) -> Iterable[ir.Action]:
    """The actions in p4c's order: those declared outside the controls, then the control's, with inner instances in the
    place of their declaration."""
    return *_global_actions(block), *_own_actions(block)


def _global_actions(block: ir.Block) -> Iterator[ir.Action]:
    own = {id(part) for part in block.parts}
    yield from (action for action in block.actions if id(action) not in own)
    for part in block.parts:
        if isinstance(part, ir.Block):
            yield from _global_actions(part)


def _own_actions(block: ir.Block) -> Iterator[ir.Action]:
    for part in block.parts:
        if isinstance(part, ir.Block):
            yield from _own_actions(part)
        else:
            yield part


class _Writer:
    def __init__(
        self, program: ir.Program, ids: Mapping[tuple[str, str], int], found: Reached | None
    ) -> None:
        """`found` has the resources to list; None lists all."""
        self._program = program
        self._ids = ids
        self._info = pb.P4Info()
        self._found = found
        self._types = TypeWriter(self._info.type_info, program.errors, layout=found is None)
        self._suffixes: dict[str, int] = {}
        listed = ids if found is None else symbols_listed(program, found)
        for name in {name for _, name in listed}:
            for suffix in _suffixes(name):
                self._suffixes[suffix] = self._suffixes.get(suffix, 0) + 1

    def run(self) -> pb.P4Info:
        self._package()
        for made in self._program.objects:
            if not self._lists(made):
                continue
            if isinstance(made, ir.Table):
                self._table(made)
            elif isinstance(made, ir.Counter):
                self._counter(made)
            elif isinstance(made, ir.DirectCounter):
                self._direct_counter(made)
            elif isinstance(made, ir.Register):
                self._register(made)
            elif isinstance(made, ir.ValueSet):
                self._value_set(made)
            elif isinstance(made, ir.Meter):
                self._meter(made)
            elif isinstance(made, ir.DirectMeter):
                self._direct_meter(made)
            elif isinstance(made, ir.Profile):
                self._profile(made)
            elif isinstance(made, ir.Digest):
                self._digest(made)
        actions = (a for block in self._program.pipeline.values() for a in _actions(block))
        for action in {a.full_name: a for a in actions if self._lists(a)}.values():
            self._action(action)
        for header in self._program.controller_headers:
            self._controller_header(header)
        if (
            self._program.calls_extern_functions
            or self._info.tables
            or any(isinstance(made.declaration, syntax.Instantiation) for made in self._program.objects)
            or self._info.controller_packet_metadata
            or any(a.params for a in self._info.actions)
        ):
            self._info.type_info.SetInParent()  # p4c writes it, even if it is empty
        return self._info

    def _lists(self, made: ir.Object | ir.Action) -> bool:
        if isinstance(made, ir.DirectCounter | ir.DirectMeter) and made.table is None:
            return False
        return self._found is None or self._found.shows(made)

    def _package(self) -> None:
        """Writes the annotations of `main`: @pkginfo(name = "...", ...), @platform_property(...), and others
        unchanged."""
        package = self._info.pkg_info
        package.arch = "v1model"
        special = {"pkginfo": package, "platform_property": package.platform_properties}
        for annotation in self._program.annotations:
            message = special.get(annotation.name)
            if message is None:
                continue
            words = annotation.arguments
            for name, equals, value in zip(words[::3], words[1::3], words[2::3], strict=False):
                field = message.DESCRIPTOR.fields_by_name.get(str(name))
                if (
                    field is None
                    or equals != "="
                    or not isinstance(value, str if message is package else int)
                ):
                    raise CompileError(f"`{name}` is not a part of @{annotation.name}", annotation.at)
                setattr(message, field.name, value)
        package.annotations.extend(
            shown_annotations(a for a in self._program.annotations if a.name not in special)
        )
        _document(package, self._program.annotations)

    def _preamble(
        self,
        preamble: pb.Preamble,
        kind: str,
        name: str,
        declaration: syntax.Declaration,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        preamble.id = self._ids[kind, name]
        preamble.name = name
        preamble.alias = next(s for s in _suffixes(name) if self._suffixes[s] == 1 or s == name)
        _annotate(preamble, [a for a in declaration.annotations if a.name not in hidden])

    def _table(self, table: ir.Table) -> None:
        message = self._info.tables.add()
        self._preamble(message.preamble, "table", table.full_name, table.declaration)
        for number, key in zip(field_ids([k.annotations for k in table.keys]), table.keys, strict=True):
            field = message.match_fields.add()
            field.id, field.name = number, key.name
            self._types.write(field, key.type)
            field.match_type = _MATCH_TYPES[key.kind]
            _annotate(field, key.annotations)
        for use in table.actions:
            ref = message.action_refs.add()
            ref.id = self._ids["action", use.action.full_name]
            _annotate(ref, use.annotations)
            if not use.in_entries:
                ref.scope = pb.ActionRef.DEFAULT_ONLY
            elif not use.as_default:
                ref.scope = pb.ActionRef.TABLE_ONLY
        self._default(message, table)
        if table.direct_counter is not None:
            message.direct_resource_ids.append(self._ids["direct_counter", table.direct_counter.full_name])
        if table.direct_meter is not None:
            message.direct_resource_ids.append(self._ids["direct_meter", table.direct_meter.full_name])
        if table.profile is not None:
            message.implementation_id = self._ids["action_profile", table.profile.full_name]
        if table.support_timeout:
            message.idle_timeout_behavior = pb.Table.NOTIFY_CONTROL
        message.size = table.size
        message.is_const_table = table.const_entries
        message.has_initial_entries = bool(table.declaration.entries)

    def _default(self, message: pb.Table, table: ir.Table) -> None:
        use = table.actions[table.default_action]
        identity = self._ids["action", use.action.full_name]
        if table.const_default:
            message.const_default_action_id = identity
        message.initial_default_action.action_id = identity
        directionless = [p for p in use.action.declaration.parameters if not p.direction]
        ids = field_ids([p.annotations for p in directionless])
        for number, parameter, value in zip(ids, directionless, table.default_arguments, strict=True):
            argument = message.initial_default_action.arguments.add()
            argument.param_id = number
            width = self._types.width(parameter.type) or t.bit_width(parameter.type)
            argument.value = value.to_bytes((max(width, value.bit_length()) + 7) // 8, "big")

    def _action(self, action: ir.Action) -> None:
        message = self._info.actions.add()
        self._preamble(message.preamble, "action", action.full_name, action.declaration)
        in_tables = (
            use.action.declaration
            for o in self._program.objects
            if isinstance(o, ir.Table) and (self._found is None or o in self._found)
            for use in o.actions
            if use.action.full_name == action.full_name
        )
        declaration = next(in_tables, None)
        # p4c turns the parameters of actions that are only called into variables.
        directionless = [] if declaration is None else [p for p in declaration.parameters if not p.direction]
        for number, parameter in zip(
            field_ids([p.annotations for p in directionless]), directionless, strict=True
        ):
            param = message.params.add()
            param.id, param.name = number, parameter.shown_name()
            self._types.write(param, parameter.type)
            _annotate(param, parameter.annotations)

    def _counter(self, counter: ir.Counter) -> None:
        message = self._info.counters.add()
        self._preamble(message.preamble, "counter", counter.full_name, counter.declaration)
        message.spec.unit = _UNITS[counter.unit]
        message.size = counter.size

    def _direct_counter(self, counter: ir.DirectCounter) -> None:
        assert counter.table is not None
        message = self._info.direct_counters.add()
        self._preamble(message.preamble, "direct_counter", counter.full_name, counter.declaration)
        message.spec.unit = _UNITS[counter.unit]
        message.direct_table_id = self._ids["table", counter.table.full_name]

    def _value_set(self, value_set: ir.ValueSet) -> None:
        message = self._info.value_sets.add()
        self._preamble(message.preamble, "value_set", value_set.full_name, value_set.declaration)
        ids = field_ids([field.annotations for field in value_set.fields])
        for number, field in zip(ids, value_set.fields, strict=True):
            match = message.match.add()
            match.id, match.name = number, field.name
            self._types.write(match, field.type)
            match.match_type = _MATCH_TYPES[field.kind]
            _annotate(match, [a for a in field.annotations if a.name != "match"])
        message.size = value_set.size

    def _controller_header(self, header: t.StructType) -> None:
        message = self._info.controller_packet_metadata.add()
        self._preamble(message.preamble, "controller_header", header.name, header.declaration)
        annotation = header.declaration.annotation("controller_header")
        if not annotation.arguments:
            raise CompileError("@controller_header needs a name, such as packet_in", annotation.at)
        # P4Runtime uses the name in the annotation, not the header's.
        message.preamble.name = message.preamble.alias = str(annotation.arguments[0])
        fields = _flat_fields(header)
        ids = field_ids([annotations for _, _, annotations in fields])
        for number, (name, type_, annotations) in zip(ids, fields, strict=True):
            metadata = message.metadata.add()
            metadata.id, metadata.name = number, name
            self._types.write(metadata, type_)
            _annotate(metadata, annotations)

    def _meter(self, meter: ir.Meter) -> None:
        message = self._info.meters.add()
        self._preamble(message.preamble, "meter", meter.full_name, meter.declaration)
        message.spec.unit = _METER_UNITS[meter.unit]
        message.size = meter.size

    def _direct_meter(self, meter: ir.DirectMeter) -> None:
        assert meter.table is not None
        message = self._info.direct_meters.add()
        self._preamble(message.preamble, "direct_meter", meter.full_name, meter.declaration)
        message.spec.unit = _METER_UNITS[meter.unit]
        message.direct_table_id = self._ids["table", meter.table.full_name]

    def _profile(self, profile: ir.Profile) -> None:
        message = self._info.action_profiles.add()
        self._preamble(
            message.preamble, "action_profile", profile.full_name, profile.declaration, _PROFILE_ANNOTATIONS
        )
        names = sorted(table.full_name for table in profile.tables if self._lists(table))  # p4c's order
        message.table_ids.extend(self._ids["table", name] for name in names)
        message.with_selector = profile.algorithm is not None
        message.size = profile.size
        if profile.algorithm is not None:
            _selector_limits(message, profile.declaration)

    def _digest(self, digest: ir.Digest) -> None:
        message = self._info.digests.add()
        self._preamble(message.preamble, "digest", digest.full_name, digest.declaration)
        self._types.write_spec(message.type_spec, digest.type)

    def _register(self, register: ir.Register) -> None:
        message = self._info.registers.add()
        self._preamble(message.preamble, "register", register.full_name, register.declaration)
        self._types.write_spec(message.type_spec, register.type)
        message.size = register.size


def _flat_fields(struct: t.StructType) -> list[tuple[str, t.Type, list[syntax.Annotation]]]:
    """Name, type and annotations of each scalar field. The fields of inner structs come in the place of the struct; the
    innermost annotation of a name wins."""
    found: list[tuple[str, t.Type, list[syntax.Annotation]]] = []
    for field in struct.declaration.fields:
        type_ = struct.fields[field.name]
        if not isinstance(type_, t.StructType):
            found.append((field.name, type_, field.annotations))
            continue
        for name, inner, annotations in _flat_fields(type_):
            own = {a.name for a in annotations}
            outer = [a for a in field.annotations if a.name not in own]
            found.append((f"{field.name}.{name}", inner, [*annotations, *outer]))
    return found


def _selector_limits(message: pb.ActionProfile, declaration: syntax.Declaration) -> None:
    message.max_group_size = _limit(declaration, "max_group_size")
    heaviest = _limit(declaration, "max_member_weight")
    semantics = declaration.annotation("selector_size_semantics")
    if semantics is None:
        return
    match [str(word).lower() for word in semantics.arguments]:
        case ["sum_of_weights"]:
            message.sum_of_weights.SetInParent()
        case ["sum_of_members"]:
            message.sum_of_members.max_member_weight = heaviest
        case _:
            raise CompileError(
                "@selector_size_semantics must be sum_of_weights or sum_of_members", declaration.at
            )


def _limit(declaration: syntax.Declaration, name: str) -> int:
    """The number in an annotation; 0 without the annotation."""
    annotation = declaration.annotation(name)
    if annotation is None:
        return 0
    match annotation.arguments:
        case [int(limit)] if 0 <= limit < 1 << 31:
            return limit
    raise CompileError(f"@{name} needs a number below 2^31", annotation.at)


def _suffixes(name: str) -> list[str]:
    """The suffixes of a full name, shortest first."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]


_Annotated: TypeAlias = (
    pb.Preamble | pb.MatchField | pb.ActionRef | pb.Action.Param | pb.ControllerPacketMetadata.Metadata
)


def _annotate(message: _Annotated, annotations: Sequence[syntax.Annotation]) -> None:
    message.annotations.extend(shown_annotations(annotations))
    for annotation in annotations:
        if annotation.structured:
            _structured(message.structured_annotations.add(), annotation)
    if not isinstance(message, pb.ActionRef | pb.ControllerPacketMetadata.Metadata):
        _document(message, annotations)


def _document(
    message: pb.PkgInfo | pb.Preamble | pb.MatchField | pb.Action.Param,
    annotations: Iterable[syntax.Annotation],
) -> None:
    """Writes @brief("...") and @description("...")."""
    for annotation in annotations:
        if annotation.structured or annotation.name not in ("brief", "description"):
            continue
        match annotation.arguments:
            case [str(text)]:
                setattr(message.doc, annotation.name, text)
            case _:
                raise CompileError(f"@{annotation.name} needs a string", annotation.at)


def _structured(message: p4types_pb2.StructuredAnnotation, annotation: syntax.Annotation) -> None:
    """Writes `@name[key=value, ...]` or `@name[value, ...]`; values are numbers, strings and booleans."""
    message.name = annotation.name
    for place, expression in enumerate(annotation.expressions):
        if annotation.keys:
            pair = message.kv_pair_list.kv_pairs.add()
            pair.key = annotation.keys[place]
            target = pair.value
        else:
            target = message.expression_list.expressions.add()
        if isinstance(expression.value, bool):
            target.bool_value = expression.value
        elif isinstance(expression.value, int):
            target.int64_value = expression.value
        else:
            target.string_value = str(expression.value)
