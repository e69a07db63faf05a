# SPDX-License-Identifier: Apache-2.0
"""The syntax tree. The parser fills in the source; the checker (stage 4) adds types, constant values and the
declaration of each name, in the fields marked `checked`.
"""

from dataclasses import dataclass, field
from typing import Any

from inagg_switch.compiler.types import Type
from inagg_switch.errors import Position


@dataclass(eq=False)
class Node:
    """Anything with a place in the source."""

    at: Position


# --- type references


@dataclass(eq=False)
class TypeRef(Node):
    """A type as the source writes it."""


@dataclass(eq=False)
class BaseTypeRef(TypeRef):
    """bool, bit, int, varbit, error, string, void, match_kind; `width` is an expression or None."""

    kind: str
    width: "Expression | None" = None


@dataclass(eq=False)
class NamedTypeRef(TypeRef):
    name: str
    arguments: "list[TypeRef]" = field(default_factory=list)
    absolute: bool = False


@dataclass(eq=False)
class StackTypeRef(TypeRef):
    element: TypeRef
    size: "Expression"


@dataclass(eq=False)
class TupleTypeRef(TypeRef):
    elements: list[TypeRef]


@dataclass(eq=False)
class DontCareTypeRef(TypeRef):
    """`_` as a type argument: the checker infers the type."""


# --- expressions


@dataclass(eq=False)
class Expression(Node):
    """`type` and `value` are checked; `value` is None unless known at compile time."""

    type: Type = field(init=False)
    value: Any = field(init=False, default=None)

    @property
    def start(self) -> Position:
        """Where the expression begins; `at` is the place of its operator."""
        first = {
            "Member": "base",
            "Index": "base",
            "Slice": "base",
            "Binary": "left",
            "Conditional": "condition",
            "Call": "callee",
            "Mask": "left",
            "Range": "low",
        }.get(type(self).__name__)
        if first is None and type(self).__name__ == "Cast" and vars(self)["ref"] is None:
            first = "operand"
        inner: Expression | None = None if first is None else vars(self)[first]
        return self.at if inner is None else inner.start


@dataclass(eq=False)
class Integer(Expression):
    number: int
    width: int | None
    signed: bool
    text: str  # as written


@dataclass(eq=False)
class Boolean(Expression):
    truth: bool


@dataclass(eq=False)
class String(Expression):
    text: str


@dataclass(eq=False)
class Name(Expression):
    """`declaration` is checked."""

    name: str
    absolute: bool = False
    declaration: "Node | None" = field(init=False, default=None)


@dataclass(eq=False)
class TypeExpression(Expression):
    """A type where an expression may stand: `E.member`, `C.apply()`, `T(...)`."""

    ref: TypeRef


@dataclass(eq=False)
class Member(Expression):
    base: Expression
    name: str


@dataclass(eq=False)
class Index(Expression):
    base: Expression
    index: Expression


@dataclass(eq=False)
class Slice(Expression):
    """`base[high:low]`; the checker makes the bounds constants. With `counted` it is `base[low+:width]`: `high` is the
    width until the checker replaces it."""

    base: Expression
    high: Expression
    low: Expression
    counted: bool = False


@dataclass(eq=False)
class Unary(Expression):
    operator: str
    operand: Expression


@dataclass(eq=False)
class Binary(Expression):
    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Conditional(Expression):
    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(eq=False)
class Cast(Expression):
    """`ref` is None for an implicit conversion, which the checker adds."""

    ref: TypeRef | None
    operand: Expression


@dataclass(eq=False)
class Argument(Node):
    """`value` is None for `_`."""

    name: str | None
    value: Expression | None


@dataclass(eq=False)
class Call(Expression):
    """`target` (a `targets.Target`) and `bound` (argument by parameter name) are checked."""

    callee: Expression
    type_arguments: list[TypeRef]
    arguments: list[Argument]
    target: Any = field(init=False, default=None)
    bound: "dict[str, Expression | None]" = field(init=False, default_factory=dict)
    type_values: dict[str, Type] = field(init=False, default_factory=dict)


