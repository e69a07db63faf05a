# SPDX-License-Identifier: Apache-2.0
"""Stage 5: lowers a checked program to IR (ir.py).

Starting at `main`, it makes one block of every instance of a control or parser, with its constructor arguments inserted
and unique names for its variables. This module knows the blocks of the architecture; its behaviour is in
runtime/v1model.hpp.
"""

from collections.abc import Mapping

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.program import CheckedProgram
from inagg_switch.compiler.diagnostics import FollowUpError
from inagg_switch.compiler.lower.blocks import lower_action, lower_block, lower_function
from inagg_switch.compiler.lower.calls import call
from inagg_switch.compiler.lower.context import Instance, Lowerers, Lowering, Scope
from inagg_switch.compiler.lower.expressions import expression
from inagg_switch.compiler.lower.instances import constructor_values, make_instance
from inagg_switch.errors import CompileError

# Parameters of the V1Switch package, and their names in the C++ pipeline.
_V1SWITCH = {
    "p": "parser",
    "vr": "verify",
    "ig": "ingress",
    "eg": "egress",
    "ck": "update",
    "dep": "deparser",
}


def lower(program: CheckedProgram) -> ir.Program:
    """Lowers a whole program. Raises CompileError for code that the compiler does not support."""
    stage = Lowering(program, Lowerers(expression, call, lower_action, lower_function, lower_block))
    with stage.errors.of_stage():
        return _program(stage)


def _check_main(main: syntax.Instantiation) -> None:
    if (
        not isinstance(main.type, t.BlockType)
        or main.type.declaration.__class__ is not syntax.BlockTypeDeclaration
    ):
        raise CompileError(f"`main` must be a package, not {main.type}", main.at)
    if main.type.name != "V1Switch":
        raise CompileError(f"package {main.type.name} is not supported; only V1Switch is", main.at)


def _program(stage: Lowering) -> ir.Program:
    main = stage.program.main
    _check_main(main)
    _globals(stage, main)
    pipeline: dict[str, ir.Block] = {}
    for name, argument in main.bound.items():
        assert argument is not None
        stage.place = _V1SWITCH[name]
        try:
            pipeline[stage.place] = _top_block(stage, argument)
        except CompileError as error:
            stage.errors.report(error)
    if stage.errors:
        raise FollowUpError
    parser = pipeline["parser"].parameters
    headers, metadata, standard = (p.type for p in parser[1:])
    for type_, what in ((headers, "headers"), (metadata, "metadata")):
        if not (isinstance(type_, t.StructType) and type_.kind == "struct"):
            raise CompileError(f"the {what} of a program must be a struct, not {type_}", main.at)
    assert isinstance(headers, t.StructType)
    assert isinstance(standard, t.StructType)
    _check_meters(stage)
    return ir.Program(
        stage.structs,
        list(stage.functions.values()),
        stage.blocks,
        stage.objects,
        pipeline,
        headers,
        metadata,
        standard,
        stage.program.errors,
        stage.calls_extern_functions,
        frozenset(stage.extern_functions),
        stage.endless_loops,
        main.annotations,
        _field_lists(metadata),
        _controller_headers(stage),
    )


def _check_meters(stage: Lowering) -> None:
    """Raises CompileError if a direct meter that is read belongs to no table, or a table's meter is never read."""
    for made in stage.objects:
        if isinstance(made, ir.DirectMeter) and made.target is not None and made.table is None:
            raise CompileError(f"{made.full_name} is read but belongs to no table", made.declaration.at)
        if isinstance(made, ir.DirectMeter) and made.table is not None and made.target is None:
            raise CompileError(
                f"no action of {made.table.full_name} reads its meter", made.table.declaration.at
            )


def _globals(stage: Lowering, main: syntax.Instantiation) -> None:
    """Makes the extern objects declared outside the blocks."""
    some_block = next(a.type for a in main.bound.values() if a is not None)
    assert isinstance(some_block, t.BlockType)
    scope = Scope(stage, some_block.declaration)
    for declaration in stage.program.declarations:
        if isinstance(declaration, syntax.Instantiation) and isinstance(declaration.type, t.ExternType):
            make_instance(scope, declaration)
            stage.globals[id(declaration)] = scope.values[id(declaration)]


def _controller_headers(stage: Lowering) -> list[t.StructType]:
    """The headers with @controller_header, whether or not headers_t has them."""
    return [s for s in stage.program.structs if s.declaration.annotation("controller_header") is not None]


def _top_block(stage: Lowering, argument: syntax.Expression) -> ir.Block:
    declaration = argument.type.declaration  # type: ignore[attr-defined]
    bound: Mapping[str, syntax.Expression | None] = {}
    path = declaration.name
    if isinstance(argument, syntax.Call):
        bound = argument.bound
    elif isinstance(argument, syntax.Name) and isinstance(argument.declaration, syntax.Instantiation):
        bound, path = argument.declaration.bound, argument.declaration.name
    scope = Scope(stage, declaration, path)
    return stage.block(
        Instance(declaration, path, constructor_values(scope, declaration, bound, path)), [], argument.at
    )


def _field_lists(metadata: t.Type, path: tuple[str, ...] = ()) -> dict[int, list[tuple[str, ...]]]:
    """The metadata fields with @field_list(number, ...): their paths, by number."""
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
