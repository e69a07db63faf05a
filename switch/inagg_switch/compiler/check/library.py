# SPDX-License-Identifier: Apache-2.0
"""Compares a program's declarations of core.p4 and v1model.p4 with those of this package.

The later stages know them by name: the parameters of `hash`, the members of `CounterType`, the fields of
standard_metadata_t. A program may bring its own core.p4 and v1model.p4. It may leave out declarations, methods and
members of enums, and add fields to standard_metadata_t; what it has must be the same.
"""

from collections.abc import Sequence

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Checker
from inagg_switch.errors import CompileError

Library = dict[str, set[str]]  # the parts of all versions of a declaration, by its name


def add_to(library: Library, checker: Checker, d: syntax.Declaration) -> None:
    """Adds a declaration of this package's library."""
    parts = _parts(checker, d)
    if parts:
        library.setdefault(d.name, set()).update(parts)


def compare(library: Library, checker: Checker, d: syntax.Declaration) -> None:
    """Raises CompileError if a declaration has a name of the library, but is another one."""
    own, known = _parts(checker, d), library.get(d.name)
    if not own or known is None:
        return
    if not (known <= own if isinstance(d, syntax.StructDeclaration) else own <= known):
        raise CompileError(f"`{d.name}` is declared in another way than in v1model.p4 of inagg_switch", d.at)


def _parts(checker: Checker, d: syntax.Declaration) -> set[str]:
    """What two declarations must have in common; empty if the compiler does not know such declarations by name."""
    if isinstance(d, syntax.Function) and d.body is None:
        return {_signature(d)}
    if isinstance(d, syntax.BlockTypeDeclaration):
        return {f"{d.kind} <{', '.join(d.type_parameters)}>{_parameters(d.parameters)}"}
    if isinstance(d, syntax.ExternDeclaration):
        methods = map(_signature, (*d.methods, *d.constructors))
        return {f"extern <{', '.join(d.type_parameters)}>", *methods}
    made = checker.declared.get(id(d))
    if isinstance(made, t.EnumType):
        return {f"enum {made.base}", *made.members}
    if isinstance(made, t.StructType):
        return {made.kind, *(f"{type_} {name}" for name, type_ in made.fields.items())}
    return set()


def _signature(d: syntax.Function) -> str:
    return f"{d.result_type} {d.name}<{', '.join(d.type_parameters)}>{_parameters(d.parameters)}"


def _parameters(parameters: Sequence[syntax.Parameter]) -> str:
    return f"({', '.join(f'{p.direction} {p.type} {p.name}' for p in parameters)})"
