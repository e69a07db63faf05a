# SPDX-License-Identifier: Apache-2.0
"""Whether two P4Infos describe the same pipeline, although different compilers have written them."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

from google.protobuf.message import Message
from p4.config.v1 import p4info_pb2

from inagg_switch.p4runtime.errors import invalid

# Parts of a P4Info that describe the source and not the pipeline. So may fields that are newer than these messages.
_DESCRIPTIVE = ("annotations", "annotation_locations", "structured_annotations", "doc")
# Fields that older releases of p4c do not write. They are compared if both P4Infos have them.
_NEWER = (
    "initial_default_action",
    "has_initial_entries",
    "index_type_name",
    "type_name",
    "platform_properties",
)


def pipeline_of(p4info: p4info_pb2.P4Info) -> dict[int, bytes]:
    """Id -> the encoded object of a P4Info without its description; equal for equal pipelines."""
    objects: dict[int, bytes] = {}
    for object_id, (_, item) in _objects(p4info).items():
        stripped = type(item)()
        stripped.CopyFrom(item)
        stripped.DiscardUnknownFields()
        _strip(stripped)
        objects[object_id] = stripped.SerializeToString(deterministic=True)
    return objects


def check_same_pipeline(given: p4info_pb2.P4Info, compiled: p4info_pb2.P4Info) -> None:
    """Raise RequestError, with the first difference, if a P4Info is not the program's."""
    ours, theirs = _objects(compiled), _objects(given)
    for object_id in sorted(ours.keys() | theirs.keys()):
        if object_id not in theirs:
            raise _differs(f"it lacks {_text(*ours[object_id])} of the program")
        if object_id not in ours:
            raise _differs(f"the program has no {_text(*theirs[object_id])}")
        (kind, mine), (other, its) = ours[object_id], theirs[object_id]
        if kind != other:
            raise _differs(f"{_text(other, its)} is {_text(kind, mine)} in the program")
        for difference in _differences(its, mine):
            raise _differs(f"{_text(kind, mine)}: {difference}")


def _differs(how: str) -> Exception:
    return invalid(f"the P4Info does not belong to the device config: {how}")


def _objects(p4info: p4info_pb2.P4Info) -> dict[int, tuple[str, Any]]:
    """Id -> the kind of an object, and the object."""
    return {
        item.preamble.id: (descriptor.name.removesuffix("s").replace("_", " "), item)
        for descriptor, items in p4info.ListFields()
        if not isinstance(items, Message)  # the package's own description, and types
        for item in items
    }


def _text(kind: str, item: Any) -> str:
    return f"{kind} {item.preamble.name} (0x{item.preamble.id:08x})"


def _strip(message: Message) -> None:
    for descriptor, value in message.ListFields():
        if descriptor.name in _DESCRIPTIVE:
            message.ClearField(descriptor.name)
        elif descriptor.message_type is not None and not descriptor.message_type.GetOptions().map_entry:
            for one in [value] if isinstance(value, Message) else value:
                _strip(one)


def _differences(given: Message, compiled: Message, place: str = "") -> Iterator[str]:
    its, ours = ({field.name: value for field, value in one.ListFields()} for one in (given, compiled))
    for field in compiled.DESCRIPTOR.fields:
        name = field.name
        mine, other = ours.get(name), its.get(name)
        if name in _DESCRIPTIVE or mine == other or (name in _NEWER and (mine is None or other is None)):
            continue
        if isinstance(mine, Message) and isinstance(other, Message):
            yield from _differences(other, mine, f"{place}{name}.")
        elif _are_messages(mine) and _are_messages(other) and len(mine) == len(other):
            for index, (its_part, our_part) in enumerate(zip(other, mine, strict=True)):
                yield from _differences(its_part, our_part, f"{place}{name}[{index}].")
        else:
            yield f"{place}{name} is {_shown(field, other)}, in the program {_shown(field, mine)}"


def _are_messages(value: Any) -> TypeGuard[Sequence[Message]]:
    """Whether a field's value is a list of messages; one in a P4Info is not empty."""
    return isinstance(value, Sequence) and isinstance(value[0], Message)


def _shown(field: Any, value: Any) -> str:
    if value is None:
        return "not set"
    if _are_messages(value):
        return f"a list of {len(value)}"
    if isinstance(value, int) and field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return " ".join(str(value).split()) or "empty"
