# SPDX-License-Identifier: Apache-2.0
"""The program after lowering: one block for each instance of a control or parser, every name unique in its block, calls
and conversions explicit. The emitter only spells it in C++.

Types are those of types.py; TypeVariable, the TupleType of a list, and INTEGER do not occur.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inagg_switch.compiler import syntax
from inagg_switch.compiler.types import StructType, Type


@dataclass(frozen=True)
class Node:
    """An expression or statement, or a part of one."""


# --- expressions


@dataclass(frozen=True)
class Expr(Node):
    type: Type


@dataclass(frozen=True)
class Const(Expr):
    value: Any


@dataclass(frozen=True)
class Var(Expr):
    """A variable, parameter or block member, by its name in C++."""

    name: str


@dataclass(frozen=True)
class Field(Expr):
    base: Expr
    name: str


@dataclass(frozen=True)
class Part(Expr):
    """An element of a tuple."""

    base: Expr
    index: int


@dataclass(frozen=True)
class Element(Expr):
    """An element of a header stack."""

    base: Expr
    index: Expr


@dataclass(frozen=True)
class StackNext(Expr):
    """`stack.next`: the place to which extract writes a header."""

    base: Expr


@dataclass(frozen=True)
class StackLast(Expr):
    base: Expr


@dataclass(frozen=True)
class Slice(Expr):
    base: Expr
    high: int
    low: int


@dataclass(frozen=True)
class Operation(Expr):
    """`name` is a P4 operator other than division, or one of cast, neg, last_index, valid, conditional, lookahead,
    length."""

    name: str
    operands: tuple[Expr, ...]


@dataclass(frozen=True)
class Construct(Expr):
    """A struct, header or header stack from its parts; `valid` is the validity of a header."""

    items: tuple[Expr, ...]
    valid: bool = True


@dataclass(frozen=True)
class CallArgument(Node):
    """`mode` is one of:

    - value: in;
    - reference: out, inout;
    - copy: out, inout, through a temporary; `expr` None discards the result;
    - temporary: like copy, but not copied out when the block ends by `exit` or a parser error.
    """

    mode: str
    direction: str
    type: Type
    expr: Expr | None


@dataclass(frozen=True)
class Call(Expr):
    """A call of an action, function or block by its name in C++."""

    callee: str
    arguments: tuple[CallArgument, ...]
    exits: bool = False


@dataclass(frozen=True)
class TableApply(Expr):
    table: "Table"
    exits: bool = False


@dataclass(frozen=True)
class TableHit(Expr):
    """`hit` or `miss` of an apply."""

    apply: TableApply
    miss: bool


# --- statements


@dataclass(frozen=True)
class Stmt(Node):
    pass


@dataclass(frozen=True)
class Declare(Stmt):
    """A variable. Without a value it starts as zero or as an invalid header."""

    name: str
    type: Type
    value: Expr | None


@dataclass(frozen=True)
class Assign(Stmt):
    target: Expr
    value: Expr


@dataclass(frozen=True)
class Evaluate(Stmt):
    expr: Expr


@dataclass(frozen=True)
class Group(Stmt):
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Striped(Stmt):
    """`@stripe(number) {...}`: its register cells are not used by blocks with other numbers."""

    number: Expr
    body: Stmt


@dataclass(frozen=True)
class If(Stmt):
    condition: Expr
    then: Stmt
    otherwise: Stmt | None


@dataclass(frozen=True)
class SwitchCase(Node):
    """`values` empty is the default."""

    values: tuple[int, ...]
    body: Stmt


@dataclass(frozen=True)
class Switch(Stmt):
    subject: Expr
    cases: tuple[SwitchCase, ...]


@dataclass(frozen=True)
class Loop(Stmt):
    start: tuple[Stmt, ...]
    condition: Expr
    update: tuple[Stmt, ...]
    body: Stmt
    bounded: bool  # the compiler can see that the loop ends


@dataclass(frozen=True)
class CountLoop(Stmt):
    """`for (T x in low .. high)`: both ends included."""

    name: str
    type: Type
    low: Expr
    high: Expr
    body: Stmt


@dataclass(frozen=True)
class Jump(Stmt):
    """`kind`: break, continue, return or exit."""

    kind: str
    value: Expr | None = None


# --- parsers


@dataclass(frozen=True)
class Match:
    """One value of a select case. `kind` is value, mask or range, with its operands, or set: a value set, which matches
    as many subjects as it has fields."""

    kind: str
    operands: tuple[Expr, ...]
    object: Any = None


@dataclass(frozen=True)
class Case:
    """`matches` has one entry for each subject; None matches anything."""

    matches: tuple[Match | None, ...]
    state: str


@dataclass(frozen=True)
class State:
    """Without subjects the only case is taken."""

    name: str
    body: tuple[Stmt, ...]
    subjects: tuple[Expr, ...]
    cases: tuple[Case, ...]


# --- state of the program


@dataclass
class Object:
    """An extern instance: `member` is its name in the C++ program, `full_name` its name in P4Info."""

    member: str
    full_name: str
    declaration: syntax.Declaration


@dataclass
class Register(Object):
    type: Type
    size: int


@dataclass
class Counter(Object):
    size: int
    unit: str  # packets, bytes or packets_and_bytes


@dataclass
class DirectCounter(Object):
    unit: str
    table: "Table | None" = None


@dataclass
class SetField:
    """A field of a value set's element; `name` is empty for a set of scalars."""

    name: str
    kind: str
    type: Type
    width: int
    annotations: Sequence[syntax.Annotation]


