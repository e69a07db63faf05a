# SPDX-License-Identifier: Apache-2.0
"""Adds the name of a declaration to its scope, and computes the values of its annotations."""

from inagg_switch.compiler import syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError, Position


def declare(checker: Checker, declaration: syntax.Declaration) -> None:
    check_annotations(checker, declaration.annotations)
    name = declaration.name
    previous = checker.scope.names.get(name)
    if isinstance(declaration, syntax.Function):
        if previous is None:
            checker.scope.names[name] = [declaration]
            return
        if isinstance(previous, list):
            if any(len(f.parameters) == len(declaration.parameters) for f in previous):
                raise CompileError(
                    f"`{name}` is already declared with the same number of parameters", declaration.at
                )
            previous.append(declaration)
            return
    if previous is not None:
        where = f" at {_place(previous.at)}" if isinstance(previous, syntax.Node) else ""
        raise CompileError(f"`{name}` is already declared{where}", declaration.at)
    checker.scope.names[name] = declaration


def check_annotations(checker: Checker, annotations: list[syntax.Annotation]) -> None:
    """Computes the values of structured annotations, which must be constants."""
    for annotation in annotations:
        if annotation.structured:
            annotation.expressions = [_annotated(checker, e, annotation) for e in annotation.expressions]


def _annotated(checker: Checker, e: syntax.Expression, annotation: syntax.Annotation) -> syntax.Expression:
    checked = rvalue(checker, e)
    if checked.type not in (t.INTEGER, t.BOOL, t.STRING) or checked.value is None:
        raise CompileError(
            f"the values of @{annotation.name}[...] must be constants of type int, bool or string", e.start
        )
    if checked.type == t.INTEGER and not -(1 << 63) <= checked.value < 1 << 63:
        raise CompileError(f"a number in @{annotation.name}[...] needs more than 64 bits", e.start)
    return checked


def _place(at: Position) -> str:
    return f"{at.path}:{at.line}"
