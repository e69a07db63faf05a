# SPDX-License-Identifier: Apache-2.0
"""Stage 4: resolves names, checks types and directions, evaluates constants.

It changes the syntax tree in place. After it, every expression has its `type`, and its `value` if that is known at
compile time; every name has its declaration; every call has its target and its bound arguments; implicit conversions
are Cast nodes.
"""

from dataclasses import dataclass
from functools import cache

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.calls import call
from inagg_switch.compiler.check.context import Checker, Checkers
from inagg_switch.compiler.check.expressions import expression
from inagg_switch.compiler.check.functions import (
    check_function,
    check_parameters,
    check_prototype,
    no_type_parameters,
    specialised,
)
from inagg_switch.compiler.check.library import Library, add_to, compare
from inagg_switch.compiler.check.names import declare
from inagg_switch.compiler.check.parsers import check_parser
from inagg_switch.compiler.check.statements import check_block, check_statement
from inagg_switch.compiler.check.tables import check_table
from inagg_switch.compiler.check.types import declare_members, declare_type
from inagg_switch.compiler.diagnostics import FollowUpError
from inagg_switch.compiler.parse.lexer import tokenize
from inagg_switch.compiler.parse.parser import parse
from inagg_switch.compiler.parse.preprocess import P4INCLUDE, preprocess
from inagg_switch.errors import CompileError


@dataclass(frozen=True)
class CheckedProgram:
    """The result of the stage: the tree, the errors by number, the declared structs and headers (without generic ones),
    and the `main` package."""

    declarations: list[syntax.Declaration]
    errors: dict[str, int]
    structs: list[t.StructType]
    main: syntax.Instantiation

    def constants(self) -> dict[str, int | bool | str]:
        """Top-level constants with a scalar value, by name."""
        return {
            d.name: d.value.value
            for d in self.declarations
            if isinstance(d, syntax.Constant) and isinstance(d.value.value, int | bool | str)
        }


def check(program: syntax.Program) -> CheckedProgram:
    """Checks a whole program. Raises CompileError, which lists the mistakes."""
    checker = Checker(Checkers(expression, call, specialised))
    with checker.found.of_stage():
        return _check_program(checker, program)


def _check_program(checker: Checker, program: syntax.Program) -> CheckedProgram:
    for declaration in program.declarations:
        with checker.recovering(declaration):
            _declaration(checker, declaration)
    if checker.found:
        raise FollowUpError
    main = checker.scope.find("main")
    if not isinstance(main, syntax.Instantiation):
        raise CompileError("the program has no `main` package", program.end)
    if isinstance(main.type, t.BlockType) and main.type.name == "V1Switch":
        for declaration in program.declarations:
            with checker.recovering():
                compare(_library(), checker, declaration)
        if checker.found:
            raise FollowUpError
    return CheckedProgram(program.declarations, checker.errors, checker.structs(), main)


@cache
def _library() -> Library:
    """The declarations of this package's core.p4 and v1model.p4."""
    library: Library = {}
    for version in ("20180101", "20200408"):  # without and with types of indices
        text = preprocess(P4INCLUDE / "v1model.p4", {"V1MODEL_VERSION": version}).text
        checker = Checker(Checkers(expression, call, specialised))
        for declaration in parse(tokenize(text)).declarations:
            _declaration(checker, declaration)
            add_to(library, checker, declaration)
    return library


def _declaration(checker: Checker, d: syntax.Declaration) -> None:
    if isinstance(d, syntax.MembersDeclaration):
        declare_members(checker, d)
    elif isinstance(d, syntax.ExternDeclaration):
        _extern(checker, d)
    elif isinstance(d, syntax.BlockTypeDeclaration):
        _block_type(checker, d)
    elif isinstance(d, syntax.Control):
        _control(checker, d)
    elif isinstance(d, syntax.Parser):
        check_parser(checker, d)
    elif isinstance(d, syntax.TypeDeclaration):
        declare_type(checker, d)
    elif isinstance(d, syntax.Function):
        check_function(checker, d)
    elif isinstance(d, syntax.Action):
        _action(checker, d)
    else:
        check_statement(checker, d)


# --- functions and externs


def _extern(checker: Checker, d: syntax.ExternDeclaration) -> None:
    declare(checker, d)
    scope = checker.scope
    try:
        with checker.type_parameters(d.type_parameters) as variables:
            checker.variables[id(d)] = list(variables.values())
            for method in (*d.methods, *d.constructors):
                with checker.type_parameters(method.type_parameters) as own:
                    checker.variables[id(method)] = list(own.values())
                    check_prototype(checker, method)
    except CompileError:
        scope.names[d.name] = t.BROKEN
        raise


def _block_type(checker: Checker, d: syntax.BlockTypeDeclaration) -> None:
    with checker.type_parameters(d.type_parameters) as variables:
        checker.variables[id(d)] = list(variables.values())
        check_parameters(checker, d.parameters)
    declare(checker, d)


# --- controls


def _control(checker: Checker, d: syntax.Control) -> None:
    no_type_parameters(checker, d)
    with checker.inner_scope():
        check_parameters(checker, d.constructor_parameters)
        check_parameters(checker, d.parameters)
        checker.inside = "control"
        with checker.inner_scope():
            for local in d.locals:
                with checker.recovering(local):
                    _control_local(checker, local)
            check_block(checker, d.body)
        checker.inside = "top"
    declare(checker, d)


def _control_local(checker: Checker, local: syntax.Declaration) -> None:
    if isinstance(local, syntax.Action):
        _action(checker, local)
    elif isinstance(local, syntax.Table):
        check_table(checker, local)
    else:
        check_statement(checker, local)


def _action(checker: Checker, d: syntax.Action) -> None:
    outside = checker.inside
    checker.inside = "action"
    with checker.inner_scope():
        check_parameters(checker, d.parameters)
        directions = [p.direction for p in d.parameters]
        if "" in directions and any(directions[directions.index("") :]):
            raise CompileError(f"directionless parameters of action {d.name} must come last", d.at)
        check_block(checker, d.body)
    checker.inside = outside
    declare(checker, d)