@dataclass
class ValueSet(Object):
    fields: list[SetField]
    size: int


@dataclass
class Meter(Object):
    size: int
    unit: str  # packets or bytes


@dataclass
class DirectMeter(Object):
    """`target` is the place to which read() writes the colour: the same in every action."""

    unit: str
    table: "Table | None" = None
    target: Expr | None = None


@dataclass
class Profile(Object):
    """An action_profile, or an action_selector with its algorithm."""

    size: int
    algorithm: str | None
    tables: "list[Table]" = field(default_factory=list)


@dataclass
class Digest(Object):
    """The messages of digest<T>(): one Digest for each struct T, and one for each call with another type."""

    type: Type


@dataclass
class KeyField:
    name: str
    kind: str
    type: Type
    width: int
    expr: Expr
    annotations: list[syntax.Annotation]
    mask: int | None = None  # of `field & mask`; it applies to the values of entries too


@dataclass
class ActionUse:
    """An action as one table uses it. `bound` are the arguments of its directional parameters."""

    action: "Action"
    bound: tuple[CallArgument, ...]
    in_entries: bool
    as_default: bool
    annotations: list[syntax.Annotation]
    exits: bool


@dataclass
class Entry:
    """`keys` are in the form of the ABI: (value or None, mask or high, prefix)."""

    keys: list[tuple[int | None, int, int]]
    priority: int
    action: int
    arguments: list[int]
    is_const: bool


@dataclass
class Table(Object):
    declaration: syntax.Table
    keys: list[KeyField]
    actions: list[ActionUse]
    size: int
    default_action: int
    default_arguments: list[int]
    const_default: bool
    const_entries: bool
    entries: list[Entry]
    direct_counter: DirectCounter | None
    direct_meter: DirectMeter | None
    profile: Profile | None
    selector: tuple[Expr, ...]  # the fields that the profile hashes
    support_timeout: bool


# --- code


@dataclass
class Parameter:
    name: str
    type: Type
    direction: str


@dataclass
class Action:
    name: str
    full_name: str
    declaration: syntax.Action
    parameters: list[Parameter]
    body: Stmt
    exits: bool


@dataclass
class Function:
    name: str
    parameters: list[Parameter]
    result: Type
    body: Stmt


@dataclass
class Block:
    """An instance of a control or parser. A control's `body` is its apply block; a parser has `states`. `parts` are the
    actions and instances in the order of their declarations, then the instances without a declaration."""

    name: str
    full_name: str
    declaration: syntax.Control | syntax.Parser
    parameters: list[Parameter]
    members: list[Declare] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    parts: list["Action | Block"] = field(default_factory=list)
    objects: list[Object] = field(default_factory=list)  # including the tables
    states: list[State] = field(default_factory=list)
    body: Stmt = field(default_factory=lambda: Group(()))
    exits: bool = False
    applied: list[tuple[CallArgument, ...]] = field(default_factory=list)  # the arguments of each apply


@dataclass
class Program:
    """`pipeline` maps the architecture's block names (parser, verify, ingress...) to blocks, which are also in
    `blocks`, callees first."""

    structs: list[StructType]
    functions: list[Function]
    blocks: list[Block]
    objects: list[Object]
    pipeline: dict[str, Block]
    headers: StructType
    metadata: Type
    standard: StructType
    errors: dict[str, int]
    calls_extern_functions: bool  # in a control
    extern_functions: frozenset[str]  # those that the program calls
    endless_loops: bool  # some loop may not end
    annotations: list[syntax.Annotation]  # of `main`
    field_lists: dict[int, list[tuple[str, ...]]]  # number to the paths of metadata fields
    # Headers of packets from and to the controller: @controller_header("packet_in") and the like.
    controller_headers: list[StructType] = field(default_factory=list)

    def makes_requests(self) -> bool:
        """True if the program may clone, truncate, resubmit or recirculate packets."""
        return any(
            name.startswith(("clone", "resubmit", "recirculate", "truncate"))
            for name in self.extern_functions
        )


# --- walks

_N = TypeVar("_N", bound=Node)


def children(node: Node) -> Iterator[Node]:
    """The direct children of a node, in the order of its fields."""
    for value in vars(node).values():
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (part for part in value if isinstance(part, Node))


def walk(node: Node) -> Iterator[Node]:
    """A node and all its descendants, outer ones first. Actions and tables that it names are not descendants."""
    yield node
    for child in children(node):
        yield from walk(child)


def outermost(node: Node, kinds: tuple[type[_N], ...]) -> Iterator[_N]:
    """The nodes of these kinds in a node, except those inside another node of these kinds."""
    if isinstance(node, kinds):
        yield node
    else:
        for child in children(node):
            yield from outermost(child, kinds)


def exits(node: Node) -> bool:
    """True if running the node may execute `exit`."""
    return any(
        n.kind == "exit" if isinstance(n, Jump) else isinstance(n, Call | TableApply) and n.exits
        for n in walk(node)
    )


def impure(node: Node) -> bool:
    """True if the node calls something, which may change anything."""
    return any(isinstance(n, Call | TableApply) for n in walk(node))
