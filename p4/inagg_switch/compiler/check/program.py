"""Stage 4: resolves names, checks types and directions, evaluates constants.

Works on the syntax tree in place: after it every expression has its `type`, its `value` where it is known at compile
time, every name its declaration and every call its target and bound arguments; implicit conversions are Cast nodes.

One class in several files: _check_types (scopes and type references), _check_conversions, _check_operators,
_check_expressions, _check_calls, _check_statements, _check_tables, _check_parsers, and this one (declarations).
"""

import copy
from dataclasses import dataclass

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.arguments import Binding
from inagg_switch.compiler.check.parsers import ParserChecker
from inagg_switch.compiler.check.types import Scope
from inagg_switch.compiler.diagnostics import FollowUpError
from inagg_switch.errors import CompileError


@dataclass(frozen=True)
class CheckedProgram:
    """What later stages need: the tree, the errors by number, the structs and headers that are declared (but those of
    generic ones), and the `main` package."""

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
    """Checks the whole program. Raises CompileError, which lists the mistakes."""
    checker = _DeclarationChecker()
    with checker.found.of_stage():
        return checker.program(program)


class _DeclarationChecker(ParserChecker):
    def __init__(self) -> None:
        super().__init__()
        self._generic: dict[int, syntax.Function] = {}  # generic functions as written
        self._specialised_functions: dict[tuple[int, tuple[t.Type, ...]], syntax.Function] = {}

    def program(self, program: syntax.Program) -> CheckedProgram:
        for declaration in program.declarations:
            with self.recovering(declaration):
                self._declaration(declaration)
        if self.found:
            raise FollowUpError
        main = self.scope.find("main")
        if not isinstance(main, syntax.Instantiation):
            raise CompileError("the program has no `main` package", program.end)
        return CheckedProgram(program.declarations, self.errors, self.structs(), main)

    def _declaration(self, d: syntax.Declaration) -> None:
        if isinstance(d, syntax.MembersDeclaration):
            self.declare_members(d)
        elif isinstance(d, syntax.ExternDeclaration):
            self._extern(d)
        elif isinstance(d, syntax.BlockTypeDeclaration):
            self._block_type(d)
        elif isinstance(d, syntax.Control):
            self._control(d)
        elif isinstance(d, syntax.Parser):
            self.parser(d)
        elif isinstance(d, syntax.TypeDeclaration):
            self.declare_type(d)
        elif isinstance(d, syntax.Function):
            self._function(d)
        elif isinstance(d, syntax.Action):
            self._action(d)
        else:
            self.statement(d)

    # --- functions and externs

    def parameters(self, parameters: list[syntax.Parameter]) -> None:
        """Resolves the types; declares the names in the scope that is open."""
        optional = False
        for parameter in parameters:
            with self.recovering(parameter):
                parameter.type = t.BROKEN
                parameter.type = self._parameter_type(parameter)
                if parameter.default is not None:
                    parameter.default = self.rvalue(parameter.default, parameter.type)
                    optional = True
                elif optional:
                    raise CompileError("a parameter without a default follows one that has one", parameter.at)
                self.declare(parameter)

    def _parameter_type(self, parameter: syntax.Parameter) -> t.Type:
        type_ = self.type_of(parameter.ref)
        if type_ in (t.STRING, t.INTEGER) and parameter.direction:
            raise CompileError(f"a parameter of type {type_} cannot have a direction", parameter.at)
        if parameter.default is not None and parameter.direction in ("out", "inout"):
            raise CompileError(f"an `{parameter.direction}` parameter cannot have a default", parameter.at)
        return type_

    def _prototype(self, d: syntax.Function) -> None:
        """Types of a function; leaves its scope to the caller."""
        self.parameters(d.parameters)
        d.result_type = t.VOID if d.result is None else self.type_of(d.result)
        if d.result_type == t.INTEGER and d.body is not None:
            raise CompileError(f"function {d.name} cannot return an int", d.at)

    def _function(self, d: syntax.Function) -> None:
        if d.type_parameters:
            self._generic[id(d)] = copy.deepcopy(d)
        with self.type_parameters(d.type_parameters) as variables:
            self.variables[id(d)] = list(variables.values())
            self._prototype(d)
            if not d.type_parameters:
                self._function_body(d)
        self.declare(d)

    def _function_body(self, d: syntax.Function) -> None:
        if d.body is None:
            return
        outside = self.inside, self.result, self._loops
        self.inside, self.result, self._loops = "function", d.result_type, 0
        self.block(d.body)
        if d.result_type != t.VOID and not _always_returns(d.body):
            raise CompileError(f"function {d.name} does not always return a value", d.at)
        self.inside, self.result, self._loops = outside

    def specialised(self, function: syntax.Function, binding: Binding) -> syntax.Function:
        """A generic function's body is checked once for each choice of types."""
        types = tuple(binding[v] for v in self.variables[id(function)])
        key = (id(function), types)
        if key not in self._specialised_functions:
            made = copy.deepcopy(self._generic[id(function)])
            self._specialised_functions[key] = made
            outside, self.scope = self.scope, Scope(self.scope.outermost())
            self.scope.names.update(zip(made.type_parameters, types, strict=True))
            made.type_parameters = []
            self.variables[id(made)] = []
            with self.inner_scope():
                self._prototype(made)
                self._function_body(made)
            self.scope = outside
        return self._specialised_functions[key]

    def _extern(self, d: syntax.ExternDeclaration) -> None:
        self.declare(d)
        with self.type_parameters(d.type_parameters) as variables:
            self.variables[id(d)] = list(variables.values())
            for method in (*d.methods, *d.constructors):
                with self.type_parameters(method.type_parameters) as own:
                    self.variables[id(method)] = list(own.values())
                    self._prototype(method)

    def _block_type(self, d: syntax.BlockTypeDeclaration) -> None:
        with self.type_parameters(d.type_parameters) as variables:
            self.variables[id(d)] = list(variables.values())
            self.parameters(d.parameters)
        self.declare(d)

    # --- controls

    def _control(self, d: syntax.Control) -> None:
        self.no_type_parameters(d)
        with self.inner_scope():
            self.parameters(d.constructor_parameters)
            self.parameters(d.parameters)
            self.inside = "control"
            with self.inner_scope():
                for local in d.locals:
                    with self.recovering(local):
                        self._control_local(local)
                self.block(d.body)
            self.inside = "top"
        self.declare(d)

    def no_type_parameters(self, d: syntax.Control | syntax.Parser) -> None:
        if d.type_parameters:
            raise CompileError(f"{type(d).__name__.lower()} {d.name} has a body and cannot be generic", d.at)
        self.variables[id(d)] = []

    def _control_local(self, local: syntax.Declaration) -> None:
        if isinstance(local, syntax.Action):
            self._action(local)
        elif isinstance(local, syntax.Table):
            self.table(local)
        else:
            self.statement(local)

    def _action(self, d: syntax.Action) -> None:
        outside = self.inside
        self.inside = "action"
        with self.inner_scope():
            self.parameters(d.parameters)
            directions = [p.direction for p in d.parameters]
            if "" in directions and any(directions[directions.index("") :]):
                raise CompileError(f"directionless parameters of action {d.name} must come last", d.at)
            self.block(d.body)
        self.inside = outside
        self.declare(d)


def _always_returns(s: syntax.Statement) -> bool:
    if isinstance(s, syntax.Return):
        return True
    if isinstance(s, syntax.Block):
        return any(_always_returns(x) for x in s.statements)
    if isinstance(s, syntax.If):
        return s.otherwise is not None and _always_returns(s.then) and _always_returns(s.otherwise)
    if isinstance(s, syntax.Switch):
        return any(c.label is None for c in s.cases) and all(
            c.body is None or _always_returns(c.body) for c in s.cases
        )
    return False
