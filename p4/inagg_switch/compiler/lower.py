"""Stage 5: the checked program to IR (ir.py).

Starts at `main` and makes one block of every instance of a control or parser, with its constructor arguments put in
and its variables named apart. Knows what the architecture is made of; what the architecture does is in
native/v1model.hpp.
"""

from collections.abc import Mapping

from inagg_switch.compiler import ir, syntax, targets
from inagg_switch.compiler import types as t
from inagg_switch.compiler._check_conversions import describe
from inagg_switch.compiler._lower_instances import Instance, objects_given, takes_object
from inagg_switch.compiler._lower_parsers import ParserLowerer
from inagg_switch.compiler._lower_statements import StatementLowerer
from inagg_switch.compiler._names import Namespace, control_plane_name, spell_global
from inagg_switch.compiler.check import CheckedProgram
from inagg_switch.errors import CompileError, Position

# Parameters of the V1Switch package, and what the C++ pipeline calls them.
_V1SWITCH = {
    "p": "parser",
    "vr": "verify",
    "ig": "ingress",
    "eg": "egress",
    "ck": "update",
    "dep": "deparser",
}


def lower(program: CheckedProgram) -> ir.Program:
    """IR of the whole program. Raises CompileError for what the compiler does not support."""
    return ProgramLowerer(program).run()


class ProgramLowerer:
    """What the blocks share: structs, functions, extern instances and the list of blocks."""

    def __init__(self, program: CheckedProgram) -> None:
        self.program = program
        self.members = Namespace(spell_global)
        self.code_names = Namespace(spell_global)
        self.objects: list[ir.Object] = []
        self.blocks: list[ir.Block] = []
        self.structs: list[t.StructType] = []
        self.globals: dict[int, object] = {}
        self.calls_extern_functions = False
        self.extern_functions: set[str] = set()
        self.endless_loops = False
        self.place = ""
        self._known_structs: set[int] = set()
        self._functions: dict[int, ir.Function] = {}

    def run(self) -> ir.Program:
        main = self.program.main
        if (
            not isinstance(main.type, t.BlockType)
            or main.type.declaration.__class__ is not syntax.BlockTypeDeclaration
        ):
            raise CompileError(f"`main` must be a package, not {main.type}", main.at)
        if main.type.name != "V1Switch":
            raise CompileError(f"package {main.type.name} is not supported; only V1Switch is", main.at)
        self._globals(main)
        pipeline: dict[str, ir.Block] = {}
        for name, argument in main.bound.items():
            assert argument is not None
            self.place = _V1SWITCH[name]
            pipeline[self.place] = self._top_block(argument)
        parser = pipeline["parser"].parameters
        headers, metadata, standard = (p.type for p in parser[1:])
        for type_, what in ((headers, "headers"), (metadata, "metadata")):
            if not (isinstance(type_, t.StructType) and type_.kind == "struct"):
                raise CompileError(f"the {what} of a program are a struct, not {type_}", main.at)
        assert isinstance(headers, t.StructType)
        assert isinstance(standard, t.StructType)
        self._check_meters()
        return ir.Program(
            self.structs,
            list(self._functions.values()),
            self.blocks,
            self.objects,
            pipeline,
            headers,
            metadata,
            standard,
            self.program.errors,
            self.calls_extern_functions,
            frozenset(self.extern_functions),
            self.endless_loops,
            _field_lists(metadata),
            self._controller_headers(),
        )

    def _check_meters(self) -> None:
        """A direct meter that is read belongs to a table, and the other way round."""
        for made in self.objects:
            if isinstance(made, ir.DirectMeter) and made.target is not None and made.table is None:
                raise CompileError(f"{made.full_name} is read, and no table has it", made.declaration.at)
            if isinstance(made, ir.DirectMeter) and made.table is not None and made.target is None:
                raise CompileError(
                    f"no action of {made.table.full_name} reads its meter", made.table.declaration.at
                )

    def _globals(self, main: syntax.Instantiation) -> None:
        """Extern objects that are declared outside the blocks."""
        some_block = next(a.type for a in main.bound.values() if a is not None)
        assert isinstance(some_block, t.BlockType)
        scope = BlockLowerer(self, Instance(some_block.declaration, "", {}))
        for declaration in self.program.declarations:
            if isinstance(declaration, syntax.Instantiation) and isinstance(declaration.type, t.ExternType):
                scope.instance(declaration)
                self.globals[id(declaration)] = scope.values[id(declaration)]

    def _controller_headers(self) -> list[t.StructType]:
        """Whether or not packets have them."""
        return [s for s in self.program.structs if s.declaration.annotation("controller_header") is not None]

    def _top_block(self, argument: syntax.Expression) -> ir.Block:
        declaration = argument.type.declaration  # type: ignore[attr-defined]
        bound: Mapping[str, syntax.Expression | None] = {}
        path = declaration.name
        if isinstance(argument, syntax.Call):
            bound = argument.bound
        elif isinstance(argument, syntax.Name) and isinstance(argument.declaration, syntax.Instantiation):
            bound, path = argument.declaration.bound, argument.declaration.name
        scope = BlockLowerer(self, Instance(declaration, path, {}))
        return self.block(
            Instance(declaration, path, scope.constructor_values(declaration, bound, path)), [], argument.at
        )

    def block(self, instance: Instance, objects: list[ir.Object], at: Position) -> ir.Block:
        """The code of an instance whose apply is given these objects."""
        if instance.block is None:
            instance.objects = objects
            instance.block = BlockLowerer(self, instance).run()
            self.blocks.append(instance.block)
        elif list(map(id, instance.objects)) != list(map(id, objects)):
            raise CompileError(f"instance {instance.path} is given other objects here than elsewhere", at)
        return instance.block

    def use_type(self, type_: t.Type, at: Position) -> None:
        """Notes the structs that a type needs, inner ones first."""
        type_ = t.strip(type_)
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

    def function(self, declaration: syntax.Function) -> ir.Function:
        known = self._functions.get(id(declaration))
        if known is None:
            lowerer = FunctionLowerer(self)
            known = lowerer.lower(declaration)
            self._functions[id(declaration)] = known
        return known


