# SPDX-License-Identifier: Apache-2.0
"""The state that the modules of the checker share: the names in scope, the declared types, and the errors found."""

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
    """The names of one block. find() looks in the outer scopes too."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.names: dict[str, Entry] = {}

    def find(self, name: str, *, absolute: bool = False) -> Entry | None:
        """The declaration of a name, or None; `absolute` is for a name with a dot in front. Raises FollowUpError if the
        declaration has an error."""
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
    """Functions of modules that import their callers: a type contains expressions, an expression contains calls, and
    the call of a generic function checks its body."""

    expression: "Callable[[Checker, syntax.Expression], syntax.Expression]"
    call: "Callable[[Checker, syntax.Call], syntax.Expression]"
    specialised: "Callable[[Checker, syntax.Function, Binding], syntax.Function]"


class Checker:
    """The state of the stage."""

    def __init__(self, checkers: Checkers) -> None:
        self.checkers = checkers
        self.found = Errors()
        # Parts that were not checked to the end. Their error may be reported already.
        self.failures = 0
        self.scope = Scope()
        self.inside = "top"  # or parser, control, action, function, key
        self.loops = 0  # that enclose the present statement
        self.result: t.Type | None = None  # of the present function
        self.errors: dict[str, int] = {}  # members of `error`, numbered from 0
        self.match_kinds: set[str] = set()
        self.declared: dict[int, t.Type] = {}  # types, by the id of their declaration
        self.specialised_types: dict[tuple[int, tuple[t.Type, ...]], t.Type] = {}
        self.variables: dict[
            int, list[t.TypeVariable]
        ] = {}  # type parameters of functions, externs and blocks
        self.generic: dict[int, syntax.Function] = {}  # unchecked copies of generic functions
        self.specialised_functions: dict[tuple[int, tuple[t.Type, ...]], syntax.Function] = {}
        self._owners = 0

    @contextmanager
    def recovering(self, declaration: syntax.Declaration | None = None) -> Iterator[None]:
        """Checks a part of the program. After an error in it, the check goes on with the next part; the name of an
        erroneous declaration then fits everything."""
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
        """The structs and headers declared so far, in order."""
        return [made for made in self.declared.values() if isinstance(made, t.StructType)]
