# SPDX-License-Identifier: Apache-2.0
"""Commands on a program: compile it, test it on packet vectors, explain its resources."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf import text_format

from inagg_switch.cli.options import (
    Defines,
    Includes,
    P4File,
    P4FileOrOurs,
    UsageError,
    check_readable,
    parse_defines,
)
from inagg_switch.program.abi import MAX_THREADS


def compile_program(
    program: P4FileOrOurs,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the output.")],
    define: Defines = None,
    include: Includes = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", min=1, max=MAX_THREADS, help="Fail if so many threads cannot run the program."
        ),
    ] = 1,
) -> None:
    """Compile a program: P4Info, device config and C++.

    It writes the P4Info (p4info.txtpb), the device config (PROGRAM.p4, preprocessed; PROGRAM.json has the same for
    clients that expect JSON) and the generated C++ (PROGRAM.cpp, for reading).
    """
    from inagg_switch.p4runtime.device_config import as_json
    from inagg_switch.switch import Switch

    check_readable(program)
    names = ("p4info.txtpb", program.name, *(program.with_suffix(end).name for end in (".json", ".cpp")))
    for path in (output / name for name in names):
        if path.exists() and path.samefile(program):
            raise UsageError(f"{path}: is the program itself: choose another folder with --output")
    compiled = Switch.from_p4(program, parse_defines(define), include_paths=include or (), threads=threads)
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "p4info.txtpb").write_text(text_format.MessageToString(compiled.p4info))
        (output / program.name).write_text(compiled.source)
        (output / program.with_suffix(".json").name).write_text(as_json(compiled.source))
        (output / program.with_suffix(".cpp").name).write_text(compiled.generated.read_text())
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None


def run_vectors(
    program: P4File,
    vectors: Annotated[
        list[Path], typer.Argument(metavar="FILE.vectors...", help="Packets and their expected results.")
    ],
    define: Defines = None,
    include: Includes = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the path of each failed packet below its failure.")
    ] = False,
) -> None:
    """Run a program on packet vectors, each file on a new switch. Exit status 1 if a result differs."""
    from inagg_switch.switch import Switch
    from inagg_switch.vectors.format import VectorError, read_vectors
    from inagg_switch.vectors.run import failures

    check_readable(program)
    passed = 0
    for path in vectors:
        check_readable(path)
        try:
            read = read_vectors(path)
            with Switch.from_p4(
                program, parse_defines(define), include_paths=include or (), traced=trace
            ) as switch:
                found = list(failures(switch, read, traced=trace))
        except VectorError as error:
            print(error, file=sys.stderr)  # starts with file:line
            raise typer.Exit(2) from None
        for failure in found:
            print(failure)
        passed += not found
        print(f"{path}: {len(read.packets)} packets, {len(found)} wrong")
    if len(vectors) > 1:
        print(f"{passed} of {len(vectors)} files pass")
    if passed < len(vectors):
        raise typer.Exit(1)


def explain(
    program: P4FileOrOurs,
    define: Defines = None,
    include: Includes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, not tables.")] = False,
) -> None:
    """Show a program's pipeline, tables, memory, digests, headers."""
    from inagg_switch.explain.report import print_explanation
    from inagg_switch.explain.stages import explain as explain_program

    check_readable(program)
    explanation = explain_program(program, parse_defines(define), include or ())
    if as_json:
        print(json.dumps(dataclasses.asdict(explanation), indent=2))
    else:
        print_explanation(explanation)
