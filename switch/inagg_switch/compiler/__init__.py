# SPDX-License-Identifier: Apache-2.0
"""The P4_16 compiler: compile_file() and compile_source() turn a program into P4Info and a library that a switch loads.

Each stage is a folder or a module, in this order: `parse` (text to `syntax`), `check` (to typed `syntax`, with `types`
and `targets`), `lower` (to `ir` and its `primitives`), `p4info`, `emit` (to C++) and `build` (to a library). The
docstring of each folder says where to start reading. Between the stages, `reach` finds the code that can run and
`instrument` adds statements for tracing; `fold` computes constants.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch.compiler import build as _build
from inagg_switch.compiler import ir
from inagg_switch.compiler.check.program import CheckedProgram, check
from inagg_switch.compiler.emit.program import emit
from inagg_switch.compiler.instrument import instrument
from inagg_switch.compiler.lower.program import lower
from inagg_switch.compiler.p4info.ids import assign_ids
from inagg_switch.compiler.p4info.messages import layout, p4info
from inagg_switch.compiler.parse.lexer import line_at, tokenize
from inagg_switch.compiler.parse.parser import parse
from inagg_switch.compiler.parse.preprocess import preprocess
from inagg_switch.compiler.reach import reached
from inagg_switch.errors import CompileError, Position

__all__ = ["Compiled", "check_file", "compile_file", "compile_source", "front_end", "generate", "lower_file"]


@dataclass(frozen=True)
class Compiled:
    """A program ready to load. `source` is its preprocessed, self-contained text; it compiles to the same artifact."""

    source: str
    artifact: _build.Artifact


def compile_file(
    path: Path | str,
    defines: Mapping[str, str] | None = None,
    include_paths: Sequence[Path | str] = (),
    *,
    traced: bool = False,
) -> Compiled:
    """Compiles a P4 file, or takes the artifact from the cache. A traced program reports what it does with each packet,
    and is slower. Raises CompileError or ToolchainError."""
    with _preprocessed(path, defines, include_paths) as source:
        return compile_source(source, str(path), traced=traced)


def check_file(
    path: Path | str, defines: Mapping[str, str] | None = None, include_paths: Sequence[Path | str] = ()
) -> tuple[str, P4Info]:
    """Finds all errors that compile_file() would find in a file, without a library. Returns the preprocessed text and
    the P4Info. Raises CompileError."""
    with _preprocessed(path, defines, include_paths) as source:
        return source, generate(source, str(path))[1]


def compile_source(source: str, name: str = "<source>", *, traced: bool = False) -> Compiled:
    """Like compile_file(), for preprocessed text."""
    key = _build.cache_key(source, traced=traced)
    artifact = _build.cached(key)
    if artifact is None:
        with _build.alone(key):
            artifact = _build.cached(key) or _build.build(key, *generate(source, name, traced=traced))
    return Compiled(source, artifact)


def front_end(source: str, name: str = "<source>") -> CheckedProgram:
    """Runs stages 2 to 4 on preprocessed text. Raises CompileError."""
    return check(parse(tokenize(source, name)))


def generate(
    source: str, name: str = "<source>", *, traced: bool = False
) -> tuple[str, P4Info, P4Info, dict[str, int | bool | str]]:
    """Runs stages 2 to 6 on preprocessed text. Returns the C++, the P4Info, its layout and the constants. Raises
    CompileError."""
    with _reported(source, name):
        checked = front_end(source, name)
        lowered = lower(checked)
        found = reached(lowered)
        ids = assign_ids(lowered, found)
        info, whole = p4info(lowered, ids, found), layout(lowered, ids)
        if traced:
            instrument(lowered)
        return emit(lowered, ids, traced=traced), info, whole, checked.constants()


def lower_file(
    path: Path | str, defines: Mapping[str, str] | None = None, include_paths: Sequence[Path | str] = ()
) -> ir.Program:
    """Runs stages 1 to 5 on a file, for callers that inspect a program. Raises CompileError."""
    with _preprocessed(path, defines, include_paths) as source, _reported(source, str(path)):
        return lower(front_end(source, str(path)))


@contextmanager
def _preprocessed(
    path: Path | str, defines: Mapping[str, str] | None, include_paths: Sequence[Path | str]
) -> Iterator[str]:
    """The preprocessed text of a file. Adds to each CompileError the line of the file that it points at."""
    files: Mapping[str, Sequence[str]] = {}
    try:
        preprocessed = preprocess(path, defines, include_paths)
        files = preprocessed.files
        yield preprocessed.text
    except CompileError as error:
        for one in error.errors:
            lines = files.get(one.path)
            if lines is not None and 1 <= one.line <= len(lines):
                one.source_line = lines[one.line - 1]
        raise


@contextmanager
def _reported(source: str, name: str) -> Iterator[None]:
    """Adds to each CompileError the line of `source` that it points at."""
    try:
        yield
    except CompileError as error:
        for one in error.errors:
            one.source_line = line_at(source, name, one.position)
        raise
    except RecursionError:
        raise CompileError("the program is nested too deeply", Position(name, 1, 1)) from None
