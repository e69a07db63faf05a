# SPDX-License-Identifier: Apache-2.0
"""Lowers calls of v1model's functions. Raises CompileError for calls that BMv2 does not allow."""

from collections.abc import Callable

from inagg_switch.compiler import ir, primitives, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.constants import known_number, known_value, member_name
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.lower.expressions import expression
from inagg_switch.errors import CompileError, Position

_CHECKSUMS = frozenset(
    f"{what}_checksum{how}" for what in ("verify", "update") for how in ("", "_with_payload")
)
_FIELD_LIST_FUNCTIONS = frozenset(
    f"{what}_preserving_field_list" for what in ("clone", "resubmit", "recirculate")
)
# Functions that BMv2 allows in one block only.
_PLACES_AND_PRIMITIVES = {
    "resubmit_preserving_field_list": ("ingress", primitives.Resubmit),
    "recirculate_preserving_field_list": ("egress", primitives.Recirculate),
}


def argument(scope: Scope, e: syntax.Call, name: str) -> ir.Expr:
    """The argument of the parameter with this name."""
    value = e.bound[name]
    if value is None:
        raise CompileError(f"`_` cannot stand for `{name}` here", e.start)
    return expression(scope, value)


def extern_function(scope: Scope, e: syntax.Call, target: targets.ExternTarget) -> ir.Stmt:
    name = target.function.name
    scope.note_extern_function(name)
    if name in _CHECKSUMS:
        return _checksum(scope, e, name)
    handler = _FUNCTIONS.get(name)
    if handler is None:
        newer = {"clone3": "clone"}.get(name, name) + "_preserving_field_list"
        instead = f"; use {newer}" if newer in _FIELD_LIST_FUNCTIONS else ""
        raise CompileError(f"{name} is not supported{instead}", e.start)
    return handler(scope, e)


def _mark_to_drop(scope: Scope, e: syntax.Call) -> ir.Stmt:
    if not e.bound:
        raise CompileError("mark_to_drop needs standard_metadata", e.start)
    return primitives.MarkToDrop(argument(scope, e, "standard_metadata"))


def _random(scope: Scope, e: syntax.Call) -> ir.Stmt:
    return primitives.Random(*(argument(scope, e, name) for name in ("result", "lo", "hi")))


def _verify(scope: Scope, e: syntax.Call) -> ir.Stmt:
    return primitives.Verify(argument(scope, e, "check"), argument(scope, e, "toSignal"))


# --- fields that are hashed


def _algorithm(scope: Scope, e: syntax.Call) -> str:
    value = e.bound["algo"]
    assert value is not None
    return member_name(scope, value, "the algorithm")


def hashed_fields(scope: Scope, e: syntax.Call, name: str) -> tuple[ir.Expr, ...]:
    """The scalar fields of an argument."""
    return _bits_of(argument(scope, e, name), e.start)


def _bits_of(value: ir.Expr, at: Position) -> tuple[ir.Expr, ...]:
    leaves = tuple(_leaves(value))
    for leaf in leaves:
        kind = t.strip(leaf.type)
        if not isinstance(kind, t.BitType | t.VarbitType | t.EnumType) and kind not in (t.BOOL, t.ERROR):
            raise CompileError(f"hashes and checksums need bits, not {leaf.type}", at)
    return leaves


def _hash(scope: Scope, e: syntax.Call) -> ir.Stmt:
    result = argument(scope, e, "result")
    if not isinstance(t.strip(result.type), t.BitType):
        raise CompileError(f"the result of hash must be bits, not {result.type}", e.start)
    base, most = argument(scope, e, "base"), argument(scope, e, "max")
    sent = e.bound["data"]
    assert sent is not None
    if isinstance(sent.type, t.RecordType | t.StackType) or sent.type == t.INTEGER:
        raise CompileError(f"hash needs a list or a struct, as in {{ x }}, not {sent.type}", sent.start)
    value = argument(scope, e, "data")
    data = _bits_of(value, e.start)
    return primitives.Hash(result, base, most, data, _algorithm(scope, e), tuple(_in_headers(value)))


def _checksum(scope: Scope, e: syntax.Call, name: str) -> ir.Stmt:
    place = name.split("_")[0]
    if scope.stage.place != place:
        raise CompileError(f"{name} can only be called in the control that V1Switch has for it", e.start)
    checksum = argument(scope, e, "checksum")
    if not isinstance(t.strip(checksum.type), t.BitType):
        raise CompileError(f"a checksum must be bits, not {checksum.type}", e.start)
    condition, data = argument(scope, e, "condition"), hashed_fields(scope, e, "data")
    made = primitives.VerifyChecksum if place == "verify" else primitives.UpdateChecksum
    return made(condition, checksum, data, _algorithm(scope, e), name.endswith("payload"))


