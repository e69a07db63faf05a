# SPDX-License-Identifier: Apache-2.0
"""The state that the modules of the lowerer share: the lowered program so far, and the present scope."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.program import CheckedProgram
from inagg_switch.compiler.diagnostics import Errors, FollowUpError
from inagg_switch.compiler.names import Namespace, spell_global
from inagg_switch.errors import CompileError, Position

StaticArgument = ir.Object | ir.Const  # an extern object, a number without a width, or a string
Value = ir.Expr | ir.Object | ir.Block | Any


@dataclass
class Instance:
    """An instance of a control or parser. `values` are those of its constructor parameters, by the parameter's id.
    `block` is its code, once the `static` arguments of its apply are known."""

    declaration: syntax.Control | syntax.Parser
    path: str
    values: Mapping[int, Any]
    static: list[StaticArgument] = field(default_factory=list)
    block: ir.Block | None = None


class _Values(dict[int, Value]):
    """The value of each declaration, by the declaration's id. `wrong` has the ids of those with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: set[int] = set()

    def get(self, declaration: int, default: Value = None) -> Value:
        """The value of a declaration. Raises FollowUpError if the declaration has an error."""
        if declaration in self.wrong:
            raise FollowUpError
        return super().get(declaration, default)


@dataclass(frozen=True)
class Lowerers:
    """Functions of modules that import their callers: an expression contains calls, and a call needs the code of its
    target."""

    expression: "Callable[[Scope, syntax.Expression], ir.Expr]"
    call: "Callable[[Scope, syntax.Call], ir.Expr]"
    action: "Callable[[Scope, syntax.Action], ir.Action]"
    function: "Callable[[Scope, syntax.Function, list[StaticArgument]], ir.Function]"
    block: "Callable[[Scope, Instance], ir.Block]"


class Lowering:
    """The lowered program so far: structs, functions, extern instances and the list of blocks."""

    def __init__(self, program: CheckedProgram, lowerers: Lowerers) -> None:
        self.program = program
        self.lowerers = lowerers
        self.errors = Errors()
        self.members = Namespace(spell_global)
        self.code_names = Namespace(spell_global)
        self.objects: list[ir.Object] = []
        self.blocks: list[ir.Block] = []
        self.structs: list[t.StructType] = []
        self.functions: dict[tuple[object, ...], ir.Function] = {}
        self.globals: dict[int, object] = {}
        self.calls_extern_functions = False
        self.extern_functions: set[str] = set()
        self.endless_loops = False
        self.place = ""  # the present block of the pipeline: ingress, egress...
        self._known_structs: set[int] = set()

    def block(self, instance: Instance, static: list[StaticArgument], at: Position) -> ir.Block:
        """The code of an instance. Raises CompileError if an earlier apply had other static arguments."""
        if instance.block is None:
            instance.static = static
            instance.block = self.lowerers.block(Scope(self, instance.declaration, instance.path), instance)
            self.blocks.append(instance.block)
        elif list(map(_identity, instance.static)) != list(map(_identity, static)):
            what = "numbers" if any(isinstance(one, ir.Const) for one in static) else "objects"
            raise CompileError(f"every apply of instance {instance.path} must have the same {what}", at)
        return instance.block

    def use_type(self, type_: t.Type, at: Position) -> None:
        """Adds the structs that a type needs, inner ones first."""
        type_ = t.strip(type_)
        if type_ in (t.STRING, t.INTEGER):
            raise CompileError(f"an action cannot have a parameter of type {type_}", at)
        if isinstance(type_, t.StackType):
            self.use_type(type_.element, at)
        elif isinstance(type_, t.TupleType):
            for element in type_.elements:
                self.use_type(element, at)
        elif isinstance(type_, t.StructType) and id(type_) not in self._known_structs:
            for name, field in type_.fields.items():
                where = next((f.at for f in type_.declaration.fields if f.name == name), at)
                self.use_type(field, where)
            if type_.kind == "header" and t.bit_width(type_) % 8:
                raise CompileError(
                    f"header {type_} is {t.bit_width(type_)} bits wide, which is not a whole number of bytes",
                    type_.declaration.at,
                )
            self._known_structs.add(id(type_))
            self.structs.append(type_)

    def digest(self, type_: t.Type, at: Position) -> ir.Digest:
        """The digest of this type: the same for every call with one struct, a new one for each call with another
        type."""
        if isinstance(type_, t.StructType):
            for made in self.objects:
                if isinstance(made, ir.Digest) and made.type is type_:
                    return made
            name, declaration = type_.name, type_.declaration
        else:
            others = sum(
                isinstance(o, ir.Digest) and not isinstance(o.type, t.StructType) for o in self.objects
            )
            name = f"digest_{others}"  # as p4c names it
            declaration = syntax.Declaration(at, name)
        digest = ir.Digest(self.members.unique(f"digest_{name}"), name, declaration, type_)
        self.objects.append(digest)
        return digest

    def function(self, declaration: syntax.Function, static: list[StaticArgument]) -> ir.Function:
        """The code of a function for these static arguments."""
        key = (id(declaration), *map(_identity, static))
        if key not in self.functions:
            self.functions[key] = self.lowerers.function(Scope(self, declaration), declaration, static)
        return self.functions[key]