@dataclass(eq=False)
class ListExpression(Expression):
    items: list[Expression]


@dataclass(eq=False)
class StructExpression(Expression):
    """`{ a = 1, b = 2 }`; `defaulted`: it ends with `...`."""

    fields: list[tuple[str, Expression]]
    defaulted: bool = False


@dataclass(eq=False)
class InvalidHeader(Expression):
    """`{#}`"""


@dataclass(eq=False)
class DefaultValue(Expression):
    """`...`: the default value of the type."""


@dataclass(eq=False)
class Anything(Expression):
    """`_` or `default` in a set."""


@dataclass(eq=False)
class Mask(Expression):
    """`left &&& mask` in a set."""

    left: Expression
    mask: Expression


@dataclass(eq=False)
class Range(Expression):
    """`low .. high`, both inclusive, in a set."""

    low: Expression
    high: Expression


# --- statements


@dataclass(eq=False)
class Statement(Node):
    pass


@dataclass(eq=False)
class Empty(Statement):
    pass


@dataclass(eq=False)
class Assign(Statement):
    """`operator` is None or the binary operator of a compound assignment."""

    target: Expression
    value: Expression
    operator: str | None = None


@dataclass(eq=False)
class CallStatement(Statement):
    call: Expression


@dataclass(eq=False)
class Block(Statement):
    """`stripe` is the expression of `@stripe(...)` in front of it."""

    statements: list[Statement]
    stripe: Expression | None = None


@dataclass(eq=False)
class If(Statement):
    condition: Expression
    then: Statement
    otherwise: Statement | None


@dataclass(eq=False)
class SwitchCase(Node):
    """`label` None is `default`; `body` None falls through to the next case."""

    label: Expression | None
    body: Block | None


@dataclass(eq=False)
class Switch(Statement):
    subject: Expression
    cases: list[SwitchCase]


@dataclass(eq=False)
class For(Statement):
    start: list[Statement]
    condition: Expression
    update: list[Statement]
    body: Statement


@dataclass(eq=False)
class ForIn(Statement):
    variable: "Variable"
    over: Expression
    body: Statement


@dataclass(eq=False)
class Break(Statement):
    pass


@dataclass(eq=False)
class Continue(Statement):
    pass


@dataclass(eq=False)
class Return(Statement):
    value: Expression | None


@dataclass(eq=False)
class Exit(Statement):
    pass


# --- declarations


@dataclass(eq=False)
class Annotation(Node):
    """`@name(...)` or, when `structured`, `@name[...]`.

    `arguments` are its numbers, strings and words in order. `raw` is the body's tokens, joined by blanks as in p4c.
    Only @field_list, @steer, @stripe and structured annotations have `expressions`; `keys` are the names in front of
    them, if any.
    """

    name: str
    arguments: list[Any]
    raw: str
    structured: bool = False
    expressions: "list[Expression]" = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Declaration(Statement):
    name: str
    annotations: list[Annotation] = field(default_factory=list, kw_only=True)

    def annotation(self, name: str) -> Annotation | None:
        """The first annotation with this name, or None."""
        return next((a for a in self.annotations if a.name == name), None)

    def shown_name(self) -> str:
        """The name that controllers see: @name("...") or the declared name."""
        given = self.annotation("name")
        return str(given.arguments[0]) if given is not None and given.arguments else self.name


@dataclass(eq=False)
class Constant(Declaration):
    ref: TypeRef
    value: Expression
    type: Type = field(init=False)


@dataclass(eq=False)
class Variable(Declaration):
    ref: TypeRef
    value: Expression | None
    type: Type = field(init=False)


@dataclass(eq=False)
class Parameter(Declaration):
    """`direction` is "", "in", "out" or "inout"."""

    direction: str
    ref: TypeRef
    default: Expression | None
    type: Type = field(init=False)