def _digest(scope: Scope, e: syntax.Call) -> ir.Stmt:
    if scope.stage.place not in ("ingress", "egress"):
        raise CompileError("digest can only be called in ingress", e.start)
    if scope.stage.place == "egress":
        return ir.Group(())  # allowed without effect: BMv2 sends digests after ingress only
    type_ = e.type_values["T"]
    sent = e.bound["data"]
    assert sent is not None
    unnamed = isinstance(type_, t.RecordType) or (
        sent.value is not None and not isinstance(sent.value, tuple)
    )
    if unnamed or t.has_header(type_) or t.has_array(type_):
        raise CompileError("digest needs a struct or a list: digest<struct_t>(receiver, {...})", sent.start)
    data = hashed_fields(scope, e, "data")
    return primitives.Digest(scope.stage.digest(type_, e.start), data)


# --- clone, resubmit, recirculate


def _list_index(scope: Scope, e: syntax.Call) -> int:
    value = e.bound["index"]
    assert value is not None
    return known_number(scope, value, "the number of a field list")


def _clone(scope: Scope, e: syntax.Call) -> ir.Stmt:
    kind = e.bound["type"]
    assert kind is not None
    wanted = {"I2E": "ingress", "E2E": "egress"}[member_name(scope, kind, "the type of a clone")]
    if scope.stage.place != wanted:
        raise CompileError(f"this clone can only be called in {wanted}", e.start)
    index = _list_index(scope, e) if "index" in e.bound else None
    return primitives.Clone(argument(scope, e, "session"), index)


def _resubmit_or_recirculate(scope: Scope, e: syntax.Call) -> ir.Stmt:
    assert isinstance(e.target, targets.ExternTarget)
    name = e.target.function.name
    place, made = _PLACES_AND_PRIMITIVES[name]
    if scope.stage.place != place:
        raise CompileError(f"{name} can only be called in {place}", e.start)
    return made(_list_index(scope, e))


# --- messages


def _log_msg(scope: Scope, e: syntax.Call) -> ir.Stmt:
    message = e.bound["msg"]
    assert message is not None
    data: tuple[ir.Expr, ...] = ()
    if "data" in e.bound:
        listed = e.bound["data"]
        if listed is not None and not isinstance(listed.type, t.TupleType | t.StructType):
            raise CompileError("log_msg needs a list of numbers: {a, b}", listed.start)
        data = tuple(_leaves(argument(scope, e, "data")))
    for leaf in data:
        bits = t.strip(leaf.type)
        if not isinstance(bits, t.BitType | t.EnumType) and bits not in (t.BOOL, t.ERROR):
            raise CompileError(f"log_msg needs numbers, not {leaf.type}", e.start)
    return primitives.LogMsg(str(known_value(scope, message, "the message")), data)


def _assert(scope: Scope, e: syntax.Call) -> ir.Stmt:
    assert isinstance(e.target, targets.ExternTarget)
    what = {"assert": "Assert error", "assume": "Assume error"}[e.target.function.name]
    where = f"{what}: {e.start.path}:{e.start.line}"
    return primitives.Assert(argument(scope, e, "check"), where)


_FUNCTIONS: dict[str, Callable[[Scope, syntax.Call], ir.Stmt]] = {
    "static_assert": lambda scope, e: ir.Group(()),  # done by the checker
    "mark_to_drop": _mark_to_drop,
    "random": _random,
    "verify": _verify,
    "hash": _hash,
    "clone": _clone,
    "clone_preserving_field_list": _clone,
    "resubmit_preserving_field_list": _resubmit_or_recirculate,
    "recirculate_preserving_field_list": _resubmit_or_recirculate,
    "digest": _digest,
    "truncate": lambda scope, e: primitives.Truncate(argument(scope, e, "length")),
    "log_msg": _log_msg,
    "assert": _assert,
    "assume": _assert,
}


def _leaves(e: ir.Expr) -> list[ir.Expr]:
    """The scalars in an expression, in order."""
    if isinstance(e, ir.Construct):
        return [leaf for item in e.items for leaf in _leaves(item)]
    if isinstance(e.type, t.StructType):
        return [leaf for name, f in e.type.fields.items() for leaf in _leaves(ir.Field(f, e, name))]
    if isinstance(e.type, t.StackType):
        index_type = t.BitType(32)
        elements = [ir.Element(e.type.element, e, ir.Const(index_type, i)) for i in range(e.type.size)]
        return [leaf for element in elements for leaf in _leaves(element)]
    if isinstance(e.type, t.TupleType):
        parts = enumerate(e.type.elements)
        return [leaf for i, part in parts for leaf in _leaves(ir.Part(part, e, i))]
    return [e]


def _in_headers(e: ir.Expr) -> list[bool]:
    """For every scalar, whether hash() omits it when its header is invalid. p4c copies the members of a list to
    temporaries: the copy of a field has no header, the copy of a header keeps its validity."""
    if isinstance(e, ir.Construct):
        return [whole for item in e.items for whole in _in_headers(item)]
    whole = isinstance(e.type, t.StructType | t.StackType | t.TupleType)
    return [whole] * len(_leaves(e))