class FunctionLowerer(StatementLowerer):
    """A function written in P4; the checker has seen that it calls no action and applies no table."""

    def __init__(self, program: ProgramLowerer) -> None:
        super().__init__(program.use_type)
        self._program = program
        self.values.update(program.globals)

    def function_of(self, declaration: syntax.Function) -> ir.Function:
        return self._program.function(declaration)

    def pipeline_place(self) -> str:
        return self._program.place

    def note_extern_function(self, name: str) -> None:
        self._program.extern_functions.add(name)

    def note_endless_loop(self) -> None:
        self._program.endless_loops = True

    def lower(self, declaration: syntax.Function) -> ir.Function:
        assert declaration.body is not None
        parameters = [
            ir.Parameter(self.variable(p, p.type), p.type, p.direction or "in")
            for p in declaration.parameters
        ]
        self.locals.update(p.name for p in parameters)
        name = self._program.code_names.unique(declaration.name)
        return ir.Function(name, parameters, declaration.result_type, self.block(declaration.body))


class BlockLowerer(ParserLowerer):
    """One instance of a control or parser."""

    def __init__(
        self,
        program: ProgramLowerer,
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
        self._calls_exit = False

    def run(self) -> ir.Block:
        block = self._result
        block.name = self._program.code_names.unique(self._path)
        self.namespace.unique(block.name)  # a member may not be named like its class
        for parameter in self._declaration.parameters:
            if takes_object(parameter):
                self.values[id(parameter)] = next(self._objects)
                continue
            direction = parameter.direction or ("ref" if isinstance(parameter.type, t.ExternType) else "in")
            block.parameters.append(
                ir.Parameter(self.variable(parameter, parameter.type), parameter.type, direction)
            )
        for local in self._declaration.locals:
            self._local(local)
        if isinstance(self._declaration, syntax.Parser):
            block.states = [self.state(s) for s in self._declaration.states]
        else:
            self._inside_apply = True
            body = self.block(self._declaration.body)
            block.body = ir.Group((*self._starts(), body))
        block.actions = list(self._actions.values())
        block.tables = list(self._tables.values())
        block.exits = ir.exits(block.body)
        return block

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
            self._program.objects.append(self.value_set(local, full_name, member))

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
            if not any(takes_object(p) for p in declaration.parameters):
                self._program.block(instance, [], local.at)
            return instance
        assert isinstance(type_, t.ExternType)
        made = self._extern_instance(local, type_, full_name)
        self._program.objects.append(made)
        return made

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
        return self.expression(value)

    def _extern_instance(self, local: syntax.Instantiation, type_: t.ExternType, full_name: str) -> ir.Object:
        member = self._program.members.unique(full_name)
        if type_.name == "register":
            element = type_.arguments[0]
            if not isinstance(t.strip(element), t.BitType):
                raise CompileError(f"a register holds bits, not {element}", local.at)
            return ir.Register(member, full_name, local, element, self._size(local))
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
        assert isinstance(value.type, t.EnumType)
        if not isinstance(value.value, int):
            raise CompileError(f"`{name}` must be known at compile time", value.start)
        return list(value.type.members)[value.value]

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
            inside, self._inside_apply = self._inside_apply, False
            action = self._action(declaration)
            self._inside_apply = inside
            self._actions[id(declaration)] = action
        if self._inside_apply:
            action.in_p4info = True
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

    def function_of(self, declaration: syntax.Function) -> ir.Function:
        return self._program.function(declaration)

    def table_of(self, declaration: syntax.Table) -> ir.Table:
        return self._tables[id(declaration)]

    def block_of(
        self, target: targets.BlockTarget, bound: Mapping[str, syntax.Expression | None], at: Position
    ) -> ir.Block:
        if target.instance is None:
            # `C.apply(...)`: an instance of its own, named like its type.
            declaration = target.block.declaration
            instance: object = Instance(declaration, f"{self._path}.{declaration.name}", {})
        else:
            assert isinstance(target.instance, syntax.Name)
            instance = self.values.get(id(target.instance.declaration))
        if not isinstance(instance, Instance):
            assert target.instance is not None
            raise CompileError(f"{describe(target.instance)} cannot be applied here", target.instance.at)
        objects = objects_given(target.block.declaration.parameters, bound, self.values)
        return self._program.block(instance, objects, at)

    def pipeline_place(self) -> str:
        return self._program.place

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
        self._program.objects.append(table)

    def _no_action(self, d: syntax.Table) -> syntax.Action:
        for declaration in self._program.program.declarations:
            if isinstance(declaration, syntax.Action) and declaration.name == "NoAction":
                return declaration
        raise CompileError(f"table {d.name} has no default action, and there is no NoAction", d.at)


def _field_lists(metadata: t.Type, path: tuple[str, ...] = ()) -> dict[int, list[tuple[str, ...]]]:
    """The user's metadata with @field_list(number, ...), by number: paths of fields."""
    lists: dict[int, list[tuple[str, ...]]] = {}
    if not isinstance(metadata, t.StructType):
        return lists
    for field in metadata.declaration.fields:
        here = (*path, field.name)
        annotation = next((a for a in field.annotations if a.name == "field_list"), None)
        if annotation is None:
            inner = _field_lists(metadata.fields[field.name], here)
        else:
            inner = {number: [here] for number in annotation.arguments}
        for number, paths in inner.items():
            lists.setdefault(number, []).extend(paths)
    return lists
