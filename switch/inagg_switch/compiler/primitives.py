# SPDX-License-Identifier: Apache-2.0
"""Primitives: operations of the language and of the architecture, as statements of the IR, one class each.

Operands are evaluated in the order of the fields. A field that is not an expression is known at compile time.
"""

from dataclasses import dataclass

from inagg_switch.compiler.ir import Call, Counter, Expr, Meter, Register, Stmt
from inagg_switch.compiler.ir import Digest as DigestObject

# --- parsers


@dataclass(frozen=True)
class Extract(Stmt):
    """`bits` is the size of the header's varbit field."""

    packet: Expr
    header: Expr
    bits: Expr | None = None


@dataclass(frozen=True)
class Advance(Stmt):
    packet: Expr
    bits: Expr


@dataclass(frozen=True)
class Require(Stmt):
    """A parser error if the packet has fewer than `bits` bits left."""

    packet: Expr
    bits: int


@dataclass(frozen=True)
class Look(Stmt):
    """A lookahead at a header of `size` bytes; `looked` is true if this lookahead has already run for the packet."""

    looked: Expr
    size: int


@dataclass(frozen=True)
class Verify(Stmt):
    condition: Expr
    error: Expr


@dataclass(frozen=True)
class Parse(Stmt):
    """The call of another parser."""

    call: Call


# --- headers and stacks


@dataclass(frozen=True)
class SetValid(Stmt):
    header: Expr


@dataclass(frozen=True)
class SetInvalid(Stmt):
    header: Expr


@dataclass(frozen=True)
class PushFront(Stmt):
    stack: Expr
    count: int


@dataclass(frozen=True)
class PopFront(Stmt):
    stack: Expr
    count: int


@dataclass(frozen=True)
class Emit(Stmt):
    packet: Expr
    header: Expr


# --- state


@dataclass(frozen=True)
class RegisterRead(Stmt):
    object: Register
    result: Expr
    index: Expr


@dataclass(frozen=True)
class RegisterWrite(Stmt):
    object: Register
    index: Expr
    value: Expr


@dataclass(frozen=True)
class ExecuteMeter(Stmt):
    object: Meter
    result: Expr
    index: Expr


@dataclass(frozen=True)
class Count(Stmt):
    object: Counter
    index: Expr


# --- functions of v1model


@dataclass(frozen=True)
class MarkToDrop(Stmt):
    standard: Expr


@dataclass(frozen=True)
class Random(Stmt):
    result: Expr
    low: Expr
    high: Expr


@dataclass(frozen=True)
class Hash(Stmt):
    """`in_headers` says for each field of `data` whether hash() omits it when its header is invalid."""

    result: Expr
    base: Expr
    most: Expr
    data: tuple[Expr, ...]
    algorithm: str
    in_headers: tuple[bool, ...]


@dataclass(frozen=True)
class VerifyChecksum(Stmt):
    condition: Expr
    checksum: Expr
    data: tuple[Expr, ...]
    algorithm: str
    with_payload: bool


@dataclass(frozen=True)
class UpdateChecksum(Stmt):
    condition: Expr
    checksum: Expr
    data: tuple[Expr, ...]
    algorithm: str
    with_payload: bool


@dataclass(frozen=True)
class Digest(Stmt):
    object: DigestObject
    data: tuple[Expr, ...]


@dataclass(frozen=True)
class Clone(Stmt):
    """`fields` is the number of a field list."""

    session: Expr
    fields: int | None


@dataclass(frozen=True)
class Resubmit(Stmt):
    fields: int


@dataclass(frozen=True)
class Recirculate(Stmt):
    fields: int


@dataclass(frozen=True)
class Truncate(Stmt):
    length: Expr


@dataclass(frozen=True)
class LogMsg(Stmt):
    message: str
    data: tuple[Expr, ...]


@dataclass(frozen=True)
class Assert(Stmt):
    """assert or assume; `failure` is the message when the condition is false."""

    condition: Expr
    failure: str


# --- tracing


@dataclass(frozen=True)
class Trace(Stmt):
    """`text` has one {} for each operand."""

    text: str
    operands: tuple[Expr, ...]


Language = (
    Extract | Advance | Require | Look | Verify | Parse
    | SetValid | SetInvalid | PushFront | PopFront | Emit
    | RegisterRead | RegisterWrite | ExecuteMeter | Count | Trace
)  # fmt: skip
Architecture = (
    MarkToDrop | Random | Hash | VerifyChecksum | UpdateChecksum | Digest
    | Clone | Resubmit | Recirculate | Truncate | LogMsg | Assert
)  # fmt: skip
Primitive = Language | Architecture
