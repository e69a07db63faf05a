"""Functions, and instances of controls and parsers: their declarations, and what their code refers to."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inagg_switch.compiler import ir, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.conversions import describe
from inagg_switch.compiler.lower.expressions import constant
from inagg_switch.compiler.lower.instances import Given, Instance, known_given, takes_known
from inagg_switch.compiler.lower.parsers import ParserLowerer
from inagg_switch.compiler.lower.statements import StatementLowerer
from inagg_switch.compiler.names import control_plane_name
from inagg_switch.errors import CompileError, Position

if TYPE_CHECKING:
    from inagg_switch.compiler.lower.program import ProgramLowerer


class FunctionLowerer(StatementLowerer):
    """A function written in P4; the checker has seen that it calls no action and applies no table."""

    def __init__(self, program: "ProgramLowerer") -> None:
        super().__init__(program.use_type)
        self._program = program
        self.values.update(program.globals)

    def function_of(self, declaration: syntax.Function, known: list[Given]) -> ir.Function:
        return self._program.function(declaration, known)

    def pipeline_place(self) -> str:
        return self._program.place

    def report(self, error: CompileError) -> None:
        self._program.errors.report(error)

    def note_extern_function(self, name: str) -> None:
        self._program.extern_functions.add(name)

    def note_endless_loop(self) -> None:
        self._program.endless_loops = True

    def lower(self, declaration: syntax.Function, known: list[Given]) -> ir.Function:
        """`known`: what the parameters stand for that are not passed on."""
        assert declaration.body is not None
        given = iter(known)
        parameters: list[ir.Parameter] = []
        for p in declaration.parameters:
            if takes_known(p):
                self.values[id(p)] = next(given)
            else:
                parameters.append(ir.Parameter(self.variable(p, p.type), p.type, p.direction or "in"))
        self.locals.update(p.name for p in parameters)
        name = self._program.code_names.unique(declaration.name)
        return ir.Function(name, parameters, declaration.result_type, self.block(declaration.body))


class BlockLowerer(ParserLowerer):
    """One instance of a control or parser."""

    def __init__(
        self,
        program: "ProgramLowerer",
        instance: Instance,
    ) -> None:
        super().__init__(program.use_type)
        self._program = program
        self._declaration = declaration = instance.declaration
        self._path = instance.path
        self._objects = iter(instance.objects)
        self.values.update(program.globals)
        self.values.update(instance.values)
        self._result = ir.Block("", self._path, declaration, [])
        self._tables: dict[int, ir.Table] = {}
        self._actions: dict[int, ir.Action] = {}
        self._instances: list[tuple[int, Instance]] = []  # by the id of their declaration, or 0
        self._calls_exit = False

    def run(self) -> ir.Block:
        block = self._result
        block.name = self._program.code_names.unique(self._path)
        self.namespace.unique(block.name)  # a member may not be named like its class
        for parameter in self._declaration.parameters:
            if takes_known(parameter):
                self.values[id(parameter)] = next(self._objects)
                continue
            direction = parameter.direction or ("ref" if isinstance(parameter.type, t.ExternType) else "in")
            block.parameters.append(
                ir.Parameter(self.variable(parameter, parameter.type), parameter.type, direction)
            )
        for local in self._declaration.locals:
            with self.recovering(local):
                self._local(local)
        if isinstance(self._declaration, syntax.Parser):
            for state in self._declaration.states:
                with self.recovering(state):
                    block.states.append(self.state(state))
        else:
            body = self.block(self._declaration.body)
            block.body = ir.Group((*self._starts(), body))
        block.actions = list(self._actions.values())
        block.tables = list(self._tables.values())
        block.parts = self._parts()
        block.exits = ir.exits(block.body)
        return block

    def _parts(self) -> list[ir.Action | ir.Block]:
        places = {id(local): place for place, local in enumerate(self._declaration.locals)}
        placed: list[tuple[int, ir.Action | ir.Block]] = [
            (places[number], action) for number, action in self._actions.items() if number in places
        ]
        for number, instance in self._instances:
            if instance.block is not None:
                placed.append((places.get(number, len(places)), instance.block))
        return [part for _, part in sorted(placed, key=lambda one: one[0])]

    # --- local declarations

    def _local(self, local: syntax.Declaration) -> None:
        if isinstance(local, syntax.Instantiation):
            self.instance(local)
        elif isinstance(local, syntax.Variable):
            initial = self.initial(local)
            name = self.variable(local, local.type)
            self._result.members.append(ir.Declare(name, local.type, initial))
        elif isinstance(local, syntax.Table):
            self._tables[id(local)] = self.table(local)
        elif isinstance(local, syntax.ValueSet):
            full_name = control_plane_name(local, self._path)
            member = self._program.members.unique(full_name)
            self._note(self.value_set(local, full_name, member))

    def mark(self, name: str, at: Position) -> ir.Expr:
        name = self.temporary(t.BOOL, at, name)
        self._result.members.append(ir.Declare(name, t.BOOL, None))
        return ir.Var(t.BOOL, name)

    def _starts(self) -> list[ir.Stmt]:
        """Initial values of the block's variables, which every run gives them anew."""
        return [
            ir.Assign(ir.Var(m.type, m.name), m.value)
            for m in self._result.members
            if m.value is not None and not (isinstance(m.value, ir.Const) and m.value.value is None)
        ]

    def instance(self, local: syntax.Instantiation) -> None:
        """Makes what the declaration stands for."""
        self.values[id(local)] = self._make(local, local.type, control_plane_name(local, self._path))

    def _make(self, local: syntax.Instantiation, type_: t.Type, full_name: str) -> Instance | ir.Object:
        if isinstance(type_, t.BlockType):
            declaration = type_.declaration
            values = self.constructor_values(declaration, local.bound, full_name)
            instance = Instance(declaration, full_name, values)
            self._instances.append((id(local), instance))
            if not any(takes_known(p) for p in declaration.parameters):
                self._program.block(instance, [], local.at)
            return instance
        assert isinstance(type_, t.ExternType)
        made = self._extern_instance(local, type_, full_name)
        self._note(made)
        return made

    def _note(self, made: ir.Object) -> None:
        self._program.objects.append(made)
        self._result.objects.append(made)

    def constructor_values(
        self,
        declaration: syntax.Control | syntax.Parser,
        bound: Mapping[str, syntax.Expression | None],
        path: str,
    ) -> dict[int, object]:
        """What the constructor parameters of an instance called `path` stand for."""
        values: dict[int, object] = {}
        for parameter in declaration.constructor_parameters:
            value = bound[parameter.name]
            assert value is not None
            values[id(parameter)] = self._constructor_argument(value, f"{path}.{parameter.name}")
        return values

    def _constructor_argument(self, value: syntax.Expression, full_name: str) -> object:
        if isinstance(value, syntax.Call) and isinstance(value.target, targets.ConstructorTarget):
            # Instantiated on the spot: it is called like the parameter.
            local = syntax.Instantiation(
                value.at, full_name, syntax.DontCareTypeRef(value.at), value.arguments
            )
            local.type, local.bound = value.target.type, value.bound
            return self._make(local, local.type, full_name)
        if isinstance(value.type, t.ExternType | t.BlockType):
            known = self.values.get(id(value.declaration)) if isinstance(value, syntax.Name) else None
            if known is None:
                raise CompileError(f"{describe(value)} is not known at compile time", value.start)
            return known
        return constant(self.fixed(value, "an argument of a constructor"), value.type)

    def _extern_instance(self, local: syntax.Instantiation, type_: t.ExternType, full_name: str) -> ir.Object:
        member = self._program.members.unique(full_name)
        if type_.name == "register":
            element = type_.arguments[0]
            if not isinstance(t.strip(element), t.BitType):
                raise CompileError(f"a register holds bits, not {element}", local.at)
            size = self._size(local)
            if size == 0:
                raise CompileError("a register needs at least one cell", local.at)
            return ir.Register(member, full_name, local, element, size)
        if type_.name == "counter":
            return ir.Counter(member, full_name, local, self._size(local), self._unit(local))
        if type_.name == "direct_counter":
            return ir.DirectCounter(member, full_name, local, self._unit(local))
        if type_.name == "meter":
            return ir.Meter(member, full_name, local, self._size(local), self._unit(local))
        if type_.name == "direct_meter":
            return ir.DirectMeter(member, full_name, local, self._unit(local))
        if type_.name == "action_profile":
            return ir.Profile(member, full_name, local, self._size(local), None)
        if type_.name == "action_selector":
            return ir.Profile(member, full_name, local, self._size(local), self._enum(local, "algorithm"))
        raise CompileError(f"extern {type_.name} is not supported", local.ref.at)

    def _size(self, local: syntax.Instantiation) -> int:
        value = local.bound["size"]
        assert value is not None
        size = self.number(value, "the size")
        if size > 1 << 31:
            raise CompileError(f"size {size} is too large", value.at)
        return size

    def _unit(self, local: syntax.Instantiation) -> str:
        return self._enum(local, "type")

    def _enum(self, local: syntax.Instantiation, name: str) -> str:
        value = local.bound[name]
        assert value is not None
        return self.member(value, f"`{name}`")

    def object_made(self, call: syntax.Call, entry: syntax.Property, table: str) -> ir.Object:
        assert isinstance(call.target, targets.ConstructorTarget)
        local = syntax.Instantiation(
            call.at,
            entry.name,
            syntax.DontCareTypeRef(call.at),
            call.arguments,
            annotations=entry.annotations,
        )
        local.type, local.bound = call.target.type, call.bound
        name = control_plane_name(local, "")
        if any(name == o.full_name for o in self._program.objects):
            name = f"{table}.{name}"
        made = self._make(local, local.type, name)
        assert isinstance(made, ir.Object)
        return made

    def digest_object(self, type_: t.Type, at: Position) -> ir.Digest:
        return self._program.digest(type_, at)

    # --- what calls refer to

    def action_of(self, declaration: syntax.Action) -> ir.Action:
        action = self._actions.get(id(declaration))
        if action is None:
            action = self._action(declaration)
            self._actions[id(declaration)] = action
        return action

    def _action(self, declaration: syntax.Action) -> ir.Action:
        outer = self.locals
        parameters = [
            ir.Parameter(self.variable(p, p.type), p.type, p.direction or "in")
            for p in declaration.parameters
        ]
        self.locals = {p.name for p in parameters}
        body = self.block(declaration.body)
        self.locals = outer
        own = any(local is declaration for local in self._declaration.locals)
        full_name = control_plane_name(declaration, self._path if own else "")
        return ir.Action(
            self.namespace.unique(declaration.name), full_name, declaration, parameters, body, ir.exits(body)
        )

    def function_of(self, declaration: syntax.Function, known: list[Given]) -> ir.Function:
        return self._program.function(declaration, known)

    def table_of(self, declaration: syntax.Table) -> ir.Table:
        self.values.get(id(declaration))  # not one that is wrong
        return self._tables[id(declaration)]

    def block_of(
        self, target: targets.BlockTarget, bound: Mapping[str, syntax.Expression | None], at: Position
    ) -> ir.Block:
        if target.instance is None:
            # `C.apply(...)`: an instance of its own, named like its type.
            declaration = target.block.declaration
            own = Instance(declaration, f"{self._path}.{declaration.name}", {})
            self._instances.append((0, own))
            instance: object = own
        else:
            assert isinstance(target.instance, syntax.Name)
            instance = self.values.get(id(target.instance.declaration))
        if not isinstance(instance, Instance):
            assert target.instance is not None
            raise CompileError(f"{describe(target.instance)} cannot be applied here", target.instance.at)
        objects = known_given(target.block.declaration.parameters, bound, self.values, self.fixed)
        return self._program.block(instance, objects, at)

    def pipeline_place(self) -> str:
        return self._program.place

    def report(self, error: CompileError) -> None:
        self._program.errors.report(error)

    def note_extern_function(self, name: str) -> None:
        self._program.extern_functions.add(name)
        if isinstance(self._declaration, syntax.Control):
            self._program.calls_extern_functions = True

    def note_endless_loop(self) -> None:
        self._program.endless_loops = True

    def new_table_member(self, full_name: str) -> str:
        return self._program.members.unique(full_name)

    def table_name(self, declaration: syntax.Table) -> str:
        return control_plane_name(declaration, self._path)

    def add_table(self, table: ir.Table) -> None:
        self._note(table)

    def _no_action(self, d: syntax.Table) -> syntax.Action:
        for declaration in self._program.program.declarations:
            if isinstance(declaration, syntax.Action) and declaration.name == "NoAction":
                return declaration
        raise CompileError(f"table {d.name} has no default action, and there is no NoAction", d.at)