@dataclass(eq=False)
class Instantiation(Declaration):
    """`T(args) name;`"""

    ref: TypeRef
    arguments: list[Argument]
    type: Type = field(init=False)
    bound: "dict[str, Expression | None]" = field(init=False, default_factory=dict)


@dataclass(eq=False)
class Field(Declaration):
    ref: TypeRef


@dataclass(eq=False)
class TypeDeclaration(Declaration):
    """Declares a type name; `type_parameters` are names."""

    type_parameters: list[str] = field(default_factory=list, kw_only=True)


@dataclass(eq=False)
class StructDeclaration(TypeDeclaration):
    """`kind`: struct, header or header_union."""

    kind: str
    fields: list[Field]


@dataclass(eq=False)
class EnumDeclaration(TypeDeclaration):
    base: TypeRef | None
    members: list[tuple[str, Position, Expression | None]]


@dataclass(eq=False)
class TypedefDeclaration(TypeDeclaration):
    """`typedef` or, when `new`, `type`."""

    ref: TypeRef
    new: bool


@dataclass(eq=False)
class MembersDeclaration(Declaration):
    """`error { ... }` or `match_kind { ... }`; `name` says which."""

    members: list[tuple[str, Position]]


@dataclass(eq=False)
class Function(Declaration):
    """A function, an extern function or method, or a constructor (`result` None). `body` is None for externs."""

    result: TypeRef | None
    type_parameters: list[str]
    parameters: list[Parameter]
    body: Block | None
    abstract: bool = False
    result_type: Type = field(init=False)


@dataclass(eq=False)
class ExternDeclaration(TypeDeclaration):
    methods: list[Function]
    constructors: list[Function]


@dataclass(eq=False)
class Action(Declaration):
    parameters: list[Parameter]
    body: Block


@dataclass(eq=False)
class BlockTypeDeclaration(TypeDeclaration):
    """`control C(...)` or `parser P(...)` without a body, or `package P(...)`; `kind` says which."""

    kind: str
    parameters: list[Parameter]


@dataclass(eq=False)
class Control(TypeDeclaration):
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    body: Block


@dataclass(eq=False)
class SelectCase(Node):
    keys: list[Expression]
    state: str


@dataclass(eq=False)
class Select(Node):
    subjects: list[Expression]
    cases: list[SelectCase]


@dataclass(eq=False)
class State(Declaration):
    """`transition` is a state's name, a select, or None (reject)."""

    body: list[Statement]
    transition: "str | Select | None"
    transition_at: Position


@dataclass(eq=False)
class Parser(TypeDeclaration):
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    states: list[State]


@dataclass(eq=False)
class ValueSet(Declaration):
    ref: TypeRef
    size: Expression
    type: Type = field(init=False)


@dataclass(eq=False)
class Key(Node):
    expression: Expression
    match_kind: str
    kind_at: Position
    annotations: list[Annotation]


@dataclass(eq=False)
class ActionRef(Node):
    """An action in a table's list; `arguments` bind its directional parameters."""

    name: str
    arguments: list[Argument]
    annotations: list[Annotation]
    absolute: bool = False
    declaration: Action | None = field(init=False, default=None)
    bound: "dict[str, Expression | None]" = field(init=False, default_factory=dict)


@dataclass(eq=False)
class Entry(Node):
    keys: list[Expression]
    action: ActionRef
    annotations: list[Annotation]
    priority: Expression | None
    is_const: bool


@dataclass(eq=False)
class Property(Node):
    name: str
    value: Expression
    is_const: bool
    annotations: list[Annotation]


@dataclass(eq=False)
class Table(Declaration):
    keys: list[Key]
    actions: list[ActionRef]
    default_action: ActionRef | None
    const_default: bool
    entries: list[Entry]
    const_entries: bool
    properties: dict[str, Property]


@dataclass(eq=False)
class Program:
    declarations: list[Declaration]
    end: Position
