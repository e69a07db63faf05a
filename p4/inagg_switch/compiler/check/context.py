# SPDX-License-Identifier: Apache-2.0
"""What the parts of the checker share: the names in scope, the types that are declared, and the errors found so far."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.diagnostics import Errors, FollowUpError
from inagg_switch.errors import CompileError

Binding = dict[t.TypeVariable, t.Type]
Entry = syntax.Node | list[syntax.Function] | t.Type


class Scope:
    """Names of one block; looks outwards."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.names: dict[str, Entry] = {}

    def find(self, name: str, *, absolute: bool = False) -> Entry | None:
        """What a name means here, or with a dot before it. Raises FollowUpError if its declaration is wrong."""
        scope: Scope | None = self.outermost() if absolute else self
        while scope is not None:
            if name in scope.names:
                found = scope.names[name]
                if found is t.BROKEN:
                    raise FollowUpError
                return found
            scope = scope.parent
        return None

    def outermost(self) -> "Scope":
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


@dataclass(frozen=True)
class Checkers:
    """What modules need of those that are built on them: a type has expressions in it, an expression calls, and a call
    of a generic function needs its body checked."""

    expression: "Callable[[Checker, syntax.Expression], syntax.Expression]"
    call: "Callable[[Checker, syntax.Call], syntax.Expression]"
    specialised: "Callable[[Checker, syntax.Function, Binding], syntax.Function]"


class Checker:
    """The state of the stage."""

    def __init__(self, checkers: Checkers) -> None:
        self.checkers = checkers
        self.found = Errors()
        # What could not be checked to its end; the error may be one that is reported already.
        self.failures = 0
        self.scope = Scope()
        self.inside = "top"  # or parser, control, action, function, key
        self.loops = 0  # around the statement that is being checked
        self.result: t.Type | None = None  # of the function that is being checked
        self.errors: dict[str, int] = {}  # members of `error`, numbered from 0
        self.match_kinds: set[str] = set()
        self.declared: dict[int, t.Type] = {}  # types, by the id of their declaration
        self.specialised_types: dict[tuple[int, tuple[t.Type, ...]], t.Type] = {}
        self.variables: dict[
            int, list[t.TypeVariable]
        ] = {}  # type parameters of functions, externs and blocks
        self.generic: dict[int, syntax.Function] = {}  # generic functions as written
        self.specialised_functions: dict[tuple[int, tuple[t.Type, ...]], syntax.Function] = {}
        self._owners = 0

    @contextmanager
    def recovering(self, declaration: syntax.Declaration | None = None) -> Iterator[None]:
        """Checks a part of the program. After an error in it, what comes behind is checked as well; the name of a
        declaration that is wrong stands for something that fits everything."""
        scope = self.scope
        around = self.inside, self.result, self.loops
        try:
            yield
        except CompileError as error:
            self.scope = scope
            self.failures += 1
            if declaration is not None:
                scope.names.setdefault(declaration.name, t.BROKEN)
            self.found.report(error)
        self.inside, self.result, self.loops = around

    @contextmanager
    def inner_scope(self) -> Iterator[Scope]:
        self.scope = Scope(self.scope)
        try:
            yield self.scope
        finally:
            assert self.scope.parent is not None
            self.scope = self.scope.parent

    @contextmanager
    def type_parameters(self, names: list[str]) -> Iterator[dict[str, t.TypeVariable]]:
        """A scope in which the names are fresh type variables."""
        self._owners += 1
        variables = {name: t.TypeVariable(name, self._owners) for name in names}
        with self.inner_scope() as scope:
            scope.names.update(variables)
            yield variables

    def structs(self) -> list[t.StructType]:
        """Those declared so far, in order."""
        return [made for made in self.declared.values() if isinstance(made, t.StructType)]
