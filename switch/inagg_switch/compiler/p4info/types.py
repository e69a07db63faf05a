# SPDX-License-Identifier: Apache-2.0
"""Writes types into P4Info.

As in p4c, controllers see types as they are declared: `type` declarations, with or without @p4runtime_translation, and
enums by name. A layout has the bits of the program instead.
"""

from collections.abc import Iterable

from p4.config.v1 import p4info_pb2 as pb
from p4.config.v1 import p4types_pb2

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.errors import CompileError

# Annotations that P4Info has in other fields, or that the control plane does not need.
_HIDDEN = frozenset(["name", "id", "brief", "description"])
_TRANSLATION = "p4runtime_translation"


class TypeWriter:
    """Writes types into messages, and the types that these refer to into `info`. `errors` are the members of
    `error`."""

    def __init__(self, info: p4types_pb2.P4TypeInfo, errors: Iterable[str], *, layout: bool) -> None:
        self._info = info
        self._errors = errors
        self._layout = layout

    def write(
        self, message: pb.MatchField | pb.Action.Param | pb.ControllerPacketMetadata.Metadata, type_: t.Type
    ) -> None:
        """Writes the width (0 for strings and names) and the name of the type."""
        message.bitwidth = self.width(type_)
        if self._layout:
            return
        if isinstance(type_, t.NewType):
            message.type_name.name = type_.name
        elif isinstance(type_, t.EnumType) and type_.base is None and isinstance(message, pb.Action.Param):
            message.bitwidth = 0
            message.type_name.name = type_.name
        self._declare(type_)

    def width(self, type_: t.Type) -> int:
        """The bits of a value; 0 for a string."""
        if not self._layout:
            translation = _translation(type_) if isinstance(type_, t.NewType) else None
            if translation is not None:
                return translation[1]
            if type_ == t.ERROR:
                return 0
        return t.bit_width(type_)

    def write_spec(self, spec: p4types_pb2.P4DataTypeSpec, type_: t.Type) -> None:
        """Writes the type of a digest or register, or of a part of one."""
        if self._layout:
            type_ = t.strip(type_)
        if isinstance(type_, t.NewType):
            spec.new_type.name = type_.declaration.shown_name()
        elif type_ == t.BOOL:
            spec.bool.SetInParent()
        elif isinstance(type_, t.EnumType) and type_.base is not None:
            spec.serializable_enum.name = type_.name
        elif isinstance(type_, t.EnumType):
            spec.enum.name = type_.name
        elif type_ == t.ERROR:
            spec.error.SetInParent()
        elif isinstance(type_, t.TupleType):
            for element in type_.elements:
                self.write_spec(spec.tuple.members.add(), element)
        elif isinstance(type_, t.StructType):
            spec.struct.name = type_.name
        else:
            assert isinstance(type_, t.BitType)
            if type_.signed:
                spec.bitstring.int.bitwidth = type_.width
            else:
                spec.bitstring.bit.bitwidth = type_.width
        self._declare(type_)

    def _declare(self, type_: t.Type) -> None:
        if isinstance(type_, t.NewType) and type_.declaration.shown_name() not in self._info.new_types:
            self._declare_new(self._info.new_types[type_.declaration.shown_name()], type_)
        elif isinstance(type_, t.StructType) and type_.name not in self._info.structs:
            shown = self._info.structs[type_.name]
            for name, field in type_.fields.items():
                member = shown.members.add()
                member.name = name
                self.write_spec(member.type_spec, field)
        elif isinstance(type_, t.EnumType) and type_.base is not None:
            values = self._info.serializable_enums[type_.name]
            if not values.members:
                values.underlying_type.bitwidth = type_.base.width
                for name, number in type_.members.items():
                    bits = number & (1 << type_.base.width) - 1
                    values.members.add(name=name, value=bits.to_bytes((type_.base.width + 7) // 8, "big"))
        elif isinstance(type_, t.EnumType):
            names = self._info.enums[type_.name]
            if not names.members:
                for name in type_.members:
                    names.members.add(name=name)
        elif type_ == t.ERROR and not self._info.error.members:
            self._info.error.members.extend(self._errors)

    def _declare_new(self, shown: p4types_pb2.P4NewTypeSpec, type_: t.NewType) -> None:
        base: t.Type = type_
        while isinstance(base, t.NewType):
            base = base.base
        translation = _translation(type_)
        shown.annotations.extend(
            shown_annotations(a for a in type_.declaration.annotations if a.name != _TRANSLATION)
        )
        if translation is None:
            self.write_spec(shown.original_type, base)
            return
        if not isinstance(base, t.BitType):
            raise CompileError(f"@{_TRANSLATION} needs a type of bits, not of {base}", type_.declaration.at)
        shown.translated_type.uri, width = translation
        if width:
            shown.translated_type.sdn_bitwidth = width
        else:
            shown.translated_type.sdn_string.SetInParent()


def shown_annotations(annotations: Iterable[syntax.Annotation]) -> list[str]:
    """The unstructured annotations, written as p4c writes them."""
    shown = []
    for a in annotations:
        if a.name not in _HIDDEN and not a.structured:
            shown.append(f"@{a.name}({a.raw})" if a.raw else f"@{a.name}")
    return shown


def _translation(type_: t.NewType) -> tuple[str, int] | None:
    """URI and bits of @p4runtime_translation("uri", bit<W>) or ("uri", W); 0 bits for ("uri", string). None without
    it."""
    annotation = type_.declaration.annotation(_TRANSLATION)
    if annotation is None:
        return None
    match annotation.arguments:
        case [str(uri), "string"]:
            return uri, 0
        case [str(uri), "bit", "<", int(width), ">"] | [str(uri), int(width)] if width > 0:
            return uri, width
    raise CompileError(f'@{_TRANSLATION} needs ("uri", bit<W>) or ("uri", string)', annotation.at)