class Scope:
    """The state of lowering one block or function. `values` has the value of each declaration in it."""

    def __init__(
        self, stage: Lowering, declaration: syntax.Control | syntax.Parser | syntax.Function, path: str = ""
    ) -> None:
        self.stage = stage
        self.declaration = declaration
        self.path = path
        self.values = _Values()
        self.values.update(stage.globals)
        self.namespace = Namespace()
        self.locals: set[str] = set()  # variables that only the present body sees
        self.pending: list[ir.Stmt] = []  # must run before the present statement
        self.known: dict[int, ir.Expr] = {}  # expressions lowered already, by the node's id
        self.members: list[ir.Declare] = []
        self.objects: list[ir.Object] = []
        self.tables: dict[int, ir.Table] = {}  # `tables` and `actions` by the id of their declaration
        self.actions: dict[int, ir.Action] = {}
        self.instances: list[tuple[int, Instance]] = []  # by the id of their declaration, or 0

    @contextmanager
    def recovering(self, part: syntax.Node) -> Iterator[None]:
        """Lowers a part of the program. After an error in it, lowering goes on with the next part, to find more
        errors."""
        try:
            yield
        except CompileError as error:
            self.values.wrong.add(id(part))
            self.stage.errors.report(error)

    def variable(self, declaration: syntax.Declaration, type_: t.Type) -> str:
        """Makes the C++ name of a variable or parameter of this block."""
        self.stage.use_type(type_, declaration.at)
        name = self.namespace.unique(declaration.name)
        self.values[id(declaration)] = ir.Var(type_, name)
        return name

    def temporary(self, type_: t.Type, at: Position, name: str) -> str:
        """Makes the C++ name of a variable that the source does not have."""
        self.stage.use_type(type_, at)
        name = self.namespace.unique(name)
        self.locals.add(name)
        return name

    def flag(self, name: str, at: Position) -> ir.Expr:
        """Adds a boolean member to the block, false at the start of each packet."""
        name = self.temporary(t.BOOL, at, name)
        self.members.append(ir.Declare(name, t.BOOL, None))
        return ir.Var(t.BOOL, name)

    def add_object(self, made: ir.Object) -> None:
        self.stage.objects.append(made)
        self.objects.append(made)

    def note_extern_function(self, name: str) -> None:
        """Records that the program calls an extern function."""
        self.stage.extern_functions.add(name)
        if isinstance(self.declaration, syntax.Control):
            self.stage.calls_extern_functions = True

    def action_of(self, declaration: syntax.Action) -> ir.Action:
        if id(declaration) not in self.actions:
            self.actions[id(declaration)] = self.stage.lowerers.action(self, declaration)
        return self.actions[id(declaration)]

    def table_of(self, declaration: syntax.Table) -> ir.Table:
        self.values.get(id(declaration))  # raises if it has an error
        return self.tables[id(declaration)]


def _identity(argument: StaticArgument) -> object:
    """A value that is equal for the same object or number."""
    return (str(argument.type), argument.value) if isinstance(argument, ir.Const) else id(argument)
