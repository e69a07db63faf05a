"""Stage 5: the checked program to IR (ir.py).

Starts at `main` and makes one block of every instance of a control or parser, with its constructor arguments put in
and its variables named apart. Knows what the architecture is made of; what the architecture does is in
runtime/v1model.hpp.
"""

from collections.abc import Mapping

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.program import CheckedProgram
from inagg_switch.compiler.diagnostics import Errors, FollowUpError
from inagg_switch.compiler.lower.blocks import BlockLowerer, FunctionLowerer
from inagg_switch.compiler.lower.instances import Given, Instance
from inagg_switch.compiler.names import Namespace, spell_global
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
    lowerer = ProgramLowerer(program)
    with lowerer.errors.of_stage():
        return lowerer.run()


class ProgramLowerer:
    """What the blocks share: structs, functions, extern instances and the list of blocks."""

    def __init__(self, program: CheckedProgram) -> None:
        self.program = program
        self.errors = Errors()
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
        self._functions: dict[tuple[object, ...], ir.Function] = {}

    def run(self) -> ir.Program:
        main = self.program.main
        if (
            not isinstance(main.type, t.BlockType)
            or main.type.declaration.__class__ is not syntax.BlockTypeDeclaration
        ):
            raise CompileError(f"`main` must be a package, not {main.type}", main.at)
        if main.type.name != "V1Switch":
            raise CompileError(f"package {main.type.name} is not supported; only V1Switch is", main.at)
        if main.bound.keys() != _V1SWITCH.keys():
            raise CompileError("this package V1Switch is not that of v1model.p4", main.at)
        self._globals(main)
        pipeline: dict[str, ir.Block] = {}
        for name, argument in main.bound.items():
            assert argument is not None
            self.place = _V1SWITCH[name]
            try:
                pipeline[self.place] = self._top_block(argument)
            except CompileError as error:
                self.errors.report(error)
        if self.errors:
            raise FollowUpError
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
            main.annotations,
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

    def block(self, instance: Instance, objects: list[Given], at: Position) -> ir.Block:
        """The code of an instance whose apply is given these objects and numbers."""
        if instance.block is None:
            instance.objects = objects
            instance.block = BlockLowerer(self, instance).run()
            self.blocks.append(instance.block)
        elif list(map(_identity, instance.objects)) != list(map(_identity, objects)):
            what = "numbers" if any(isinstance(one, ir.Const) for one in objects) else "objects"
            raise CompileError(f"instance {instance.path} is given other {what} here than elsewhere", at)
        return instance.block

    def use_type(self, type_: t.Type, at: Position) -> None:
        """Notes the structs that a type needs, inner ones first."""
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

    def function(self, declaration: syntax.Function, known: list[Given]) -> ir.Function:
        """The code of a function for what is known of its arguments."""
        key = (id(declaration), *map(_identity, known))
        if key not in self._functions:
            self._functions[key] = FunctionLowerer(self).lower(declaration, known)
        return self._functions[key]


def _identity(given: Given) -> object:
    """The same for the same object or number."""
    return (str(given.type), given.value) if isinstance(given, ir.Const) else id(given)


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
