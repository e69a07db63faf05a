# SPDX-License-Identifier: Apache-2.0
"""Stage 1: the C preprocessor of the C++ compiler, run as p4c runs it.

It takes a P4 file and -D defines. It gives one self-contained text, with `# LINE "FILE"` markers, that compiles to the
same program. Comments, and lines that begin with # and are no directive, become blanks.

The preprocessor keeps the line of a token, but not its column: it shortens blanks and expands macros. `align` finds the
tokens again in the file.
"""

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inagg_switch.compiler.diagnostics import Errors
from inagg_switch.compiler.parse.align import align
from inagg_switch.compiler.toolchain import cpp_compiler
from inagg_switch.errors import CompileError, Position, ToolchainError

_log = logging.getLogger(__name__)

P4INCLUDE = Path(__file__).resolve().parents[2] / "p4include"
# Those of p4c-bm2-ss: frontends/common/parser_options.cpp and backends/bmv2/simple_switch/main.cpp
_FLAGS = ("-C", "-undef", "-nostdinc", "-x", "assembler-with-cpp", "-D__TARGET_BMV2__")
# Messages without the source, and columns that count a tab as one.
_MESSAGES = ("-fno-diagnostics-show-caret", "-ftabstop=1")
_STDIN = "<stdin>"  # GCC's name of the text that it reads from a pipe
_MAX_BYTES = 16 << 20  # of preprocessed text: stops a macro bomb

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PLACE = r"(?P<path>[^\n]+?):(?P<line>\d+)"
_MESSAGE = re.compile(rf"{_PLACE}:(?:(?P<column>\d+):)? (?P<kind>(?:fatal )?error|warning): (?P<text>.*)")
_INCLUDED = re.compile(rf"(?:In file included| +) from {_PLACE}[,:]")
_MARKER = re.compile(r'# (\d+) "((?:\\.|[^"\\])*)"((?: \d)*)')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
# A line that begins with # ends a string: an open quote then does not hide the markers.
_SKIPPED = re.compile(
    r'(?P<string>"(?:\\.|[^"\\\n]|\n(?!#))*")|//(?:\\[ \t\r]*\n|[^\n])*|/\*.*?\*/|^[ \t]*#[^\n]*',
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Preprocessed:
    """The text for the next stage, and the original lines of every file for messages."""

    text: str
    files: Mapping[str, Sequence[str]]


def preprocess(
    path: Path | str, defines: Mapping[str, str] | None = None, include_paths: Sequence[Path | str] = ()
) -> Preprocessed:
    """Preprocesses a file. Raises CompileError, also for a file that cannot be read, and ToolchainError."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise CompileError(f"cannot read {path}: {error.strerror}", Position(str(path), 1, 1)) from error
    files = _Files({str(path): _rows(text)})
    return _preprocess(str(path), None, files, defines or {}, include_paths)


def preprocess_text(
    text: str,
    name: str = "<source>",
    defines: Mapping[str, str] | None = None,
    include_paths: Sequence[Path | str] = (),
) -> Preprocessed:
    """Preprocesses a text. Files of #include "..." are searched in the current folder and in `include_paths`. Raises
    CompileError and ToolchainError."""
    files = _Files({name: text.split("\n")}, names={_STDIN: name, "-": name})
    return _preprocess("-", text.encode(), files, defines or {}, include_paths)


class _Files:
    """The files that the preprocessor has read: their names in messages, and their lines."""

    def __init__(self, rows: dict[str, Sequence[str]], names: Mapping[str, str] | None = None) -> None:
        self.rows = rows
        self._names = names or {}
        self._code: dict[str, Sequence[str]] = {}

    def name(self, path: str) -> str:
        """Files of this package have short names, so that messages and cache keys do not depend on where it is
        installed."""
        if Path(path).parent == P4INCLUDE:
            return f"<{Path(path).name}>"
        return self._names.get(path, path)

    def read(self, path: str) -> None:
        """Keeps the lines of a file."""
        if self.name(path) not in self.rows:
            with suppress(OSError):  # of a file that only a marker in the program names
                self.rows[self.name(path)] = _rows(Path(path).read_bytes())

    def line(self, at: Position) -> str | None:
        rows = self.rows.get(at.path, ())
        return rows[at.line - 1] if at.line <= len(rows) else None

    def code(self, name: str) -> Sequence[str] | None:
        """The lines without comments; None of a file that was not read."""
        if name not in self._code and name in self.rows:
            self._code[name] = _without_comments("\n".join(self.rows[name])).split("\n")
        return self._code.get(name)


def _preprocess(
    file: str,
    stdin: bytes | None,
    files: _Files,
    defines: Mapping[str, str],
    include_paths: Sequence[Path | str],
) -> Preprocessed:
    for name in defines:
        if not _IDENTIFIER.fullmatch(name):
            raise CompileError(f"-D {name}: not an identifier", Position("<command line>", 1, 1))
    options = [f"-D{name}={value}" for name, value in defines.items()]
    options += [f"-I{folder}" for folder in (*include_paths, P4INCLUDE)]
    text, messages = _run([*options, file], stdin, Position(files.name(file), 1, 1))
    _report(messages, files)
    return Preprocessed(_with_places(_without_comments(text), files), files.rows)


def _run(arguments: list[str], stdin: bytes | None, start: Position) -> tuple[str, list[str]]:
    """Runs the preprocessor. Returns its output, and its messages line by line. Raises ToolchainError if it fails
    without one, and CompileError if the output is too long."""
    command = [str(cpp_compiler()), "-E", *_MESSAGES, *_FLAGS, *arguments]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as messages:
        given.write(stdin or b"")
        given.seek(0)
        try:
            with subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=messages,
                env={**os.environ, "LC_ALL": "C"},
            ) as process:
                assert process.stdout is not None
                text = process.stdout.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ToolchainError(f"cannot run {command[0]}: {error}") from error
        messages.seek(0)
        said = messages.read().decode(errors="replace").splitlines()
    if len(text) > _MAX_BYTES:
        raise CompileError(f"the preprocessed program is longer than {_MAX_BYTES >> 20} MiB", start)
    if process.returncode != 0 and not any(map(_MESSAGE.match, said)):
        raise ToolchainError(f"{' '.join(command)} failed: {' '.join(said)[-500:]}")
    # Bytes that are not UTF-8 are allowed in comments; elsewhere the lexer rejects their replacement.
    return text.decode(errors="replace"), said


def _report(messages: list[str], files: _Files) -> None:
    """Raises the preprocessor's errors and logs its warnings."""
    errors = Errors()
    stack: list[str] = []  # the #includes that led to the next message
    stacks: dict[str, list[str]] = {}  # the preprocessor gives that of a file once
    with errors.of_stage():
        for message in messages:
            if (found := _INCLUDED.match(message)) is not None:
                stack.append(f"{files.name(found['path'])}:{found['line']}")
            elif (found := _MESSAGE.match(message)) is not None:
                at = Position(files.name(found["path"]), int(found["line"]), int(found["column"] or 1))
                stacks[at.path] = stack or stacks.get(at.path, [])
                text = found["text"] + "".join(
                    f", included from {place}" for place in dict.fromkeys(stacks[at.path])
                )
                stack = []
                if found["kind"] == "warning":
                    _log.warning("%s:%d:%d: warning: %s", *at, text)
                else:
                    files.read(found["path"])
                    errors.report(CompileError(text, at, files.line(at)))


# --- the output


def _without_comments(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        found = match.group()
        if match["string"] or _MARKER.fullmatch(found):
            return found
        return re.sub(r"[^\n]", " ", found)

    return _SKIPPED.sub(blank, text)


def _with_places(text: str, files: _Files) -> str:
    """Writes each token of the preprocessor's output at the place that it has in its file."""
    rows = _numbered(text, files)
    out = _Output()
    for index, (path, line, row) in enumerate(rows):
        after = rows[index + 1] if index + 1 < len(rows) else None
        source = files.code(path)
        if (
            "\n" in row or source is None
        ):  # a string of several lines, or a file that a marker in the program names
            out.line(path, line, row)
        else:
            end = after[1] if after is not None and after[0] == path else len(source) + 1
            for place, piece in align(row, source, line, end):
                out.line(path, place, piece)
    return out.text()


def _numbered(text: str, files: _Files) -> list[tuple[str, int, str]]:
    """The lines that are not blank, with their files and numbers. A string of several lines is one line."""
    rows: list[tuple[str, int, str]] = []
    path, line = "", 0
    inside = _inside_strings(text)
    for index, row in enumerate(text.split("\n")):
        marker = _MARKER.fullmatch(row)
        if marker is not None:
            line = int(marker[1])
            path = files.name(_unescaped(marker[2]))
            if "1" in marker[3].split():  # an #include
                files.read(_unescaped(marker[2]))
            continue
        if index in inside:
            rows[-1] = (*rows[-1][:2], f"{rows[-1][2]}\n{row.rstrip()}")
        elif row.strip():
            rows.append((path, line, row.rstrip()))
        line += 1
    return rows


def _inside_strings(text: str) -> set[int]:
    """The lines, from 0, that begin inside a string."""
    found: set[int] = set()
    for match in _SKIPPED.finditer(text):
        if "\n" in match.group():
            first = text.count("\n", 0, match.start())
            found.update(range(first + 1, first + 1 + match.group().count("\n")))
    return found


def _unescaped(path: str) -> str:
    """The file name in a marker."""
    return _ESCAPE.sub(
        lambda m: bytes([int(m[1], 8)]) if len(m[1]) == 3 else m[1], path.encode("utf-8", "surrogateescape")
    ).decode(errors="replace")


def _rows(text: bytes) -> list[str]:
    return text.decode("utf-8-sig", errors="replace").split("\n")


class _Output:
    """The text so far, and the place of its next line in the original files."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._path = ""
        self._line = 0

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def line(self, path: str, line: int, text: str) -> None:
        gap = line - self._line
        if path == self._path and 0 <= gap <= 8:
            self._lines.extend([""] * gap)
        else:
            self._lines.append(f'# {line} "{path}"')
        self._lines.append(text)
        self._path, self._line = path, line + 1 + text.count("\n")
