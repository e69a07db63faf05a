"""Functions of the v1model architecture: what their calls are in IR, and what BMv2 does not allow."""

from inagg_switch.compiler import ir, primitives, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.expressions import ExpressionLowerer
from inagg_switch.errors import CompileError, Position

_CHECKSUMS = frozenset(
    f"{what}_checksum{how}" for what in ("verify", "update") for how in ("", "_with_payload")
)
_FIELD_LIST_FUNCTIONS = frozenset(
    f"{what}_preserving_field_list" for what in ("clone", "resubmit", "recirculate")
)
# Functions that BMv2 has in one block only.
_AGAIN = {
    "resubmit_preserving_field_list": ("ingress", primitives.Resubmit),
    "recirculate_preserving_field_list": ("egress", primitives.Recirculate),
}


class ExternLowerer(ExpressionLowerer):
    """Calls of extern functions become Primitives."""

    def pipeline_place(self) -> str:
        """ingress, egress, or another name of the block, or of the one that it is part of."""
        raise NotImplementedError

    def note_extern_function(self, name: str) -> None:
        """An extern function is called."""

    def bound(self, e: syntax.Call, name: str) -> ir.Expr:
        """An argument by the name of its parameter."""
        value = e.bound[name]
        if value is None:
            raise CompileError(f"`_` cannot stand for `{name}` here", e.start)
        return self.expression(value)

    def extern_function(self, e: syntax.Call, target: targets.ExternTarget) -> ir.Stmt:
        name = target.function.name
        self.note_extern_function(name)
        if name in _CHECKSUMS:
            return self._checksum(e, name)
        handler = {
            "static_assert": lambda e: ir.Group(()),  # the checker has seen to it
            "mark_to_drop": self._mark_to_drop,
            "random": lambda e: primitives.Random(
                self.bound(e, "result"), self.bound(e, "lo"), self.bound(e, "hi")
            ),
            "verify": lambda e: primitives.Verify(self.bound(e, "check"), self.bound(e, "toSignal")),
            "hash": self._hash,
            "clone": self._clone,
            "clone_preserving_field_list": self._clone,
            "resubmit_preserving_field_list": self._again,
            "recirculate_preserving_field_list": self._again,
            "digest": self._digest,
            "truncate": lambda e: primitives.Truncate(self.bound(e, "length")),
            "log_msg": self._log_msg,
            "assert": self._assert,
            "assume": self._assert,
        }.get(name)
        if handler is None:
            newer = {"clone3": "clone"}.get(name, name) + "_preserving_field_list"
            instead = f"; use {newer}" if newer in _FIELD_LIST_FUNCTIONS else ""
            raise CompileError(f"{name} is not supported{instead}", e.start)
        return handler(e)

    def _mark_to_drop(self, e: syntax.Call) -> ir.Stmt:
        if not e.bound:
            raise CompileError("mark_to_drop needs standard_metadata", e.start)
        return primitives.MarkToDrop(self.bound(e, "standard_metadata"))

    # --- fields that are hashed

    def _algorithm(self, e: syntax.Call) -> str:
        value = e.bound["algo"]
        assert value is not None
        return self.member(value, "the algorithm")

    def fields(self, e: syntax.Call, name: str) -> tuple[ir.Expr, ...]:
        """The scalar fields that an argument consists of."""
        return self._bits_of(self._field_list(e, name), e.start)

    def _field_list(self, e: syntax.Call, name: str) -> ir.Expr:
        self.in_field_list = True
        value = self.bound(e, name)
        self.in_field_list = False
        return value

    def _bits_of(self, value: ir.Expr, at: Position) -> tuple[ir.Expr, ...]:
        leaves = tuple(_leaves(value))
        for leaf in leaves:
            kind = t.strip(leaf.type)
            if not isinstance(kind, t.BitType | t.VarbitType | t.EnumType) and kind not in (t.BOOL, t.ERROR):
                raise CompileError(f"hashes and checksums are taken over bits, not {leaf.type}", at)
        return leaves

    def _hash(self, e: syntax.Call) -> ir.Stmt:
        result = self.bound(e, "result")
        if not isinstance(t.strip(result.type), t.BitType):
            raise CompileError(f"the result of hash is bits, not {result.type}", e.start)
        base, most = self.bound(e, "base"), self.bound(e, "max")
        sent = e.bound["data"]
        assert sent is not None
        if isinstance(sent.type, t.RecordType | t.StackType) or sent.type == t.INTEGER:
            raise CompileError(f"hash needs a list or a struct, as in {{ x }}, not {sent.type}", sent.start)
        value = self._field_list(e, "data")
        data = self._bits_of(value, e.start)
        return primitives.Hash(result, base, most, data, self._algorithm(e), tuple(_in_headers(value)))

    def _checksum(self, e: syntax.Call, name: str) -> ir.Stmt:
        place = name.split("_")[0]
        if self.pipeline_place() != place:
            raise CompileError(f"{name} can only be called in the control that V1Switch has for it", e.start)
        checksum = self.bound(e, "checksum")
        if not isinstance(t.strip(checksum.type), t.BitType):
            raise CompileError(f"a checksum is bits, not {checksum.type}", e.start)
        condition, data = self.bound(e, "condition"), self.fields(e, "data")
        made = primitives.VerifyChecksum if place == "verify" else primitives.UpdateChecksum
        return made(condition, checksum, data, self._algorithm(e), name.endswith("payload"))

    def digest_object(self, type_: t.Type, at: Position) -> ir.Digest:
        """The digest with that contents: the same for every call with a struct, else a new one."""
        raise NotImplementedError

    def _digest(self, e: syntax.Call) -> ir.Stmt:
        if self.pipeline_place() not in ("ingress", "egress"):
            raise CompileError("digest can only be called in ingress", e.start)
        if self.pipeline_place() == "egress":
            return ir.Group(())  # allowed, but BMv2 looks for digests after ingress only
        type_ = e.type_values["T"]
        sent = e.bound["data"]
        assert sent is not None
        unnamed = isinstance(type_, t.RecordType) or (
            sent.value is not None and not isinstance(sent.value, tuple)
        )
        if unnamed or t.has_header(type_) or t.has_array(type_):
            raise CompileError(
                "digest needs a struct or a list: digest<struct_t>(receiver, {...})", sent.start
            )
        data = self.fields(e, "data")
        return primitives.Digest(self.digest_object(type_, e.start), data)

    # --- packets that go round again

    def _list_index(self, e: syntax.Call) -> int:
        value = e.bound["index"]
        assert value is not None
        return self.number(value, "the number of a field list")

    def _clone(self, e: syntax.Call) -> ir.Stmt:
        kind = e.bound["type"]
        assert kind is not None
        wanted = {"I2E": "ingress", "E2E": "egress"}[self.member(kind, "the type of a clone")]
        if self.pipeline_place() != wanted:
            raise CompileError(f"this clone can only be called in {wanted}", e.start)
        index = self._list_index(e) if "index" in e.bound else None
        return primitives.Clone(self.bound(e, "session"), index)

    def _again(self, e: syntax.Call) -> ir.Stmt:
        assert isinstance(e.target, targets.ExternTarget)
        name = e.target.function.name
        place, made = _AGAIN[name]
        if self.pipeline_place() != place:
            raise CompileError(f"{name} can only be called in {place}", e.start)
        return made(self._list_index(e))

    # --- messages

    def _log_msg(self, e: syntax.Call) -> ir.Stmt:
        message = e.bound["msg"]
        assert message is not None
        data: tuple[ir.Expr, ...] = ()
        if "data" in e.bound:
            listed = e.bound["data"]
            if listed is not None and not isinstance(listed.type, t.TupleType | t.StructType):
                raise CompileError("log_msg shows a list of numbers: {a, b}", listed.start)
            data = tuple(_leaves(self._field_list(e, "data")))
        for leaf in data:
            bits = t.strip(leaf.type)
            if not isinstance(bits, t.BitType | t.EnumType) and bits not in (t.BOOL, t.ERROR):
                raise CompileError(f"log_msg shows numbers, not {leaf.type}", e.start)
        return primitives.LogMsg(str(self.fixed(message, "the message")), data)

    def _assert(self, e: syntax.Call) -> ir.Stmt:
        assert isinstance(e.target, targets.ExternTarget)
        what = {"assert": "Assert error", "assume": "Assume error"}[e.target.function.name]
        where = f"{what}: {e.start.path}:{e.start.line}"
        return primitives.Assert(self.bound(e, "check"), where)


def _leaves(e: ir.Expr) -> list[ir.Expr]:
    """Scalars in an expression, in order; a constructed struct's or list's are its parts."""
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
    """Of every scalar, whether hash() leaves it out when its header is invalid. p4c copies the members of a list to
    temporaries: a field's has no header any more, a header's is as invalid as the header."""
    if isinstance(e, ir.Construct):
        return [whole for item in e.items for whole in _in_headers(item)]
    whole = isinstance(e.type, t.StructType | t.StackType | t.TupleType)
    return [whole] * len(_leaves(e))
